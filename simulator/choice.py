"""From words to a method: which one, with which parameters, on which workload."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from simulator.hosts import nearest
from simulator.methods import Broadcasts, Fresh, Gist, Method, MethodError, blocks_of, narrowed
from simulator.pipeline import Pipelined
from simulator.workload import Workload

Value = float | str
METHODS: dict[str, dict[str, tuple[Value, str]]] = {
    "vanilla": {},
    "quantised": {
        "period": (50.0, "epochs between assignments of widths"),
        "assign_s": (0.0, "seconds that an assignment holds training up; solving goes on beside it"),
    },
    "pipelined": {"staleness": (1.0, "epochs by which rows are old")},
    "broadcast": {"nodes": (0.0, "of the whole graph, where a workload doesn't know what its ranks own")},
    "skip-broadcast": {
        "staleness": (1.0, "epochs that a block is used after its own; 0: none is skipped"),
        "turns": (0.0, "1: ranks refresh in turn, not all in one epoch"),
        "skip": (0.0, "share of blocks skipped, drawn, instead of staleness"),
        "on": ("forward", "forward, backward or both"),
        "seed": (0.0, "of the draws"),
        "nodes": (0.0, "as for broadcast"),
    },
    "gist": {
        "parts": (2.0, "sub-GCNs"),
        "local": (5.0, "epochs between puttings together of weights"),
        "outputs": (0.0, "entries of the last layer's outputs, which are not split"),
    },
}
"""Every method's parameters: default and meaning. The recorded epoch as it is goes by no name."""


def parameters(name: str, words: Sequence[str]) -> dict[str, Value]:
    """The parameters of a method from KEY=VALUE, defaults filled in. MethodError, with the nearest known name."""
    if name not in METHODS:
        raise MethodError(f"there is no method {name!r}; {nearest(name, METHODS)}")
    known = METHODS[name]
    values: dict[str, Value] = {key: default for key, (default, _) in known.items()}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise MethodError(f"{word!r} is not of the form key=value, such as staleness=2")
        if key not in known:
            some = nearest(key, known) if known else "it has none"
            raise MethodError(f"{key!r} is no parameter of method {name}; {some}")
        values[key] = _value(name, key, text, known[key][0])
    given = {word.partition("=")[0] for word in words}
    if name == "skip-broadcast" and "skip" in given and "staleness" not in given:
        values["staleness"] = 0.0
    return values


def _value(name: str, key: str, text: str, default: Value) -> Value:
    if isinstance(default, str):
        return text
    try:
        value = float({"true": "1", "false": "0"}.get(text, text))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise MethodError(f"{key} of method {name} is {text!r}; it must be a number")
    return value


def told(name: str, values: Mapping[str, Value], words: Sequence[str]) -> dict[str, Value]:
    """The parameters that say something: those given, and defaults other than 0 that take part."""
    given = {word.partition("=")[0] for word in words}
    idle = {"period"} if name == "quantised" and not values["assign_s"] else set()
    if name == "skip-broadcast" and not values["skip"]:
        idle.add("seed")
    return {key: value for key, value in values.items() if key in given or (value and key not in idle)}


def build(
    name: str | None, workload: Workload, values: Mapping[str, Value], *, overlap: bool = True
) -> tuple[Workload, Method]:
    """What a method sends, and how its epochs go; ``name`` None: as recorded. MethodError."""

    def number(key: str) -> float:
        return float(values[key])

    def whole(key: str) -> int:
        if number(key) != int(number(key)):
            raise MethodError(f"{key} is {number(key)}; give a whole number")
        return int(number(key))

    if name is None:
        return workload, Fresh(overlap=overlap)
    if name == "quantised":
        return workload, Fresh(overlap=overlap, assign_s=number("assign_s"), period=whole("period"))
    plain = unquantised(workload)
    if name == "vanilla":
        return plain, Fresh(overlap=overlap)
    if name == "pipelined":
        return plain, Pipelined(staleness=whole("staleness"))
    if name == "gist":
        made = narrowed(plain, whole("parts") or 1, whole("outputs"))
        weights = workload.weight_gradient_bytes
        return made, Gist(parts=whole("parts"), local=whole("local"), weight_bytes=weights, overlap=overlap)
    block_bytes, share = blocks_of(plain, whole("nodes"))
    if name == "broadcast":
        return plain, Broadcasts(block_bytes=block_bytes, share=share)
    return plain, Broadcasts(
        block_bytes=block_bytes,
        share=share,
        on=str(values["on"]),
        staleness=whole("staleness"),
        turns=bool(number("turns")),
        skip=number("skip"),
        seed=whole("seed"),
    )


def unquantised(workload: Workload) -> Workload:
    """Rows of 16 bits and more as they are, narrower ones at 32."""
    return replace(
        workload,
        exchanges=tuple(
            replace(e, bits=np.where((e.bits > 0) & (e.bits < 16), 32, e.bits).astype(np.uint8))
            for e in workload.exchanges
        ),
    )
