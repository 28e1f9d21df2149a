"""What a message costs: seconds = theta * bytes + gamma, fitted from measurements.

Legend: theta is the paper's θ in s/byte, gamma its γ in s (AdaQP, section 4: t = θ·bytes + γ for each
ordered pair). Measurements of one size are repeated; the minimum of the repeats is what the link can do,
the rest is the machine's noise. A line is fitted by relative least squares, so that a short message
weighs as much as a long one. MPI sends short messages at once and long ones after a handshake
(eager/rendezvous), so one line may not do: see ``fit``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
class ShortMessages:
    """The line of short messages of every ordered pair, [N, N], where two lines were fitted: see ``fit``.

    A pair takes it up to and including ``switch_bytes``; 0 there: that pair has one line for all sizes.
    """

    switch_bytes: F64
    theta_s_per_byte: F64
    gamma_s: F64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairCosts:
    """theta and gamma of every ordered pair of N ranks, row the sender, column the receiver (as in a workload).

    Where short messages cost differently, ``short`` has their line, and theta and gamma are those of the longer ones.
    The diagonal is not used. ``low_bytes`` and ``high_bytes`` bound what was measured, where it was;
    ``residual`` is by how much each pair's lines miss their own measurements (``Fit.median_residual``).
    """

    theta_s_per_byte: F64  # [N, N]
    gamma_s: F64  # [N, N]
    low_bytes: float = 0.0
    high_bytes: float = np.inf
    short: ShortMessages | None = None
    residual: F64 | None = None  # [N, N]

    def __post_init__(self) -> None:
        shape = self.theta_s_per_byte.shape
        if len(shape) != 2 or shape[0] != shape[1] or self.gamma_s.shape != shape:
            raise CostError(f"theta and gamma must both be N x N, not {shape} and {self.gamma_s.shape}")
        given = {"theta": self.theta_s_per_byte, "gamma": self.gamma_s, "residual": self.residual}
        if self.short is not None:
            given |= {
                "switch_bytes of short messages": self.short.switch_bytes,
                "theta of short messages": self.short.theta_s_per_byte,
                "gamma of short messages": self.short.gamma_s,
            }
        for name, values in given.items():
            if values is None:
                continue
            if values.shape != shape:
                raise CostError(f"{name} must be {shape[0]} x {shape[0]} as theta is, not {values.shape}")
            pairs = values[~np.eye(shape[0], dtype=bool)]
            if not (np.isfinite(pairs).all() and (pairs >= 0).all()):
                raise CostError(f"{name} must be finite and >= 0 for every pair, not {pairs.min()}")

    @property
    def ranks(self) -> int:
        return len(self.theta_s_per_byte)

    def seconds(self, num_bytes: ArrayLike) -> F64:
        """Seconds [..., N, N] of one message a pair, row the sender. No bytes are no message: 0 s, no gamma."""
        sizes = self._sizes(num_bytes)
        return np.where(sizes > 0, self._on_its_line(sizes), 0.0)

    def ring_costs(self, num_bytes: ArrayLike) -> F64:
        """What the ring engines take: [..., N, N], row the *receiver*, and ``NO_MESSAGE`` where nothing travels."""
        sizes = self._sizes(num_bytes)
        costs = np.where(sizes > 0, self._on_its_line(sizes), NO_MESSAGE)
        return np.ascontiguousarray(np.swapaxes(costs, -1, -2))

    def straight(self, low_bytes: ArrayLike, high_bytes: ArrayLike) -> tuple[PairCosts, tuple[str, ...]]:
        """One line for each pair, as the policies need it, for messages of ``low_bytes`` to ``high_bytes`` [N, N].

        The line that covers the range; where the switch lies within it, the one that covers more of it. Pairs
        whose ``high_bytes`` is 0 send nothing. Second: a sentence where pairs have two lines, else nothing.
        """
        low, high = self._sizes(low_bytes), self._sizes(high_bytes)
        if self.short is None:
            return self, ()
        switch = self.short.switch_bytes
        takes_short = (high > 0) & ((high <= switch) | (switch - low > high - switch))
        split = (low <= switch) & (high > switch)
        chosen = replace(
            self,
            theta_s_per_byte=np.where(takes_short, self.short.theta_s_per_byte, self.theta_s_per_byte),
            gamma_s=np.where(takes_short, self.short.gamma_s, self.gamma_s),
            short=None,
        )
        two = (switch > 0) & (high > 0)
        if not two.any():
            return chosen, ()
        text = (
            f"{two.sum()} of {(high > 0).sum()} pairs have two lines, and a policy takes one: that of short messages "
            f"for {takes_short.sum()} of them"
        )
        if split.any():
            text += (
                f"; {split.sum()} may send on either side of their switch, so what a policy says of their time is rough"
            )
        return chosen, (text,)

    def at_bandwidth(self, factor: float) -> PairCosts:
        """The same with every theta divided by ``factor``; what a message costs beside its bytes stays."""
        if not 0 < factor < np.inf:
            raise CostError(f"a factor of bandwidth is finite and > 0, not {factor}")
        short = self.short
        if short is not None:
            short = replace(short, theta_s_per_byte=short.theta_s_per_byte / factor)
        return replace(self, theta_s_per_byte=self.theta_s_per_byte / factor, short=short)

    def warnings(self, num_bytes: ArrayLike) -> tuple[str, ...]:
        """Sentences on what not to trust: messages beyond the measured range, lines that fit badly."""
        sizes = self._sizes(num_bytes)
        found = []
        outside = sizes[(sizes > 0) & ((sizes < self.low_bytes) | (sizes > self.high_bytes))]
        if len(outside):
            found.append(
                f"{len(outside)} of {(sizes > 0).sum()} messages ({outside.min():g} to {outside.max():g} bytes) lie "
                f"beyond the measured {self.low_bytes:g} to {self.high_bytes:g} bytes: calibrate over that range too"
            )
        if self.residual is not None:
            missed = np.where(np.eye(self.ranks, dtype=bool), 0.0, self.residual)
            if (missed > WARN_ABOVE).any():
                found.append(
                    f"the costs of {(missed > WARN_ABOVE).sum()} pairs miss their own measurements by up to "
                    f"{missed.max():.1%} (median of a pair): measure again on a quiet machine or with more repeats"
                )
        return tuple(found)

    def _on_its_line(self, sizes: F64) -> F64:
        """Seconds, as if every pair sent a message."""
        long: F64 = self.theta_s_per_byte * sizes + self.gamma_s
        if self.short is None:
            return long
        short = self.short.theta_s_per_byte * sizes + self.short.gamma_s
        return np.where(sizes <= self.short.switch_bytes, short, long)

    def _sizes(self, num_bytes: ArrayLike) -> F64:
        """[..., N, N] with an empty diagonal."""
        sizes = np.asarray(num_bytes, np.float64)
        if sizes.shape[-2:] != self.theta_s_per_byte.shape:
            raise CostError(f"bytes of {self.ranks} ranks end in {self.ranks} x {self.ranks}, not {sizes.shape}")
        if not (sizes >= 0).all():
            raise CostError(f"bytes must be >= 0, not {sizes.min()}")
        return np.where(np.eye(self.ranks, dtype=bool), 0.0, sizes)


def pair_costs(ranks: int, fits: Mapping[tuple[int, int], Fit]) -> PairCosts:
    """The fits of ordered pairs (sender, receiver) as matrices. CostError where a pair is missing."""
    missing = {(s, r) for s in range(ranks) for r in range(ranks) if s != r} - set(fits)
    if missing:
        raise CostError(f"no fit for {len(missing)} of the pairs of {ranks} ranks, {min(missing)} among them")
    theta, gamma, switch, short_theta, short_gamma, residual = np.zeros((6, ranks, ranks))
    for pair, found in fits.items():
        long = found.lines[-1]
        theta[pair], gamma[pair], residual[pair] = long.theta_s_per_byte, long.gamma_s, found.median_residual
        if found.switch_bytes is not None:
            switch[pair] = found.switch_bytes
            short_theta[pair], short_gamma[pair] = found.lines[0].theta_s_per_byte, found.lines[0].gamma_s
    short = ShortMessages(switch_bytes=switch, theta_s_per_byte=short_theta, gamma_s=short_gamma)
    return PairCosts(
        theta_s_per_byte=theta,
        gamma_s=gamma,
        low_bytes=max((found.lines[0].low_bytes for found in fits.values()), default=0.0),
        high_bytes=min((found.lines[-1].high_bytes for found in fits.values()), default=np.inf),
        short=short if switch.any() else None,
        residual=residual,
    )
