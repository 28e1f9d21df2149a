"""What a message costs: seconds = theta * bytes + gamma, fitted from measurements.

Legend: theta is the paper's θ in s/byte, gamma its γ in s (AdaQP, section 4: t = θ·bytes + γ for each
ordered pair). Measurements of one size are repeated; the minimum of the repeats is what the link can do,
the rest is the machine's noise. A line is fitted by relative least squares, so that a short message
weighs as much as a long one. MPI sends short messages at once and long ones after a handshake
(eager/rendezvous), so one line may not do: see ``fit``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

F64 = NDArray[np.float64]
MIN_POINTS = 4  # sizes under one line at least: two would always fit
TWO_LINES_ABOVE = 0.02  # a line whose root mean square relative residual is below this is good enough
TWO_LINES_GAIN = 0.5  # two lines must leave at most this share of the residual of one
WARN_ABOVE = 0.05  # median relative residual that draws a warning
NO_MESSAGE = -np.inf  # max-plus's zero: adding to it or taking a maximum with it changes nothing


class CostError(ValueError):
    """Measurements or sizes that can't be used: one sentence that says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One affine piece, valid from ``low_bytes`` to ``high_bytes``.

    ``residuals`` are relative, (measured - line) / measured, one a size. ``r2`` is the share of the
    variation explained, relative weights throughout: 1 - sum((t - line)²/t²) / sum((t - m)²/t²), with m the
    constant that fits best.
    """

    theta_s_per_byte: float
    gamma_s: float
    low_bytes: float
    high_bytes: float
    r2: float
    residuals: tuple[float, ...]

    def seconds(self, num_bytes: ArrayLike) -> F64:
        """Seconds of messages of these sizes, same shape."""
        return np.asarray(self.theta_s_per_byte * np.asarray(num_bytes, np.float64) + self.gamma_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One line, or two that meet at ``switch_bytes``: the largest size that the first still covers."""

    lines: tuple[Line, ...]

    @property
    def switch_bytes(self) -> float | None:
        return self.lines[0].high_bytes if len(self.lines) == 2 else None

    @property
    def median_residual(self) -> float:
        """Median of the absolute relative residuals over all sizes."""
        return float(np.median(np.abs(np.concatenate([line.residuals for line in self.lines]))))

    def seconds(self, num_bytes: ArrayLike) -> F64:
        """Seconds of messages of these sizes, same shape. Beyond the range the outer lines go on."""
        sizes = np.asarray(num_bytes, np.float64)
        if len(self.lines) == 1:
            return self.lines[0].seconds(sizes)
        first, second = self.lines
        return np.where(sizes <= first.high_bytes, first.seconds(sizes), second.seconds(sizes))

    def warnings(self, num_bytes: ArrayLike = ()) -> tuple[str, ...]:
        """Sentences on what not to trust: a poor fit, sizes beyond the measured range. Empty if all is well."""
        found = []
        if self.median_residual > WARN_ABOVE:
            found.append(
                f"the fit misses its own measurements by {self.median_residual:.1%} (median), "
                f"more than {WARN_ABOVE:.0%}: measure again on a quiet machine or with more repeats"
            )
        low, high = self.lines[0].low_bytes, self.lines[-1].high_bytes
        sizes = np.asarray(num_bytes, np.float64).ravel()
        outside = sizes[(sizes > 0) & ((sizes < low) | (sizes > high))]
        if len(outside):
            found.append(
                f"{len(outside)} of {len(sizes)} messages ({outside.min():g} to {outside.max():g} bytes) lie "
                f"beyond the measured {low:g} to {high:g} bytes: calibrate over that range too"
            )
        return tuple(found)


def fit(num_bytes: ArrayLike, seconds: ArrayLike) -> Fit:
    """Fit sizes [M] against seconds [M] or [M, repeats], theta and gamma >= 0. A size may occur repeatedly.

    One line, unless its root mean square relative residual is above 2% and two lines (the best split with
    four sizes or more on each side) leave at most half of it. Errors: CostError.
    """
    sizes, times = _minima(np.asarray(num_bytes, np.float64), np.asarray(seconds, np.float64))
    whole = _line(sizes, times)
    splits = range(MIN_POINTS, len(sizes) - MIN_POINTS + 1)
    if _rms(whole) <= TWO_LINES_ABOVE or not splits:
        return Fit(lines=(whole,))
    pairs = [(_line(sizes[:k], times[:k]), _line(sizes[k:], times[k:])) for k in splits]
    best = min(pairs, key=lambda pair: _rms(*pair))
    return Fit(lines=best if _rms(*best) <= TWO_LINES_GAIN * _rms(whole) else (whole,))


def _minima(sizes: F64, times: F64) -> tuple[F64, F64]:
    """Distinct sizes, ascending, and the minimum over all repeats of each."""
    if sizes.ndim != 1 or times.shape[:1] != sizes.shape or times.ndim > 2 or times.size == 0:
        raise CostError(f"sizes [M] and seconds [M] or [M, repeats] are needed, not {sizes.shape} and {times.shape}")
    if not (np.isfinite(sizes).all() and np.isfinite(times).all() and (sizes >= 0).all() and (times > 0).all()):
        raise CostError("sizes must be finite and >= 0, and seconds finite and > 0")
    distinct, inverse = np.unique(sizes, return_inverse=True)
    if len(distinct) < 2:
        raise CostError(f"a line needs two sizes or more; all measurements are of {distinct[0]:g} bytes")
    least = np.full(len(distinct), np.inf)
    np.minimum.at(least, inverse, times if times.ndim == 1 else times.min(axis=1))
    return distinct, least


def _line(sizes: F64, times: F64) -> Line:
    """Relative least squares: min sum ((theta b + gamma - t) / t)², theta, gamma >= 0."""
    scale = sizes.max()  # columns of like magnitude, or the solver's tolerances eat theta
    (theta, gamma), _ = nnls(np.stack([sizes / scale / times, 1 / times], axis=1), np.ones(len(times)))
    residuals = 1 - (theta / scale * sizes + gamma) / times
    constant = (1 / times).sum() / (1 / times**2).sum()
    around = ((1 - constant / times) ** 2).sum()
    return Line(
        theta_s_per_byte=float(theta / scale),
        gamma_s=float(gamma),
        low_bytes=float(sizes[0]),
        high_bytes=float(sizes[-1]),
        r2=float(1 - (residuals**2).sum() / around) if around > 0 else 1.0,
        residuals=tuple(residuals.tolist()),
    )


def _rms(*lines: Line) -> float:
    return float(np.sqrt(np.mean(np.concatenate([line.residuals for line in lines]) ** 2)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairCosts:
    """theta and gamma of every ordered pair of N ranks, row the sender, column the receiver (as in a workload).

    The diagonal is not used. ``low_bytes`` and ``high_bytes`` bound what was measured, where it was.
    """

    theta_s_per_byte: F64  # [N, N]
    gamma_s: F64  # [N, N]
    low_bytes: float = 0.0
    high_bytes: float = np.inf

    def __post_init__(self) -> None:
        shape = self.theta_s_per_byte.shape
        if len(shape) != 2 or shape[0] != shape[1] or self.gamma_s.shape != shape:
            raise CostError(f"theta and gamma must both be N x N, not {shape} and {self.gamma_s.shape}")
        for name, values in (("theta", self.theta_s_per_byte), ("gamma", self.gamma_s)):
            pairs = values[~np.eye(shape[0], dtype=bool)]
            if not (np.isfinite(pairs).all() and (pairs >= 0).all()):
                raise CostError(f"{name} must be finite and >= 0 for every pair, not {pairs.min()}")

    @property
    def ranks(self) -> int:
        return len(self.theta_s_per_byte)

    def seconds(self, num_bytes: ArrayLike) -> F64:
        """Seconds [..., N, N] of one message a pair, row the sender. No bytes are no message: 0 s, no gamma."""
        sizes = self._sizes(num_bytes)
        return np.where(sizes > 0, self.theta_s_per_byte * sizes + self.gamma_s, 0.0)

    def ring_costs(self, num_bytes: ArrayLike) -> F64:
        """What the ring engines take: [..., N, N], row the *receiver*, and ``NO_MESSAGE`` where nothing travels."""
        sizes = self._sizes(num_bytes)
        costs = np.where(sizes > 0, self.theta_s_per_byte * sizes + self.gamma_s, NO_MESSAGE)
        return np.ascontiguousarray(np.swapaxes(costs, -1, -2))

    def warnings(self, num_bytes: ArrayLike) -> tuple[str, ...]:
        """A sentence if messages lie beyond the measured range."""
        sizes = self._sizes(num_bytes)
        outside = sizes[(sizes > 0) & ((sizes < self.low_bytes) | (sizes > self.high_bytes))]
        if not len(outside):
            return ()
        return (
            f"{len(outside)} of {(sizes > 0).sum()} messages ({outside.min():g} to {outside.max():g} bytes) lie "
            f"beyond the measured {self.low_bytes:g} to {self.high_bytes:g} bytes: calibrate over that range too",
        )

    def _sizes(self, num_bytes: ArrayLike) -> F64:
        """[..., N, N] with an empty diagonal."""
        sizes = np.asarray(num_bytes, np.float64)
        if sizes.shape[-2:] != self.theta_s_per_byte.shape:
            raise CostError(f"bytes of {self.ranks} ranks end in {self.ranks} x {self.ranks}, not {sizes.shape}")
        if not (sizes >= 0).all():
            raise CostError(f"bytes must be >= 0, not {sizes.min()}")
        return np.where(np.eye(self.ranks, dtype=bool), 0.0, sizes)
