"""What a simulation answers, whole: frozen, and ready for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from simulator.critical import Piece, by_stage
from simulator.epoch import EpochTime
from simulator.replicas import Distribution, Disturbed
from simulator.stragglers import Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """Another choice under the same stragglers: ``difference`` is its seconds an epoch less the first one's."""

    choice: str
    epochs: Distribution
    difference: Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An epoch of one choice on one machine, and what was asked about it. Seconds of an epoch."""

    graph: str
    ranks: int
    transport: str
    machine: str
    method: str
    parameters: dict[str, float | str]
    epoch: EpochTime
    channel_bytes: tuple[tuple[tuple[float, ...], ...], ...]  # [exchanges][sender][receiver], on average over epochs
    beside_s: float  # assignments or putting weights together, spread over epochs; in epoch_s
    limit_s: float | None  # None: widths are not what this method chooses
    variance_bound: float
    path: tuple[Piece, ...] | None
    no_path: str = ""  # why there is none
    solve_s: float | None = None  # of the widths, beside training: not in epoch_s; as measured here
    stragglers: tuple[str, ...] = ()
    disturbed: Disturbed | None = None
    against: tuple[Against, ...] = ()
    compute_ratios: dict[str, float] | None = None  # estimated over recorded, by stage
    notes: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """For JSON: the epoch's entries stand on top, with waiting_s and hidden_s of all exchanges."""
        found = asdict(self)
        epoch = found.pop("epoch")
        stages = None
        if self.path is not None:
            stages = [{"rank": rank, "stage": stage, "seconds": s} for rank, stage, s in by_stage(self.path)]
        sums = {"waiting_s": self.epoch.waiting_s, "hidden_s": self.epoch.hidden_s}
        plain: dict[str, Any] = epoch | sums | found | {"path_by_stage": stages}
        return plain
