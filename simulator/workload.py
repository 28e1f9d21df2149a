"""The workload: what one training epoch moves and computes. The only contract between the packages.

The toolkit records one at the end of a run (``workload.npz``); the simulator reads it, and can make
one from a partition and a machine description. A file holds a JSON header and plain arrays, no
pickles; it is versioned and checked when read. docs/workload.md describes every entry.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

WORKLOAD_VERSION = 2
F64 = NDArray[np.float64]
WIDTHS = (0, 1, 2, 3, 4, 8, 16, 32, 64)  # bits an entry may have on the wire
META_BYTES = 4  # scale and zero-point of a quantised row


class WorkloadError(ValueError):
    """A workload file that can't be used: one sentence that says why."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """One all2all of an epoch: one layer, one direction. N ranks, M messages.

    Messages are ordered by sender, then receiver, then node. ``range_squared`` is the traced
    (max - min)^2 of each row that travels; ``alpha_squared`` the sum of the squared aggregation
    coefficients from that row to its targets on the receiver (1 backward: the receiver has summed
    already; NaN where coefficients are learned). Seconds are each rank's, medians over epochs:
    encode | messages fly || central | decode | marginal; backward: encode after marginal.
    """

    layer: int
    direction: Literal["forward", "backward"]
    row_entries: int  # entries of a row that travel
    rows: NDArray[np.int64]  # [N, N] messages, row the sender, column the receiver
    bits: NDArray[np.uint8]  # [M] bits of an entry on the wire
    range_squared: F64  # [M]
    alpha_squared: F64  # [M]
    encode_s: F64  # [N] gather, select, write
    flight_s: F64  # [N] from the first send to the last arrival
    central_s: F64  # [N] product over local rows, while messages fly
    decode_s: F64  # [N] read, place
    marginal_s: F64  # [N] product over halo rows

    def channel_bytes(self) -> NDArray[np.int64]:
        """[N, N] bytes on each channel, metadata included."""
        ends = np.repeat(np.arange(self.rows.size), self.rows.ravel())
        total = np.bincount(ends, message_bytes(self.row_entries, self.bits), self.rows.size)
        return total.astype(np.int64).reshape(self.rows.shape)


def message_bytes(entries: int, bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Bytes of messages of these widths: codes in whole bytes, and 4 of metadata up to 8 bits an entry."""
    wide = bits.astype(np.int64)
    return -(-entries * wide // 8) + np.where((wide > 0) & (wide <= 8), META_BYTES, 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """A training epoch of N ranks. Seconds are medians over epochs, one per rank."""

    ranks: int
    exchanges: tuple[Exchange, ...]  # in the order in which an epoch makes them
    held_s: F64  # [N] products of layers that exchange nothing
    dense_s: F64  # [N] everything else on the compute device
    weight_gradient_bytes: int
    weight_gradient_s: float
    transport: str
    graph: str
    notes: tuple[str, ...] = ()
    inner: NDArray[np.int64] | None = None  # [N] nodes that each rank owns, where known

    def epoch_bytes(self) -> int:
        """Bytes of rows that all ranks send in an epoch."""
        return int(sum(exchange.channel_bytes().sum() for exchange in self.exchanges))


_RANK_ARRAYS = ("held_s", "dense_s")
_STAGES = ("encode_s", "flight_s", "central_s", "decode_s", "marginal_s")
_EXCHANGE_ARRAYS = ("rows", "bits", "range_squared", "alpha_squared", *_STAGES)


def save(workload: Workload, path: Path) -> None:
    """Write atomically: under a temporary name, then renamed."""
    arrays: dict[str, NDArray[Any]] = {name: getattr(workload, name) for name in _RANK_ARRAYS}
    if workload.inner is not None:
        arrays["inner"] = workload.inner
    for index, exchange in enumerate(workload.exchanges):
        arrays |= {f"{index}.{name}": getattr(exchange, name) for name in _EXCHANGE_ARRAYS}
    header = {
        "version": WORKLOAD_VERSION,
        **{key: value for key, value in asdict(workload).items() if key not in (*_RANK_ARRAYS, "exchanges", "inner")},
        "exchanges": [
            {"layer": e.layer, "direction": e.direction, "row_entries": e.row_entries} for e in workload.exchanges
        ],
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, header=np.array(json.dumps(header)), **arrays)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # where the disk was full


def load(path: Path) -> Workload:
    """Read and check what save() wrote. WorkloadError for anything else."""
    if not path.exists():
        raise WorkloadError(f"there is no file {path}")
    if path.is_file() and os.access(path, os.R_OK) and not zipfile.is_zipfile(path):
        raise WorkloadError(f"{path} is no workload file (not an .npz archive)")
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            arrays = {key: file[key] for key in file.files if key != "header"}
    except Exception as error:  # numpy raises half a dozen kinds for a damaged file
        raise WorkloadError(f"{path} is no workload file ({type(error).__name__}: {error})") from None
    if not isinstance(header, dict):
        raise WorkloadError(f"{path} is no workload file (its header is a {type(header).__name__})")
    if header.get("version") != WORKLOAD_VERSION:
        raise WorkloadError(f"{path} is of version {header.get('version')}; this bitring reads {WORKLOAD_VERSION}")
    try:
        exchanges = tuple(
            Exchange(**meta, **{name: arrays[f"{index}.{name}"] for name in _EXCHANGE_ARRAYS})
            for index, meta in enumerate(header.pop("exchanges"))
        )
        header.pop("version")
        notes = tuple(header.pop("notes"))
        known = {name: arrays[name] for name in _RANK_ARRAYS} | {"inner": arrays.get("inner")}
        workload = Workload(exchanges=exchanges, notes=notes, **header, **known)
    except (KeyError, TypeError) as error:
        raise WorkloadError(f"{path} is no whole workload: {error}") from None
    _check(workload, path)
    return workload


def _check(workload: Workload, path: Path) -> None:
    n = workload.ranks
    if not isinstance(n, int) or n < 1:
        raise WorkloadError(f"{path}: ranks is {n!r}; it must be a number >= 1")
    for name in _RANK_ARRAYS:
        _check_seconds(getattr(workload, name), n, f"{path}: {name}")
    for name in ("weight_gradient_bytes", "weight_gradient_s"):
        value = getattr(workload, name)
        if not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise WorkloadError(f"{path}: {name} is {value!r}; it must be a finite number >= 0")
    inner = workload.inner
    if inner is not None and (inner.shape != (n,) or inner.dtype.kind not in "iu" or (inner < 0).any()):
        raise WorkloadError(f"{path}: inner must be {n} numbers of nodes")
    for exchange in workload.exchanges:
        where = f"{path}: layer {exchange.layer} {exchange.direction}"
        if exchange.direction not in ("forward", "backward"):
            raise WorkloadError(f"{where}: the direction must be forward or backward")
        if not isinstance(exchange.row_entries, int) or exchange.rows.dtype.kind not in "iu":
            raise WorkloadError(f"{where}: row_entries must be a whole number, and rows counts")
        if exchange.row_entries < 1 or not np.isin(exchange.bits, WIDTHS).all():
            raise WorkloadError(f"{where}: rows have 1 entry at least, of {', '.join(map(str, WIDTHS))} bits")
        if exchange.rows.shape != (n, n) or (exchange.rows < 0).any() or exchange.rows.diagonal().any():
            raise WorkloadError(f"{where}: rows must be {n} x {n} counts with an empty diagonal")
        messages = int(exchange.rows.sum())
        for name in ("bits", "range_squared", "alpha_squared"):
            if getattr(exchange, name).shape != (messages,):
                raise WorkloadError(
                    f"{where}: {name} has {len(getattr(exchange, name))} entries for {messages} messages"
                )
        ranges, alphas = exchange.range_squared, exchange.alpha_squared
        if not (np.isfinite(ranges) & (ranges >= 0)).all() or (alphas < 0).any() or np.isinf(alphas).any():
            raise WorkloadError(f"{where}: range_squared and alpha_squared are finite and >= 0 (alpha_squared: or NaN)")
        for name in _STAGES:
            _check_seconds(getattr(exchange, name), n, f"{where}: {name}")


def _check_seconds(seconds: F64, ranks: int, where: str) -> None:
    if seconds.shape != (ranks,) or seconds.dtype.kind not in "fiu":
        raise WorkloadError(f"{where} has shape {seconds.shape} of {seconds.dtype}, not ({ranks},) numbers")
    if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
        raise WorkloadError(f"{where} holds {seconds.min()}; seconds are finite and >= 0")
