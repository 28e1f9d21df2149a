"""What the overlap of messages and central aggregation is worth, on the emulated network.

    python -m bench.overlap [--rate 100mbit] [--delay 100us] [--hosts 4] [--graphs coauthor_physics]
                            [--plans exact paper] [--repeats 7]

The same training with method.overlap on and off, epoch by epoch in turn, one rank a host. The least that
overlap can reach is, for each exchange, the longer of the messages alone and the central product alone
(both as measured with overlap off), and the rest of the epoch. Then the sum of the weight gradients: one
Allreduce after backward, the same by Horovod, and each gradient by Horovod while backward goes on. Needs
root and $BITRING_DATA.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys

from bench import netepoch
from bench.common import file_result
from bench.netlab import Lab
from toolkit import config as configs
from toolkit import report


def configuration(graph: str, kind: str, plan: str) -> configs.Config:
    """3 x 256 on a real graph (602 projected columns) or on the generated one of 100,000 nodes."""
    if graph == "sbm":
        data = configs.Data(name="sbm", nodes=100_000, edges=1_000_000, features=128, classes=40, split="ratio")
    else:
        data = configs.Data(name=graph, project_to=602, split="ratio")
    return configs.Config(
        data=data,
        model=configs.Model(kind=kind, layers=3, hidden=256, norm="layer"),  # type: ignore[arg-type]
        method=configs.Method(plan=plan),
        train=configs.Train(threads=1),
    )


GRADIENTS = {
    "Allreduce": ["train.reduction=mpi"],
    "Horovod, grouped": ["train.reduction=horovod", "train.overlap_gradients=false"],
    "Horovod, overlapping backward": ["train.reduction=horovod", "train.overlap_gradients=true"],
}


def gradients(lab: Lab, graph: str, kind: str, repeats: int) -> dict[str, netepoch.Measured]:
    """Epochs under each way to sum the weight gradients, printed."""
    measured = netepoch.compare(lab, configuration(graph, kind, "exact"), GRADIENTS, repeats)
    for name, one in measured.items():
        waits = statistics.mean(one.stage("weight_gradients"))
        print(f"    {name}: epoch {report.seconds(one.epoch_s)}, {report.seconds(waits)} of it waiting", flush=True)
    return measured


def least_s(off: netepoch.Measured) -> float:
    """Seconds of an epoch if every exchange cost the longer of messages and central product: mean over ranks."""
    each = []
    for own in off.stage_s:
        epoch = off.epoch_s
        for key, flight in own.items():
            stage, rest = key.split("/", 1)
            if stage == "flight":
                central = own.get(f"central/{rest}", 0.0)
                epoch -= min(flight, central)
        each.append(epoch)
    return statistics.mean(each)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--delay", default="100us")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--graphs", nargs="+", default=["coauthor_physics"])
    parser.add_argument("--plans", nargs="+", default=["exact", "paper"])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    results = []
    with Lab.uniform(args.hosts, args.rate, args.delay).running() as lab:
        for graph in args.graphs:
            for kind, plan in itertools.product(("gcn", "sage"), args.plans):
                variants = {"on": ["method.overlap=true"], "off": ["method.overlap=false"]}
                measured = netepoch.compare(lab, configuration(graph, kind, plan), variants, args.repeats)
                on, off, least = measured["on"], measured["off"], least_s(measured["off"])
                flight, central = statistics.mean(off.stage("flight")), statistics.mean(off.stage("central"))
                print(
                    f"{graph} {kind}, {plan} plan: epoch {report.seconds(on.epoch_s)} with overlap, "
                    f"{report.seconds(off.epoch_s)} without ({off.epoch_s / on.epoch_s:.2f}x); "
                    f"messages {report.seconds(flight)}, central product {report.seconds(central)}; "
                    f"least with overlap {report.seconds(least)}, reached within {on.epoch_s / least - 1:+.1%}",
                    flush=True,
                )
                results.append(
                    {"graph": graph, "kind": kind, "plan": plan, "least_s": least, "measured": netepoch.plain(measured)}
                )
            for kind in ("gcn", "sage"):
                print(f"{graph} {kind}, exact plan, weight gradients by")
                summed = gradients(lab, graph, kind, args.repeats)
                results.append({"graph": graph, "kind": kind, "gradients": netepoch.plain(summed)})
    setting = {key: getattr(args, key) for key in ("rate", "delay", "hosts", "repeats")}
    print(file_result("overlap", setting | {"results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
