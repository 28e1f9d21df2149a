from __future__ import annotations

import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolkit.config import Config, Data
from toolkit.graph import registry
from toolkit.graph.facts import measure
from toolkit.graph.generate import digits
from toolkit.graph.npz import write_npz
from toolkit.graph.prepare import prepare
from toolkit.graph.registry import DATASETS, fingerprint, list_text, load, show_text

from .helpers import refused, small


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.npz"
    write_npz(path, prepare(small(), Data(split="ratio")))
    return path


def with_data(**settings: Any) -> Config:
    return Config(data=Data(**settings))


@pytest.mark.parametrize("name", ["digits", "sbm", "rmat"])
def test_generated_sets_need_no_file(name: str, tmp_path: Path) -> None:
    graph = load(with_data(name=name, root=str(tmp_path), nodes=2000, edges=9000, split="ratio"))
    assert (graph.name, graph.num_nodes) == (name, DATASETS[name].nodes or 2000)
    assert graph.train_mask.any() and graph.num_features == 64 and graph.num_classes == 10


def test_generated_labels_of_rmat_are_noted() -> None:
    notes = load(with_data(name="rmat", nodes=500, edges=2000, split="ratio")).notes
    assert sum("made up" in note for note in notes) == 2


def test_a_file_of_ones_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load(with_data(name="file", path=str(file)))
    assert graph.name == "mine" and graph.num_nodes == 6 and graph.num_edges == 10
    monkeypatch.setenv("HOME", str(file.parent))
    assert load(with_data(name="file", path="~/mine.npz")).num_nodes == 6


def test_unknown_and_missing_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("data.name is 'coar'", "did you mean 'cora'?"):
        load(with_data(name="coar"))
    with refused("data.name is 'zzz'", "known:", "digits"):
        fingerprint(Data(name="zzz"))
    for call in (lambda data: load(Config(data=data)), fingerprint):
        with refused("'cora' is not whole in", str(tmp_path / "cora"), "ind.cora.x is missing", "$BITRING_DATA"):
            call(Data(name="cora", root=str(tmp_path)))
    with refused("can't read", "absent.npz"):
        fingerprint(Data(name="file", path=str(tmp_path / "absent.npz")))


def test_where_sets_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITRING_DATA", "/from/environment")
    assert registry.data_root(Data()) == Path("/from/environment")
    assert registry.data_root(Data(root="/from/configuration")) == Path("/from/configuration")
    monkeypatch.setenv("BITRING_DATA", "")
    assert registry.data_root(Data()) == Path("data")


def test_too_little_memory_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> Any:
        raise MemoryError

    monkeypatch.setitem(DATASETS, "sbm", replace(DATASETS["sbm"], read=full))
    with refused("'sbm' takes more memory"):
        load(with_data(name="sbm"))


def changed(data: Data, key: str) -> Data:
    """``data`` with another valid value of ``key``."""
    other: dict[str, Any] = {
        "self_loops": "keep",
        "duplicates": "keep",
        "feature_norm": "row",
        "split": "ratio",
        "train_ratio": 0.5,
        "val_ratio": 0.1,
        "mixing": 0.3,
        "noise": 0.5,
        "root": "/elsewhere",
    }
    value = getattr(data, key)
    if key not in other:
        other[key] = not value if isinstance(value, bool) else value + 1
    return replace(data, **{key: other[key]})


ALWAYS = {"symmetrise", "self_loops", "duplicates", "feature_norm", "project_to", "split"}
SPLIT = {"split_seed", "train_per_class", "val_per_class"}


@pytest.mark.parametrize(
    ("data", "matter"),
    [
        (Data(name="digits"), ALWAYS | SPLIT | {"knn"}),
        (Data(name="digits", project_to=8), ALWAYS | SPLIT | {"knn", "generator_seed"}),
        (Data(name="digits", split="ratio"), (ALWAYS - {"split"}) | {"knn", "split_seed", "train_ratio", "val_ratio"}),
        (
            Data(name="sbm"),
            ALWAYS | SPLIT | {"nodes", "edges", "features", "classes", "mixing", "noise", "generator_seed"},
        ),
        (Data(name="rmat"), ALWAYS | SPLIT | {"nodes", "edges", "features", "classes", "noise", "generator_seed"}),
    ],
    ids=["digits", "projected", "ratio", "sbm", "rmat"],
)
def test_the_fingerprint_follows_what_matters_and_nothing_else(data: Data, matter: set[str]) -> None:
    keys = {field.name for field in fields(Data)} - {"name", "path", "format", "delimiter"}
    if data.split == "ratio":
        keys -= {"split", "split_index"}  # ``changed`` has no other value for the one, the other goes with 'file'
    moved = {key for key in keys if fingerprint(changed(data, key)) != fingerprint(data)}
    assert moved == matter


def test_the_fingerprint_of_a_file_is_of_its_bytes(file: Path) -> None:
    data = Data(name="file", path=str(file))
    before = fingerprint(data)
    copy = file.with_name("copy.npz")
    shutil.copy(file, copy)
    assert fingerprint(replace(data, path=str(copy))) == before
    write_npz(file, prepare(small(features=np.zeros((6, 3))), Data(split="ratio")))
    assert fingerprint(data) != before
    made_up = replace(data, make_up=True)
    assert fingerprint(made_up) != fingerprint(data)
    assert fingerprint(replace(made_up, noise=2.0)) != fingerprint(made_up)
    assert fingerprint(replace(data, noise=2.0)) == fingerprint(data)


def test_the_format_number_is_part_of_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(Data())
    assert len(before) == 64 and fingerprint(Data()) == before
    monkeypatch.setattr(registry, "FORMAT", registry.FORMAT + 1)
    assert fingerprint(Data()) != before


def test_real_fingerprints(data_root: Path) -> None:
    cora = Data(name="cora", root=str(data_root))
    assert fingerprint(cora) == fingerprint(replace(cora, split="file", split_seed=4, train_per_class=3, noise=9.0))
    assert fingerprint(cora) != fingerprint(replace(cora, split="per_class"))
    assert fingerprint(cora) != fingerprint(replace(cora, name="citeseer"))
    web = Data(name="cnr_2000", root=str(data_root), make_up=True)
    assert fingerprint(web) != fingerprint(replace(web, noise=9.0))
    with refused("cnr_2000 has no features and labels", "data.make_up"):
        load(Config(data=replace(web, make_up=False)))


def test_the_list_says_what_is_found(tmp_path: Path) -> None:
    for file in DATASETS["cora"].files:
        (tmp_path / "cora").mkdir(exist_ok=True)
        (tmp_path / "cora" / file).touch()
    text = list_text(Data(root=str(tmp_path)))
    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert set(DATASETS) <= set(rows) and str(tmp_path) in text
    assert "  yes  " in rows["cora"] and "  no  " in rows["pubmed"] and "built in" in rows["digits"]
    assert "88,676" not in text and "44,324" in rows["pubmed"] and "WordNet 3.0" in rows["wordnet"]


def test_the_split_index_is_in_the_fingerprint_of_sets_with_a_split(tmp_path: Path) -> None:
    """Else a partition that is cached for split 0 would be taken for split 1, unrefused."""
    (tmp_path / "cora").mkdir()
    for file in DATASETS["cora"].files:
        (tmp_path / "cora" / file).touch()
    data = Data(name="cora", root=str(tmp_path))
    assert fingerprint(replace(data, split_index=1)) != fingerprint(data)


def test_every_set_has_a_licence_and_a_line() -> None:
    for name, entry in DATASETS.items():
        assert entry.name == name and entry.licence and entry.about
        assert entry.files or entry.nodes is None or name == "digits"


def test_facts_of_a_graph_counted_by_hand() -> None:
    # A triangle 0-1-2 with a repeat and a self-loop, an edge 3-4, and node 5 alone.
    raw = small(
        sources=np.array([0, 1, 2, 0, 3, 1]),
        targets=np.array([1, 2, 0, 1, 4, 1]),
        labels=np.array([0, 0, 1, 1, -1, 1]),
    )
    graph = prepare(raw, Data(split="ratio", self_loops="keep", duplicates="keep"))
    facts = measure(graph)
    assert (facts.nodes, facts.edges, facts.directed_edges) == (6, 4, 11)
    assert (facts.mean_degree, facts.max_degree, facts.isolated) == (pytest.approx(8 / 6), 2, 1)
    assert (facts.components, facts.largest_component) == (3, 3)
    assert (facts.same_class_edges, facts.largest_class, facts.unlabelled) == (
        pytest.approx(1 / 3),
        pytest.approx(3 / 5),
        1,
    )
    assert facts.split == (3, 1, 1) and facts.feature_density == pytest.approx(17 / 18)


def test_directed_graphs_count_an_edge_once_whichever_way_it_points() -> None:
    raw = small(sources=np.array([0, 1, 2]), targets=np.array([1, 0, 1]))
    facts = measure(prepare(raw, Data(split="ratio", symmetrise=False)))
    assert (facts.edges, facts.directed_edges, facts.max_degree, facts.components) == (2, 3, 2, 4)


def test_facts_where_there_is_nothing_to_count() -> None:
    none = np.array([], np.int64)
    facts = measure(prepare(small(sources=none, targets=none), Data(split="ratio")))
    assert (facts.edges, facts.max_degree, facts.same_class_edges, facts.isolated) == (0, 0, None, 6)


def test_many_repeats_do_not_overflow_a_count() -> None:
    raw = small(sources=np.zeros(256, np.int64), targets=np.ones(256, np.int64))
    assert measure(prepare(raw, Data(split="ratio", duplicates="keep"))).edges == 1


def test_facts_of_several_labels_a_node_counted_by_hand() -> None:
    labels = np.array([[1, 0, 1], [0, 1, 1], [0, 1, 0], [0, 0, 0], [1, 0, 0], [1, 1, 0]], np.uint8)
    graph = prepare(small(labels=labels), Data())  # the path 0-1-2-3-4-5: of 0-1, 1-2, 4-5, all share a label
    facts = measure(graph)
    assert (facts.same_class_edges, facts.unlabelled) == (1.0, 1)
    assert (facts.largest_class, facts.labels_per_node) == (pytest.approx(3 / 5), pytest.approx(8 / 6))
    assert measure(prepare(small(labels=labels[:, :2]), Data())).same_class_edges == pytest.approx(2 / 3)
    text = show_text(graph)
    assert "3, several a node, 1.33 on average; 60% of the labelled nodes have the most frequent" in text
    assert "note: random split: 0.6 training, 0.2 validation, seed 0" in text


def test_the_list_names_the_formats() -> None:
    text = list_text(Data())
    assert all(f"  {name} " in text for name in ("npz", "arrays", "graphsaint", "ogb"))


def test_show_text() -> None:
    text = show_text(prepare(digits(8), Data()))
    assert text.splitlines()[0] == "digits"
    for line in (
        "1,797",
        "9,929 undirected; 19,858 directed",
        "64 dense columns",
        "200 training, 300 validation, 1,297",
    ):
        assert line in text
    assert "note: random split: 20 training, 30 validation nodes per class, seed 0" in text
