"""Measured costs of every ordered pair of ranks, as a file: what `bitring calibrate` leaves behind.

JSON: version, ranks, theta_s_per_byte and gamma_s (N lists of N, row the sender), low_bytes and high_bytes
(the sizes that were measured), median_residual (relative, worst pair), notes.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.cost import CostError, Fit, PairCosts

COSTS_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """Costs, and how well lines fit what was measured."""

    costs: PairCosts
    median_residual: float
    notes: tuple[str, ...] = ()


def of_fits(fits: dict[tuple[int, int], Fit], ranks: int, notes: tuple[str, ...] = ()) -> MeasuredCosts:
    """One line a pair: where two were fitted, the second's, since rows are long messages."""
    theta, gamma = np.zeros((ranks, ranks)), np.zeros((ranks, ranks))
    for (sender, receiver), found in fits.items():
        line = found.lines[-1]
        theta[sender, receiver], gamma[sender, receiver] = line.theta_s_per_byte, line.gamma_s
    costs = PairCosts(
        theta_s_per_byte=theta,
        gamma_s=gamma,
        low_bytes=max((found.lines[0].low_bytes for found in fits.values()), default=0.0),
        high_bytes=min((found.lines[-1].high_bytes for found in fits.values()), default=float("inf")),
    )
    residual = max((found.median_residual for found in fits.values()), default=0.0)
    warned = tuple(f"pair {s} -> {r}: {text}" for (s, r), found in fits.items() for text in found.warnings())
    return MeasuredCosts(costs=costs, median_residual=residual, notes=notes + warned)


def save(measured: MeasuredCosts, path: Path) -> None:
    """Write whole or not at all."""
    costs = measured.costs
    plain = {
        "version": COSTS_VERSION,
        "ranks": costs.ranks,
        "theta_s_per_byte": costs.theta_s_per_byte.tolist(),
        "gamma_s": costs.gamma_s.tolist(),
        "low_bytes": costs.low_bytes,
        "high_bytes": costs.high_bytes,
        "median_residual": measured.median_residual,
        "notes": list(measured.notes),
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


def load(path: Path) -> MeasuredCosts:
    """Read and check what save() wrote. CostError for anything else."""
    try:
        plain: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = plain["version"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CostError(f"{path} holds no measured costs ({type(error).__name__}: {error})") from None
    if version != COSTS_VERSION:
        raise CostError(f"{path} is of version {version}; this bitring reads {COSTS_VERSION}")
    try:
        costs = PairCosts(
            theta_s_per_byte=np.array(plain["theta_s_per_byte"], np.float64),
            gamma_s=np.array(plain["gamma_s"], np.float64),
            low_bytes=float(plain["low_bytes"]),
            high_bytes=float(plain["high_bytes"]),
        )
        return MeasuredCosts(
            costs=costs, median_residual=float(plain["median_residual"]), notes=tuple(map(str, plain["notes"]))
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CostError(f"{path} holds no whole costs: {error}") from None
