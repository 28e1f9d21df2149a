"""Training epochs with quantised messages on the emulated network.

    python -m bench.messages [--rate 100mbit] [--delay 100us] [--hosts 4] [--graphs coauthor_physics sbm]
                             [--kinds gcn sage] [--repeats 7]

In one job, epoch by epoch in turn: the papers' plan in float32, the exact plan in float32, and the exact
plan at 8, 4, 2 bits and with drawn widths. sbm: a generated graph of 100,000 nodes and 1,000,000
undirected edges. Bytes counted are compared with bytes predicted. Needs root and $BITRING_DATA.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from bench import netepoch
from bench.common import file_result
from bench.netlab import Lab
from bench.overlap import configuration
from toolkit import report

VARIANTS = {
    "paper plan, float32": ["method.plan=paper"],
    "exact plan, float32": [],
    "8 bits": ["method.codec=quantised", "method.bits=8"],
    "4 bits": ["method.codec=quantised", "method.bits=4"],
    "2 bits": ["method.codec=quantised", "method.bits=2"],
    "drawn from 2, 4, 8": ["method.codec=quantised", "method.widths=uniform"],
    "papers' plan, 2 bits": ["method.plan=paper", "method.codec=quantised", "method.bits=2"],
}


def rows_of(measured: dict[str, netepoch.Measured]) -> list[list[str]]:
    paper, exact = (measured[name].epoch_s for name in list(VARIANTS)[:2])
    rows = []
    for name, one in measured.items():
        coding = statistics.mean(a + b for a, b in zip(one.stage("encode"), one.stage("decode"), strict=True))
        rows.append(
            [
                name,
                report.seconds(one.epoch_s),
                f"{paper / one.epoch_s:.2f}",
                f"{exact / one.epoch_s:.2f}",
                report.num_bytes(one.train_bytes),
                report.seconds(statistics.mean(one.stage("flight"))),
                report.percent(coding / one.epoch_s),
            ]
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--delay", default="100us")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--graphs", nargs="+", default=["coauthor_physics", "sbm"])
    parser.add_argument("--kinds", nargs="+", default=["gcn", "sage"])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    results = []
    header = ["method", "epoch", "x paper", "x exact", "rows sent", "in flight", "coding"]
    with Lab.uniform(args.hosts, args.rate, args.delay).running() as lab:
        for graph in args.graphs:
            for kind in args.kinds:
                measured = netepoch.compare(lab, configuration(graph, kind, "exact"), VARIANTS, args.repeats)
                print(f"\n{graph}, {kind}, {args.hosts} hosts, {args.rate} a pair, {args.delay}")
                print(report.table(rows_of(measured), header), flush=True)
                results.append({"graph": graph, "kind": kind, "measured": netepoch.plain(measured)})
    setting = {key: getattr(args, key) for key in ("rate", "delay", "hosts", "repeats")}
    print(file_result("messages", setting | {"results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
