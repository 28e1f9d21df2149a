"""Graphs of your own by ``data.path``: which format a file or folder is in, and its reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from toolkit.config import Data
from toolkit.errors import UserError
from toolkit.graph import folder, graphsaint, ogb
from toolkit.graph.npz import read_npz
from toolkit.graph.raw import Raw

PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".ckpt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One way in which a graph may lie on disk."""

    name: str  # as in data.format
    about: str
    is_here: Callable[[Path], bool]  # whether a path looks like it
    files: Callable[[Path], list[Path]]  # all that ``read`` looks at
    read: Callable[[Path, Data], Raw]


FORMATS = {
    entry.name: entry
    for entry in (
        Format(
            name="npz",
            about="a .npz file: bitring's own, gnn-benchmark, heterophilous benchmark",
            is_here=Path.is_file,
            files=lambda path: [path],
            read=lambda path, data: read_npz(path),
        ),
        Format(
            name="arrays",
            about="a folder of edges.csv (.tsv, .txt, .gz, .npy), features.npy, labels.npy, train.npy ...",
            is_here=folder.is_here,
            files=folder.files,
            read=lambda path, data: folder.read(path, data.delimiter),
        ),
        Format(
            name="graphsaint",
            about="a folder of adj_full.npz, feats.npy, class_map.json, role.json",
            is_here=graphsaint.is_here,
            files=graphsaint.files,
            read=lambda path, data: graphsaint.read(path),
        ),
        Format(
            name="ogb",
            about="a folder of raw/edge.csv.gz or raw/data.npz, and split/",
            is_here=ogb.is_here,
            files=ogb.files,
            read=lambda path, data: ogb.read(path),
        ),
    )
}


def found(data: Data) -> tuple[Path, Format]:
    """The path of ``data`` and the format of what lies there. Raises UserError."""
    path = Path(data.path).expanduser()
    if path.suffix.lower() in PICKLED:
        raise UserError(
            f"{path}: reading a {path.suffix} file unpickles it, which can run any program, so bitring does not; "
            "load it yourself where you trust it, and export it with toolkit.graph.pyg.from_pyg (docs/datasets.md)"
        )
    if not path.exists():
        raise UserError(f"can't read {path}: No such file or directory; check data.path")
    if not path.is_dir() and not path.is_file():
        raise UserError(f"can't read {path}: it is neither a file nor a folder; check data.path")
    if data.name == "folder" and path.is_file():
        raise UserError(f"data.name is 'folder', but {path} is a file; use data.name = 'file'")
    if data.format != "auto":
        chosen = FORMATS[data.format]
        if (data.format == "npz") != path.is_file():
            raise UserError(f"data.format is '{data.format}', {chosen.about}, but {path} is not; leave data.format out")
        return path, chosen
    fits = [entry for entry in FORMATS.values() if entry.is_here(path)]
    if len(fits) > 1:
        names = " and ".join(f"'{entry.name}'" for entry in fits)
        raise UserError(f"{path} could be of the formats {names}; say which with data.format")
    if not fits:
        known = "; ".join(f"'{entry.name}', {entry.about}" for entry in FORMATS.values())
        raise UserError(f"{path} holds no graph that is known: {known}")
    return path, fits[0]


def read(data: Data) -> Raw:
    """The graph at ``data.path``. Raises UserError."""
    path, chosen, _ = _whole(data)
    return chosen.read(path, data)


def files(data: Data) -> tuple[str, list[Path]]:
    """The name of the format, and the files that decide what read() returns. Raises UserError."""
    _, chosen, needed = _whole(data)
    return chosen.name, needed


def _whole(data: Data) -> tuple[Path, Format, list[Path]]:
    path, chosen = found(data)
    needed = chosen.files(path)
    for file in needed:  # a pipe of that name would be waited for without end
        if not file.is_file():
            raise UserError(f"{file} is missing, or is no plain file; the format '{chosen.name}' is {chosen.about}")
    return path, chosen, needed
