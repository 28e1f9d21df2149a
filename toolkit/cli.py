"""The command `bitring`: parse, dispatch, leave with the right exit code.

Imports stay inside the commands: `bitring --help` must not wait for torch.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable

from toolkit import __version__
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
        "how long an epoch of a recorded run takes on a measured network",
        "simulate:run",
        "Needs no MPI and no torch.",
    )
    trace = _command(
        commands,
        "trace",
        "the timeline of a simulated epoch, for Perfetto and as a picture",
        "trace:run",
        "One track a rank and a link, arrows from send to receive.",
    )
    trace.add_argument("--out", default="timeline.json.gz", metavar="FILE", help="(default timeline.json.gz)")
    trace.add_argument("--picture", metavar="FILE", help="a Gantt picture besides: .png, .svg or .pdf")
    for sub in (simulate, trace):
        sub.add_argument(
            "--bits",
            type=int,
            choices=(1, 2, 3, 4, 8, 16, 32),
            help="all messages at this width (default: as recorded)",
        )
        sub.add_argument(
            "--policy",
            metavar="NAME",
            help="widths by a policy: adaptive, exact, hull, glpk, highs, uniform, random, fixed",
        )
        sub.add_argument(
            "--lam", type=float, default=0.5, metavar="X", help="lambda: 0 least time, 1 least variance (default 0.5)"
        )
        sub.add_argument(
            "--group-size", type=int, default=100, metavar="K", help="messages that share a width (default 100)"
        )
        sub.add_argument("--no-overlap", action="store_true", help="wait for messages before the central product")

    tune = _command(
        commands,
        "tune",
        "which lambda and group size: the front of time and variance of a recorded run",
        "tune:run",
        "Offline: needs no MPI and no torch.",
    )
    tune.add_argument("--lambdas", type=int, default=11, metavar="K", help="how many lambdas from 0 to 1 (default 11)")
    tune.add_argument(
        "--group-sizes", type=int, nargs="+", default=[1, 10, 100, 1000], metavar="K", help="(default 1 10 100 1000)"
    )
    for sub in (simulate, trace, tune):
        _add_network(sub)

    sweep = _command(
        commands,
        "sweep",
        "a grid over lambda, group size, bandwidth and ring, simulated, to a file",
        "sweep:run",
        "One JSON object a line. Offline: needs no MPI and no torch.",
    )
    sweep.add_argument("workload", metavar="WORKLOAD", help="a run folder, or the workload.npz in it")
    sweep.add_argument(
        "--machine", required=True, metavar="FILE", help="a machine.toml, or a preset such as emulated-4"
    )
    sweep.add_argument("--lambdas", type=int, default=11, metavar="K", help="how many from 0 to 1 (default 11)")
    sweep.add_argument(
        "--group-sizes", type=int, nargs="+", default=[1, 10, 100, 1000], metavar="K", help="(default 1 10 100 1000)"
    )
    sweep.add_argument(
        "--bandwidths", type=float, nargs="+", default=[0.1, 1, 10], metavar="X", help="factors (default 0.1 1 10)"
    )
    sweep.add_argument(
        "--semantics",
        nargs="+",
        choices=("posted", "eager", "rendezvous", "barrier"),
        default=["posted"],
        help="of the ring (default posted)",
    )
    sweep.add_argument("--links", choices=("apart", "shared"), default="apart", help="as for simulate")
    sweep.add_argument("--out", default="sweep.jsonl", metavar="FILE", help="(default sweep.jsonl)")
    sweep.add_argument("--picture", metavar="FILE", help="the fronts: .png, .svg or .pdf")


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


def _add_network(parser: argparse.ArgumentParser) -> None:
    """What a simulated epoch needs: a workload, a machine, how its ring goes."""
    parser.add_argument("workload", metavar="WORKLOAD", help="a run folder, or the workload.npz in it")
    parser.add_argument(
        "--machine",
        required=True,
        metavar="FILE",
        help="a machine.toml (docs/machine.md; `bitring calibrate` writes one), or a preset such as emulated-4",
    )
    parser.add_argument(
        "--semantics", choices=("posted", "eager", "rendezvous", "barrier"), default="posted", help="of the ring"
    )
    parser.add_argument(
        "--links",
        choices=("auto", "fair", "apart", "shared"),
        default="auto",
        help="fair: messages share the machine's links, max-min; apart: each pair has one of its own; shared: a rank's "
        "go one after another; auto: apart where costs were measured, else fair",
    )
    parser.add_argument("--json", action="store_true", help="the same for programs")


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
