"""What `bitring simulate` prints."""

from __future__ import annotations

from simulator.answer import Answer
from simulator.critical import by_stage
from simulator.replicas import Distribution
from simulator.stragglers import Difference
from toolkit import report

HEADER = ["layer", "direction", "bytes", "in flight", "waited for", "hidden", "coding", "products"]
LONGEST_PATH = 8  # stages of the path that are printed; --json has all


def describe(answer: Answer) -> str:
    """The epoch, stage by stage, and whatever else was asked."""
    parts = [report.facts(_facts(answer)), report.table(_exchanges(answer), HEADER)]
    if answer.path:
        parts.append("What the epoch's end waits for, back to its beginning (longest first):\n" + _path(answer))
    if answer.no_path:
        parts.append(f"No critical path of {answer.no_path}")
    if answer.disturbed is not None:
        parts.append("Under stragglers:\n" + _disturbed(answer))
    if answer.against:
        parts.append("Against other choices, in the same epochs:\n" + _against(answer))
    if answer.compute_ratios is not None:
        rows = [[stage, f"{ratio:.2f}"] for stage, ratio in answer.compute_ratios.items()]
        parts.append("Estimated over recorded seconds of compute:\n" + report.table(rows, ["stage", "ratio"]))
    return "\n\n".join(parts)


def _facts(answer: Answer) -> list[tuple[str, str]]:
    time = answer.epoch
    set_to = ", ".join(
        f"{key} {value if isinstance(value, str) else format(value, 'g')}" for key, value in answer.parameters.items()
    )
    beside = f", {report.seconds(answer.beside_s)} of it spread over the epochs between" if answer.beside_s else ""
    found = [
        ("graph", f"{answer.graph}, {answer.ranks} ranks, {answer.transport}, on machine {answer.machine}"),
        ("method", answer.method + (f" ({set_to})" if set_to else "")),
        ("epoch", report.seconds(time.epoch_s) + beside),
        ("messages", f"{report.seconds(time.waiting_s)} waited for, {report.seconds(time.hidden_s)} hidden"),
        ("rows sent", f"{report.num_bytes(time.num_bytes)} by all ranks"),
        ("dense", f"{report.seconds(time.dense_s)}, held products {report.seconds(time.held_s)}"),
        ("gradients", report.seconds(time.weight_gradient_s)),
        ("variance", f"{answer.variance_bound:.3g} ({_counted(answer.method)})"),
    ]
    if answer.limit_s is not None:
        what = "at 2 bits: the longer of compute alone and messages alone, and gradients"
        found.append(("limit", f"{report.seconds(answer.limit_s)} {what}"))
    return found


def _counted(method: str) -> str:
    """What the variance is of, and what it leaves out."""
    if method in ("pipelined", "skip-broadcast"):
        return "of rounding alone: that rows are stale isn't counted"
    if method == "gist":
        return "of rounding alone: that weights are trained apart isn't counted"
    return "bound on what rounding adds to the aggregates"


def _exchanges(answer: Answer) -> list[list[str]]:
    return [
        [
            str(e.layer),
            e.direction,
            report.num_bytes(e.num_bytes),
            *(report.seconds(s) for s in (e.flight_s, e.waiting_s, e.hidden_s, e.coding_s, e.product_s)),
        ]
        for e in answer.epoch.exchanges
    ]


def _path(answer: Answer) -> str:
    stages = by_stage(answer.path or ())
    rows = [
        [f"rank {rank}", stage, report.seconds(s), report.percent(s / answer.epoch.epoch_s)]
        for rank, stage, s in stages[:LONGEST_PATH]
    ]
    if rest := stages[LONGEST_PATH:]:
        left = sum(s for _, _, s in rest)
        others = "1 other" if len(rest) == 1 else f"{len(rest)} others"
        rows.append(["", others, report.seconds(left), report.percent(left / answer.epoch.epoch_s)])
    return report.table(rows, ["", "stage", "seconds", "of the epoch"])


def _disturbed(answer: Answer) -> str:
    assert answer.disturbed is not None
    rows = [["all", *_difference(answer.disturbed.all_stragglers)]]
    if len(answer.stragglers) > 1:
        pairs = zip(answer.stragglers, answer.disturbed.each, strict=True)
        rows += [[text, *_difference(difference)] for text, difference in pairs]
    costs = report.table(rows, ["straggler", "costs an epoch", "95 % confidence"])
    return report.facts([("epoch", _distribution(answer.disturbed.epochs))]) + "\n" + costs


def _against(answer: Answer) -> str:
    rows = [
        [other.choice, report.seconds(other.epochs.mean_s), *_difference(other.difference)] for other in answer.against
    ]
    return report.table(rows, ["choice", "epoch", "longer by", "95 % confidence"])


def _distribution(found: Distribution) -> str:
    return (
        f"{report.seconds(found.mean_s)} on average over {found.epochs} epochs, "
        f"5 % below {report.seconds(found.p5_s)}, 5 % above {report.seconds(found.p95_s)}"
    )


def _difference(found: Difference) -> list[str]:
    return [report.seconds(found.mean), f"{report.seconds(found.low)} to {report.seconds(found.high)}"]
