"""What atomic operations leave in memory, for the oracle.

Source: RDNA3 ISA document, atomic operations of flat, buffer and data-share memory.
"""

from __future__ import annotations

import struct

import numpy as np

from ugpu.hcq.errors import NotSupported

_FORMATS = {32: ("<I", "<f", np.float32), 64: ("<Q", "<d", np.float64)}


def _sign(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


def atomic_result(operation: str, kind: str, old: int, value: int, other: int) -> int:
    """Return the new bits in memory.

    kind: type and size, such as u32. value: the operand; other: the value compared with
    (compare-and-swap) or or-ed in (mskor). Raises NotSupported for an unknown operation.
    """
    bits = int(kind[1:])
    mask = (1 << bits) - 1
    if kind[0] == "f":
        return _float_result(operation, bits, old, value, other)
    if operation in ("min", "max") and kind[0] == "i":
        pick = min if operation == "min" else max
        return pick(_sign(old, bits), _sign(value, bits)) & mask
    results = {
        "add": old + value,
        "sub": old - value,
        "rsub": value - old,
        "csub": old - value if old >= value else 0,
        "inc": 0 if old >= value else old + 1,
        "dec": value if old == 0 or old > value else old - 1,
        "min": min(old, value),
        "max": max(old, value),
        "and": old & value,
        "or": old | value,
        "xor": old ^ value,
        "swap": value,
        "storexchg": value,
        "mskor": old & ~value | other,
        "wrap": old - value if old >= value else old + other,
        "cmpswap": value if old == other else old,
        "cmpstore": value if old == other else old,
    }
    if operation not in results:
        raise NotSupported("the oracle does not know the atomic", operation=operation)
    return results[operation] & mask


def _float_result(operation: str, bits: int, old: int, value: int, other: int) -> int:
    whole, real, number = _FORMATS[bits]

    def read(pattern: int) -> float:
        return float(struct.unpack(real, struct.pack(whole, pattern))[0])

    if operation in ("cmpswap", "cmpstore"):
        return value if read(old) == read(other) else old
    if operation == "add":
        with np.errstate(all="ignore"):
            total = np.array([read(old)], number) + np.array([read(value)], number)
        return int(total.view(f"uint{bits}")[0])
    if operation in ("min", "max"):
        # A number wins over a NaN: LLVM selects these for fmin and fmax.
        if np.isnan(read(old)) or np.isnan(read(value)):
            return value if np.isnan(read(old)) else old
        less, more = read(value) < read(old), read(value) > read(old)
        return value if (less if operation == "min" else more) else old
    raise NotSupported("the oracle does not know the atomic", operation=operation)
