"""Pictures of results, by matplotlib where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.timeline import TimelineError


def fronts(path: Path, points: Sequence[dict[str, Any]], title: str = "") -> None:
    """Variance over seconds of an epoch, a colour for each workload, network and ring; fixed widths as crosses.

    ``points``: with workload, ranks, bandwidth_factor, semantics, method, epoch_s, variance_bound, on_front, mean_bits.
    The kind of picture goes by the suffix (png, svg, pdf). Errors: TimelineError.
    """
    figure = _figure((8, 5))
    axes = figure.subplots()
    networks = list(dict.fromkeys(map(_network, points)))
    for number, network in enumerate(networks):
        here = [p for p in points if _network(p) == network]
        shown = [p for p in here if p["variance_bound"] > 0]  # 32 bits add none: no place on a logarithmic axis
        front = sorted((p for p in shown if p["on_front"]), key=lambda p: p["epoch_s"])
        colour = f"C{number % 10}"
        workload, ranks, factor, semantics = network
        label = f"{workload}, {ranks} ranks, bandwidth x {factor:g}, {semantics}"
        axes.plot([p["epoch_s"] for p in front], [p["variance_bound"] for p in front], ".-", color=colour, label=label)
        for p in shown:
            if p["method"].startswith("fixed"):
                axes.plot(p["epoch_s"], p["variance_bound"], "x", color=colour)
                axes.annotate(f" {p['mean_bits']}", (p["epoch_s"], p["variance_bound"]), fontsize=7, color=colour)
    axes.set_yscale("log")
    axes.set_xlabel("seconds of an epoch")
    axes.set_ylabel("variance bound")
    axes.set_title(title)
    if networks:
        axes.legend()
    figure.savefig(path, dpi=150)


def _network(point: dict[str, Any]) -> tuple[str, int, float, str]:
    return point["workload"], point["ranks"], point["bandwidth_factor"], point["semantics"]


def scatter(path: Path, results: Sequence[dict[str, Any]], title: str = "") -> None:
    """Predicted over measured seconds of epochs, a colour for each network, graph and kind; 5 % beside the diagonal.

    ``results``: with network, graph, kind, and methods that have measured_s and predicted_s. Errors: TimelineError.
    """
    figure = _figure((6, 6))
    axes = figure.subplots()
    for number, found in enumerate(results):
        measured, predicted = ([one[key] for one in found["methods"]] for key in ("measured_s", "predicted_s"))
        label = f"{found['network']}, {found['graph']}, {found['kind']}"
        axes.plot(measured, predicted, "o", color=f"C{number % 10}", label=label)
    seconds = [one[key] for found in results for one in found["methods"] for key in ("measured_s", "predicted_s")]
    ends = [0.9 * min(seconds), 1.1 * max(seconds)]
    axes.plot(ends, ends, "-", color="0.6", linewidth=1)
    axes.fill_between(ends, [0.95 * s for s in ends], [1.05 * s for s in ends], color="0.9", label="within 5 %")
    axes.set(xscale="log", yscale="log", xlabel="measured seconds", ylabel="predicted seconds", title=title)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def _figure(inches: tuple[float, float]) -> Any:
    try:
        return importlib.import_module("matplotlib.figure").Figure(figsize=inches, layout="constrained")
    except ImportError:
        raise TimelineError("the picture needs matplotlib: pip install matplotlib") from None
