"""Cached partitions: made once, found by their settings, each rank loading only its own file.

    <cache>/<graph name>-<graph hash>-k<ranks>-<settings hash>/
        META.json       format, report, checksum of every file
        channels.npz    rows per (sender, receiver, reach): what plans are counted from
        rank0000.npz .. one Part each (part.py)

A folder is written under a temporary name and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit import plan as planning
from toolkit.config import Config
from toolkit.errors import UserError
from toolkit.graph import part as parts_io
from toolkit.graph import registry
from toolkit.graph.data import Graph
from toolkit.graph.messages import FAR
from toolkit.graph.part import Part, build_parts
from toolkit.graph.partition import assign

CACHE_FORMAT = 4
META_KEYS = {"graph", "ranks", "rank", "settings", "cut_directed_edges", "tries", "kept_try", "sha256"}
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CachedPartition:
    """A partition on disk."""

    folder: Path
    meta: dict[str, Any]
    channels: NDArray[np.int64]  # [N, N, R] rows from sender to receiver of each reach; the last: FAR

    def load(self, rank: int) -> Part:
        """The part of one rank, its checksum verified."""
        path = self.folder / _rank_file(rank)
        _verify(path, self.meta["sha256"][path.name])
        return parts_io.load(path)


def cache_root(config: Config) -> Path:
    """partition.cache, else $BITRING_CACHE/partitions, else ~/.cache/bitring/partitions."""
    if config.partition.cache:
        return Path(config.partition.cache)
    if own := os.environ.get("BITRING_CACHE"):
        return Path(own) / "partitions"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bitring" / "partitions"


def ensure(config: Config, ranks: int, say: Say = lambda text: None) -> CachedPartition:
    """The partition of a configuration over ``ranks``: from the cache, or made and cached now."""
    folder = cache_root(config) / _name(config, ranks)
    if not (folder / "META.json").exists():
        say(f"loading {config.data.name}")
        graph = registry.load(config)
        _write(graph, config, ranks, folder, say)
    return open_folder(folder)


def open_folder(folder: Path) -> CachedPartition:
    """Open a cached partition; UserError when it is damaged or of another version."""
    try:
        meta = json.loads((folder / "META.json").read_text(encoding="utf-8"))
        if meta["format"] != CACHE_FORMAT:
            raise UserError(
                f"{folder} is of format {meta['format']}, this bitring reads {CACHE_FORMAT}; delete the folder"
            )
        missing = META_KEYS - meta.keys()
        if missing:
            raise UserError(
                f"{folder / 'META.json'} lacks {', '.join(sorted(missing))}; delete the folder and call again"
            )
        _verify(folder / "channels.npz", meta["sha256"]["channels.npz"])
        with np.load(folder / "channels.npz", allow_pickle=False) as file:
            channels = file["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"the cached partition {folder} is damaged ({error}); delete the folder and call again"
        ) from None
    return CachedPartition(folder=folder, meta=meta, channels=channels)


def count_channels(parts_send: list[tuple[NDArray[np.int64], NDArray[np.int16]]], ranks: int) -> NDArray[np.int64]:
    """[N, N, FAR + 1] rows from each rank's (send_counts, send_reach)."""
    rows = np.zeros((ranks, ranks, FAR + 1), dtype=np.int64)
    for sender, (counts, reach) in enumerate(parts_send):
        np.add.at(rows[sender], (np.repeat(np.arange(ranks), counts), reach.astype(np.int64)), 1)
    return rows


def _write(graph: Graph, config: Config, ranks: int, folder: Path, say: Say) -> None:
    say(f"partitioning {graph.num_nodes:,} nodes, {graph.num_edges:,} directed edges over {ranks} ranks")
    exact = planning.make_plan(
        planning.layer_shapes(config.model, graph.num_features, graph.num_classes), frozenset(planning.STEPS)
    )
    assignment = assign(graph, ranks, config.partition, planning.bytes_by_reach(exact, planning.floats))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
    except OSError as error:
        raise UserError(
            f"can't write the partition cache {folder.parent}: {error.strerror}; set partition.cache"
        ) from None
    try:
        sends, ranks_report = [], []
        for part in build_parts(graph, assignment.parts, ranks):
            parts_io.save(part, temporary / _rank_file(part.rank))
            sends.append((part.send_counts, part.send_reach))
            ranks_report.append(_rank_report(part))
        np.savez(temporary / "channels.npz", rows=count_channels(sends, ranks))
        cut = assignment.parts[graph.indices] != np.repeat(assignment.parts, graph.in_degrees())
        meta = {
            "format": CACHE_FORMAT,
            "graph": {
                "name": graph.name,
                "nodes": graph.num_nodes,
                "directed_edges": graph.num_edges,
                "features": graph.num_features,
                "classes": graph.num_classes,
                "val": int(graph.val_mask.sum()),
                "notes": list(graph.notes),
            },
            "ranks": ranks,
            "settings": dataclasses.asdict(config.partition),
            "cut_directed_edges": int(cut.sum()),
            "tries": [dataclasses.asdict(t) for t in assignment.tries],
            "kept_try": assignment.kept,
            "rank": ranks_report,
            "sha256": {path.name: _sha256(path) for path in sorted(temporary.iterdir())},
        }
        (temporary / "META.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        temporary.chmod(0o755)
        try:
            temporary.rename(folder)
        except OSError:
            if not (folder / "META.json").exists():  # else another run has just made the same
                raise UserError(
                    f"{folder} is in the way and is no cached partition; delete it and call again"
                ) from None
    except OSError as error:
        raise UserError(
            f"can't write the partition {folder}: {error.strerror}; free space or set partition.cache"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _rank_report(part: Part) -> dict[str, int]:
    return {
        "inner": part.num_inner,
        "halo": part.num_halo,
        "marginal": int(part.marginal().sum()),
        "edges": len(part.indices),
        "train": int(part.train_mask.sum()),
        "rows_sent": len(part.send_rows),
    }


def _name(config: Config, ranks: int) -> str:
    fingerprint = registry.fingerprint(config.data)
    judged = config.partition.tries > 1 or config.partition.numbering == "ring"
    settings = {
        "format": [CACHE_FORMAT, parts_io.PART_FORMAT],
        "partition": {k: v for k, v in dataclasses.asdict(config.partition).items() if k != "cache"},
        # The best of several is judged by the bytes of this model under the exact plan, whatever the
        # plan, codec and arithmetic of the run: so that runs that differ in those share a partition.
        "judge": [dataclasses.asdict(s) for s in planning.layer_shapes(config.model, 0, 1)] if judged else None,
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return f"{config.data.name}-{fingerprint[:16]}-k{ranks}-{digest[:16]}"


def _rank_file(rank: int) -> str:
    return f"rank{rank:04d}.npz"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify(path: Path, checksum: str) -> None:
    try:
        found = _sha256(path)
    except OSError as error:
        raise UserError(
            f"the cached partition misses {path} ({error.strerror}); delete its folder and call again"
        ) from None
    if found != checksum:
        raise UserError(f"{path} is damaged (its checksum differs); delete its folder and call again")
