"""Pictures of results, by matplotlib where it is installed."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.timeline import TimelineError


def fronts(path: Path, points: Sequence[dict[str, Any]], title: str = "") -> None:
    """Variance over seconds of an epoch, a colour for each network and ring; fixed widths as crosses.

    ``points``: with bandwidth_factor, semantics, method, epoch_s, variance_bound, on_front, mean_bits. The kind of
    picture goes by the suffix (png, svg, pdf). Errors: TimelineError.
    """
    try:
        figure_of = importlib.import_module("matplotlib.figure").Figure
    except ImportError:
        raise TimelineError("the picture needs matplotlib: pip install matplotlib") from None
    figure = figure_of(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    networks = list(dict.fromkeys((p["bandwidth_factor"], p["semantics"]) for p in points))
    for number, (factor, semantics) in enumerate(networks):
        here = [p for p in points if (p["bandwidth_factor"], p["semantics"]) == (factor, semantics)]
        shown = [p for p in here if p["variance_bound"] > 0]  # 32 bits add none: no place on a logarithmic axis
        front = sorted((p for p in shown if p["on_front"]), key=lambda p: p["epoch_s"])
        colour = f"C{number % 10}"
        label = f"bandwidth x {factor:g}, {semantics}"
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
