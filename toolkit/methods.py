"""The table of methods: transport x codec x freshness. A method is a row, not a class.

| method  | codec   | freshness | reduces to Vanilla when |
|---------|---------|-----------|-------------------------|
| vanilla | any     | fresh     | the codec is float32, or quantised at 32 bits |

Transport is free in every row (`method.transport`), and so is the codec where the row leaves it
open. Later methods are further rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toolkit import config
from toolkit.errors import UserError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """One method: the choices it fixes, and what a user may still choose."""

    name: str
    summary: str
    transports: tuple[str, ...]
    codecs: tuple[str, ...]
    freshness: Literal["fresh"]
    source: str


TABLE: tuple[MethodRow, ...] = (
    MethodRow(
        name="vanilla",
        summary="fresh rows, every layer, every epoch, as the plan says; in float32 the reference",
        transports=("ring", "horovod"),
        codecs=("float32", "bfloat16", "quantised"),
        freshness="fresh",
        source="full-graph training as AdaQP's and SANCUS's papers define it",
    ),
)


def lookup(method: config.Method) -> MethodRow:
    """The row that a configuration names, its choices checked against the row."""
    rows = {row.name: row for row in TABLE}
    if method.name not in rows:
        raise UserError(f"method.name is {method.name!r}; {nearest(method.name, rows)}")
    row = rows[method.name]
    if method.transport not in row.transports:
        raise UserError(
            f"method {row.name} can't use transport {method.transport!r}; use {' or '.join(row.transports)}"
        )
    if method.codec not in row.codecs:
        raise UserError(f"method {row.name} can't use codec {method.codec!r}; use {' or '.join(row.codecs)}")
    return row


def codec_text(method: config.Method) -> str:
    """A codec and its widths, for people."""
    if method.codec != "quantised":
        return method.codec
    if method.widths == "uniform":
        return "quantised, 2, 4 or 8 bits, drawn"
    if method.widths == "adaptive":
        return f"quantised, adaptive widths (8 bits at first), lambda {method.lam:g}"
    return f"quantised, {method.bits} bit{'s' if method.bits > 1 else ''}"
