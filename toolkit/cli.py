"""The command `bitring`: parse, dispatch, leave with the right exit code.

Imports stay inside the commands: `bitring --help` must not wait for torch.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable

from toolkit import __version__
from toolkit.commands import options
from toolkit.errors import UserError
from toolkit.launch import LAUNCHERS, leave

DESCRIPTION = """\
Full-graph training of graph neural networks over MPI.

  bitring train examples/digits.toml -np 2      train over 2 ranks of this machine
  bitring plan examples/digits.toml -np 4       what would travel, row by row
  bitring verify examples/digits.toml -np 4     N ranks against one process
  bitring config                                every key of a configuration
  bitring doctor                                what is installed, what is missing
"""

TRAIN_EPILOG = """\
Started by itself, it starts -np ranks on this machine. Inside a job it joins the job:

  bitring train graph.toml -np 4
  mpirun -np 4 bitring train graph.toml
  horovodrun -np 4 -H a:2,b:2 bitring train graph.toml

The graph is partitioned once and cached; every rank loads only its own part. The run folder
holds config.toml (resolved), run.json (versions, host), metrics.jsonl (a line an epoch),
workload.npz (what an epoch moves and computes), weights.safetensors (at best validation) and
checkpoints/. SIGTERM, SIGUSR1 or Ctrl-C: the epoch is finished, the state saved, exit code
128 + signal. The run continues, to the same bits, with

  bitring train --resume runs/NAME-DATE

A rank that dies, stops or gets out of step ends the job: exit code 3, and a sentence that names it.
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point. Exit code 2: input that can't be used; 1: a check that failed; 0: done."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        args = parser().parse_args(argv)
        args.argv = argv
        code = int(args.run(args))
        if sys.stdout is not None:
            sys.stdout.flush()
    except UserError as error:
        leave(2, f"bitring: {error}")
    except KeyboardInterrupt:
        leave(130, "bitring: interrupted")
    except BrokenPipeError:  # the reader of a pipe has seen enough; nothing more may be flushed to it
        sys.stdout = None
        leave(0)
    except MemoryError as error:
        leave(1, f"bitring: out of memory ({error}); use more ranks or hosts, a smaller model or data.project_to")
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's; torch is not imported for its sake
            raise
        told = str(error).split(". ")[0]
        leave(1, f"bitring: {told}; use more GPUs or hosts, a smaller model, or train.device = 'cpu'")
    leave(code)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="bitring", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"bitring {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    train = _command(commands, "train", "train a model on a whole graph", "train:run", TRAIN_EPILOG)
    _add_config(train, optional=True)
    _add_ranks(train)
    train.add_argument(
        "--resume",
        metavar="DIR",
        help="continue the run in this folder from its newest checkpoint (CONFIG.toml and -np: as it was, if left out)",
    )
    train.add_argument("--run-dir", metavar="DIR", help="folder of the run (default: <run.out>/<run.name>-<date>)")
    train.add_argument(
        "--seeds", type=int, metavar="K", help="train from K seeds (default 1); mean and deviation are printed"
    )

    partition = _command(commands, "partition", "partition a graph and report cut, halo, bytes", "plan:run_partition")
    plan = _command(
        commands, "plan", "print what travels per layer and direction, and what each step saves", "plan:run_plan"
    )
    for sub in (partition, plan):
        _add_config(sub)
        sub.add_argument("-np", "--ranks", type=int, required=True, metavar="N", help="ranks to partition for")
        sub.add_argument("--json", action="store_true", help="the same for programs")

    verify = _command(
        commands,
        "verify",
        "compare N ranks with one process: loss, gradients, weights",
        "verify:run",
        "With --set train.dtype=float64 rounding is 1e-9 or less: what is larger is an error.",
    )
    _add_config(verify)
    _add_ranks(verify)
    verify.add_argument("--steps", type=int, default=20, metavar="K", help="optimiser steps (default 20)")
    verify.add_argument(
        "--tolerance", type=float, metavar="X", help="largest difference allowed (default 1e-5, float64 1e-9)"
    )

    noise = _command(
        commands,
        "noise",
        "how much noise the codec adds to the weight gradients, beside dropout's",
        "noise:run",
        "Trains first, since gradients at the start are not those of training.",
    )
    _add_config(noise)
    _add_ranks(noise)
    noise.add_argument("--after", type=int, default=20, metavar="K", help="epochs trained before (default 20)")
    noise.add_argument("--draws", type=int, default=4, metavar="K", help="draws of the codec's noise (default 4)")
    noise.add_argument("--json", action="store_true", help="the same for programs")

    calibrate = _command(
        commands,
        "calibrate",
        "measure what a message costs between every pair of ranks",
        "calibrate:run",
        "In the range of bytes that the configuration sends. `bitring simulate` reads what it writes.",
    )
    _add_config(calibrate)
    _add_ranks(calibrate)
    calibrate.add_argument("--out", default="machine.toml", metavar="FILE", help="file to write (machine.toml)")

    _add_offline(commands)

    data = commands.add_parser("data", help="list, show, export data sets", description="Data sets.")
    data_commands = data.add_subparsers(metavar="COMMAND", required=True)
    _command(data_commands, "list", "the data sets known by name, and which are on disk", "data:run_list")
    show = _command(data_commands, "show", "numbers of one graph: degrees, components, splits", "data:run_show")
    export = _command(data_commands, "export", "write a graph in bitring's own npz format", "data:run_export")
    for sub in (show, export):
        sub.add_argument("name", help="a name of `bitring data list`, a .npz file, or a configuration")
        sub.add_argument("--set", action="append", default=[], metavar="data.key=value", help="override a key")
    export.add_argument("to", metavar="FILE.npz", help="file to write")

    _command(commands, "config", "print every key with its default, its choices and its meaning", "info:run_config")
    _command(commands, "methods", "print the table of methods", "info:run_methods")
    doctor = _command(commands, "doctor", "what is installed, what is missing, how to get it", "info:run_doctor")
    doctor.add_argument("--json", action="store_true", help="the same for programs")
    check = _command(commands, "check", "does what is installed work? ten seconds", "info:run_check")
    check.add_argument(
        "--require", default="", metavar="LIST", help="fail if one of these is missing: horovod,glpk,mpi"
    )
    return top


def _add_offline(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What needs neither MPI nor torch: a recorded workload and a machine."""
    simulate = _command(
        commands,
        "simulate",
        "how long an epoch takes: of a recorded run or of none, by any method, with stragglers",
        "simulate:run",
        options.SIMULATE_EPILOG,
    )
    options.add_simulate(simulate)
    trace = _command(
        commands,
        "trace",
        "the timeline of a simulated epoch, for Perfetto and as a picture",
        "trace:run",
        "One track a rank and a link, arrows from send to receive.",
    )
    options.add_trace(trace)

    tune = _command(
        commands,
        "tune",
        "which lambda, group size and period: the front of time and variance of a recorded run",
        "tune:run",
        options.TUNE_EPILOG,
    )
    options.add_tune(tune)

    validate = _command(
        commands,
        "validate",
        "simulated epochs beside real ones, on an emulated network of 4 hosts",
        "validate:run",
        "Needs root, Linux with /dev/net/tun, Open MPI, a C compiler, a checkout of the source and $BITRING_DATA;\n"
        "minutes for each network. Every method is trained, predicted from its recorded compute seconds and the\n"
        "measured costs of the pairs, and compared.",
    )
    validate.add_argument(
        "--networks",
        nargs="+",
        default=["alike", "unequal", "capped"],
        metavar="NAME",
        help="alike (pairs at 100 Mbit/s), unequal (50 to 200), capped (one NIC at 150) (default: all three)",
    )
    validate.add_argument(
        "--graphs", nargs="+", default=["coauthor_physics"], metavar="NAME", help="(default coauthor_physics)"
    )
    validate.add_argument("--kinds", nargs="+", choices=("gcn", "sage"), default=["gcn", "sage"], help="(default both)")
    validate.add_argument("--repeats", type=int, default=7, metavar="K", help="measured epochs a method (default 7)")
    validate.add_argument("--picture", metavar="FILE", help="predicted over measured: .png, .svg or .pdf")
    validate.add_argument("--json", action="store_true", help="the same for programs")

    _add_place(commands)

    sweep = _command(
        commands,
        "sweep",
        "a grid over methods, lambda, group size, bandwidth, ring and ranks, simulated, to a file",
        "sweep:run",
        "One JSON object a line, or Parquet. Offline: needs no MPI and no torch.",
    )
    options.add_sweep(sweep)


def _add_place(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    place = _command(
        commands,
        "place",
        "which part on which rank: the numbering of a recorded run whose rings end soonest",
        "place:run",
        "Several workloads, one a METIS seed: the fastest is kept. Offline: needs no MPI and no torch.",
    )
    options.add_place(place)


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, target: str, epilog: str = ""
) -> argparse.ArgumentParser:
    sub = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.set_defaults(run=_later(target))
    return sub


def _later(target: str) -> Callable[[argparse.Namespace], int]:
    """Import the command's module when it runs: 'train:run' is toolkit.commands.train.run."""
    module, function = target.split(":")

    def run(args: argparse.Namespace) -> int:
        return int(getattr(importlib.import_module(f"toolkit.commands.{module}"), function)(args))

    return run


def _add_config(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    parser.add_argument(
        "config",
        metavar="CONFIG.toml",
        nargs="?" if optional else None,
        help="the run; `bitring config` prints every key with its default",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="section.key=value",
        help="override a key, as often as you like: --set model.kind=sage --set train.epochs=50",
    )


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-np", "--ranks", type=int, metavar="N", help="ranks to start on this host (inside an MPI job: leave it out)"
    )
    parser.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="auto",
        help="what starts them: auto is horovodrun where Horovod is installed, else mpirun",
    )


if __name__ == "__main__":
    sys.exit(main())
