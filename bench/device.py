"""A CUDA device: its kernels' bits and speed, then training on it beside the CPU.

    python -m bench.device

Builds both libraries, compares them over random messages, then times [2^20 x 256] float32 rows at every width
with events; medians. Rates count each byte once: the rows, the messages, and what describes them. So far it needs
nvcc and a driver, and no torch with CUDA: memory and events are the driver's own. Then it trains for some epochs on
the device and on the CPU (device_training.py), which needs a torch with CUDA, and for 2 ranks MPI; where torch has
none, it says so and ends. Exit code 1: the device differs from the CPU, or a training run failed.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import device_training
from bench.common import file_result
from toolkit import native, report, rounding

CUDA = Path(__file__).resolve().parent.parent / "cuda"
WIDTHS = np.array([1, 2, 4, 8, 32], np.uint8)
OK, NOT_FINITE, NO_DEVICE = 0, 2, 3
REPEATS = 21


class Host:
    """Memory of the emulated kernels: this process's own."""

    def __init__(self) -> None:
        self.arrays: dict[int, NDArray[np.uint8]] = {}

    def place(self, array: NDArray[Any], offset: int = 0) -> int:
        """The address of a copy, ``offset`` bytes into an allocation."""
        copy = np.empty(array.nbytes + offset, np.uint8)
        copy[offset:] = array.reshape(-1).view(np.uint8)
        address = int(copy.ctypes.data) + offset
        self.arrays[address] = copy[offset:]
        return address

    def fetch(self, address: int, like: NDArray[Any]) -> NDArray[Any]:
        return self.arrays[address].view(like.dtype).reshape(like.shape).copy()

    def clear(self) -> None:
        self.arrays.clear()


class Gpu:
    """Memory and events of the first device, by the driver's interface."""

    def __init__(self) -> None:
        try:
            self.driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise RuntimeError("no CUDA driver on this machine (libcuda.so.1 is not found)") from None
        device, self.context = ctypes.c_int(), ctypes.c_void_p()
        if self.driver.cuInit(0) != 0 or self.driver.cuDeviceGet(ctypes.byref(device), 0) != 0:
            raise RuntimeError("a CUDA driver, but no device that it can use")
        # the primary context is the one that the library's run time uses too
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self("cuCtxSetCurrent", self.context)
        name = ctypes.create_string_buffer(100)
        self("cuDeviceGetName", name, 100, device)
        self.name = name.value.decode()
        self.allocations: list[int] = []

    def __call__(self, function: str, *arguments: Any) -> None:
        status = getattr(self.driver, function)(*arguments)
        if status != 0:
            raise RuntimeError(f"{function} failed (CUDA error {status})")

    def place(self, array: NDArray[Any], offset: int = 0) -> int:
        """The address of a copy, ``offset`` bytes into an allocation."""
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(1, array.nbytes + offset)))
        self.allocations.append(address.value)
        source, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(address.value + offset), source, size)
        return address.value + offset

    def fetch(self, address: int, like: NDArray[Any]) -> NDArray[Any]:
        self("cuCtxSynchronize")
        out = np.empty_like(like)
        size = ctypes.c_size_t(out.nbytes)
        self("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(address), size)
        return out

    def clear(self) -> None:
        for address in self.allocations:
            self("cuMemFree_v2", ctypes.c_uint64(address))
        self.allocations.clear()

    def copy(self, to: int, source: int, num_bytes: int) -> None:
        self("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(num_bytes), None)

    def seconds(self, work: Callable[[], Any]) -> float:
        """Median time of ``work`` on the default stream; the first two are not counted."""
        first, last = ctypes.c_void_p(), ctypes.c_void_p()
        for event in (first, last):
            self("cuEventCreate", ctypes.byref(event), 0)
        times = []
        for _ in range(REPEATS + 2):
            self("cuEventRecord", first, None)
            work()
            self("cuEventRecord", last, None)
            self("cuEventSynchronize", last)
            milliseconds = ctypes.c_float()
            self("cuEventElapsedTime", ctypes.byref(milliseconds), first, last)
            times.append(milliseconds.value / 1e3)
        for event in (first, last):
            self("cuEventDestroy_v2", event)
        return float(np.median(times[2:]))


@dataclass
class Messages:
    """K messages: rows of x [*, D] (uint16: bfloat16), of which a mask [*, D] keeps ``kept`` entries each."""

    x: NDArray[Any]
    rows: NDArray[np.int64]
    bits: NDArray[np.uint8]
    where: NDArray[np.uint64]
    kept: int
    mask: NDArray[np.uint8] | None = None
    mask_rows: NDArray[np.int64] | None = None
    key: int = 5
    gap: int = 0  # bytes between two messages

    def __post_init__(self) -> None:
        sizes = np.array([rounding.message_bytes(self.kept, b) for b in range(33)])[self.bits] + self.gap
        self.meta = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
        self.code = self.meta + np.where(self.bits == 32, 0, rounding.META_BYTES)
        self.num_bytes = int(sizes.sum())

    def arrays(self) -> list[NDArray[Any] | None]:
        return [self.rows, self.mask, self.mask_rows, self.bits, self.meta, self.code]

    def shape(self) -> list[ctypes.c_int64]:
        return [ctypes.c_int64(n) for n in (len(self.rows), self.x.shape[1], self.kept)]


def random_messages(rng: np.random.Generator, x: NDArray[Any], masked: bool, gap: int = 0) -> Messages:
    """One message a row of x, in any order, of any widths."""
    count, width = x.shape
    kept, mask = (int(rng.integers(1, width + 1)), np.zeros((count, width), np.uint8)) if masked else (width, None)
    if mask is not None:
        mask[:, :kept] = 1
        rng.permuted(mask, axis=1, out=mask)
    mask_rows = rng.integers(0, count, count) if masked else None
    where = rng.integers(0, 2**63, count).astype(np.uint64)
    return Messages(x, rng.permutation(count), rng.choice(WIDTHS, count), where, kept, mask, mask_rows, gap=gap)


class Kernels:
    """quantise and dequantise of one library: the CPU's (memory None), or one of cuda/quantise.cu."""

    def __init__(self, library: ctypes.CDLL, memory: Host | Gpu | None) -> None:
        self.library, self.memory = library, memory or Host()
        self.prefix, self.last = ("bitring_cuda_", ctypes.c_void_p(None)) if memory else ("bitring_", ctypes.c_int(1))

    def quantiser(self, m: Messages, offset: int = 0) -> tuple[Callable[[], int], int, int, int]:
        """(a call, and where its buffer, ranges and bad message lie)."""
        put = self.memory.place
        x = put(m.x, offset)
        out = put(np.full(m.num_bytes, 0xAA, np.uint8))
        ranges, bad = put(np.zeros(len(m.rows), np.float32)), put(np.array([-1]))
        arguments = [
            *m.shape(), ctypes.c_void_p(x), *map(self._put, [*m.arrays(), m.where]), ctypes.c_uint64(m.key),
            *map(ctypes.c_void_p, (out, ranges, bad)), self.last,
        ]  # fmt: skip
        function = getattr(self.library, f"{self.prefix}quantise_{'f32' if m.x.dtype == np.float32 else 'bf16'}")
        return lambda: int(function(*arguments)), out, ranges, bad

    def dequantiser(
        self, m: Messages, buffer: int, out: NDArray[np.float32], group_first: NDArray[np.int64] | None, add: bool
    ) -> tuple[Callable[[], int], int]:
        """(a call, and where the rows it writes lie)."""
        groups = len(m.rows) if group_first is None else len(group_first) - 1
        rows = self.memory.place(out)
        arguments = [
            *m.shape(), ctypes.c_void_p(buffer), *map(self._put, m.arrays()), ctypes.c_int64(groups),
            self._put(group_first), ctypes.c_int(add), ctypes.c_void_p(rows), self.last,
        ]  # fmt: skip
        function = getattr(self.library, f"{self.prefix}dequantise_f32")
        return lambda: int(function(*arguments)), rows

    def results(self, m: Messages, offset: int = 0) -> dict[str, NDArray[Any]]:
        """All that one library makes of messages: there, back, and back with groups that add up."""
        call, out, ranges, bad = self.quantiser(m, offset)
        fetch = self.memory.fetch
        quantised = call()
        found = {"bad message": fetch(bad, np.zeros(1, np.int64))}
        # the device tells of a bad message by `bad` alone
        assert quantised in (OK, NOT_FINITE), f"quantise returned {quantised}"
        if found["bad message"][0] < 0:
            found["messages"] = fetch(out, np.zeros(m.num_bytes, np.uint8))
            found["ranges"] = fetch(ranges, np.zeros(len(m.rows), np.float32))
            shape = np.zeros((len(m.x), m.x.shape[1]), np.float32)
            call, rows = self.dequantiser(m, out, shape + np.float32(9), None, False)
            assert call() == OK
            found["rows"] = fetch(rows, shape)
            # four messages or fewer to a row
            first = np.unique(np.append(np.arange(0, len(m.rows), 4), len(m.rows)))
            together = Messages(**{name: getattr(m, name) for name in m.__dataclass_fields__})
            together.rows = np.arange(len(m.rows)) // 4
            call, rows = self.dequantiser(together, out, shape + np.float32(0.1), first, True)
            assert call() == OK
            found["sums"] = fetch(rows, shape)
        self.memory.clear()
        return found

    def _put(self, array: NDArray[Any] | None) -> ctypes.c_void_p:
        return ctypes.c_void_p(None if array is None else self.memory.place(np.ascontiguousarray(array)))


def difference(device: Kernels, m: Messages, offset: int = 0) -> str:
    """Empty, or what differs first between the device's results and the CPU's. Any NaN equals any other."""
    cpu = native.library()
    assert cpu is not None, "the CPU kernels are not built (make kernels)"
    expected, found = Kernels(cpu, None).results(m, offset), device.results(m, offset)
    for name, array in expected.items():
        a, b = array, found[name]
        if a.dtype == np.float32:
            a, b = (np.where(np.isnan(v), np.float32(np.nan), v).view(np.uint32) for v in (a, b))
        if not np.array_equal(a, b):
            places = np.argwhere(a != b)
            return f"{name}: {len(places)} of {a.size} differ, the first at {places[0].tolist()} (D = {m.x.shape[1]})"
    return ""


def compare(device: Kernels, shapes: int) -> None:
    rng = np.random.default_rng(0)
    for index in range(shapes):
        width = int(rng.choice([1, 16, 33, 256, 602, 1433, 65536])) if index % 2 else int(rng.integers(1, 700))
        x = (rng.standard_normal((37, width)) * 10.0 ** rng.integers(-20, 20, (37, 1))).astype(np.float32)
        if index % 3 == 0:
            x = (x.view(np.uint32) >> 16).astype(np.uint16)
        masked, gap, offset = index % 4 < 2, int(rng.integers(0, 4)), int(rng.choice([0, 4]))
        found = difference(device, random_messages(rng, np.ascontiguousarray(x), masked, gap), offset)
        if found:
            raise RuntimeError(f"the device and the CPU differ in {found}")


def rates(gpu: Gpu, device: Kernels, count: int = 1 << 20, width: int = 256) -> list[dict[str, float]]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, width), np.float32)
    a, b = gpu.place(x), gpu.place(x)
    copy = 2 * x.nbytes / gpu.seconds(lambda: gpu.copy(a, b, x.nbytes))
    gpu.clear()
    rows, results = np.arange(count), []
    for bits in WIDTHS:
        m = Messages(x, rows, np.full(count, bits), rows.astype(np.uint64), width)
        there, buffer, _, _ = device.quantiser(m)
        back, _ = device.dequantiser(m, buffer, x, None, False)
        result = {"bits": int(bits), "copy_GB_per_s": copy / 1e9}
        # per message also: row, places, width (25 bytes); and, to quantise, its noise and range (12)
        for name, work, beside in (("quantise", there, 37), ("dequantise", back, 25)):
            assert work() == OK
            seconds = gpu.seconds(work)
            rate = (x.nbytes + m.num_bytes + beside * count) / seconds
            result |= {f"{name}_s": seconds, f"{name}_GB_per_s": rate / 1e9, f"{name}_share": rate / copy}
        results.append(result)
        gpu.clear()
    return results


def main() -> int:
    try:
        gpu = Gpu()
    except RuntimeError as error:
        print(f"bench.device needs a CUDA device: {error}", file=sys.stderr)
        return 2
    if subprocess.run(["make", "-s", "-C", str(CUDA), "kernels", "cuda"]).returncode != 0:
        print("bench.device: the kernels can't be built (see above)", file=sys.stderr)
        return 2
    library = ctypes.CDLL(str(CUDA / "build" / "libbitring_cuda.so"))
    if library.bitring_cuda_abi() != native.ABI or library.bitring_cuda_device_count(ctypes.byref(ctypes.c_int())):
        print("bench.device: the library is of another version, or its CUDA is newer than the driver", file=sys.stderr)
        return 2
    device = Kernels(library, gpu)
    shapes = 200
    compare(device, shapes)
    print(f"{gpu.name}: the CPU's bits over {shapes} random shapes")
    results = rates(gpu, device)
    rows = [
        [
            str(r["bits"]), report.seconds(r["quantise_s"]), f"{r['quantise_GB_per_s']:.0f}",
            f"{r['quantise_share']:.2f}", report.seconds(r["dequantise_s"]), f"{r['dequantise_GB_per_s']:.0f}",
            f"{r['dequantise_share']:.2f}",
        ]
        for r in results
    ]  # fmt: skip
    print(f"copy: {results[0]['copy_GB_per_s']:.0f} GB/s")
    print(report.table(rows, ["bits", "quantise", "GB/s", "of copy", "dequantise", "GB/s", "of copy"]))
    trained, code = training()
    found = {"device": gpu.name, "shapes_compared": shapes, "results": results, "training": trained}
    print(file_result("device", found))
    return code


def training() -> tuple[list[dict[str, Any]], int]:
    """The losses on the device beside the CPU's, printed; exit code 1 where they differ by more than rounding."""
    try:
        trained = device_training.compare_training()
    except RuntimeError as error:
        print(f"training was not compared: {error}", file=sys.stderr)
        return [], 0 if device_training.devices.missing() else 1
    rows = [
        [
            str(t["ranks"]), t["codec"], f"{t['first_loss']:.4f}", f"{t['last_loss']:.4f}",
            f"{t['loss_difference']:.1e}", report.seconds(t["cpu_epoch_s"]), report.seconds(t["cuda_epoch_s"]),
        ]
        for t in trained
    ]  # fmt: skip
    print(
        report.table(rows, ["ranks", "messages", "first loss", "last", "from the CPU's", "CPU epoch", "device epoch"])
    )
    return trained, int(any(t["loss_difference"] > device_training.FARTHEST for t in trained))


if __name__ == "__main__":
    sys.exit(main())
