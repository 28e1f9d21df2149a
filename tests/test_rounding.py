"""Quantised messages: the kernel equals the plain reference bit for bit, and both are unbiased."""

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit import native, rounding
from toolkit.keyed import mix64

F32 = np.float32
LARGEST = np.finfo(F32).max


def rows_of(kind, count, entries, rng):
    """Rows that are hard in one way each."""
    plain = rng.standard_normal((count, entries)).astype(F32)
    return {
        "normal": plain,
        "relu": np.maximum(plain, 0),
        "offset": plain * F32(0.1) + F32(10),
        "far offset": plain * F32(1e-3) + F32(1000),
        "tiny": plain * F32(1e-38),
        "denormal": plain * F32(1e-42),
        "huge": np.clip(plain, -1, 1) * LARGEST,
        "span overflows": np.where(plain > 0, LARGEST, -LARGEST).astype(F32),
        "spread": (plain * 10.0 ** rng.integers(-30, 30, (count, 1))).astype(F32),
        "constant": np.repeat(plain[:, :1], entries, 1),
        "zero": np.zeros_like(plain),
        "signed zeros": np.where(plain > 0, F32(0), F32(-0.0)),
        "two values": np.where(plain > 0, F32(1.1), np.nextafter(F32(1.1), F32(2))).astype(F32),
    }[kind]


KINDS = (
    "normal", "relu", "offset", "far offset", "tiny", "denormal", "huge", "span overflows", "spread", "constant",
    "zero", "signed zeros", "two values",
)  # fmt: skip


def kernel_quantise(x, rows, mask, mask_rows, kept, bits, where, key, gap=0, dtype="f32"):
    """(buffer, meta places, code places, ranges, status, bad message): messages one behind the other."""
    count, width = len(rows), x.shape[1]
    sizes = np.array([rounding.code_bytes(kept, int(b)) + (4 if b != 32 else 0) + gap for b in bits], np.int64)
    meta = np.concatenate(([0], np.cumsum(sizes)))[:-1].astype(np.int64)
    code = meta + np.where(bits == 32, 0, 4)
    out = np.full(int(sizes.sum()), 0xAA, np.uint8)
    ranges, bad = np.zeros(count, F32), ctypes.c_int64(7)

    def pointer(a):
        return None if a is None else ctypes.c_void_p(a.ctypes.data)

    status = getattr(native.library(), f"bitring_quantise_{dtype}")(
        ctypes.c_int64(count), ctypes.c_int64(width), ctypes.c_int64(kept), pointer(x), pointer(rows), pointer(mask),
        pointer(mask_rows), pointer(bits), pointer(meta), pointer(code), pointer(where), ctypes.c_uint64(key),
        pointer(out), pointer(ranges), ctypes.byref(bad), native.threads(),
    )  # fmt: skip
    return out, meta, code, ranges, status, bad.value


def kernel_dequantise(buffer, width, rows, mask, mask_rows, kept, bits, meta, code, out, group_first=None, add=0):
    def pointer(a):
        return None if a is None else ctypes.c_void_p(a.ctypes.data)

    groups = len(rows) if group_first is None else len(group_first) - 1
    return native.library().bitring_dequantise_f32(
        ctypes.c_int64(len(rows)), ctypes.c_int64(width), ctypes.c_int64(kept), pointer(buffer), pointer(rows),
        pointer(mask), pointer(mask_rows), pointer(bits), pointer(meta), pointer(code), ctypes.c_int64(groups),
        pointer(group_first), ctypes.c_int(add), pointer(out), native.threads(),
    )  # fmt: skip


needs_kernels = pytest.mark.skipif(native.library() is None, reason="the kernels are not built (make kernels)")


@needs_kernels
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("entries", [1, 2, 3, 7, 16, 255, 256, 1433])
def test_the_kernel_equals_the_reference(kind, entries):
    rng = np.random.default_rng(entries)
    x = np.ascontiguousarray(rows_of(kind, 40, entries, rng))
    rows = rng.permutation(40).astype(np.int64)[:30]
    where = rng.integers(0, 2**63, 30).astype(np.uint64)
    bits = rng.choice(np.array([1, 2, 4, 8, 32], np.uint8), 30)
    key = mix64(3, 1)
    buffer, meta, code, ranges, status, bad = kernel_quantise(x, rows, None, None, entries, bits, where, key)
    assert (status, bad) == (0, -1)
    with np.errstate(over="ignore"):
        assert np.array_equal(ranges, x[rows].max(1) - x[rows].min(1))
    out = np.full_like(x, 9)
    assert kernel_dequantise(buffer, entries, rows, None, None, entries, bits, meta, code, out) == 0
    for width in (1, 2, 4, 8):
        chosen = np.flatnonzero(bits == width)
        metas, codes = rounding.quantise(x[rows[chosen]], width, where[chosen], key)
        size = rounding.code_bytes(entries, width)
        for i, m, c in zip(chosen, metas, codes, strict=True):
            assert buffer[meta[i] : meta[i] + 4].view(np.uint32)[0] == m
            assert buffer[code[i] : code[i] + size].tolist() == c.tolist()
        back = rounding.dequantise(metas, codes, entries, width)
        assert out[rows[chosen]].tobytes() == back.tobytes()
        assert np.isfinite(back).all()
    plain = rows[bits == 32]
    assert out[plain].tobytes() == x[plain].tobytes()


@pytest.mark.parametrize("bits", rounding.WIDTHS)
@pytest.mark.parametrize("kind", ["normal", "uniform", "relu", "offset", "tiny", "huge"])
def test_rounding_is_unbiased_and_its_variance_bounded(kind, bits):
    """Against the binomial that each entry is: mean 0, variance S^2 f (1 - f), f its place between two codes."""
    rng = np.random.default_rng(bits)
    x = rng.random((64, 64)).astype(F32) if kind == "uniform" else rows_of(kind, 64, 64, rng)
    x = x * F32(0.4) if kind == "huge" else x
    draws = 400
    back = np.empty((draws, 64, 64))
    for draw in range(draws):
        meta, codes = rounding.quantise(x, bits, np.arange(64, dtype=np.uint64), mix64(draw))
        back[draw] = rounding.dequantise(meta, codes, 64, bits)
    step = (meta & 0xFFFF0000).view(F32).astype(np.float64)[:, None]
    zero = (meta << 16).astype(np.uint32).view(F32).astype(np.float64)[:, None]
    error = (back - x) / step
    place = (x - zero) / step
    variance = (place - np.floor(place)) * (np.ceil(place) - place)
    assert (np.abs(error) < 1.001).all()
    assert abs(error.mean()) < 3 * np.sqrt(variance.mean() / error.size)
    telling = variance * draws > 5  # where the binomial is near a normal
    z = error.mean(0)[telling] / np.sqrt(variance[telling] / draws)
    assert np.square(z).mean() == pytest.approx(1, abs=6 / np.sqrt(telling.sum()))
    assert np.abs(z).max(initial=0) < 5
    assert (error**2).mean() <= 0.25
    if kind == "uniform":
        assert (error**2).mean() == pytest.approx(1 / 6, rel=0.05)


def test_noise_is_independent_between_columns_rows_and_epochs():
    rng = np.random.default_rng(0)
    x = rng.random((2000, 64)).astype(F32)

    def error(key, shift=0):
        meta, codes = rounding.quantise(x, 2, np.arange(2000, dtype=np.uint64) + shift, key)
        return (rounding.dequantise(meta, codes, 64, 2) - x).ravel()

    first = error(1).reshape(2000, 64)
    pairs = [
        (first[:, :-1].ravel(), first[:, 1:].ravel()),
        (first[:-1].ravel(), first[1:].ravel()),
        (first.ravel(), error(2)),
        (first.ravel(), error(1, 1)),
    ]
    for a, b in pairs:
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(len(a))


@pytest.mark.parametrize("bits", rounding.WIDTHS)
def test_constant_rows_come_back_exactly(bits):
    rng = np.random.default_rng(1)
    values = rng.integers(0, 2**32, 500, dtype=np.uint32).view(F32)
    values = np.concatenate((values[np.isfinite(values)], F32([0, 1, LARGEST, -LARGEST, 1e-45])))
    for entries in (1, 5, 64):
        rows = np.repeat(values[:, None], entries, 1)
        meta, codes = rounding.quantise(rows, bits, np.arange(len(rows), dtype=np.uint64), 0)
        assert np.array_equal(rounding.dequantise(meta, codes, entries, bits), rows)


@needs_kernels
@settings(deadline=None, max_examples=150)
@given(st.data())
def test_kept_entries_go_there_and_back(data):
    """Any shape, mask, widths, special values: mixed widths in one call; forward and added backward."""
    count, width = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 90))
    kept = data.draw(st.integers(1, width))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x = np.ascontiguousarray(rows_of(data.draw(st.sampled_from(KINDS)), count, width, rng))
    mask = np.zeros((count, width), np.uint8)
    for row in mask:
        row[rng.choice(width, kept, replace=False)] = 1
    messages = data.draw(st.integers(1, 40))
    rows = np.sort(rng.integers(0, count, messages)).astype(np.int64)
    mask_rows = rng.integers(0, count, messages).astype(np.int64)
    where = rng.integers(0, 2**63, messages).astype(np.uint64)
    bits = rng.choice(np.array([1, 2, 4, 8, 32], np.uint8), messages)
    torch.set_num_threads(data.draw(st.sampled_from([1, 2, 3])))
    buffer, meta, code, _, status, _ = kernel_quantise(x, rows, mask, mask_rows, kept, bits, where, 5, gap=3)
    assert status == 0
    assert (buffer.reshape(-1)[-3:] == 0xAA).all(), "nothing is written beside a message"
    expected = np.zeros((messages, width), F32)
    for i in range(messages):
        entries = x[rows[i], mask[mask_rows[i]] == 1][None]
        if bits[i] != 32:
            entries = rounding.dequantise(
                *rounding.quantise(entries, int(bits[i]), where[i : i + 1], 5), kept, int(bits[i])
            )
        expected[i, mask[mask_rows[i]] == 1] = entries
    out = np.full((messages, width), 9, F32)
    own = np.arange(messages, dtype=np.int64)
    assert kernel_dequantise(buffer, width, own, mask, mask_rows, kept, bits, meta, code, out) == 0
    assert np.array_equal(out, expected)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.ones_like(x)
        first = np.concatenate(([0], np.flatnonzero(np.diff(rows)) + 1, [messages])).astype(np.int64)
        total = sums.copy()
        for i in range(messages):
            total[rows[i]] += expected[i]
        kernel_dequantise(buffer, width, rows, mask, mask_rows, kept, bits, meta, code, sums, first, 1)
    assert np.array_equal(sums, total, equal_nan=True)


@needs_kernels
def test_bfloat16_rows_equal_their_float32():
    rng = np.random.default_rng(2)
    upper = rng.standard_normal((20, 33)).astype(F32).view(np.uint32) >> 16
    rows, where = np.arange(20, dtype=np.int64), np.arange(20, dtype=np.uint64)
    bits = np.full(20, 2, np.uint8)
    wide = np.ascontiguousarray(upper << 16).view(F32)
    narrow = np.ascontiguousarray(upper.astype(np.uint16))
    a = kernel_quantise(wide, rows, None, None, 33, bits, where, 1)[0]
    b = kernel_quantise(narrow, rows, None, None, 33, bits, where, 1, dtype="bf16")[0]
    assert a.tobytes() == b.tobytes()


@needs_kernels
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_message_that_is_not_finite_is_named(value):
    x = np.zeros((300, 40), F32)
    x[[130, 250], 39] = value
    rows, where = np.arange(300, dtype=np.int64), np.arange(300, dtype=np.uint64)
    *_, status, bad = kernel_quantise(x, rows, None, None, 40, np.full(300, 4, np.uint8), where, 1)
    assert (status, bad) == (2, 130)


@needs_kernels
@pytest.mark.parametrize(
    "change",
    [
        {"bits": np.full(3, 3, np.uint8)},
        {"rows": np.array([0, -1, 2])},
        {"kept": 5},
        {"kept": 0},
        {"mask": np.ones((3, 4), np.uint8), "mask_rows": None},
    ],
)
def test_bad_arguments_are_refused(change):
    good = {"x": np.ones((3, 4), F32), "rows": np.arange(3), "mask": None, "mask_rows": None, "kept": 4}
    good |= {"bits": np.full(3, 2, np.uint8), "where": np.arange(3, dtype=np.uint64), "key": 1}
    assert kernel_quantise(**good)[4] == 0
    assert kernel_quantise(**good | change)[4] == 1
