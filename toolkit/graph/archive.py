"""Reads the arrays of an ``.npz`` file that anyone may have made: nothing is unpickled or unpacked to disk."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import UserError
from toolkit.graph.data import IntArray
from toolkit.graph.npy import as_ints, checked_header

MAX_BYTES = 64 * 2**30  # of all members together, as the zip directory declares them
MAX_RATIO = 2000  # deflate reaches 1,032; more is a lie or a bomb ...
RATIO_FREE_BYTES = 2**30  # ... which only matters above this size
_KEY = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class Archive:
    """The arrays of one file, each read when asked for; use it in a ``with`` block.

    Every refusal is a UserError that names the file and the key.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except OSError as error:
            raise UserError(f"can't read {path}: {error.strerror or error}; name an .npz file") from None
        except Exception as error:  # a directory of anyone's making: BadZipFile, struct.error, UnicodeDecodeError ...
            raise UserError(f"{path}: is not a whole .npz file ({error}); write it anew with numpy.savez") from None
        try:
            self._members = self._checked_directory()
        except UserError:
            self._zip.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._zip.close()

    def __contains__(self, key: str) -> bool:
        return key in self._members

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self._members)

    def refuse(self, key: str, complaint: str) -> NoReturn:
        """Raise the UserError ``<file>: '<key>' <complaint>``."""
        raise UserError(f"{self.path}: '{key}' {complaint}")

    def require(self, keys: Iterable[str]) -> None:
        """Raise UserError for the first key that is not there."""
        for key in keys:
            if key not in self._members:
                self.refuse(key, f"is missing; the file has {', '.join(sorted(self._members)) or 'nothing'}")

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape of an array, without reading it."""
        self.require([key])
        return self._checked_header(key)

    def array(self, key: str) -> NDArray[Any]:
        """An array as stored."""
        self.shape(key)
        try:
            with self._zip.open(self._members[key]) as stream:
                made: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        except MemoryError:
            gib = self._members[key].file_size / 2**30
            self.refuse(key, f"takes {gib:.1f} GiB, more than this machine has free; use a larger one")
        except Exception as error:  # zlib.error, EOFError, BadZipFile (checksum), ValueError ...
            self.refuse(key, f"can't be read, the file is damaged ({error}); write it anew")
        return made

    def ints(self, key: str, ndim: int) -> IntArray:
        """An array of integers of any width as int64, with ``ndim`` dimensions."""
        made = self.array(key)
        if made.dtype.kind not in "iu" or made.ndim != ndim:
            shape = {0: "one integer", 1: "a vector of integers", 2: "a matrix of integers"}[ndim]
            self.refuse(key, f"is {made.dtype} {list(made.shape)}; it must be {shape}")
        return as_ints(made, f"{self.path}: '{key}'")

    def _checked_directory(self) -> dict[str, zipfile.ZipInfo]:
        members: dict[str, zipfile.ZipInfo] = {}
        total = 0
        for info in self._zip.infolist():
            key = info.filename.removesuffix(".npy")
            if key == info.filename or not _KEY.fullmatch(key):
                raise UserError(f"{self.path}: has the member {info.filename!r:.80}, which is not an array; remove it")
            if key in members:
                self.refuse(key, "is there twice; write the file anew")
            if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                self.refuse(key, "is encrypted or packed in a way numpy never uses; write the file with numpy.savez")
            total += info.file_size
            if total > MAX_BYTES:
                self.refuse(key, f"makes the file {total / 2**30:.0f} GiB unpacked; {MAX_BYTES >> 30} GiB are read")
            if info.file_size > RATIO_FREE_BYTES and info.file_size > MAX_RATIO * info.compress_size:
                self.refuse(key, f"unpacks {info.compress_size} bytes to {info.file_size}: a zip bomb, not data")
            members[key] = info
        return members

    def _checked_header(self, key: str) -> tuple[int, ...]:
        info = self._members[key]
        try:
            with self._zip.open(info) as stream:
                return checked_header(stream, info.file_size)
        except ValueError as error:
            self.refuse(key, str(error))
        except Exception as error:  # a local header of anyone's making: BadZipFile, NotImplementedError ...
            self.refuse(key, f"can't be read, the file is damaged ({error}); write it anew")
