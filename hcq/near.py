"""Suggestions for a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(name: str, choices: Iterable[str]) -> str:
    """Return "did you mean A or B? " for the known names that are near, "" if none is."""
    near = difflib.get_close_matches(name, sorted(choices), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(near)}? " if near else ""
