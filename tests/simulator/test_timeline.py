import gzip
import importlib
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost import NO_MESSAGE
from simulator.events import run_ring
from simulator.maxplus import SEMANTICS
from simulator.timeline import SMALLEST, Span, TimelineError, Transfer, gantt, transfers, write_trace


def unpacked(path):
    text = gzip.decompress(path.read_bytes())
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")), len(text)


def ring(semantics="posted", n=4):
    rng = np.random.default_rng(0)
    num_bytes = rng.integers(1, 1 << 20, (n, n)).astype(float)
    cost = num_bytes * 1e-8 + 1e-4
    cost[1, 0] = NO_MESSAGE
    run = run_ring(cost, rng.random(n) * 1e-3, semantics)
    spans = [Span(rank=r, name="central", begin_s=0.0, end_s=float(run.finish_s[r])) for r in range(n)]
    return spans, transfers(run, num_bytes), num_bytes


def check_tracks(events):
    """Slices of one track don't overlap; every track has a name; every arrow has two ends, each on a slice."""
    slices = [e for e in events if e["ph"] == "X"]
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in slices} <= named
    for track in named:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if (e["pid"], e["tid"]) == track)
        assert all(a[1] <= b[0] + 1e-3 for a, b in itertools.pairwise(own)), track
    heads, tails = ({e["id"]: e for e in events if e["ph"] == ph} for ph in "fs")
    assert heads.keys() == tails.keys()
    for end in [*heads.values(), *tails.values()]:
        assert any(
            (s["pid"], s["tid"]) == (end["pid"], end["tid"]) and s["ts"] <= end["ts"] <= s["ts"] + s["dur"] + 1e-3
            for s in slices
        )
    assert all(tails[i]["ts"] <= heads[i]["ts"] for i in heads)


@pytest.mark.parametrize("semantics", SEMANTICS)
def test_a_ring_becomes_a_trace(semantics, tmp_path):
    spans, messages, num_bytes = ring(semantics)
    assert len(messages) == 11  # of 12, one is absent
    assert write_trace(tmp_path / "t.json.gz", spans, messages) == 0
    trace, _ = unpacked(tmp_path / "t.json.gz")
    events = trace["traceEvents"]
    check_tracks(events)
    names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {f"rank {r}" for r in range(4)} <= names
    assert {f"{m.sender} to {m.receiver}" for m in messages} <= names
    counters = [e for e in events if e["ph"] == "C"]
    assert {e["name"] for e in counters} == {"bytes in flight"}, "bits are told where they are known"
    values = [e["args"]["bytes"] for e in counters]
    assert values[-1] == 0 and max(values) <= num_bytes.sum() and min(values) >= 0
    times = [e["ts"] for e in counters]
    assert times == sorted(times)
    assert sum(e["ph"] == "s" for e in events) == 11


def test_bits_in_flight_are_a_mean_over_bytes(tmp_path):
    """Two messages at once, 100 bytes at 2 bits and 300 at 8: 6.5 bits on average; then the longer one alone."""
    messages = [
        Transfer(sender=0, receiver=1, begin_s=0.0, end_s=1.0, num_bytes=100, bits=2),
        Transfer(sender=1, receiver=0, begin_s=0.0, end_s=2.0, num_bytes=300, bits=8),
    ]
    write_trace(tmp_path / "t", [], messages)
    events = unpacked(tmp_path / "t")[0]["traceEvents"]
    told = {name: [(e["ts"], *e["args"].values()) for e in events if e["ph"] == "C" and e["name"] == name]
            for name in ("bits in flight", "bytes in flight")}  # fmt: skip
    assert told["bits in flight"] == [(0, 6.5), (1e6, 8), (2e6, 0)]
    assert told["bytes in flight"] == [(0, 400), (1e6, 300), (2e6, 0)]
    assert sorted(e["args"]["bits"] for e in events if e["ph"] == "X") == [2, 2, 8, 8]


def test_the_same_input_gives_the_same_file(tmp_path):
    spans, messages, _ = ring()
    for name in ("a", "b"):
        write_trace(tmp_path / name, spans, messages)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), cap=st.integers(SMALLEST, 6000))
def test_any_items_give_valid_json_within_the_cap(data, cap, tmp_path_factory):
    begin, lasts = st.floats(-1e3, 1e6), st.floats(0, 1e4)
    label = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    rank = st.integers(0, 3)
    spans = [
        Span(rank=r, name=name, begin_s=b, end_s=b + d)
        for r, name, b, d in data.draw(st.lists(st.tuples(rank, label, begin, lasts), max_size=8))
    ]
    sizes = st.floats(0, 1e300)
    messages = [
        Transfer(sender=s, receiver=r, begin_s=b, end_s=b + d, num_bytes=size, name=name, bits=size % 33 // 1)
        for s, r, name, b, d, size in data.draw(st.lists(st.tuples(rank, rank, label, begin, lasts, sizes), max_size=8))
    ]
    path = tmp_path_factory.mktemp("trace") / "t.json.gz"
    dropped = write_trace(path, spans, messages, max_bytes=cap)
    trace, length = unpacked(path)
    assert length <= cap
    assert trace["otherData"]["cut off by the size cap"] == dropped
    shown = sum(e["ph"] == "X" for e in trace["traceEvents"]) - sum(e["ph"] == "s" for e in trace["traceEvents"])
    assert shown + dropped == len(spans) + len(messages)
    check_tracks(trace["traceEvents"])


def test_the_cap_cuts_the_end(tmp_path):
    spans = [Span(rank=0, name="s", begin_s=float(i), end_s=i + 0.5) for i in range(1000)]
    dropped = write_trace(tmp_path / "t", spans, [], max_bytes=20_000)
    slices = [e for e in unpacked(tmp_path / "t")[0]["traceEvents"] if e["ph"] == "X"]
    assert 0 < dropped < 1000 and len(slices) == 1000 - dropped
    assert slices[-1]["ts"] == (len(slices) - 1) * 1e6


def test_the_window(tmp_path):
    spans = [Span(rank=0, name="s", begin_s=float(i), end_s=i + 0.5) for i in range(10)]
    write_trace(tmp_path / "t", spans, [], window_s=(3.2, 5.1))
    slices = [e["ts"] for e in unpacked(tmp_path / "t")[0]["traceEvents"] if e["ph"] == "X"]
    assert slices == [3e6, 4e6, 5e6]
    write_trace(tmp_path / "t", [], [])
    assert unpacked(tmp_path / "t")[0]["traceEvents"] == []


def test_overlapping_spans_get_a_second_track(tmp_path):
    spans = [Span(rank=0, name="a", begin_s=0, end_s=2), Span(rank=0, name="b", begin_s=1, end_s=3)]
    write_trace(tmp_path / "t", spans, [])
    events = unpacked(tmp_path / "t")[0]["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {"rank 0", "rank 0 (2)"}


def test_refusals(tmp_path):
    with pytest.raises(TimelineError, match=f"allow {SMALLEST} or more"):
        write_trace(tmp_path / "t", [], [], max_bytes=10)
    for begin, end in ((0, math.nan), (0, math.inf), (2, 1)):
        with pytest.raises(TimelineError, match="a lasts from"):
            write_trace(tmp_path / "t", [Span(rank=0, name="a", begin_s=begin, end_s=end)], [])
    with pytest.raises(TimelineError, match="the bytes of"):
        transfers(run_ring(np.zeros((2, 2)), np.zeros(2), "eager"), np.zeros((3, 3)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_gantt(suffix, tmp_path):
    pytest.importorskip("matplotlib")
    spans, messages, _ = ring()
    path = tmp_path / f"g.{suffix}"
    gantt(path, spans, messages, "a ring")
    assert path.stat().st_size > 5000
    if suffix == "svg":
        assert "<svg" in path.read_text(encoding="utf-8")
    with pytest.raises(TimelineError, match="nothing to draw"):
        gantt(path, [], [])


def test_gantt_without_matplotlib(tmp_path, monkeypatch):
    def missing(name, *rest):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(TimelineError, match="pip install matplotlib"):
        gantt(tmp_path / "g.png", [], [])
