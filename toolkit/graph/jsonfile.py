"""Reads a JSON object that anyone may have made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from toolkit.errors import UserError

MAX_BYTES = 4 * 2**30


def read_object(path: Path) -> dict[str, Any]:
    """The object of a file: no key twice, every number finite. Raises UserError, naming the file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path}: is larger than {MAX_BYTES >> 30} GiB; write the graph as .npz instead")
        text = path.read_text(encoding="utf-8")
        made = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_distinct)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}; check data.path") from None
    except RecursionError:
        raise UserError(f"{path}: is nested too deep for any graph; get the file anew") from None
    except ValueError as error:
        raise UserError(
            f"{path}: is not whole JSON ({' '.join(str(error).split())[:200]}); get the file anew"
        ) from None
    if not isinstance(made, dict):
        raise UserError(f"{path}: holds a {type(made).__name__}, not an object of names and values; get the file anew")
    return made


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice!r:.40} is there twice")
    return made
