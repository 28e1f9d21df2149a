"""The examples of docs/datasets.md and docs/graph-format.md run, and what they write is read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from toolkit.config import Config, Data, from_tables
from toolkit.graph import foreign
from toolkit.graph.registry import load

DOCS = Path(__file__).parents[2] / "docs"


def blocks(language: str) -> list[str]:
    text = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("datasets.md", "graph-format.md"))
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_examples_run_and_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks("python"):
        exec(compile(block, "docs", "exec"), {})
    found = {path.name: load(Config(data=Data(name="file", path=path.name, split="auto", train_per_class=1,
                                              val_per_class=1))) for path in sorted(tmp_path.iterdir())}  # fmt: skip
    assert set(found) == {"my_graph", "fake.npz", "karate.npz", "triangle.npz"}
    assert found["my_graph"].num_edges == 6 and found["karate.npz"].num_edges == 2 * 78


def test_configurations_are_valid() -> None:
    for block in blocks("toml"):
        from_tables(tomllib.loads(block))


def test_every_format_is_described() -> None:
    text = (DOCS / "datasets.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in foreign.FORMATS)
