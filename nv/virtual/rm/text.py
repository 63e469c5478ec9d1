"""Text in parameter blocks."""

from __future__ import annotations

from hcq.layout import Array


def set_text(array: Array, text: str) -> None:
    """Put text into an array of bytes, zero-terminated; what is too long is cut."""
    raw = array.raw
    raw[:] = text.encode()[: len(raw) - 1].ljust(len(raw), b"\0")
