"""How many bits each message gets, where a codec has widths: fixed, or drawn.

Both ends of a channel work a message's width out of its id, so nothing is sent to agree on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from toolkit import config as configs
from toolkit.comm.codec import UNQUANTISED
from toolkit.comm.layout import Bits, Listing
from toolkit.comm.ledger import Direction
from toolkit.keyed import mix64, mix_array
from toolkit.rounding import DRAWN_FROM


class Widths(Protocol):
    """Gives each message of a listing its bits."""

    def period(self, epoch: int) -> int:
        """Widths stay as they are while this number does."""
        ...

    def bits(self, listing: Listing, layer: int, direction: Direction, epoch: int) -> Bits: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """All messages alike."""

    width: int

    def period(self, epoch: int) -> int:
        return 0

    def bits(self, listing: Listing, layer: int, direction: Direction, epoch: int) -> Bits:
        return np.full(len(listing.ids), self.width, np.uint8)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Each message draws from 2, 4 and 8 bits, anew each period: the paper's comparison."""

    seed: int
    epochs: int  # of a period

    def period(self, epoch: int) -> int:
        return epoch // self.epochs

    def bits(self, listing: Listing, layer: int, direction: Direction, epoch: int) -> Bits:
        key = mix64(self.seed, 0xB175, self.period(epoch), layer, direction == "backward")
        drawn = mix_array(listing.ids ^ np.uint64(key)) >> np.uint64(32)  # the upper half is as good as any
        bits: Bits = np.array(DRAWN_FROM, np.uint8)[(drawn * np.uint64(len(DRAWN_FROM))) >> np.uint64(32)]
        return bits


UNTOUCHED = Fixed(UNQUANTISED)


def make(method: configs.Method, seed: int) -> Widths:
    """The widths of a configuration; all 32 where its codec has none."""
    if method.codec != "quantised":
        return UNTOUCHED
    return Uniform(seed, method.period) if method.widths == "uniform" else Fixed(method.bits)
