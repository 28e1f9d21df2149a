"""The data sets known by name: loads them, lists them, and tells prepared graphs apart by a fingerprint."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.config import Config, Data
from toolkit.errors import UserError, nearest
from toolkit.graph import foreign, generate
from toolkit.graph.data import Graph
from toolkit.graph.facts import show_text as show_text
from toolkit.graph.npz import read_npz
from toolkit.graph.planetoid import file_names, read_planetoid
from toolkit.graph.prepare import prepare
from toolkit.graph.raw import Raw

FORMAT = 1  # raise it whenever the same settings and files give another graph than before
OWN = ("file", "folder")  # values of data.name that go with data.path
_EDGE_KEYS = ("symmetrise", "self_loops", "duplicates")
_FEATURE_KEYS = ("feature_norm", "project_to")
_PER_CLASS_KEYS = ("split_seed", "train_per_class", "val_per_class")
_RATIO_KEYS = ("split_seed", "train_ratio", "val_ratio")
_MADE_UP_KEYS = ("features", "classes", "noise", "generator_seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """A data set by name: how it is read, and what is known of it without reading it."""

    name: str
    about: str
    licence: str
    read: Callable[[Path, Data], Raw]  # from the set's folder; a generator looks at Data only
    files: tuple[str, ...] = ()  # in the set's folder
    parameters: tuple[str, ...] = ()  # fields of Data that ``read`` looks at
    split: str = "none"  # the file's own: 'public', 'fixed' or 'none'
    complete: bool = True  # has features and labels
    nodes: int | None = None  # None: as configured
    edges: int | None = None  # distinct, undirected, without self-loops
    features: int | None = None
    classes: int | None = None


def _planetoid(name: str, about: str, nodes: int, edges: int, features: int, classes: int) -> DataSet:
    return DataSet(
        name=name,
        about=about,
        licence="MIT",
        read=lambda folder, data: read_planetoid(folder, name),
        files=file_names(name),
        split="public",
        nodes=nodes,
        edges=edges,
        features=features,
        classes=classes,
    )


def _npz(
    name: str, file: str, about: str, licence: str, split: str, size: tuple[int, int, int | None, int | None]
) -> DataSet:
    nodes, edges, features, classes = size
    return DataSet(
        name=name,
        about=about,
        licence=licence,
        read=lambda folder, data: replace(read_npz(folder / file), name=name),
        files=(file,),
        split=split,
        complete=features is not None,
        nodes=nodes,
        edges=edges,
        features=features,
        classes=classes,
    )


def _read_sbm(folder: Path, data: Data) -> Raw:
    return generate.sbm(
        data.nodes, data.edges, data.features, data.classes, data.mixing, data.noise, data.generator_seed
    )


def _read_rmat(folder: Path, data: Data) -> Raw:
    # Generated as a whole, so there is no file whose lack of labels would have to be made up knowingly.
    raw = generate.rmat(data.nodes, data.edges, data.generator_seed)
    return generate.made_up(raw, data.features, data.classes, data.noise, data.generator_seed)


DATASETS: dict[str, DataSet] = {
    entry.name: entry
    for entry in (
        DataSet(
            name="digits",
            about="scikit-learn's handwritten digits, joined to their nearest neighbours",
            licence="CC BY 4.0",
            read=lambda folder, data: generate.digits(data.knn),
            parameters=("knn",),
            nodes=1797,
            features=64,
            classes=10,
        ),
        DataSet(
            name="sbm",
            about="generated: stochastic block model with planted classes",
            licence="-",
            read=_read_sbm,
            parameters=("nodes", "edges", "mixing", *_MADE_UP_KEYS),
        ),
        DataSet(
            name="rmat",
            about="generated: recursive matrix, skewed degrees; labels and features made up",
            licence="-",
            read=_read_rmat,
            parameters=("nodes", "edges", *_MADE_UP_KEYS),
        ),
        _planetoid("cora", "machine-learning papers and their citations", 2708, 5278, 1433, 7),
        _planetoid("citeseer", "computer-science papers and their citations", 3327, 4552, 3703, 6),
        _planetoid("pubmed", "diabetes papers and their citations", 19717, 44324, 500, 3),
        _npz(
            "amazon_computers", "amazon_electronics_computers.npz", "computer goods bought together",
            "MIT", "none", (13752, 245861, 767, 10),
        ),
        _npz(
            "coauthor_physics", "ms_academic_phy.npz", "physicists and their joint papers",
            "MIT", "none", (34493, 247962, 8415, 5),
        ),
        _npz(
            "wordnet", "wordnet.npz", "WordNet's synsets, their pointers and glosses",
            "WordNet 3.0", "fixed", (117659, 183789, 7809, 45),
        ),
        _npz(
            "cnr_2000", "cnr-2000.npz", "web pages and their links; needs data.make_up",
            "Apache-2.0 or LGPL-2.1+", "none", (325557, 2738969, None, None),
        ),
    )
}  # fmt: skip


def load(config: Config) -> Graph:
    """The graph that ``config.data`` names, prepared as it says. Raises UserError."""
    data = config.data
    try:
        if data.name in OWN:
            return prepare(foreign.read(data), data)
        entry = _entry(data.name)
        return prepare(entry.read(_found_folder(entry, data), data), data)
    except MemoryError:
        raise UserError(f"the graph '{data.name}' takes more memory than there is; use a smaller one") from None


def fingerprint(data: Data) -> str:
    """SHA-256 in hex of all that decides what ``load`` returns: the settings that matter and the files' bytes.

    Equal fingerprints mean equal graphs; where the files lie doesn't matter. Raises UserError for a missing file.
    """
    kind = None
    if data.name in OWN:
        kind, files = foreign.files(data)
        keys = {"make_up", "delimiter", *_MADE_UP_KEYS} if data.make_up else {"make_up", "delimiter"}
        keys |= _split_keys(data, own=None)
    else:
        entry = _entry(data.name)
        folder = _found_folder(entry, data)
        files = [folder / file for file in entry.files]
        keys = set(entry.parameters) | _split_keys(data, own=entry.split != "none")
        if not entry.complete:
            keys |= {"make_up", *_MADE_UP_KEYS}
    keys |= {*_EDGE_KEYS, *_FEATURE_KEYS, *(["generator_seed"] if data.project_to else [])}
    told = {
        "format": FORMAT,
        "name": data.name if kind is None else f"a {kind} of one's own",
        "settings": {key: getattr(data, key) for key in sorted(keys)},
        "files": [[file.name if kind != "npz" else "", _file_sha256(file)] for file in files],
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def list_text(data: Data | None = None) -> str:
    """A table of the data sets, saying which are found on disk."""
    root = data_root(data or Data())
    rows = [["name", "nodes", "edges", "features", "classes", "split", "found", "licence", "what it is"]]
    for entry in DATASETS.values():
        counts = (entry.nodes, entry.edges, entry.features, entry.classes)
        cells = ["-" if count is None else f"{count:,}" for count in counts]
        found = "built in" if not entry.files else "no" if _missing(entry, root / entry.name) else "yes"
        rows.append([entry.name, *cells, entry.split, found, entry.licence, entry.about])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    own = [f"  {entry.name:<11} {entry.about}" for entry in foreign.FORMATS.values()]
    lines += ["", "Graphs of your own, by data.path (docs/datasets.md):", *own]
    return "\n".join([*lines, "", f"Data sets are looked for in {root} (data.root, else $BITRING_DATA, else ./data)."])


def data_root(data: Data) -> Path:
    """The folder that holds one folder per data set: data.root, else $BITRING_DATA, else ./data."""
    return Path(data.root or os.environ.get("BITRING_DATA") or "data").expanduser()


def _entry(name: str) -> DataSet:
    if name not in DATASETS:
        raise UserError(f"data.name is {name!r}; {nearest(name, [*DATASETS, *OWN])}")
    return DATASETS[name]


def _missing(entry: DataSet, folder: Path) -> list[str]:
    return [file for file in entry.files if not (folder / file).is_file()]


def _found_folder(entry: DataSet, data: Data) -> Path:
    root = data_root(data)
    missing = _missing(entry, root / entry.name)
    if missing:
        raise UserError(
            f"the data set '{entry.name}' is not whole in {root / entry.name}: {missing[0]} is missing; "
            f"set data.root or $BITRING_DATA to the folder that holds '{entry.name}/'"
        )
    return root / entry.name


def _split_keys(data: Data, own: bool | None) -> set[str]:
    """The settings that decide the split; ``own``: whether the file has one, None if only reading it would tell."""
    if data.split == "ratio":
        return {"split", *_RATIO_KEYS}
    if data.split == "file" or (data.split == "auto" and own):
        return {"split_index"}
    if data.split == "auto" and own is None:
        return {"split", "split_index", *_PER_CLASS_KEYS, *_RATIO_KEYS}
    return {"split", *_PER_CLASS_KEYS}


def _file_sha256(path: Path) -> str:
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}; check data.path and data.root") from None
