"""Text in parameter blocks."""

from __future__ import annotations

from ugpu.hcq.registers.layout import Array


def set_text(array: Array, text: str) -> None:
    """Write text to an array of bytes, zero-terminated; text that is too long is truncated."""
    raw = array.raw
    raw[:] = text.encode()[: len(raw) - 1].ljust(len(raw), b"\0")
