"""Tensors in one file of the safetensors format, with a checksum: written whole or not at all, read without trust.

    8 bytes    length of the header, little-endian
    header     JSON: {"__metadata__": {name: text}, tensor: {"dtype", "shape", "data_offsets"}}
    data       the tensors' bytes, one after another

Any reader of safetensors reads it. ``__metadata__["sha256"]`` is the digest of the whole file with
64 zeros in its place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toolkit.errors import UserError

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
ZEROS = "0" * 64
LONGEST_HEADER = 100_000_000  # the limit of the format


class Damaged(Exception):
    """Not a file that `write` has made: the message says in what, to stand after the file's name."""


def write(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write under a temporary name, flush to the disk, rename. UserError when that fails; what was there stays."""
    entries: dict[str, Any] = {"__metadata__": {"sha256": ZEROS, **metadata}}  # first: the first 64 zeros are its own
    chunks, offset = [], 0
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        # an empty tensor may keep a stride of 0, which no view of bytes takes
        chunk = (flat.view(torch.uint8) if len(flat) else torch.empty(0, dtype=torch.uint8)).numpy().data
        end = offset + chunk.nbytes
        entries[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        chunks.append(chunk)
        offset = end
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    length = len(header).to_bytes(8, "little")
    digest = hashlib.sha256(length + header)
    for chunk in chunks:
        digest.update(chunk)
    header = header.replace(ZEROS.encode(), digest.hexdigest().encode(), 1)
    temporary: str | None = None
    try:
        path.parent.mkdir(exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".writing-", dir=path.parent)
        with open(descriptor, "wb") as file:
            file.writelines([length, header, *chunks])
            file.flush()
            os.fchmod(descriptor, 0o644)
            os.fsync(descriptor)
        os.replace(temporary, path)
        temporary = None
        _flush_folder(path.parent)
    except OSError as error:
        raise UserError(
            f"can't write {path}: {error.strerror}; what was there before stays, free space and continue with --resume"
        ) from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata. Raises Damaged for a file that is no such file or has changed; OSError."""
    raw = path.read_bytes()
    entries, begin = _header(raw)
    metadata = entries.pop("__metadata__", None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("sha256"), str):
        raise Damaged("holds no checksum: bitring did not write it")
    if _digest(raw, begin, metadata["sha256"]) != metadata["sha256"]:
        raise Damaged("is damaged: its checksum differs")
    data = bytearray(raw[begin:])
    tensors, offset = {}, 0
    for name, entry in entries.items():
        tensors[name], offset = _tensor(name, entry, data, offset)
    if offset != len(data):
        raise Damaged(f"is damaged: {len(data) - offset} bytes belong to no tensor")
    return tensors, metadata


def _header(raw: bytes) -> tuple[dict[str, Any], int]:
    begin = 8 + int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or begin > len(raw) or begin > LONGEST_HEADER:
        raise Damaged(f"is truncated or no such file: {len(raw)} bytes, and its header would end at {begin}")
    try:
        entries = json.loads(raw[8:begin])
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict):
        raise Damaged("is no such file: its header is no JSON object")
    return entries, begin


def _digest(raw: bytes, begin: int, found: str) -> str:
    if len(found) != len(ZEROS):
        return ""
    digest = hashlib.sha256(raw[:begin].replace(found.encode(), ZEROS.encode(), 1))
    digest.update(memoryview(raw)[begin:])
    return digest.hexdigest()


def _tensor(name: str, entry: Any, data: bytearray, begin: int) -> tuple[Tensor, int]:
    try:
        dtype, shape, offsets = DTYPES[entry["dtype"]], [int(n) for n in entry["shape"]], entry["data_offsets"]
        end = begin + math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or offsets != [begin, end] or end > len(data):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise Damaged(f"is damaged: the entry of {name} does not fit the file") from None
    if begin == end:
        return torch.empty(shape, dtype=dtype), end
    # a copy: slices of one buffer need not be aligned
    flat = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype)
    return flat.reshape(shape), end
