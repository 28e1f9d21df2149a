"""Pictures of results, by matplotlib where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from simulator.timeline import TimelineError

SHOWN_BELOW = 0.05  # accuracy below the lowest target that is in the picture


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


def learning(path: Path, results: Sequence[dict[str, Any]]) -> None:
    """Validation accuracy over seconds and over bytes, both logarithmic: a row of panels a result, a colour a method.

    ``results``: with title, targets (label -> accuracy), and methods: name -> a curve for each seed, with seconds,
    num_bytes and val, evaluated after the same epochs. Thick: the mean over seeds. All results have the same methods.
    Errors: TimelineError.
    """
    figure = _figure((11, 0.6 + 4.2 * len(results)))
    panels = figure.subplots(len(results), 2, squeeze=False, sharey="row")
    for result, row in zip(results, panels, strict=True):
        units = ("training seconds", 1.0), ("MB of rows sent in training", 1e-6)
        for axes, key, (unit, scale) in zip(row, ("seconds", "num_bytes"), units, strict=True):
            for number, (name, curves) in enumerate(result["methods"].items()):
                lines = [([scale * x for x in curve[key]], [100 * y for y in curve["val"]]) for curve in curves]
                for x, y in lines:
                    axes.plot(x, y, color=f"C{number % 10}", linewidth=0.6, alpha=0.4)
                mean = [[fmean(values) for values in zip(*each, strict=True)] for each in zip(*lines, strict=True)]
                axes.plot(*mean, color=f"C{number % 10}", linewidth=1.8, label=name)
            for label, target in result["targets"].items():
                axes.axhline(100 * target, color="0.5", linewidth=0.8, linestyle=":")
                if axes is row[-1]:
                    at = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 7, "color": "0.4"}
                    axes.text(1.01, 100 * target, label, **at)
            axes.set_xscale("log", subs=[2, 5])
            for ticks in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
                ticks("{x:g}")
            axes.set(xlabel=unit, title=f"{result['title']}: accuracy over {'seconds' if scale == 1 else 'bytes'}")
            axes.grid(color="0.9", which="both")
        # the way up from chance would hide what the methods differ by
        lowest = min(min(curve["val"]) for curves in result["methods"].values() for curve in curves)
        row[0].set_ylim(bottom=100 * max(lowest, min(result["targets"].values()) - SHOWN_BELOW))
        row[0].set_ylabel("validation accuracy, %")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    figure.savefig(path, dpi=150)


def _figure(inches: tuple[float, float]) -> Any:
    try:
        return importlib.import_module("matplotlib.figure").Figure(figsize=inches, layout="constrained")
    except ImportError:
        raise TimelineError("the picture needs matplotlib: pip install matplotlib") from None
