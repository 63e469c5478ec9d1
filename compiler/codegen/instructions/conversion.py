"""Floats to integers on a host, in operations that have vector forms.

LLVM's saturating conversion (`llvm.fptosi.sat`) is scalar code on x86: a comparison or two and a
conversion for each element. The plain one is a vector instruction, but its result is poison for
numbers out of range, so comparisons select these (LLVM Language Reference, "fptosi .. to" and
"select", which does not propagate poison from the side that is not selected). Comparisons that the
value's bounds decide are left out.
"""

from __future__ import annotations

import math

from ugpu.compiler.codegen.lines import Lines
from ugpu.compiler.dtype import DType, bool_
from ugpu.compiler.expression.value import Value

WIDTH = 32  # bits; narrower integers are converted from integers of this width


def bounds(node: Value) -> tuple[float, float]:
    """Return the minimum and maximum of a float that is not NaN."""
    if node.op == "const":
        number = float(node.arg)
        return (number, number) if number == number else (math.inf, -math.inf)
    if node.op in ("min", "max"):
        (low, high), (other_low, other_high) = (bounds(source) for source in node.sources)
        if node.op == "min":
            return min(low, other_low), min(high, other_high)
        return max(low, other_low), max(high, other_high)
    if node.op == "mul":
        (low, high), (other_low, other_high) = (bounds(source) for source in node.sources)
        products = [x * y for x in (low, high) for y in (other_low, other_high)]
        if not any(math.isnan(product) for product in products):
            return min(products), max(products)
    if node.op in ("round", "floor", "ceil", "trunc"):
        low, high = bounds(node.sources[0])
        return low - 1, high + 1
    if node.op == "cast" and node.sources[0].dtype is bool_:
        return 0.0, 1.0
    return -math.inf, math.inf


def to_integer(lines: Lines, text: str, kind: str, node: Value | None, target: DType) -> str:
    """Convert a scalar float towards zero; a number out of range becomes the nearest end of the
    range, and NaN zero.

    node: the float, if it is known; text, kind: its name and its LLVM type, both a scalar's.
    """
    signed, bits = target.kind == "i", max(WIDTH, target.bits)
    wide = signed or target.bits < WIDTH
    integer = f"i{bits}"
    low, high = (-math.inf, math.inf) if node is None else bounds(node)
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if wide else (0, (1 << bits) - 1)
    result = lines.new(f"{'fptosi' if wide else 'fptoui'} {kind} {text} to {integer}")
    if high >= float(most + 1):
        result = _chosen(lines, f"oge {kind} {text}, {_float(most + 1)}", most, integer, result)
    if low < least:
        # numbers between -1 and 0 fit an unsigned integer: the limit, 0, is their result too
        result = _chosen(lines, f"olt {kind} {text}, {_float(least)}", least, integer, result)
    result = _chosen(lines, f"uno {kind} {text}, 0.0", 0, integer, result)
    if target.bits >= WIDTH:
        return result
    ends = (-(1 << target.bits - 1), (1 << target.bits - 1) - 1) if signed else (
        0, (1 << target.bits) - 1
    )  # fmt: skip
    if low < ends[0]:
        result = lines.intrinsic("smax", integer, [result, str(ends[0])])
    if high > ends[1]:
        result = lines.intrinsic("smin", integer, [result, str(ends[1])])
    return lines.new(f"trunc {integer} {result} to i{target.bits}")


def _chosen(lines: Lines, test: str, number: int, kind: str, otherwise: str) -> str:
    found = lines.new(f"fcmp {test}")
    return lines.new(f"select i1 {found}, {kind} {number}, {kind} {otherwise}")


def _float(number: int) -> str:
    """Return a power of two, or zero, in LLVM's float syntax."""
    return f"{float(number):.1f}"
