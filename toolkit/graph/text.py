"""Reads numbers from text that anyone may have made, plain or gzipped, line by line and up to a size."""

from __future__ import annotations

import gzip
import io
import itertools
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from toolkit.errors import UserError

MAX_BYTES = 64 * 2**30  # of a file, unpacked
MAX_RATIO = 300  # gzip packs columns of numbers 2 to 100 times; it reaches 1,032 on a bomb ...
RATIO_FREE_BYTES = 2**30  # ... which only matters above this size
LONGEST_LINE = 64 * 2**20  # characters
DELIMITERS: dict[str, str | None] = {"comma": ",", "tab": "\t", "semicolon": ";", "space": None}
_COMMENTS = ("#", "%")


def read_table(path: Path, dtype: DTypeLike, delimiter: str = ",") -> NDArray[Any]:
    """The rows of a file of numbers without a header: [rows, columns]. Raises UserError, naming the file."""
    return _parse(_lines(path), path, dtype, delimiter, None)


def read_edges(path: Path, delimiter: str = "auto") -> tuple[NDArray[np.int64], bool]:
    """The first two columns of an edge list, [E, 2], and whether there are more.

    Lines that begin with # or % on top, and one line of names, are skipped. ``delimiter`` is a key of
    DELIMITERS, or 'auto': told by the first line. Raises UserError, naming the file.
    """
    lines = _lines(path)
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith(_COMMENTS)), "")
    first = first.removeprefix("\u00ef\u00bb\u00bf")  # spreadsheets put UTF-8's byte order mark there, here latin-1
    if not first:
        return np.zeros((0, 2), np.int64), False
    mark = _guess(first) if delimiter == "auto" else DELIMITERS[delimiter]
    fields = [field.strip() for field in first.split(mark)]
    if len(fields) < 2:
        raise UserError(
            f"{path}: the first line is {first.strip()[:60]!r}, one column; an edge is a source and a target, "
            "set data.delimiter to what stands between them"
        )
    if not first.strip().replace("\t", " ").isprintable():
        raise UserError(f"{path}: is no text, its first line is {first[:20]!r}; name an edge list")
    named = not any(_is_number(field) for field in fields[:2])
    rest = lines if named else itertools.chain([first], lines)
    columns = None if len(fields) == 2 else (0, 1)
    edges: NDArray[np.int64] = _parse(rest, path, np.int64, mark, columns)
    return edges.reshape(-1, 2), len(fields) > 2


def _lines(path: Path) -> Iterator[str]:
    try:
        packed_bytes = path.stat().st_size
        packed = path.suffix == ".gz"
        if packed and packed_bytes == 0:  # gzip would take it for a file of no lines
            raise UserError(f"{path}: is empty, not a whole gzip file; get the file anew")
        limit = min(MAX_BYTES, max(RATIO_FREE_BYTES, MAX_RATIO * packed_bytes)) if packed else MAX_BYTES
        total = 0
        stream: Any
        with (
            (gzip.open if packed else open)(path, "rb") as stream,
            io.TextIOWrapper(stream, encoding="latin-1") as text,
        ):
            while line := text.readline(LONGEST_LINE):
                total += len(line)
                if total > limit:
                    raise UserError(
                        f"{path}: unpacks {packed_bytes} bytes to more than {limit}: a bomb, or too large; "
                        "write the arrays as .npy instead"
                    )
                if len(line) >= LONGEST_LINE:
                    mib = LONGEST_LINE >> 20
                    raise UserError(
                        f"{path}: has a line of {mib} MiB or more; it is no table of numbers, mend the file"
                    )
                yield line
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None)
        if reason:
            raise UserError(f"can't read {path}: {reason}; check data.path") from None
        raise UserError(f"{path}: is not a whole gzip file ({error}); get the file anew") from None


def _parse(
    lines: Iterator[str], path: Path, dtype: DTypeLike, delimiter: str | None, columns: tuple[int, int] | None
) -> NDArray[Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*input contained no data")
        try:
            made: NDArray[Any] = np.loadtxt(
                lines, dtype=dtype, delimiter=delimiter, comments=None, ndmin=2, usecols=columns
            )
        except ValueError as error:
            reason = " ".join(str(error).split(";")[0].split()).rstrip(".")[:200]
            raise UserError(f"{path}: is not a table of numbers ({reason}); mend the file") from None
    return made


def _guess(line: str) -> str | None:
    return next((mark for mark in (",", "\t", ";") if mark in line), None)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True
