"""The result of one check of `ugpu doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One result. state: "ok", "missing" (prevents the use of hardware) or "note"."""

    check: str
    state: str
    detail: str
    remedy: str = ""
