"""Start the ranks of a job on this host, and bring their exit code and their last words home.

    bitring ... -np 4
      launch()           makes BITRING_EXIT_FILE, starts mpirun or horovodrun, passes signals on
        mpirun           quiet (-q): what it says about a rank that failed hides the rank's own words
          rank 0 .. 3    python -m mpi4py -m toolkit.cli ...; ends with leave(code, message)
      launch()           prints each message once, returns the highest code

Nothing heavy is imported here: the launching process needs neither torch nor MPI.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from toolkit.errors import UserError, nearest

LAUNCHERS = ("auto", "mpirun", "horovodrun")
EXIT_FILE = "BITRING_EXIT_FILE"
TIMED_OUT = 124
LOST = 3  # a rank died, was stopped or silent, or the ranks were out of step (toolkit/comm/watch.py)

_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK")
_LAST_WORDS_S = 1.0  # how long a failing rank waits for the others to say the same
_GRACE_S = 10.0  # between SIGTERM and SIGKILL
_witness: Callable[[], str] | None = None
# Not SIGILL: 132 is also what mpirun ends with when it can't start a rank.
_DEADLY = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)
_GET_OPEN_MPI = "run `make setup`, or as an administrator `apt-get install openmpi-bin libopenmpi-dev`"


def job_size() -> int | None:
    """Ranks of the MPI job that this process was started in; None outside one. Imports no MPI."""
    size = _first_number(_SIZE_VARIABLES)
    if size is None and "PMIX_RANK" in os.environ:  # srun --mpi=pmix
        size = _first_number(("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    return size


def job_rank() -> int:
    """Rank of this process in that job; 0 outside one."""
    return _first_number(_RANK_VARIABLES) or 0


def refuse_gloo() -> None:
    """Raise UserError when Horovod's Gloo controller started this process: there is no MPI job then."""
    gloo = "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ or os.environ.get("HOROVOD_CONTROLLER") == "gloo"
    if gloo and job_size() is None:
        raise UserError(
            "horovodrun --gloo starts processes without an MPI job, so every one of them would be rank 0 of 1; "
            "start with `horovodrun --mpi`, with `mpirun`, or with `bitring ... -np N`"
        )


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_launchers() -> list[str]:
    """Launchers that can start a job here, the preferred one first."""
    if not _find("mpirun"):
        return []
    horovod = importlib.util.find_spec("horovod") is not None and _find("horovodrun") is not None
    return ["horovodrun", "mpirun"] if horovod else ["mpirun"]


def launch(
    arguments: list[str],
    ranks: int,
    launcher: str = "auto",
    module: str = "toolkit.cli",
    timeout_s: float | None = None,
    grace_s: float = 0.0,
) -> int:
    """Run ``python -m module arguments`` as ``ranks`` ranks on this host; return the job's exit code.

    ``auto`` takes horovodrun where it is installed, else mpirun. The code is the highest that a rank
    gave to `leave`; else the launcher's own, 128 + n for signal n; 124 after ``timeout_s``.
    SIGINT, SIGTERM and SIGHUP end the ranks as well; with ``grace_s`` they and SIGUSR1 go to the ranks
    first, which have that long to end by themselves. Raises UserError when there is no way to start.
    """
    if ranks < 1:
        raise UserError(f"{ranks} ranks were asked for; give a number >= 1")
    if job_size() is not None:
        raise UserError(
            f"this process is rank {job_rank()} of an MPI job of {job_size()} already; start a job either with "
            "-np, or with mpirun and without -np"
        )
    command = [*_launcher_command(launcher, ranks), sys.executable, "-P", "-m", "mpi4py", "-m", module, *arguments]
    with tempfile.TemporaryDirectory(prefix="bitring-") as folder:
        exit_file = Path(folder, "exit")
        exit_file.touch()
        job = _Job(command, environment(ranks) | {EXIT_FILE: str(exit_file)}, timeout_s, grace_s)
        code = job.run()
        return _exit_code(code, job, _read_records(exit_file), ranks)


def environment(ranks: int) -> dict[str, str]:
    """The environment for ``ranks`` ranks on this host; what the user has set is kept."""
    env = dict(os.environ)
    env["PATH"] = search_path()
    root = Path(__file__).resolve().parent.parent
    if root.name not in ("site-packages", "dist-packages"):  # the ranks import the toolkit that we are
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH")]))
    defaults = {
        "OMP_NUM_THREADS": str(max(1, cores() // ranks)),
        # mpirun gives the ranks a terminal for stdout and a pipe for stderr, whatever ours are
        "BITRING_TTY": str(int(sys.stderr.isatty())),
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    if ranks > cores():
        defaults["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if sys.stderr.isatty():
        defaults["COLUMNS"] = str(shutil.get_terminal_size().columns)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        for prefix in ("OMPI", "PRTE"):
            defaults |= {f"{prefix}_ALLOW_RUN_AS_ROOT": "1", f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return defaults | env


def leave(code: int, message: str = "") -> NoReturn:
    """End this process with ``code``; ``message`` reaches the user once, however many ranks say it.

    Every rank calls it, last of all. A rank may fail alone: with a code other than 0 the others
    are aborted, wherever they wait. Outside an MPI job: print, then exit.
    """
    _flush()
    if code and _witness is not None:
        _witness()
    size, rank, path = job_size() or 1, job_rank(), os.environ.get(EXIT_FILE)
    if path:
        _write_record(path, {"rank": rank, "code": code, "message": message})
        if code and size > 1:
            _wait_for_records(Path(path), size)
    elif message:
        if rank:
            time.sleep(_LAST_WORDS_S)  # the sentence is the same on most occasions: rank 0's is enough
        print(message, file=sys.stderr, flush=True)
    if code:
        abort(code)
    sys.exit(0)


def abort(code: int) -> NoReturn:
    """End the whole job at once with ``code`` (not 0); without a job of several ranks, this process."""
    _flush()
    if _witness is not None:
        _witness()
    mpi = sys.modules.get("mpi4py.MPI")
    if (job_size() or 1) > 1 and mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(code)
    if threading.current_thread() is not threading.main_thread():
        os._exit(code)  # a SystemExit would only end the thread
    sys.exit(code)


def end_job(code: int, message: str) -> NoReturn:
    """End the whole job at once, one rank speaking for all: ``message`` reaches the user as it is."""
    if path := os.environ.get(EXIT_FILE):
        _write_record(path, {"rank": job_rank(), "code": code, "message": message, "for_all": True})
    else:
        print(message, file=sys.stderr, flush=True)
    abort(code)


def set_witness(witness: Callable[[], str] | None) -> None:
    """Ask ``witness`` where this rank is when it ends with an error."""
    global _witness
    _witness = witness


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed by the caller's shell
            with contextlib.suppress(OSError):
                stream.flush()


def install_excepthook() -> None:
    """From here on an uncaught exception, in any thread, prints its traceback and aborts the job."""

    def report(error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            abort(128 + signal.SIGINT)
        where = f" in {_witness()}" if _witness is not None else ""
        rank = f"rank {job_rank()}{where}: " if job_size() else ""
        sys.stderr.write(rank + "".join(traceback.format_exception(error.with_traceback(_own_frames(error)))))
        if path := os.environ.get(EXIT_FILE):
            _write_record(path, {"rank": job_rank(), "code": 1, "message": ""})
        abort(1)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            report(args.exc_value)

    sys.excepthook = lambda kind, error, trace: report(error)
    threading.excepthook = in_thread


def _own_frames(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of ``python -m mpi4py -m`` above our module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        name = trace.tb_frame.f_globals.get("__name__", "")
        if name != "runpy" and "mpi4py" not in trace.tb_frame.f_code.co_filename:
            break
        trace = trace.tb_next
    return trace


def _launcher_command(launcher: str, ranks: int) -> list[str]:
    if launcher not in LAUNCHERS:
        raise UserError(f"unknown launcher {launcher!r}; {nearest(launcher, LAUNCHERS)}")
    if importlib.util.find_spec("mpi4py") is None:
        raise UserError("mpi4py is not installed, and several ranks need it; run `make setup` or `pip install mpi4py`")
    available = available_launchers()
    if not available:
        raise UserError(f"no mpirun next to {sys.executable} or on PATH, so no ranks can be started; {_GET_OPEN_MPI}")
    if launcher == "horovodrun" and launcher not in available:
        raise UserError(
            "horovodrun is not installed next to this Python or on PATH; run `make setup`, or use --launcher mpirun"
        )
    quiet = [] if os.environ.get("BITRING_VERBOSE") else ["-q"]
    mpirun = str(_find("mpirun"))
    open_mpi = _is_open_mpi(mpirun)
    if launcher == "auto":
        launcher = available[0] if open_mpi else "mpirun"
    if launcher == "horovodrun":
        # It hard-codes --tag-output ("[1,0]<stdout>:" before every line); a later parameter undoes it.
        # Its cache in ~/.horovod is not safe for two launches at a time, and need not be writable.
        options = " ".join([*quiet, "--mca orte_tag_output 0"])
        return [str(_find("horovodrun")), "--mpi", "--disable-cache", "-np", str(ranks), f"--mpi-args={options}"]
    if open_mpi:
        return [mpirun, *quiet, "--host", f"localhost:{ranks}", "--bind-to", "none", "-np", str(ranks)]
    return [mpirun, "-np", str(ranks)]


def _is_open_mpi(mpirun: str) -> bool:
    result = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False)
    return any(name in result.stdout for name in ("Open MPI", "OpenRTE", "PRRTE"))


def _find(program: str) -> str | None:
    return shutil.which(program, path=search_path())


def search_path() -> str:
    """PATH with the interpreter's own folder in front: the virtual environment need not be activated."""
    return os.pathsep.join(filter(None, [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]))


def _first_number(variables: tuple[str, ...]) -> int | None:
    return next((int(os.environ[name]) for name in variables if os.environ.get(name, "").isdigit()), None)


@dataclass(slots=True)
class _Job:
    """A launcher's process: run it, pass signals on, leave no rank behind."""

    command: list[str]
    env: dict[str, str]
    timeout_s: float | None
    grace_s: float = 0.0
    received: int = 0
    to_pass_on: int = 0
    passed_on_at: float = float("inf")
    timed_out: bool = False
    kill_at: float = field(default=float("inf"))

    def run(self) -> int:
        """Start, wait; the exit code of the launcher, negative for a signal."""
        with self._signals():
            # A session of its own: Ctrl-C reaches the launcher through us, once and as SIGTERM
            # (horovodrun answers SIGINT with a traceback).
            try:
                process = subprocess.Popen(self.command, env=self.env, stdin=subprocess.DEVNULL, start_new_session=True)
            except OSError as error:
                raise UserError(f"can't start {self.command[0]}: {error.strerror}; see `bitring doctor`") from None
            guard = _guard(process.pid)
            try:
                return self._wait(process)
            finally:
                guard.kill()
                guard.communicate()
                self._clear(process)

    def _clear(self, process: subprocess.Popen[bytes]) -> None:
        """Leave no process of the job behind; after an orderly end there is none."""
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode == 0:
            return
        # horovodrun's shell is gone before the mpirun under it has cleaned up
        setting, until = f"{EXIT_FILE}={self.env[EXIT_FILE]}", min(self.kill_at, time.monotonic() + _GRACE_S)
        while (left := _processes_with(setting)) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        deadline = float("inf") if self.timeout_s is None else time.monotonic() + self.timeout_s
        while True:
            if self.to_pass_on:
                number, self.to_pass_on = self.to_pass_on, 0
                self._pass_on(number)
            if self.received and self.kill_at == float("inf") and not self._may_end_by_themselves():
                self._terminate(process)
            try:
                return process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if now > self.kill_at:
                return -signal.SIGKILL  # _clear does it
            elif now > deadline and not self.timed_out:
                self.timed_out = True
                self._terminate(process)

    def _terminate(self, process: subprocess.Popen[bytes]) -> None:
        self.kill_at = time.monotonic() + _GRACE_S
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)

    def _may_end_by_themselves(self) -> bool:
        """Whether the ranks were asked and still have time."""
        return self.grace_s > 0 and time.monotonic() < self.passed_on_at + self.grace_s

    def _pass_on(self, number: int) -> None:
        """To the ranks themselves: mpirun would kill them a second later, and horovodrun sooner."""
        ranks = _ranks_with(f"{EXIT_FILE}={self.env[EXIT_FILE]}")
        # before there are ranks the launcher itself is told to end
        self.passed_on_at = time.monotonic() if ranks else -float("inf")
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self.to_pass_on = number
            return
        if self.received:  # asked twice: at once
            self.kill_at = 0.0
        elif self.grace_s:
            self.to_pass_on = number
        self.received = self.received or number

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are the main thread's business
            return
        numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        if self.grace_s:
            numbers.append(signal.SIGUSR1)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _guard(group: int) -> subprocess.Popen[bytes]:
    """A process that ends the job if we die without doing so: our SIGKILL closes its stdin."""
    script = 'read -r line; kill -s TERM -- "-$0"'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _processes_with(setting: str) -> list[int]:
    """Processes of ours with this NAME=value in the environment they were started with (Linux)."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if setting.encode() in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
    return found


def _ranks_with(setting: str) -> list[int]:
    """Those of them that are ranks: not the launcher, its shell or its daemon."""
    ranks = []
    for pid in _processes_with(setting):
        with contextlib.suppress(OSError):
            names = {
                line.partition(b"=")[0].decode() for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            }
            if names & set(_RANK_VARIABLES):
                ranks.append(pid)
    return ranks


def _write_record(path: str, record: dict[str, object]) -> None:
    """One line at once, so that ranks don't get into each other's."""
    with contextlib.suppress(OSError):  # the launching process is gone: nobody listens
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, json.dumps(record).encode() + b"\n")
        os.close(descriptor)


def _read_records(path: Path) -> list[dict[str, object]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    records = []
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):  # a rank was killed while it wrote
            records.append(json.loads(line))
    return records


def _wait_for_records(path: Path, size: int) -> None:
    deadline = time.monotonic() + _LAST_WORDS_S
    while time.monotonic() < deadline and len({r["rank"] for r in _read_records(path)}) < size:
        time.sleep(0.02)


def _exit_code(launcher_code: int, job: _Job, records: list[dict[str, object]], ranks: int) -> int:
    """The job's exit code; says on stderr what the user would not know otherwise."""
    _print_messages(records, ranks)
    if job.received:
        return 128 + job.received
    if job.timed_out:
        print(f"bitring: the ranks were stopped after {job.timeout_s:g} s", file=sys.stderr)
        return TIMED_OUT
    code = 128 - launcher_code if launcher_code < 0 else launcher_code
    recorded = max((int(str(r["code"])) for r in records), default=0)
    if recorded or not code:
        return recorded
    if code - 128 in _DEADLY:
        print(f"bitring: a rank was killed by {_signal_name(code - 128)}", file=sys.stderr)
    else:
        print(
            f"bitring: the ranks ended with exit code {code}; if nothing above says why, set BITRING_VERBOSE=1 "
            "to hear the launcher as well",
            file=sys.stderr,
        )
    return code


def _print_messages(records: list[dict[str, object]], ranks: int) -> None:
    said: dict[str, set[int]] = {}
    for record in records:
        if message := str(record["message"]):
            speakers = range(ranks) if record.get("for_all") else (int(str(record["rank"])),)
            said.setdefault(message, set()).update(speakers)
    for message, by in said.items():
        who = "" if len(by) == ranks else f" (rank {', '.join(map(str, sorted(by)))})"
        print(message + who, file=sys.stderr)


def _signal_name(number: int) -> str:
    name = signal.Signals(number).name
    return f"{name}; the host may be out of memory" if number == signal.SIGKILL else name
