"""What single PTX instructions compute, one lane at a time, in plain Python.

Written from the PTX ISA's descriptions, independent of the translator. Operands and results are
bits as unsigned integers. A result that is any NaN is `ptx_numbers.NAN`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from lab.oracles.ptx_numbers import FORMS, NAN, Form, is_infinite, is_nan, root, rounded, value

Result = int | str
WIDTHS = {"pred": 1}


def width(kind: str) -> int:
    """Bits of a type."""
    found = re.search(r"\d+", kind)
    assert found is not None
    bits = int(found[0])
    return 2 * bits if kind.endswith("x2") else bits


def signed(x: int, bits: int) -> int:
    """An unsigned number as the signed one of the same bits."""
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def _of(kind: str, x: int) -> int:
    bits = width(kind)
    return signed(x, bits) if kind[0] == "s" else x & ((1 << bits) - 1)


def _cut(kind: str, x: int) -> int:
    return x & ((1 << width(kind)) - 1)


def _clamp(kind: str, x: int) -> int:
    bits = width(kind)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    return max(low, min(high, x))


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return -quotient if (a < 0) != (b < 0) else quotient


def integer(opcode: str, *operands: int) -> int:
    """Integer arithmetic and bits."""
    name, *modifiers = opcode.split(".")
    kind = "b32" if name == "prmt" else modifiers[-1]
    bits = width(kind)
    mask = (1 << bits) - 1
    v = [_of(kind, x) for x in operands]
    raw = [x & mask for x in operands]
    if name in ("add", "sub"):
        total = v[0] + v[1] if name == "add" else v[0] - v[1]
        return _cut(kind, _clamp(kind, total) if "sat" in modifiers else total)
    if name in ("mul", "mad"):
        product = v[0] * v[1]
        if "wide" in modifiers:
            wide = (1 << 2 * bits) - 1
            return (product + (operands[2] if name == "mad" else 0)) & wide
        if "hi" in modifiers:
            product >>= bits
        if name == "mad":
            product = (product & mask if "lo" in modifiers else product) + v[2]
            if "sat" in modifiers:
                product = _clamp(kind, product)
        return product & mask
    if name in ("mul24", "mad24"):
        small = [signed(x, 24) if kind[0] == "s" else x & 0xFFFFFF for x in operands[:2]]
        product = small[0] * small[1]
        product = product >> 16 if "hi" in modifiers else product
        return (product + (v[2] if name == "mad24" else 0)) & mask
    if name == "div":
        return mask if v[1] == 0 else _truncated(v[0], v[1]) & mask
    if name == "rem":
        return v[0] & mask if v[1] == 0 else (v[0] - v[1] * _truncated(v[0], v[1])) & mask
    if name == "sad":
        return (v[2] + abs(v[0] - v[1])) & mask
    if name == "abs":
        return abs(v[0]) & mask
    if name == "neg":
        return -v[0] & mask
    if name in ("min", "max"):
        return (min if name == "min" else max)(v[0], v[1]) & mask
    if name in ("and", "or", "xor"):
        return {"and": raw[0] & raw[1], "or": raw[0] | raw[1], "xor": raw[0] ^ raw[1]}[name]
    if name == "not":
        return ~raw[0] & mask
    if name == "cnot":
        return int(raw[0] == 0)
    if name == "popc":
        return raw[0].bit_count()
    if name == "clz":
        return bits - raw[0].bit_length()
    if name == "brev":
        return int(f"{raw[0]:0{bits}b}"[::-1], 2)
    if name == "bfind":
        x = ~v[0] & mask if v[0] < 0 else raw[0]
        place = x.bit_length() - 1
        if place < 0:
            return 0xFFFFFFFF
        return bits - 1 - place if "shiftamt" in modifiers else place
    if name in ("shl", "shr"):
        count = operands[1] & 0xFFFFFFFF
        if name == "shl":
            return raw[0] << min(count, bits) & mask
        return v[0] >> min(count, bits) & mask
    if name == "bfe":
        return _extract(kind, raw[0], operands[1] & 255, operands[2] & 255)
    if name == "bfi":
        start, length = operands[2] & 255, operands[3] & 255
        result = raw[1]
        for n in range(length):
            if start + n < bits:
                result = result & ~(1 << start + n) | (raw[0] >> n & 1) << start + n
        return result
    if name == "lop3":
        table = operands[3]
        return sum(
            (table >> ((raw[0] >> n & 1) * 4 + (raw[1] >> n & 1) * 2 + (raw[2] >> n & 1)) & 1) << n
            for n in range(32)
        )
    if name == "shf":
        count = min(operands[2], 32) if "clamp" in modifiers else operands[2] & 31
        both = raw[1] << 32 | raw[0]
        return (both << count >> 32 if "l" in modifiers else both >> count) & mask
    if name == "prmt":
        return _permute(raw[0], raw[1], operands[2], modifiers)
    if name in ("dp4a", "dp2a"):
        return _dot(name, modifiers, operands)
    if name == "fns":
        return _nth_bit(operands[0], operands[1], signed(operands[2], 32))
    raise AssertionError(opcode)


def _extract(kind: str, x: int, start: int, length: int) -> int:
    """Bit by bit, as the PTX ISA's pseudocode does."""
    bits = width(kind)
    most = bits - 1
    if kind[0] == "u" or length == 0:
        sign = 0
    else:
        sign = x >> min(start + length - 1, most) & 1
    result = 0
    for n in range(bits):
        inside = n < length and start + n <= most
        result |= (x >> start + n & 1 if inside else sign) << n
    return result


def _permute(a: int, b: int, c: int, modifiers: list[str]) -> int:
    data = [(b << 32 | a) >> 8 * n & 255 for n in range(8)]
    n = c & 3
    modes = {
        "f4e": [n, n + 1, n + 2, n + 3], "b4e": [n, n - 1 & 7, n - 2 & 7, n - 3 & 7],
        "rc8": [n] * 4, "ecl": [max(n, k) for k in range(4)],
        "ecr": [min(n, k) for k in range(4)], "rc16": [0, 1, 0, 1] if n & 1 == 0 else [2, 3, 2, 3],
    }  # fmt: skip
    for mode, order in modes.items():
        if mode in modifiers:
            return sum(data[place] << 8 * k for k, place in enumerate(order))
    result = 0
    for k in range(4):
        selector = c >> 4 * k & 15
        byte = data[selector & 7]
        if selector & 8:
            byte = 255 if byte & 128 else 0
        result |= byte << 8 * k
    return result


def _nth_bit(mask: int, base: int, offset: int) -> int:
    """As the PTX ISA's pseudocode walks."""
    none = 0xFFFFFFFF
    if offset == 0:
        return base if base < 32 and mask >> base & 1 else none
    place, left = base, abs(offset) - 1
    while 0 <= place < 32:
        if mask >> place & 1:
            if not left:
                return place
            left -= 1
        place += 1 if offset > 0 else -1
    return none


def _dot(name: str, modifiers: list[str], operands: tuple[int, ...]) -> int:
    kinds = [m for m in modifiers if m in ("u32", "s32")]
    a, b, total = operands
    for n in range(4 if name == "dp4a" else 2):
        if name == "dp4a":
            x = a >> 8 * n & 255
            x = signed(x, 8) if kinds[0] == "s32" else x
            at = n
        else:
            x = a >> 16 * n & 0xFFFF
            x = signed(x, 16) if kinds[0] == "s32" else x
            at = n + (2 if "hi" in modifiers else 0)
        y = b >> 8 * at & 255
        total += x * (signed(y, 8) if kinds[1] == "s32" else y)
    return total & 0xFFFFFFFF


# -- floats --------------------------------------------------------------------------------------


def _flush(bits: int, form: Form) -> int:
    return bits & form.sign if bits & ~form.sign < 1 << form.fraction else bits


def _finish(result: Result, form: Form, modifiers: list[str]) -> Result:
    if "sat" in modifiers:
        if result == NAN:
            return 0
        assert isinstance(result, int)
        if result & form.sign:
            return 0
        return min(result, form.bias << form.fraction)
    if result == NAN:
        return NAN
    assert isinstance(result, int)
    if "relu" in modifiers and result & form.sign:
        return 0
    return _flush(result, form) if "ftz" in modifiers else result


def _sum(a: int, b: int, form: Form, mode: str) -> Result:
    if is_nan(a, form) or is_nan(b, form):
        return NAN
    if is_infinite(a, form):
        return NAN if is_infinite(b, form) and a != b else a
    if is_infinite(b, form):
        return b
    total = value(a, form) + value(b, form)
    if total == 0:
        both = a & b & form.sign
        opposite = (a ^ b) & form.sign
        return form.sign if both or (opposite and mode == "rm") else 0
    return rounded(total, form, mode)


def _fused(a: int, b: int, c: int, form: Form, mode: str) -> Result:
    if any(is_nan(x, form) for x in (a, b, c)):
        return NAN
    sign = (a ^ b) & form.sign
    if is_infinite(a, form) or is_infinite(b, form):
        if not a & ~form.sign or not b & ~form.sign:
            return NAN
        product = sign | form.infinity
        return NAN if is_infinite(c, form) and c != product else product
    if is_infinite(c, form):
        return c
    total = value(a, form) * value(b, form) + value(c, form)
    if total == 0:
        opposite = (sign ^ c) & form.sign
        return form.sign if sign & c or (opposite and mode == "rm") else 0
    return rounded(total, form, mode)


def _product(a: int, b: int, form: Form, mode: str) -> Result:
    sign = (a ^ b) & form.sign
    result = _fused(a, b, sign, form, mode)
    return sign if isinstance(result, int) and not result & ~form.sign else result


def _quotient(a: int, b: int, form: Form, mode: str) -> Result:
    if is_nan(a, form) or is_nan(b, form):
        return NAN
    sign = (a ^ b) & form.sign
    if is_infinite(a, form):
        return NAN if is_infinite(b, form) else sign | form.infinity
    if is_infinite(b, form):
        return sign
    if not b & ~form.sign:
        return sign | form.infinity if a & ~form.sign else NAN
    return rounded(value(a, form) / value(b, form), form, mode, bool(sign)) | sign


def _root(a: int, form: Form, mode: str) -> Result:
    if is_nan(a, form):
        return NAN
    if not a & ~form.sign or a == form.infinity:
        return a
    return NAN if a & form.sign else root(value(a, form), form, mode)


def _order(bits: int, form: Form) -> int:
    """A number that grows with the float, -0 below +0."""
    return -(bits & ~form.sign) - 1 if bits & form.sign else bits


def _extreme(name: str, v: list[int], form: Form, modifiers: list[str]) -> Result:
    nans = [is_nan(x, form) for x in v]
    if all(nans) or (any(nans) and "NaN" in modifiers):
        return NAN
    values = [x for x, bad in zip(v, nans, strict=True) if not bad]
    return (min if name == "min" else max)(values, key=lambda x: _order(x, form))


def real(opcode: str, *operands: int) -> Result:
    """Floating-point arithmetic of one number."""
    name, *modifiers = opcode.split(".")
    form = FORMS[modifiers[-1]]
    mode = next((m for m in modifiers if m in ("rn", "rz", "rm", "rp")), "rn")
    v = [_flush(x, form) if "ftz" in modifiers else x for x in operands]
    one = form.bias << form.fraction
    compute: dict[str, Callable[[], Result]] = {
        "add": lambda: _sum(v[0], v[1], form, mode),
        "sub": lambda: _sum(v[0], v[1] ^ form.sign, form, mode),
        "mul": lambda: _product(v[0], v[1], form, mode),
        "fma": lambda: _fused(v[0], v[1], v[2], form, mode),
        "div": lambda: _quotient(v[0], v[1], form, mode),
        "rcp": lambda: _quotient(one, v[0], form, mode),
        "sqrt": lambda: _root(v[0], form, mode),
        "min": lambda: _extreme("min", v, form, modifiers),
        "max": lambda: _extreme("max", v, form, modifiers),
    }
    return _finish(compute[name](), form, modifiers)


# -- conversions ---------------------------------------------------------------------------------


def convert(opcode: str, x: int) -> Result:
    """cvt of one number."""
    _, *modifiers = opcode.split(".")
    target, source = modifiers[-2:]
    mode = next((m for m in modifiers[:-2] if m in ("rn", "rz", "rm", "rp")), "rn")
    whole = next((m for m in modifiers[:-2] if m in ("rni", "rzi", "rmi", "rpi")), "")
    if source not in FORMS:
        number = _of(source, x)
        if target not in FORMS:
            return _cut(target, _clamp(target, number) if "sat" in modifiers else number)
        return _finish(rounded(Fraction(number), FORMS[target], mode), FORMS[target], modifiers)
    form = FORMS[source]
    if "ftz" in modifiers and source == "f32":
        x = _flush(x, form)
    if target not in FORMS:
        if is_nan(x, form):  # "Integer Notes" of cvt
            high = source == "f64" or target in ("s64", "u64")
            return 1 << (width(target) - 1) if high else 0
        if is_infinite(x, form):
            return _cut(target, _clamp(target, -(1 << 99) if x & form.sign else 1 << 99))
        return _cut(target, _clamp(target, _whole(value(x, form), whole)))
    goal = FORMS[target]
    if is_nan(x, form):
        return _finish(NAN, goal, modifiers)
    sign = goal.sign if x & form.sign else 0
    if is_infinite(x, form):
        return _finish(sign | goal.infinity, goal, modifiers)
    exact = value(x, form)
    if whole:
        exact = Fraction(_whole(exact, whole))
    return _finish(rounded(exact, goal, mode, bool(sign)), goal, modifiers)


def _whole(x: Fraction, mode: str) -> int:
    floor = x.numerator // x.denominator
    if mode == "rmi":
        return floor
    if mode == "rpi":
        return -(-x.numerator // x.denominator)
    if mode == "rzi":
        return floor if x >= 0 else -(-x.numerator // x.denominator)
    return round(x)
