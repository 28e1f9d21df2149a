from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from toolkit.config import Config, Data
from toolkit.graph.data import Graph
from toolkit.graph.registry import load


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of the real data sets; tests that need it skip where it isn't named."""
    root = os.environ.get("BITRING_DATA")
    if not root:
        pytest.skip("BITRING_DATA names no folder of real data sets")
    if not Path(root).is_dir():
        pytest.fail(f"BITRING_DATA is {root}, which is not a folder")
    return Path(root)


@pytest.fixture(scope="session")
def real(data_root: Path) -> Callable[[str], Graph]:
    """A real graph by name, loaded once."""

    @cache
    def get(name: str) -> Graph:
        return load(Config(data=Data(name=name, root=str(data_root), make_up=name == "cnr_2000")))

    return get
