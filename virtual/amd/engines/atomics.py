"""Read-modify-write operations that the command processor and SDMA perform themselves.

Source of the numbers: Linux 6.12 include/navi10_enum.h, enum TC_OP (bit 5: 64 bits wide, bit 6: the
old value is not returned). Floating-point operations are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable

WIDE = 0x20
NO_RETURN = 0x40
COMPARE_SWAP = 0x08


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


_OPERATIONS: dict[int, Callable[[int, int, int, int], int]] = {
    # (old, source, compare, bits) -> new
    0x07: lambda old, source, compare, bits: source,
    COMPARE_SWAP: lambda old, source, compare, bits: source if old == compare else old,
    0x0F: lambda old, source, compare, bits: old + source,
    0x10: lambda old, source, compare, bits: old - source,
    0x11: lambda old, source, compare, bits: min(old, source, key=lambda v: _signed(v, bits)),
    0x12: lambda old, source, compare, bits: min(old, source),
    0x13: lambda old, source, compare, bits: max(old, source, key=lambda v: _signed(v, bits)),
    0x14: lambda old, source, compare, bits: max(old, source),
    0x15: lambda old, source, compare, bits: old & source,
    0x16: lambda old, source, compare, bits: old | source,
    0x17: lambda old, source, compare, bits: old ^ source,
    0x18: lambda old, source, compare, bits: 0 if old >= source else old + 1,
    0x19: lambda old, source, compare, bits: source if old == 0 or old > source else old - 1,
}


def width(operation: int) -> int | None:
    """Return the operand size of a TC_OP atomic in bytes, None for an unknown operation."""
    if operation & ~(WIDE | NO_RETURN) not in _OPERATIONS:
        return None
    return 8 if operation & WIDE else 4


def apply(operation: int, old: int, source: int, compare: int) -> int:
    """Return the memory value after the operation. old: value before; both are unsigned."""
    bits = 64 if operation & WIDE else 32
    mask = (1 << bits) - 1
    new = _OPERATIONS[operation & ~(WIDE | NO_RETURN)](old, source & mask, compare & mask, bits)
    return new & mask
