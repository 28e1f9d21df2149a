"""Methods by one name: the keys that `method.name` sets.

    adaqp     widths chosen adaptively, messages overlapped      uniform   each message draws its width
    adaqp-q   the same, without overlap                          random    adaqp's budget, spent without looking
    adaqp-p   overlap alone, float32                             fixed     one width for all

`vanilla` sets nothing: it is the default, and leaves every key open.
"""

from __future__ import annotations

from typing import Any

from toolkit.errors import UserError

PRESETS: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "adaqp": {"codec": "quantised", "widths": "adaptive", "overlap": True},
    "adaqp-q": {"codec": "quantised", "widths": "adaptive", "overlap": False},
    "adaqp-p": {"codec": "float32", "widths": "fixed", "overlap": True},
    "uniform": {"codec": "quantised", "widths": "uniform"},
    "random": {"codec": "quantised", "widths": "adaptive", "policy": "random"},
    "fixed": {"codec": "quantised", "widths": "fixed"},
}


def expand(table: dict[str, Any]) -> dict[str, Any]:
    """A method's table with what its name sets. UserError where a key is given that says otherwise."""
    fixed = PRESETS.get(str(table.get("name", "vanilla")), {})
    refuse_contradictions(table, fixed)
    return fixed | table


def refuse_contradictions(table: dict[str, Any], fixed: dict[str, Any]) -> None:
    """UserError naming the first key of ``table`` that differs from what its name sets."""
    for key, value in fixed.items():
        if table.get(key, value) != value:
            raise UserError(
                f"method.name is {table['name']!r}, which sets method.{key} to {_as_said(value)}, and method.{key} is "
                f"{_as_said(table[key])}; leave one of them out"
            )


def _as_said(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
