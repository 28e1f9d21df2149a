"""How rows are written on the wire. A codec knows its exact byte count beforehand."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Codec(Protocol):
    """Rows [k, e] in, k * row_bytes(e) bytes out, and back."""

    name: str

    def row_bytes(self, entries: int) -> int: ...

    def encode(self, rows_KE: Tensor) -> Tensor: ...

    def decode(self, payload: Tensor, entries: int, dtype: torch.dtype) -> Tensor: ...


class Plain:
    """Each entry in one floating-point type, no metadata: float32, bfloat16 (or float64, to verify)."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.name = str(dtype).removeprefix("torch.")

    def row_bytes(self, entries: int) -> int:
        return entries * self.dtype.itemsize

    def encode(self, rows_KE: Tensor) -> Tensor:
        """[k, e] of any floating type -> [k * row_bytes(e)] uint8."""
        return rows_KE.to(self.dtype).contiguous().view(-1).view(torch.uint8)

    def decode(self, payload: Tensor, entries: int, dtype: torch.dtype) -> Tensor:
        """[k * row_bytes(entries)] uint8 -> [k, entries] of ``dtype``."""
        return payload.view(self.dtype).view(-1, entries).to(dtype)


def exact(dtype: torch.dtype) -> Plain:
    """The codec that loses nothing of ``dtype``: layer 0 and evaluation use it always."""
    return Plain(dtype)


def make(name: str, dtype: torch.dtype) -> Plain:
    """The codec of a configuration. In float64 arithmetic, float32 means "as it is"."""
    return Plain(torch.bfloat16) if name == "bfloat16" else exact(dtype)
