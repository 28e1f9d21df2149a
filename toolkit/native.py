"""The compiled kernels (cuda/bitring.h), loaded by ctypes; where they are missing, callers use plain torch."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ABI = 2
STATUS_FUNCTIONS = (
    "spmm_f32", "dropout_mask", "epilogue_f32", "epilogue_backward_f32", "quantise_f32", "quantise_bf16",
    "dequantise_f32",
)  # fmt: skip
WIDEST_MASK = 1 << 16  # columns that the mask kernel takes
WIDEST_ROW = 1 << 16  # entries of a row that the quantising kernels take
BUILT = Path(__file__).resolve().parent.parent / "cuda" / "build" / "libbitring.so"
BUILT_FOR_DEVICES = BUILT.with_name("libbitring_cuda.so")


def library_path() -> str:
    """Where the kernels are looked for, or "off"."""
    return os.environ.get("BITRING_KERNELS", str(BUILT))


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernels, or None: not built (`make kernels`), switched off (BITRING_KERNELS=off), or of another version.

    torch is imported before: its OpenMP run time is then ours too, and the two share their threads.
    """
    path = library_path()
    if path == "off" or not Path(path).is_file():
        return None
    try:
        loaded = ctypes.CDLL(path)
        found = int(loaded.bitring_abi())
    except (OSError, AttributeError) as error:
        logging.getLogger("bitring").warning("the kernels %s can't be loaded (%s): plain torch instead", path, error)
        return None
    if found != ABI:
        logging.getLogger("bitring").warning("the kernels %s are of version %d, not %d: plain torch", path, found, ABI)
        return None
    loaded.bitring_epilogue_work.argtypes = [ctypes.c_int64, ctypes.c_int64]
    loaded.bitring_code_bytes.argtypes = [ctypes.c_int64, ctypes.c_int]
    loaded.bitring_code_bytes.restype = ctypes.c_int64
    for name in STATUS_FUNCTIONS:
        getattr(loaded, f"bitring_{name}").restype = ctypes.c_int
    loaded.bitring_epilogue_work.restype = ctypes.c_int64
    return loaded


@functools.cache
def device_library() -> ctypes.CDLL | None:
    """The kernels of a CUDA device, or None: not built (`make cuda`), switched off as above, unfit for the driver."""
    path = BUILT_FOR_DEVICES
    if os.environ.get("BITRING_KERNELS") == "off" or not path.is_file():
        return None
    log = logging.getLogger("bitring")
    try:
        loaded = ctypes.CDLL(str(path))
        found = int(loaded.bitring_cuda_abi())
        status = int(loaded.bitring_cuda_device_count(ctypes.byref(ctypes.c_int())))
    except (OSError, AttributeError) as error:
        log.warning("the device kernels %s can't be loaded (%s): the host quantises instead", path, error)
        return None
    if found != ABI or status != 0:
        why = f"are of version {found}, not {ABI}" if found != ABI else f"find no device (status {status})"
        log.warning("the device kernels %s %s: the host quantises instead", path, why)
        return None
    return loaded


@dataclass(frozen=True, slots=True, eq=False)
class DeviceKernels:
    """The quantising kernels of a device: a call queues one on the stream that ``stream`` gives, and returns."""

    library: ctypes.CDLL
    stream: Callable[[], int | None]

    def __call__(self, name: str, *arguments: Any) -> None:
        """Queue ``bitring_cuda_<name>``; arguments as for call()."""
        function = getattr(self.library, f"bitring_cuda_{name}")
        check(name, int(function(*(_c(argument) for argument in arguments), ctypes.c_void_p(self.stream()))))


def available(*tensors: Tensor) -> bool:
    """Whether the kernels can take these: there, float32, on the CPU."""
    return library() is not None and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)


def call(name: str, *arguments: Any) -> None:
    """Call ``bitring_<name>``: ints as int64, floats as float, contiguous tensors as pointers, None as NULL."""
    check(name, status(name, *arguments))


def status(name: str, *arguments: Any) -> int:
    """The same, giving the kernel's error code."""
    loaded = library()
    assert loaded is not None
    return int(getattr(loaded, f"bitring_{name}")(*(_c(argument) for argument in arguments)))


def check(name: str, status: int) -> None:
    """Raise where a kernel has refused its arguments: an error of ours."""
    if status != 0:
        raise RuntimeError(f"kernel {name} refused its arguments (status {status})")


def threads() -> ctypes.c_int:
    return ctypes.c_int(torch.get_num_threads())


def _c(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        assert argument.is_contiguous()
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    return argument  # None, or a ctypes value
