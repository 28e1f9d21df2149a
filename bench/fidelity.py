"""How well the simulator predicts real epochs on the emulated network.

    python -m bench.fidelity [--networks alike unequal capped] [--graphs coauthor_physics] [--kinds gcn sage]
                             [--repeats 7]

What `bitring validate` runs, with the result filed.

On 4 hosts, three networks: every pair alike at 100 Mbit/s, unequal pairs (50 to 200 Mbit/s), and one host's NIC
capped at 150 Mbit/s. In one job each: epochs of every method in turn, the workload of each, the costs of the
pairs. Predicted: from the recorded compute seconds of each rank and the measured costs alone; the messages' own
recorded seconds are not used. With the capped NIC pairs are not alone, so its links are described and shared
fairly instead. Reported: median and largest error, and whether the order of the methods is kept
(Kendall's tau over pairs that differ by more than 5 %). Needs root and $BITRING_DATA.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import netepoch
from bench.common import RESULTS, file_result
from bench.messages import VARIANTS
from bench.netlab import Lab
from bench.overlap import configuration
from simulator import machine, workload
from simulator.cost import PairCosts
from simulator.epoch import simulate
from simulator.hosts import UNLIMITED
from simulator.picture import scatter
from simulator.topology import Topology
from toolkit.commands.validate import describe, summary

SOFTWARE_S = 2e-4  # of MPI and the kernel a message, beside the wire's delay: as calibration finds it
METHODS = VARIANTS | {"adaptive": ["method.codec=quantised", "method.widths=adaptive", "method.lead=0"]}
TELLING = 0.05  # methods that differ by less have no order


def networks() -> dict[str, Lab]:
    """The labs, not yet up."""
    alike = Lab.uniform(4, "100mbit", "100us")
    rates = itertools.cycle(("50mbit", "100mbit", "200mbit", "150mbit", "75mbit"))
    unequal = Lab(hosts=4, links={pair: Lab.uniform(2, next(rates), "100us").links[0, 1] for pair in alike.links})
    capped = Lab(hosts=4, links=alike.links, nics={2: 150e6})
    return {"alike": alike, "unequal": unequal, "capped": capped}


def described(lab: Lab) -> machine.Machine:
    """The lab as a machine.toml would have it. Of 1,538 bytes on the wire 1,448 are ours."""
    useful = 1448 / 1538
    hosts = tuple(
        machine.Host(name=f"nl{i}", nic_bandwidth_bit_s=lab.nics[i] * useful if i in lab.nics else UNLIMITED)
        for i in range(lab.hosts)
    )
    links = tuple(
        machine.Link(
            ends=(f"nl{i}", f"nl{j}"),
            bandwidth_bit_s=link.bit_s * useful,
            latency_s=link.delay_s + SOFTWARE_S,
            one_way=True,
        )
        for (i, j), link in lab.links.items()
    )
    return machine.Machine(name="lab", hosts=hosts, links=links)


def tau(measured: list[float], predicted: list[float]) -> float:
    """Kendall's tau over the pairs whose measured seconds differ by more than 5 %; 1 if there is none."""
    agree = [
        (measured[i] < measured[j]) == (predicted[i] < predicted[j])
        for i, j in itertools.combinations(range(len(measured)), 2)
        if abs(measured[i] - measured[j]) > TELLING * min(measured[i], measured[j])
    ]
    return 2 * sum(agree) / len(agree) - 1 if agree else 1.0


def compare(lab: Lab, graph: str, kind: str, repeats: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        measured = netepoch.compare(lab, configuration(graph, kind, "exact"), METHODS, repeats, Path(folder))
        costs: PairCosts | Topology = machine.read(Path(folder) / "machine.toml").pair_costs()
        if lab.nics:  # pairs are not alone: the description of the network instead of the costs of pairs
            costs = described(lab).topology()
        found = []
        for number, (name, one) in enumerate(measured.items()):
            predicted = simulate(workload.load(Path(folder) / f"{number}.npz"), costs).epoch_s
            found.append({"method": name, "measured_s": one.epoch_s, "predicted_s": predicted})
    return found


def compare_all(
    names: Sequence[str], graphs: Sequence[str], kinds: Sequence[str], repeats: int
) -> Iterator[dict[str, Any]]:
    """Every network with every graph and kind, one after the other, as they are done."""
    for name in names:
        with networks()[name].running() as lab:
            for graph, kind in itertools.product(graphs, kinds):
                found = compare(lab, graph, kind, repeats)
                order = tau(*([one[key] for one in found] for key in ("measured_s", "predicted_s")))
                yield {"network": name, "graph": graph, "kind": kind, "tau": order, "methods": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=["coauthor_physics"])
    parser.add_argument("--kinds", nargs="+", default=["gcn", "sage"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--networks", nargs="+", default=list(networks()))
    args = parser.parse_args()
    results = []
    for found in compare_all(args.networks, args.graphs, args.kinds, args.repeats):
        print(f"\n{describe(found)}", flush=True)
        results.append(found)
    told = summary(results)
    print(
        f"\nall: median error {told['median_error']:.1%}, 95 % below {told['p95_error']:.1%}, "
        f"tau {told['tau']:.2f} (mean), {told['least_tau']:.2f} (least)"
    )
    scatter(RESULTS / "fidelity.png", results, "epochs on the emulated network")
    print(file_result("fidelity", {"repeats": args.repeats, **told, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
