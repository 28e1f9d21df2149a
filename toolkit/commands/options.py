"""The options of the offline commands. Argparse alone: `bitring --help` must not wait for numpy."""

from __future__ import annotations

import argparse

RINGS = ("posted", "eager", "rendezvous", "barrier")
METHODS = ("vanilla", "quantised", "pipelined", "broadcast", "skip-broadcast", "gist")
BUDGETS = ("each", "joint")
SWEPT = ("adaptive", "posted", "fixed", "pipelined", "broadcast", "skip-broadcast", "gist")

SIMULATE_EPILOG = """\
Needs no MPI and no torch. A recorded run:   bitring simulate RUN --machine emulated-4 --bits 2
No run at all:                               bitring simulate --graph cora -k 4 --set model.hidden=256
Stragglers:     ... --straggler device:2=1.5 --straggler device=lognormal:0.3 --epochs 200 --against bits=8

Methods, and what --set KEY=VALUE gives them (training of all but vanilla and quantised is to come):
  vanilla         rows unquantised
  quantised       at --bits, or by --policy; assign_s: seconds that an assignment holds training up, every period
  pipelined       PipeGCN; staleness
  broadcast       CAGNET; nodes, where a workload doesn't know what its ranks own
  skip-broadcast  SANCUS; staleness, turns, or skip; on: forward, backward, both; seed
  gist            GIST; parts, local: epochs between puttings together of weights, outputs: a width that is not split
"""


def add_source(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """A recorded workload, or a graph to make one from; and a machine."""
    parser.add_argument(
        "workload", metavar="WORKLOAD", nargs="*" if several else "?", help="a run folder, or the workload.npz in it"
    )
    parser.add_argument(
        "--graph",
        metavar="GRAPH",
        help="no run: a workload made from a partition of this graph (`bitring data list`, a .npz, or a CONFIG.toml)",
    )
    parser.add_argument(
        "-k", "--ranks", type=int, nargs="+" if several else None, metavar="N", help="with --graph: over how many ranks"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="with --graph a key of the configuration (model.hidden=256); without a dot a parameter of the method",
    )
    parser.add_argument("--flop-s", type=float, metavar="X", help="with --graph: flop/s of a rank, not the machine's")
    parser.add_argument("--memory-byte-s", type=float, metavar="X", help="with --graph: bytes/s of a rank's memory")
    parser.add_argument(
        "--rates-here", action="store_true", help="with --graph: rates as measured here, shared by the ranks"
    )
    parser.add_argument(
        "--machine",
        metavar="FILE",
        help="a machine.toml (docs/machine.md; `bitring calibrate` writes one), or a preset such as emulated-4; with "
        "--graph it may be left out: N hosts at 10 Gbit/s",
    )


def add_simulate(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    _add_ring(parser)
    _add_widths(parser)
    parser.add_argument("--method", choices=METHODS, help="what sends (default: as recorded, or widths as given)")
    parser.add_argument(
        "--straggler",
        action="append",
        default=[],
        metavar="WHAT:WHERE=MODEL",
        help="a slow device or link: device:2=1.5, device=bursts:0.05:10:3, device:0=recorded:FILE, "
        "link:0-1=lognormal:0.3 (a link needs --links apart or shared, or measured costs)",
    )
    parser.add_argument("--epochs", type=int, default=100, metavar="E", help="epochs under stragglers (default 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="K", help="of the stragglers (default 0)")
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="CHOICE",
        help="another choice under the same stragglers: bits=8, policy=adaptive, or METHOD[,KEY=VALUE ...]",
    )
    parser.add_argument("--check", metavar="RUN", help="with --graph: how far its compute is from this recorded run's")
    parser.add_argument("--save", metavar="FILE.npz", help="with --graph: keep the workload")


def add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="timeline.json.gz", metavar="FILE", help="(default timeline.json.gz)")
    parser.add_argument("--picture", metavar="FILE", help="a Gantt picture besides: .png, .svg or .pdf")
    add_source(parser)
    _add_ring(parser)
    _add_widths(parser)


def add_sweep(parser: argparse.ArgumentParser) -> None:
    add_source(parser, several=True)
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=SWEPT,
        default=["adaptive", "fixed"],
        help="adaptive: round by round; posted: all messages of an exchange at once (default adaptive fixed)",
    )
    parser.add_argument("--lambdas", type=int, default=11, metavar="K", help="how many from 0 to 1 (default 11)")
    parser.add_argument(
        "--group-sizes", type=int, nargs="+", default=[1, 10, 100, 1000], metavar="K", help="(default 1 10 100 1000)"
    )
    parser.add_argument(
        "--bandwidths",
        type=float,
        nargs="+",
        default=[0.1, 1, 10],
        metavar="X",
        help="factors (default 0.1 1 10); the sum of the weight gradients, recorded or not, is scaled as a ring "
        "allreduce of its bytes over the slowest pair is",
    )
    parser.add_argument("--semantics", nargs="+", choices=RINGS, default=["posted"], help="(default posted)")
    parser.add_argument(
        "--links",
        choices=("apart", "shared"),
        default="apart",
        help="as for simulate, but for fair, which is simulated event by event: too slow for a grid (default apart)",
    )
    parser.add_argument(
        "--out", default="sweep.jsonl", metavar="FILE", help="lines of JSON, or .parquet with pyarrow (sweep.jsonl)"
    )
    parser.add_argument("--picture", metavar="FILE", help="the fronts: .png, .svg or .pdf")
    parser.add_argument("--json", action="store_true", help="the points for programs, on the output too")


TUNE_EPILOG = """\
Offline, from a recorded run (no MPI, no torch):   bitring tune RUN --machine RUN/machine.toml --write best.toml
The few best by short real runs as well:           bitring tune --real CONFIG.toml -np 4
Over several hosts:   bitring tune --real CONFIG.toml --launch 'mpirun -q -np 4 --host a:2,b:2'
    (rank 0 on this host; all see CONFIG.toml and the data at the same paths)

Rules choose among the front's points and fixed widths (2, 4, 8, 32 bits) together: the knee (default),
--within-seconds, --within-variance, or --hidden. Less than 1 % of float32's epoch is no gain: float32 stays. The period
is the shortest whose assignments take 0.5 % of training or less. A real run is judged by its seconds an epoch, times
what the codec's noise adds to dropout's; half of the candidates go on to twice the epochs.
"""


def add_tune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", metavar="WORKLOAD", nargs="?", help="a run folder, or the workload.npz in it")
    parser.add_argument(
        "--machine",
        metavar="FILE",
        help="a machine.toml (an adaptive run keeps the one it measured; else `bitring calibrate`), or a preset",
    )
    _add_ring(parser)
    parser.add_argument(
        "--lambdas", type=int, default=11, metavar="K", help="how many lambdas from 0 to 1 (default 11)"
    )
    parser.add_argument(
        "--group-sizes", type=int, nargs="+", default=[1, 10, 100, 1000], metavar="K", help="(default 1 10 100 1000)"
    )
    parser.add_argument(
        "--periods", type=int, nargs="+", default=[10, 25, 50, 100, 200], metavar="K", help="(default 10 25 50 100 200)"
    )
    parser.add_argument("--lead", type=int, default=5, metavar="K", help="epochs a solver may take (method.lead; 5)")
    parser.add_argument(
        "--policy",
        choices=("auto", "adaptive", "posted", "total"),
        default="auto",
        help="adaptive: round by round; posted: all messages at once; total: all bytes on one medium; auto: posted for "
        "posted rings, else adaptive",
    )
    _add_budget(parser, "lambda")
    rule = parser.add_mutually_exclusive_group()
    rule.add_argument("--within-seconds", type=float, metavar="X", help="least variance of epochs this long at most")
    rule.add_argument("--within-variance", type=float, metavar="X", help="fastest epoch of this variance at most")
    rule.add_argument("--hidden", action="store_true", help="fastest; only what hides behind products buys exactness")
    parser.add_argument("--write", metavar="FILE", help="write the run's configuration with what was chosen")
    parser.add_argument("--real", metavar="CONFIG.toml", help="record, tune and confirm by short runs of this")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("-np", "--ranks", type=int, metavar="N", help="with --real: ranks to start on this host")
    start.add_argument(
        "--launch",
        metavar="COMMAND",
        help="with --real, over several hosts: what starts a job, 'mpirun -q -np 4 -H a:2,b:2'",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", help="with --real: override a key"
    )
    parser.add_argument("--candidates", type=int, default=4, metavar="K", help="with --real: how many (default 4)")
    parser.add_argument(
        "--epochs", type=int, default=15, metavar="E", help="with --real: of the first runs (default 15)"
    )


def add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workloads", metavar="WORKLOAD", nargs="+", help="run folders, or the workload.npz in them")
    parser.add_argument(
        "--machine",
        required=True,
        metavar="FILE",
        help="a machine.toml (docs/machine.md; `bitring calibrate` writes one), or a preset such as emulated-4",
    )
    _add_ring(parser)
    parser.add_argument("--restarts", type=int, default=8, metavar="K", help="starts of the local search (default 8)")
    parser.add_argument("--seed", type=int, default=0, metavar="K", help="of the keyed starts (default 0)")
    parser.add_argument(
        "--evaluations", type=int, metavar="K", help="numberings a local search may judge (default: seconds' worth)"
    )
    parser.add_argument("--out", metavar="FILE", help="write the renumbered workload to this .npz file")


def _add_ring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--semantics", choices=RINGS, default="posted", help="of the ring")
    parser.add_argument(
        "--links",
        choices=("auto", "fair", "apart", "shared"),
        default="auto",
        help="fair: messages share the machine's links, max-min; apart: each pair has one of its own; shared: a rank's "
        "go one after another; auto: apart where costs were measured, else fair",
    )
    parser.add_argument("--json", action="store_true", help="the same for programs")


def _add_budget(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--budget",
        choices=BUDGETS,
        help=f"{what}: 'each' (AdaQP): every exchange weighs its own seconds and variance; 'joint': all together "
        "(default each, or as recorded)",
    )


def _add_widths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bits", type=int, choices=(1, 2, 3, 4, 8, 16, 32), help="all messages at this width (default: as recorded)"
    )
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help="widths by a policy: auto, adaptive, posted, total, ring_lp, exact, hull, glpk, highs, uniform, random, "
        "fixed",
    )
    parser.add_argument(
        "--lam", type=float, metavar="X", help="with a policy, lambda: 0 least time, 1 least variance (default 0.5)"
    )
    parser.add_argument(
        "--group-size", type=int, metavar="K", help="with a policy: messages that share a width (default 100)"
    )
    _add_budget(parser, "with a policy")
    parser.add_argument("--no-overlap", action="store_true", help="wait for messages before the central product")
