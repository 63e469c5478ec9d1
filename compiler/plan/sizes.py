"""Size classes of memory: few, so that buffers are reused often."""

from __future__ import annotations


def round_up(size: int) -> int:
    """Return the size class: multiples of 256 bytes, later of an eighth of the power of two
    below."""
    if size <= 256:
        return 256
    step = 256
    while size > 16 * step:
        step *= 2
    return -(-size // step) * step
