"""Every kernel equals its plain reference, at any shape, thread count and instruction set."""

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from toolkit import native
from toolkit.comm.halo import Masks, keyed_mask
from toolkit.keyed import dropout_mask, kept_per_row, mask_key
from toolkit.nn.epilogue import epilogue, plain_epilogue
from toolkit.nn.sparse import Csr

CUDA = Path(__file__).parent.parent / "cuda"

if native.library() is None:
    if os.environ.get("BITRING_DEV") == "1":
        pytest.fail("the kernels were asked for and are not built (make kernels)", pytrace=False)
    pytest.skip("the kernels are not built (make kernels)", allow_module_level=True)


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(0, 40),
    m=st.integers(0, 40),
    width=st.sampled_from([1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 256, 300]),
    density=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    seed=st.integers(0, 999),
)
def test_the_sparse_product_equals_scipys(n, m, width, density, seed):
    rng = np.random.default_rng(seed)
    matrix = sp.random(n, m, density=density, format="csr", random_state=seed, dtype=np.float32)
    rows = torch.from_numpy(rng.standard_normal((m, width)).astype(np.float32))
    csr = Csr.of(matrix, torch.float32)
    assert csr.torch_form is None, "the kernel must be what is tested"
    expected = matrix.astype(np.float64) @ rows.numpy().astype(np.float64)
    assert np.allclose((csr @ rows).numpy(), expected, rtol=1e-5, atol=1e-5)
    start = torch.from_numpy(rng.standard_normal((n, width)).astype(np.float32))
    total = csr.add_product(rows, start.clone())
    assert np.allclose(total.numpy(), start.numpy() + expected, rtol=1e-5, atol=1e-5)


def test_the_sparse_product_has_the_same_bits_at_any_thread_count():
    matrix = sp.random(5000, 5000, density=0.01, format="csr", random_state=0, dtype=np.float32)
    rows, csr, found = torch.randn(5000, 100), Csr.of(matrix, torch.float32), set()
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        found.add((csr @ rows).numpy().tobytes())
    torch.set_num_threads(2)
    assert len(found) == 1


@pytest.mark.parametrize("width", [1, 2, 3, 7, 16, 255, 256, 1433])
@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_masks_equal_the_reference_bit_for_bit(width, dropout, threads):
    nodes = np.random.default_rng(0).integers(0, 2**50, 300)
    kept = kept_per_row(width, dropout)
    found = keyed_mask(3, 4, 5, nodes, width, kept)
    assert (found.numpy() == dropout_mask(3, 4, 5, nodes, width, kept)).all()


@settings(deadline=None, max_examples=60)
@given(width=st.integers(1, 700), data=st.data(), seed=st.integers(0, 2**62))
def test_masks_of_any_row_length(width, data, seed):
    kept = data.draw(st.integers(1, width))
    nodes = np.array(data.draw(st.lists(st.integers(0, 2**62), max_size=5)), dtype=np.int64)
    assert (keyed_mask(seed, 0, 1, nodes, width, kept).numpy() == dropout_mask(seed, 0, 1, nodes, width, kept)).all()


def epilogue_case(n, width, *, normed, dropped, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, width, generator=generator) * 3 + 1
    bias = torch.randn(width, generator=generator)
    norm = nn.LayerNorm(width) if normed else None
    if norm is not None:
        with torch.no_grad():
            norm.weight.uniform_(-1, 2, generator=generator)
            norm.bias.uniform_(-1, 1, generator=generator)
    masks = None
    if dropped:
        kept = kept_per_row(width, 0.4)
        masks = Masks(
            inner=keyed_mask(seed, 0, 1, np.arange(n), width, kept),
            halo=torch.empty(0, width, dtype=torch.bool),
            scale=width / kept,
        )
    return rows, bias, norm, masks, torch.randn(n, width, generator=generator)


def run_epilogue(function, case, dtype=torch.float32):
    rows, bias, norm, masks, weight = case
    rows, bias = (t.detach().clone().to(dtype).requires_grad_() for t in (rows, bias))
    norm = None if norm is None else nn.LayerNorm(len(bias)).to(dtype)
    if norm is not None:
        norm.load_state_dict(case[2].state_dict())
    out = function(rows, bias, norm, "relu", masks)
    (out * weight.to(dtype)).sum().backward()
    return [out.detach(), rows.grad, bias.grad, *([] if norm is None else [norm.weight.grad, norm.bias.grad])]


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize(("n", "width"), [(0, 5), (1, 1), (3, 7), (700, 16), (257, 255), (300, 256), (5, 1433)])
def test_the_epilogue_equals_plain_torch_both_ways(n, width, normed, dropped, threads):
    case = epilogue_case(n, width, normed=normed, dropped=dropped)
    found = run_epilogue(epilogue, case)
    expected = run_epilogue(plain_epilogue, case, torch.float64)
    for a, b in zip(found, expected, strict=True):
        scale = max(1.0, b.abs().max().item()) if b.numel() else 1.0
        assert torch.allclose(a.double(), b, rtol=1e-4, atol=1e-5 * scale)


def test_the_epilogue_has_the_same_bits_at_any_thread_count():
    case, found = epilogue_case(3000, 100, normed=True, dropped=True), set()
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        found.add(b"".join(t.numpy().tobytes() for t in run_epilogue(epilogue, case)))
    torch.set_num_threads(2)
    assert len(found) == 1


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_every_instruction_set_gives_the_same_bits(tmp_path):
    flags = Path("/proc/cpuinfo").read_text()
    levels = ["x86-64", "x86-64-v3"] + (["x86-64-v4"] if "avx512f" in flags else [])
    results = set()
    for level in levels:
        out = tmp_path / level
        command = ["make", "-s", "-C", str(CUDA), f"OUT={out}", f"EXTRA=-DBITRING_ONE_TARGET -march={level}"]
        subprocess.run(command, check=True)
        results.add(_all_kernels(ctypes.CDLL(str(out / "libbitring.so"))))
    assert len(results) == 1
    assert _all_kernels(native.library()) in results


def _all_kernels(library):
    """Bytes that every kernel gives on one input."""
    rng = np.random.default_rng(0)
    n, width = 300, 100
    matrix = sp.random(n, n, density=0.1, format="csr", random_state=0, dtype=np.float32)
    x = rng.standard_normal((n, width)).astype(np.float32)
    bias, gamma, beta = rng.standard_normal((3, width)).astype(np.float32)
    product, out, back = np.empty((n, width), np.float32), np.empty((n, width), np.float32), np.empty_like(x)
    mean, rstd, mask = np.empty(n, np.float32), np.empty(n, np.float32), np.empty((n, width), np.uint8)
    sums, work = np.empty((3, width), np.float32), np.empty(2 * 3 * width, np.float32)
    size, nodes, indptr = ctypes.c_int64, np.arange(n), matrix.indptr.astype(np.int64)

    def at(array):
        return ctypes.c_void_p(array.ctypes.data)

    shape = size(n), size(width)
    status = [
        library.bitring_spmm_f32(
            size(n), *shape, at(indptr), at(matrix.indices), at(matrix.data), at(x), at(product), 0, 2
        ),
        library.bitring_dropout_mask(*shape, size(40), at(nodes), ctypes.c_uint64(mask_key(0, 1, 2)), at(mask), 2),
        library.bitring_epilogue_f32(
            *shape, at(x), at(bias), at(gamma), at(beta), ctypes.c_float(1e-5), at(mask), ctypes.c_float(2.5),
            at(out), at(mean), at(rstd), 2,
        ),
        library.bitring_epilogue_backward_f32(
            *shape, at(product), at(x), at(bias), at(gamma), ctypes.c_float(2.5), at(out), at(mean), at(rstd),
            at(back), at(sums[0]), at(sums[1]), at(sums[2]), at(work), 2,
        ),
    ]  # fmt: skip
    assert status == [0, 0, 0, 0]
    bits = rng.choice(np.array([1, 2, 4, 8, 32], np.uint8), n)
    code = np.arange(n) * 200 + 4
    meta, ids, bad = code - 4, rng.integers(0, 2**63, n).astype(np.uint64), ctypes.c_int64()
    messages, quantised = np.zeros(200 * n, np.uint8), np.zeros_like(x)
    places = at(bits), at(meta), at(code)
    status = [
        library.bitring_quantise_f32(
            *shape, size(40), at(x), at(nodes), at(mask), at(nodes), *places, at(ids), ctypes.c_uint64(7),
            at(messages), None, ctypes.byref(bad), 2,
        ),
        library.bitring_dequantise_f32(
            *shape, size(40), at(messages), at(nodes), at(mask), at(nodes), *places, size(n), None, 0, at(quantised), 2
        ),
        library.bitring_dequantise_f32(
            *shape, size(40), at(messages), at(nodes), at(mask), at(nodes), *places, size(n), None, 1, at(quantised), 2
        ),
    ]  # fmt: skip
    assert status == [0, 0, 0]
    return b"".join(a.tobytes() for a in (product, mask, out, mean, rstd, back, sums, messages, quantised))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="protects memory by mprotect")
def test_quantising_touches_nothing_behind_rows_or_messages():
    """In a child: the page behind each array can't be read or written, and a child that does so dies."""
    root = CUDA.parent
    script = "from tests.test_kernels import there_and_back_before_a_guard as run; run()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"


def there_and_back_before_a_guard():
    """Messages of many lengths, masked and whole, at every width, written, placed and added; each array guarded."""
    rng, size, library = np.random.default_rng(0), ctypes.c_int64, native.library()
    for width in (1, 7, 15, 16, 17, 31, 33, 63, 65, 100, 130, 257):
        for kept in {width, (width + 1) // 2}:
            mask = np.zeros((3, width), np.uint8)
            for row in mask:
                row[rng.permutation(width)[:kept]] = 1
            masks = (None, None) if kept == width else (mask, np.arange(3))
            for bits in (1, 2, 4, 8, 32):
                each = library.bitring_code_bytes(size(kept), bits)
                rows, meta, code = np.arange(3), 4 * np.arange(3), 12 + each * np.arange(3)
                x = rng.standard_normal((3, width), np.float32)
                described = [guarded(a) for a in (rows, *masks, np.full(3, bits, np.uint8), meta, code)]
                wire, out, ranges = (
                    guarded(a) for a in (np.zeros(12 + 3 * each, np.uint8), x, np.zeros(3, np.float32))
                )
                shape, noise, bad = (size(3), size(width), size(kept)), guarded(rows), ctypes.c_int64()
                status = library.bitring_quantise_f32(
                    *shape, guarded(x), *described, noise, ctypes.c_uint64(7), wire, ranges, ctypes.byref(bad), 1
                )
                assert status == 0
                for add in (0, 1):
                    assert library.bitring_dequantise_f32(*shape, wire, *described, size(3), None, add, out, 1) == 0


def guarded(array):
    """A copy that ends where memory that nobody may touch begins; it is never given back."""
    if array is None:
        return None
    page, num_bytes = mmap.PAGESIZE, array.nbytes
    room = -(-num_bytes // page) * page
    memory = mmap.mmap(-1, room + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + room), ctypes.c_size_t(page), 0) == 0
    place = start + room - num_bytes
    ctypes.memmove(place, np.ascontiguousarray(array).ctypes.data, num_bytes)
    _kept.append(memory)
    return ctypes.c_void_p(place)


_kept = []


def test_bad_arguments_are_refused_by_code():
    library, size = native.library(), ctypes.c_int64
    assert library.bitring_spmm_f32(size(-1), size(1), size(1), None, None, None, None, None, 0, 1) == 1
    assert library.bitring_spmm_f32(size(1), size(1), size(1), None, None, None, None, None, 0, 1) == 1
    assert library.bitring_dropout_mask(size(1), size(0), size(1), None, ctypes.c_uint64(0), None, 1) == 1
    assert library.bitring_dropout_mask(size(1), size(1 << 20), size(1), None, ctypes.c_uint64(0), None, 1) == 1
    nothing = (None, None, None, None, ctypes.c_float(0), None, ctypes.c_float(1), None, None, None)
    assert library.bitring_epilogue_f32(size(1), size(1), *nothing, 1) == 1
    with pytest.raises(RuntimeError, match="kernel spmm_f32 refused its arguments"):
        native.call("spmm_f32", -1, 1, 1, None, None, None, None, None, ctypes.c_int(0), ctypes.c_int(1))


def test_another_version_and_a_broken_library_are_not_used(tmp_path, monkeypatch, caplog):
    source = tmp_path / "other.c"
    source.write_text("int bitring_abi(void) { return 99; }")
    other = tmp_path / "other.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(other), str(source)], check=True)
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"nothing")
    for path in (other, broken, tmp_path / "none.so", "off"):
        monkeypatch.setenv("BITRING_KERNELS", str(path))
        assert native.library.__wrapped__() is None
    assert "version 99" in caplog.text and "can't be loaded" in caplog.text


def test_the_epilogue_hides_no_nan():
    rows = torch.randn(4, 40)
    rows[2, 7] = torch.nan
    norm = nn.LayerNorm(40)
    with torch.no_grad():
        ours = epilogue(rows, torch.zeros(40), norm, "relu", None)
        plain = plain_epilogue(rows, torch.zeros(40), norm, "relu", None)
    assert torch.equal(ours.isnan(), plain.isnan())
    assert ours[2].isnan().all()
