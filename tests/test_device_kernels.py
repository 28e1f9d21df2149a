"""The device kernels (cuda/quantise.cu) equal the CPU's bit for bit: emulated anywhere, and on a device if any."""

import ctypes
import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.device import NO_DEVICE, OK, WIDTHS, Gpu, Host, Kernels, Messages, compare, difference, random_messages
from tests.test_rounding import KINDS, rows_of
from toolkit import native

CUDA = Path(__file__).parent.parent / "cuda"
BAD_ARGUMENT, DEVICE_ERROR = 1, 4
F32 = np.float32

if native.library() is None:
    if os.environ.get("BITRING_DEV") == "1":
        pytest.fail("the kernels were asked for and are not built (make kernels)", pytrace=False)
    pytest.skip("the kernels are not built (make kernels)", allow_module_level=True)


def make(target, out):
    done = subprocess.run(["make", "-s", "-C", str(CUDA), target, f"OUT={out}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    library = ctypes.CDLL(str(out / f"libbitring_{target}.so"))
    assert library.bitring_cuda_abi() == native.ABI
    return library


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing, and the emulated device kernels are built by it")
    library = make("emulated", tmp_path_factory.mktemp("emulated"))
    count = ctypes.c_int()
    assert (library.bitring_cuda_device_count(ctypes.byref(count)), count.value) == (OK, 1)
    return Kernels(library, Host())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 3, 7, 16, 255, 256, 1433])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "kept"])
def test_the_device_equals_the_cpu(emulated, kind, width, masked):
    """Every width of codes in one call, at any alignment; there, back, and added up in groups."""
    rng = np.random.default_rng(width)
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(rows_of(kind, 45, width, rng))
    for gap, offset in ((0, 0), (3, 4)):
        assert difference(emulated, random_messages(rng, x, masked, gap), offset) == ""


@pytest.mark.parametrize("width", [1, 3, 16, 33, 256])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "kept"])
def test_bfloat16_rows(emulated, width, masked):
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((45, width)).astype(F32).view(np.uint32) >> 16).astype(np.uint16)
    for offset in (0, 2):
        assert difference(emulated, random_messages(rng, x, masked), offset) == ""


def test_random_shapes(emulated):
    compare(emulated, 24)


def test_the_widest_rows_fit(emulated):
    """65536 kept entries: their codes fill the shared memory that the smallest device has."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 1 << 16)).astype(F32)
    rows = np.arange(5)
    m = Messages(x, rows, WIDTHS, rows.astype(np.uint64), 1 << 16, np.ones(x.shape, np.uint8), rows)
    assert difference(emulated, m) == ""


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "kept"])
def test_the_first_message_that_is_not_finite_is_named(emulated, value, masked):
    rng = np.random.default_rng(0)
    m = random_messages(rng, rng.standard_normal((300, 40)).astype(F32), masked)
    if masked:  # one that the mask drops does no harm
        m.x[m.rows[3], m.mask[m.mask_rows[3]] == 0] = value
        assert m.kept < 40
        assert emulated.results(m)["bad message"] == -1
    for message in (250, 130):
        column = 39 if m.mask is None else np.flatnonzero(m.mask[m.mask_rows[message]])[-1]
        m.x[m.rows[message], column] = value
        assert emulated.results(m)["bad message"] == message
        assert difference(emulated, m) == ""


def quantise(kernels, **change):
    """The status of quantising three rows of four entries, with some arguments changed."""
    x, out = np.ones((3, 4), F32), np.zeros(99, np.uint8)
    arguments = {
        "count": 3, "D": 4, "kept": 4, "x": x, "row": np.arange(3), "mask": None, "mask_row": None,
        "bits": np.full(3, 2, np.uint8), "meta_place": np.arange(3) * 8, "code_place": np.arange(3) * 8 + 4,
        "where": np.arange(3), "key": 1, "out": out, "range": None, "bad": np.array([-1]), "stream": None,
    }  # fmt: skip
    arguments |= change
    values = [
        ctypes.c_int64(a) if isinstance(a, int) else ctypes.c_void_p(None if a is None else a.ctypes.data)
        for a in arguments.values()
    ]
    return kernels.library.bitring_cuda_quantise_f32(*values)


def dequantise(kernels, **change):
    places = np.arange(3) * 8
    arguments = {
        "count": 3, "D": 4, "kept": 4, "in": np.zeros(99, np.uint8), "row": np.arange(3), "mask": None,
        "mask_row": None, "bits": np.full(3, 2, np.uint8), "meta_place": places, "code_place": places + 4,
        "groups": 3, "group_first": None, "accumulate": 0, "out": np.zeros((3, 4), F32), "stream": None,
    }  # fmt: skip
    arguments |= change
    values = [
        ctypes.c_int64(a) if isinstance(a, int) else ctypes.c_void_p(None if a is None else a.ctypes.data)
        for a in arguments.values()
    ]
    return kernels.library.bitring_cuda_dequantise_f32(*values)


BAD_SHAPES = [
    {"count": -1}, {"D": 0}, {"D": (1 << 16) + 1, "kept": (1 << 16) + 1}, {"kept": 0}, {"kept": 3}, {"kept": 5},
    {"row": None}, {"bits": None}, {"meta_place": None}, {"code_place": None}, {"out": None},
    {"mask": np.ones((3, 4), np.uint8)},
]  # fmt: skip


@pytest.mark.parametrize("change", [*BAD_SHAPES, {"x": None}, {"where": None}, {"bad": None}], ids=str)
def test_bad_arguments_of_quantise_are_refused(emulated, change):
    assert quantise(emulated) == OK
    assert quantise(emulated, **change) == BAD_ARGUMENT


@pytest.mark.parametrize("change", [*BAD_SHAPES, {"in": None}, {"groups": 2}, {"groups": -1}], ids=str)
def test_bad_arguments_of_dequantise_are_refused(emulated, change):
    assert dequantise(emulated) == OK
    assert dequantise(emulated, **change) == BAD_ARGUMENT


def test_no_messages_is_no_error(emulated):
    nothing = {"count": 0, "row": None, "bits": None, "meta_place": None, "code_place": None, "out": None}
    assert quantise(emulated, **nothing, x=None, where=None) == OK
    assert dequantise(emulated, **nothing, groups=0) == OK
    assert emulated.library.bitring_cuda_device_count(None) == BAD_ARGUMENT


def test_the_emulation_refuses_what_would_hang_or_overrun_a_device(tmp_path):
    """A lane that leaves before the others' ballot; a byte behind the shared memory."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing")
    source = tmp_path / "wrong.cpp"
    source.write_text("""
        #include "emulated_cuda.h"
        __global__ void leaves(int lane) { if ((int)threadIdx.x != lane) __ballot_sync(~0u, 1); }
        __global__ void overruns(int place) { BITRING_SHARED(bytes); bytes[place] = 1; }
        int main(int count, char **) {
            if (count == 1) return emulated::launch(leaves, 1, 32, 0, 99) + emulated::launch(overruns, 1, 64, 8, 7);
            return count == 2 ? emulated::launch(leaves, 1, 32, 0, 5) : emulated::launch(overruns, 1, 32, 8, 8);
        }""")
    subprocess.run(["g++", "-std=c++17", f"-I{CUDA}", "-o", tmp_path / "wrong", source], check=True)
    for arguments, said in (([], ""), ("1", "did not come to a collective"), ("12", "beyond its shared memory")):
        done = subprocess.run([tmp_path / "wrong", *arguments], capture_output=True, text=True)
        assert said in done.stderr
        assert (done.returncode == 0) == (not said)


def nvcc():
    return shutil.which("nvcc") or next(iter(sorted(glob.glob("/usr/local/cuda*/bin/nvcc"), reverse=True)), None)


@pytest.mark.skipif(nvcc() is None, reason="nvcc is neither on PATH nor under /usr/local/cuda*")
def test_the_build_by_nvcc(tmp_path):
    """It compiles and loads; without a device it says so, with one it equals the CPU."""
    library = make("cuda", tmp_path)
    count = ctypes.c_int(7)
    status = library.bitring_cuda_device_count(ctypes.byref(count))
    if status == OK:
        compare(Kernels(library, Gpu()), 60)
        return
    assert (status, count.value) == (NO_DEVICE, 0)
    kernels = Kernels(library, Host())
    assert quantise(kernels) == dequantise(kernels) == DEVICE_ERROR
    assert quantise(kernels, kept=5) == BAD_ARGUMENT


def test_the_bench_refuses_a_machine_without_a_device():
    try:
        Gpu()
    except RuntimeError:
        done = subprocess.run([sys.executable, "-m", "bench.device"], capture_output=True, text=True, cwd=CUDA.parent)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
        return
    pytest.skip("this machine has a device: nothing to refuse")


def test_without_nvcc_one_sentence_says_what_to_do(tmp_path):
    done = subprocess.run(
        ["make", "-s", "-C", str(CUDA), "cuda", f"OUT={tmp_path}", "NVCC="], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "no nvcc" in done.stderr
