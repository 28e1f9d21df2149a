"""Small graphs and refusals for the tests of this folder."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from toolkit.errors import UserError
from toolkit.graph.raw import Raw


def refused(*parts: str) -> Any:
    """Expect a UserError that contains ``parts`` in this order."""
    return pytest.raises(UserError, match="(?s)" + ".*".join(map(re.escape, parts)))


def small(**changes: Any) -> Raw:
    """Six nodes on a path, two classes, three features."""
    given: dict[str, Any] = {
        "name": "small",
        "num_nodes": 6,
        "sources": np.arange(5),
        "targets": np.arange(1, 6),
        "features": np.arange(18, dtype=np.float64).reshape(6, 3),
        "labels": np.array([0, 1, 0, 1, 0, 1]),
    }
    return Raw(**(given | changes))
