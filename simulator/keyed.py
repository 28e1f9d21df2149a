"""Numbers from keys, not from a stream: splitmix64's finaliser. The same for (what, where) in any order of asking."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mix64(*words: int) -> int:
    """Fold integers into one 64-bit key (splitmix64's finaliser after each word)."""
    state = 0
    for word in words:
        state = (state ^ (word & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state


def mix_array(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser, entry by entry."""
    with np.errstate(over="ignore"):  # multiplication modulo 2^64 is the point; a lone number would warn
        state = words + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed
