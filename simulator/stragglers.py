"""Stragglers: by what factor a device or a link is slower, in which epoch.

Every draw is a pure function of (seed, what, where, epoch), never of the order of drawing. So two policies
that are simulated under one seed meet the very same slow devices in the same epochs: their difference is
paired, and its confidence interval far narrower than that of two independent runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from simulator.keyed import mix64, mix_array

F64 = NDArray[np.float64]
What = Literal["device", "link"]
_KINDS: dict[What, int] = {"device": 0xDE, "link": 0x11}


class StragglerError(ValueError):
    """A straggler or a comparison that can't be: one sentence that says why."""


def uniform(key: int, where: ArrayLike, epoch: ArrayLike) -> F64:
    """Numbers in (0, 1), one for each (where, epoch); the two broadcast. Counter-based: no state."""
    place = np.asarray(where, np.int64).astype(np.uint64)
    time = np.asarray(epoch, np.int64).astype(np.uint64)
    state = mix_array(mix_array(np.uint64(key) ^ place) ^ time)
    # 53 bits, centred: neither 0 nor 1, so a normal quantile of it is finite
    return np.asarray(((state >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)


class Model(Protocol):
    """How one kind of straggling makes its factors, >= 0; 1 is undisturbed."""

    def factors(self, key: int, where: NDArray[np.int64], epochs: NDArray[np.int64]) -> F64:
        """[epochs, places]"""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """Slower by ``factor`` in every epoch."""

    factor: float

    def __post_init__(self) -> None:
        _refuse_below(0.0, factor=self.factor)

    def factors(self, key: int, where: NDArray[np.int64], epochs: NDArray[np.int64]) -> F64:
        return np.full((len(epochs), len(where)), self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """exp(sigma z - sigma²/2), z standard normal, drawn anew each epoch: mean 1 whatever sigma."""

    sigma: float

    def __post_init__(self) -> None:
        _refuse_below(0.0, sigma=self.sigma)

    def factors(self, key: int, where: NDArray[np.int64], epochs: NDArray[np.int64]) -> F64:
        z = ndtri(uniform(key, where[None, :], epochs[:, None]))
        return np.asarray(np.exp(self.sigma * z - self.sigma**2 / 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """With ``probability`` an epoch starts a burst: slower by ``factor`` for ``epochs`` epochs. Bursts don't add up."""

    probability: float
    epochs: int
    factor: float

    def __post_init__(self) -> None:
        _refuse_below(0.0, probability=self.probability, factor=self.factor)
        _refuse_below(1, epochs=self.epochs)
        if self.probability > 1:
            raise StragglerError(f"the probability of a burst is {self.probability}; it must be at most 1")

    def factors(self, key: int, where: NDArray[np.int64], epochs: NDArray[np.int64]) -> F64:
        longest = min(self.epochs, int(epochs.max(initial=0)) + 1)  # none begins before epoch 0
        begins = epochs[:, None, None] - np.arange(longest)[None, None, :]
        starts = uniform(key, where[None, :, None], begins) < self.probability
        return np.where((starts & (begins >= 0)).any(axis=-1), self.factor, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Factors of consecutive epochs from a run; after the last the first follows again."""

    history: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.history:
            raise StragglerError("recorded factors must be of one epoch at least")
        for factor in self.history:
            _refuse_below(0.0, history=factor)

    def factors(self, key: int, where: NDArray[np.int64], epochs: NDArray[np.int64]) -> F64:
        series = np.array(self.history)[epochs % len(self.history)]
        return np.repeat(series[:, None], len(where), axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A model at places: ranks, or links as (sender, receiver); None is everywhere. ``stream`` tells models apart."""

    what: What
    model: Model
    where: tuple[int, ...] | tuple[tuple[int, int], ...] | None = None
    stream: int = 0

    def __post_init__(self) -> None:
        if self.what not in _KINDS:
            raise StragglerError(f"a straggler is a device or a link, not {self.what!r}")
        if self.where is not None and any(isinstance(w, int) != (self.what == "device") for w in self.where):
            raise StragglerError(f"devices are ranks and links are (sender, receiver), not {self.where}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """All that is slow in a simulation. Factors of stragglers at one place multiply."""

    seed: int = 0
    members: tuple[Straggler, ...] = field(default=())

    def device_factors(self, ranks: int, epochs: ArrayLike) -> F64:
        """[E, N]: multiply compute seconds by these. ``epochs`` [E] are epoch numbers."""
        return self._factors("device", [(r, r) for r in range(ranks)], ranks, epochs)

    def link_factors(self, ranks: int, epochs: ArrayLike) -> F64:
        """[E, N, N], row the sender: multiply theta by these (and gamma, if the whole link is slow)."""
        pairs = [(s, r) for s in range(ranks) for r in range(ranks)]
        return self._factors("link", pairs, ranks, epochs).reshape(-1, ranks, ranks)

    def without(self, index: int) -> Stragglers:
        """What if straggler number ``index`` were gone; the others keep their draws."""
        if not 0 <= index < len(self.members):
            raise StragglerError(f"there is no straggler {index}: they are numbered 0 to {len(self.members) - 1}")
        return Stragglers(seed=self.seed, members=self.members[:index] + self.members[index + 1 :])

    def gone(self) -> Stragglers:
        """What if all were gone."""
        return Stragglers(seed=self.seed)

    def _factors(self, what: What, places: list[tuple[int, int]], ranks: int, epochs: ArrayLike) -> F64:
        times = np.atleast_1d(np.asarray(epochs, np.int64))
        ids = np.array([s << 32 | r for s, r in places], np.int64)  # a place's draws don't depend on N
        product = np.ones((len(times), len(places)))
        for member in self.members:
            if member.what != what:
                continue
            chosen = np.arange(len(places)) if member.where is None else _indices(member, places, ranks)
            key = mix64(self.seed, _KINDS[what], member.stream)
            product[:, chosen] *= member.model.factors(key, ids[chosen], times)
        return product


def _indices(member: Straggler, places: list[tuple[int, int]], ranks: int) -> NDArray[np.int64]:
    position = {place: index for index, place in enumerate(places)}
    wanted = [(w, w) if isinstance(w, int) else w for w in member.where or ()]
    missing = [w for w, place in zip(member.where or (), wanted, strict=True) if place not in position]
    if missing:
        raise StragglerError(f"{member.what} {missing[0]} is not there: ranks are 0 to {ranks - 1}")
    return np.array([position[place] for place in dict.fromkeys(wanted)], np.int64)


def _refuse_below(least: float, **values: float) -> None:
    for name, value in values.items():
        if not (least <= value < np.inf):
            raise StragglerError(f"{name} is {value}; it must be finite and at least {least:g}")


FORM = (
    "device:2=1.5, link:0-1=lognormal:0.3, device=bursts:0.05:10:3 (probability, epochs, factor) or "
    "device:0=recorded:FILE"
)


def parse(text: str, stream: int = 0, read: Callable[[str], str] | None = None) -> Straggler:
    """A straggler from words: WHAT[:WHERE]=MODEL. StragglerError.

    WHERE: ranks, or links as sender-receiver, joined by commas; left out, all of them. MODEL: a factor,
    lognormal:SIGMA, bursts:PROBABILITY:EPOCHS:FACTOR, or recorded:FILE of factors, one for each epoch.
    """
    place, equals, model = text.partition("=")
    what, _, where = place.partition(":")
    if not equals or what not in _KINDS:
        raise StragglerError(f"{text!r} is no straggler; give {FORM}")
    try:
        places = None if not where else tuple(_place(what, one) for one in where.split(","))
        made = _model(model, read or _read)
    except (ValueError, TypeError) as error:
        if isinstance(error, StragglerError):
            raise StragglerError(f"{text!r}: {error}") from None
        raise StragglerError(f"{text!r} is no straggler; give {FORM}") from None
    return Straggler(what=what, model=made, where=places, stream=stream)  # type: ignore[arg-type]


def _place(what: str, text: str) -> int | tuple[int, int]:
    if what == "device":
        if not text.isdigit():
            raise StragglerError(f"{text!r} is no rank; give device:2, or device:0,2 for several")
        return int(text)
    sender, receiver = map(int, text.split("-"))
    if sender == receiver:
        raise StragglerError(f"a link leads from one rank to another, not from {sender} to itself")
    return sender, receiver


def _model(text: str, read: Callable[[str], str]) -> Model:
    if _is_zero(text):
        raise StragglerError("a factor of 0 is no time at all; a straggler has one above 0, such as 1.5")
    name, _, rest = text.partition(":")
    if name == "lognormal":
        return Lognormal(sigma=float(rest))
    if name == "bursts":
        probability, epochs, factor = rest.split(":")
        return Bursts(probability=float(probability), epochs=int(epochs), factor=float(factor))
    if name == "recorded":
        return Recorded(history=tuple(map(float, read(rest).split())))
    return Constant(factor=float(text))


def _is_zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StragglerError(f"the factors in {path} can't be read ({error})") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Mean of b - a over paired replicas, with its two-sided confidence interval (Student's t)."""

    mean: float
    low: float
    high: float
    confidence: float
    pairs: int

    @property
    def significant(self) -> bool:
        """The interval doesn't contain 0."""
        return self.low > 0 or self.high < 0


def paired_difference(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> Difference:
    """b - a for results [R] of two policies under the same R draws. Unit: that of the results."""
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.shape != second.shape or first.ndim != 1 or len(first) < 2:
        raise StragglerError(f"two or more paired results are needed, not {first.shape} and {second.shape}")
    if not 0 < confidence < 1:
        raise StragglerError(f"the confidence is {confidence}; it must lie between 0 and 1")
    apart = second - first
    pairs, mean = len(apart), float(apart.mean())
    half = float(stdtrit(pairs - 1, (1 + confidence) / 2) * apart.std(ddof=1) / np.sqrt(pairs))
    return Difference(mean=mean, low=mean - half, high=mean + half, confidence=confidence, pairs=pairs)
