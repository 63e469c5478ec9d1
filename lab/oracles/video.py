"""What video instructions compute, one lane at a time, in plain Python.

Written from the pseudocode of the PTX ISA 9.1, "Video Instructions". Operands are 32 bits as
unsigned integers; selectors are written as in PTX, without their dot.
"""

from __future__ import annotations

from dataclasses import dataclass

_PARTS = ("b0", "b1", "b2", "b3", "h0", "h1")
_COMPARE = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


@dataclass(frozen=True)
class Video:
    """An instruction. opcode: with its modifiers. selectors: of d, a, b. minus: of a, b, c.
    third: it has an operand c."""

    opcode: str
    selectors: tuple[str, str, str] = ("", "", "")
    minus: tuple[bool, bool, bool] = (False, False, False)
    third: bool = True

    def text(self, d: str, a: str, b: str, c: str) -> str:
        """Return the instruction with its registers."""
        parts = [f".{s}" if s else "" for s in self.selectors]
        signs = ["-" if m else "" for m in self.minus]
        operands = [d + parts[0], signs[0] + a + parts[1], signs[1] + b + parts[2]]
        return f"{self.opcode} {', '.join(operands + [signs[2] + c] * self.third)};"


def _extend(x: int, bits: int, signed: bool) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if signed and x >> (bits - 1) else x


def _select(x: int, kind: str, part: str) -> int:
    signed = kind == "s32"
    if not part:
        return _extend(x, 32, signed)
    bits = 8 if part[0] == "b" else 16
    return _extend(x >> bits * int(part[1]), bits, signed)


def _clamp(x: int, bits: int, signed: bool) -> int:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return max(low, min(high, x))


def _arithmetic(name: str, a: int, b: int) -> int:
    if name in _COMPARE:
        return int(_COMPARE[name](a, b))
    if name == "avrg":
        return (a + b + 1) >> 1 if a + b >= 0 else (a + b) >> 1
    return {"add": a + b, "sub": a - b, "absdiff": abs(a - b), "min": min(a, b), "max": max(a, b)}[
        name
    ]


def compute(one: Video, a: int, b: int, c: int) -> int:
    """Return d as 32 bits."""
    name, *modifiers = one.opcode.split(".")
    name = name[1:]
    if name[-1] in "24":
        return _packed(name, modifiers, one.selectors, a, b, c)
    if name == "mad":
        return _multiplied(modifiers, one, a, b, c)
    if name == "set":
        types, name, flags = ("u32", *modifiers[:2]), modifiers[2], modifiers[3:]
    else:
        types, flags = tuple(modifiers[:3]), modifiers[3:]
    d_part, a_part, b_part = one.selectors
    x, y = _select(a, types[1], a_part), _select(b, types[2], b_part)
    if name in ("shl", "shr"):
        y = min(y, 32) if "clamp" in flags else y & 31
        found = x << y if name == "shl" else x >> y
    else:
        found = _arithmetic(name, x, y)
    signed = types[0] == "s32"
    bits = {"": 32, "b": 8, "h": 16}[d_part[:1]]
    if "sat" in flags:
        found = _clamp(found, bits, signed)
    for second in ("add", "min", "max"):
        if second in flags:
            found = _arithmetic(second, found, _extend(c, 32, signed))
    if d_part:
        start, hole = bits * int(d_part[1]), (1 << bits) - 1
        return (c & ~(hole << start) & 0xFFFFFFFF) | (found & hole) << start
    return found & 0xFFFFFFFF


def _packed(
    name: str, modifiers: list[str], selectors: tuple[str, str, str], a: int, b: int, c: int
) -> int:
    count = int(name[-1])
    name, bits = name[:-1], 32 // count
    if name == "set":
        types, name, flags = ("u32", *modifiers[:2]), modifiers[2], modifiers[3:]
    else:
        types, flags = tuple(modifiers[:3]), modifiers[3:]
    mask, *picks = selectors
    usual = ["".join(str(n) for n in reversed(range(s, s + count))) for s in (0, count)]
    both = a | b << 32
    result = c if "add" in flags else 0
    for lane in range(count):
        chosen = [(pick[1:] or default)[count - 1 - lane] for pick, default in
                  zip(picks, usual, strict=True)]  # fmt: skip
        x, y = (
            _extend(both >> bits * int(which), bits, kind == "s32")
            for which, kind in zip(chosen, types[1:], strict=True)
        )
        found = _arithmetic(name, x, y)
        if "sat" in flags:
            found = _clamp(found, bits, types[0] == "s32")
        inside = not mask or str(lane) in mask[1:]
        if "add" in flags:
            result += found if inside else 0
        else:
            whole = found if inside else c >> bits * lane
            result |= (whole & (1 << bits) - 1) << bits * lane
    return result & 0xFFFFFFFF


def _multiplied(modifiers: list[str], one: Video, a: int, b: int, c: int) -> int:
    types, flags = modifiers[:3], modifiers[3:]
    minus = one.minus[0] != one.minus[1]
    signed = "s32" in types[1:] or minus or one.minus[2]
    total = _select(a, types[1], one.selectors[1]) * _select(b, types[2], one.selectors[2])
    low = 0
    if "po" in flags:
        low = 1
    elif minus:
        total, low = ~total, 1
    elif one.minus[2]:
        c, low = ~c & 0xFFFFFFFF, 1
    total += _extend(c, 32, signed) + low
    for flag, shift in (("shr7", 7), ("shr15", 15)):
        if flag in flags:
            total >>= shift
    return (_clamp(total, 32, signed) if "sat" in flags else total) & 0xFFFFFFFF
