"""Text for people: tables and numbers with their units."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], header: Sequence[str] | None = None) -> str:
    """Columns aligned: the first to the left, numbers to the right."""
    everything = [*([header] if header else []), *rows]
    widths = [max(len(row[i]) for row in everything) for i in range(len(everything[0]))]
    numeric = [i > 0 and all(not row[i] or row[i][0] in "0123456789-+.<~n" for row in rows) for i in range(len(widths))]
    lines = [
        "  ".join(
            cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(row, widths, numeric, strict=True)
        )
        for row in everything
    ]
    if header:
        lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(line.rstrip() for line in lines)


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Name and value, a line each."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in pairs)


def num_bytes(count: float) -> str:
    """1234567 -> '1.23 MB' (powers of 1000)."""
    return _scaled(count, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)))


def seconds(value: float) -> str:
    """0.00123 -> '1.23 ms'."""
    return _scaled(value, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)))


def _scaled(value: float, units: Sequence[tuple[str, float]]) -> str:
    """Three digits in the largest unit that gives at least 1."""
    unit, size = next(((unit, size) for unit, size in units if abs(value) >= size), units[-1])
    amount = value / size
    decimals = 0 if unit == "B" or abs(amount) >= 99.95 else 1 if abs(amount) >= 9.995 else 2
    return f"{amount:.{decimals}f} {unit}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def ratio(before: float, after: float) -> str:
    """How many times less ``after`` is than ``before``."""
    if after == 0:
        return "-"
    factor = before / after
    return f"{factor:.{2 if factor < 10 else 1 if factor < 100 else 0}f}x"
