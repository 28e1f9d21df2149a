"""The one exception that a user is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Input that can't be used: one sentence that names the value and the remedy.

    The command line prints it without a traceback and leaves with exit code 2.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that refuses ``name``: the nearest known name, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
