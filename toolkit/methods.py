"""The table of methods: transport x codec x freshness. A method is a row, not a class.

| method  | codec     | freshness | reduces to Vanilla when |
|---------|-----------|-----------|-------------------------|
| vanilla | any       | fresh     | the codec is float32, or quantised at 32 bits |
| adaqp | quantised | fresh     | never: 8 bits at most; with lambda 1 it equals fixed at 8 |
| adaqp-q | quantised | fresh     | as adaqp |
| adaqp-p | float32   | fresh     | always: Vanilla overlaps, too |
| uniform | quantised | fresh     | never |
| random | quantised | fresh     | never |
| fixed | quantised | fresh     | method.bits is 32 |

Transport is free in every row (`method.transport`), and so is the codec where the row leaves it
open. presets.py says which keys a name sets. Later methods are further rows.
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
    MethodRow(
        name="adaqp",
        summary="widths chosen anew every period from what was sent; messages travel under the central product",
        transports=("ring", "horovod"),
        codecs=("quantised",),
        freshness="fresh",
        source="AdaQP, section 4",
    ),
    MethodRow(
        name="adaqp-q",
        summary="adaqp without overlap: what quantising gains by itself",
        transports=("ring", "horovod"),
        codecs=("quantised",),
        freshness="fresh",
        source="AdaQP, its ablation",
    ),
    MethodRow(
        name="adaqp-p",
        summary="overlap alone, rows in float32",
        transports=("ring", "horovod"),
        codecs=("float32",),
        freshness="fresh",
        source="AdaQP, its ablation",
    ),
    MethodRow(
        name="uniform",
        summary="every message draws from 2, 4, 8 bits",
        transports=("ring", "horovod"),
        codecs=("quantised",),
        freshness="fresh",
        source="AdaQP, its comparison",
    ),
    MethodRow(
        name="random",
        summary="adaqp's seconds, spent on groups in drawn order: what knowing the ranges is worth",
        transports=("ring", "horovod"),
        codecs=("quantised",),
        freshness="fresh",
        source="for comparison",
    ),
    MethodRow(
        name="fixed",
        summary="one width for all messages (method.bits)",
        transports=("ring", "horovod"),
        codecs=("quantised",),
        freshness="fresh",
        source="for comparison",
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
    if method.widths == "adaptive":
        _check_adaptive(method)
    return row


def _check_adaptive(method: config.Method) -> None:
    """Before anything is trained: a policy that is there, a machine that can be read."""
    from simulator import machine  # numpy and more, which other methods don't wait for
    from simulator.exchanges import check_policy
    from simulator.policy import ProblemError, SolverError

    try:
        check_policy(method.policy, method.budget)
    except (ProblemError, SolverError) as error:
        raise UserError(f"method.policy {method.policy}: {error}") from None
    try:
        if method.machine:
            machine.find(method.machine)
    except machine.MachineError as error:
        raise UserError(f"method.machine: {error}") from None


def codec_text(method: config.Method) -> str:
    """A codec and its widths, for people."""
    if method.codec != "quantised":
        return method.codec
    if method.widths == "uniform":
        return "quantised, 2, 4 or 8 bits, drawn"
    if method.widths == "adaptive":
        drawn = "random widths of the same budget" if method.policy == "random" else "adaptive widths"
        return f"quantised, {drawn} (8 bits at first), lambda {method.lam:g}"
    return f"quantised, {method.bits} bit{'s' if method.bits > 1 else ''}"
