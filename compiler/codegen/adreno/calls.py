"""Calls of intrinsics, LLVM's and those of kernels for Adreno, in NIR.

adreno.thread, adreno.group.x|y|z    numbers of the thread in its group, of the group
adreno.barrier                       waits until all threads of the group have reached it
adreno.exchange(word, mask)          the word of the wave's lane `number xor mask`
adreno.lane(word, number)            the word of the wave's lane `number`, which may differ by lane
adreno.first(word)                   the word of the first active lane
adreno.any(test), adreno.all(test)   whether a condition holds in one lane of the wave, or in all
adreno.reduce.<op>(word)             the total of the wave's active lanes; <op>: add, fadd, mul,
                                     fmul, smin, smax, umin, umax, fmin, fmax, and, or, xor
adreno.scan.<op>(word)               the total of the active lanes up to and including this one
adreno.mulhi(word, word)             the upper half of an unsigned product
adreno.dot.s|u|su(word, word, sum)   four products of 8-bit numbers added to a sum: both factors
                                     signed, both unsigned, the first signed and the second unsigned
adreno.image.load, .store, .sample   see compiler.codegen.adreno.images
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache

from ugpu.compiler.codegen.adreno.images import Images
from ugpu.compiler.codegen.adreno.llvm.syntax import Instruction, Type
from ugpu.compiler.codegen.adreno.nir import Builder
from ugpu.compiler.codegen.adreno.translation import Translation
from ugpu.hcq.errors import NotSupported

# One operation of NIR each.
_PLAIN = {
    "llvm.smin": "imin", "llvm.smax": "imax", "llvm.umin": "umin", "llvm.umax": "umax",
    "llvm.fabs": "fabs", "llvm.sqrt": "fsqrt", "llvm.floor": "ffloor", "llvm.ceil": "fceil",
    "llvm.trunc": "ftrunc", "llvm.rint": "fround_even", "llvm.nearbyint": "fround_even",
    "llvm.roundeven": "fround_even", "llvm.exp2": "fexp2", "llvm.log2": "flog2",
    "llvm.sin": "fsin", "llvm.cos": "fcos", "llvm.fma": "ffma", "llvm.fmuladd": "ffma",
    "llvm.minnum": "fmin", "llvm.maxnum": "fmax", "llvm.ctpop": "bit_count",
    "adreno.mulhi": "umul_high",
}  # fmt: skip
_WAVE = {
    "adreno.exchange": "shuffle_xor",
    "adreno.lane": "shuffle",
    "adreno.first": "read_first_invocation",
    "adreno.any": "vote_any",
    "adreno.all": "vote_all",
}
_DOTS = {"s": "sdot_4x8_iadd", "u": "udot_4x8_uadd", "su": "sudot_4x8_iadd"}
_GATHERED = {"adreno.reduce": "reduce", "adreno.scan": "inclusive_scan"}
_TOTALS = {
    "add": "iadd", "fadd": "fadd", "mul": "imul", "fmul": "fmul", "smin": "imin", "smax": "imax",
    "umin": "umin", "umax": "umax", "fmin": "fmin", "fmax": "fmax", "and": "iand", "or": "ior",
    "xor": "ixor",
}  # fmt: skip
_NUMBERS = {"adreno.thread": "load_local_invocation_id", "adreno.group": "load_workgroup_id"}
_IGNORED = ("llvm.assume", "llvm.lifetime.start", "llvm.lifetime.end", "llvm.dbg.value")


def call(selection: Translation, images: Images, one: Instruction) -> tuple[int, ...]:
    """Return the result of a call, by lane."""
    build, kind = selection.build, one.type
    name, _, rest = _split(one.kind)
    plain = _PLAIN.get(name)
    if plain is not None and kind is not None:
        return selection.each(plain, kind.bits, one)
    if name in _IGNORED:
        return ()
    if name == "adreno.image":
        return images.call(one, rest.partition(".")[0])
    if kind is None:
        raise NotSupported(f"calls of {one.kind} on Adreno", code=one.line.strip())
    if name in _NUMBERS:
        vector = build.intrinsic(_NUMBERS[name], (), 3, 32)
        return (build.alu("mov", 32, vector, channel="xyz".index(rest or "x")),)
    given = [selection.lanes(operand) for operand in one.operands]
    if name in _WAVE:
        selection.lanes_used = True
        return tuple(
            build.intrinsic(_WAVE[name], sources, 1, kind.bits)
            for sources in zip(*given, strict=True)
        )
    if name in _GATHERED and rest in _TOTALS and kind.bits == 32:
        selection.lanes_used = True
        (sources,) = given
        (total, _) = build.tables.operations[_TOTALS[rest]]
        return tuple(
            build.intrinsic(_GATHERED[name], [value], 1, 32, reduction_op=total)
            for value in sources
        )
    if name == "adreno.dot" and rest in _DOTS:
        return (build.alu(_DOTS[rest], 32, *(sources[0] for sources in given)),)
    if name == "llvm.abs":
        return tuple(build.alu("iabs", kind.bits, value) for value in given[0])
    if name in ("llvm.fptosi.sat", "llvm.fptoui.sat"):
        source = one.operands[0].type
        signed = name == "llvm.fptosi.sat"
        return tuple(_saturated(build, value, source, kind, signed) for value in given[0])
    if name in ("llvm.minimum", "llvm.maximum"):
        least = name == "llvm.minimum"
        return tuple(
            _extreme(build, left, right, kind.bits, least)
            for left, right in zip(*given, strict=True)
        )
    if name == "llvm.copysign":
        return tuple(
            _copysign(build, left, right, kind.bits) for left, right in zip(*given, strict=True)
        )
    raise NotSupported(f"calls of {one.kind} on Adreno", code=one.line.strip())


@cache
def _split(callee: str) -> tuple[str, str, str]:
    """Return an intrinsic's name without its type suffixes; the last part of our own names."""
    parts = callee.split(".")
    if parts[0] == "adreno":
        return ".".join(parts[:2]), ".", ".".join(parts[2:])
    end = 3 if parts[2:3] in (["sat"], ["start"], ["end"], ["value"]) else 2
    return ".".join(parts[:end]), ".", ".".join(parts[end:])


def _saturated(build: Builder, value: int, source: Type, kind: Type, signed: bool) -> int:
    """Convert a float towards zero; out of range gives the nearest end of the range, NaN zero."""
    bits = source.bits
    if bits == 16:
        value, bits = build.alu("f2f32", 32, value), 32
    wide = max(kind.bits, 32)
    low = -(1 << kind.bits - 1) if signed else 0
    high = (1 << kind.bits - (1 if signed else 0)) - 1
    found = build.alu(f"f2{'i' if signed else 'u'}{wide}", wide, value)
    above = build.alu("fge", 1, value, build.constant(bits, _single(float(high + 1))))
    below = build.alu("flt", 1, value, build.constant(bits, _single(float(low))))
    found = build.alu("bcsel", wide, above, build.constant(wide, high), found)
    found = build.alu("bcsel", wide, below, build.constant(wide, low), found)
    nan = build.alu("fneu", 1, value, value)
    found = build.alu("bcsel", wide, nan, build.constant(wide, 0), found)
    return found if kind.bits == wide else build.alu(f"u2u{kind.bits}", kind.bits, found)


def _single(number: float) -> int:
    """Return the bits of a power of two, of its negative, or of zero, as float32."""
    bits: int = struct.unpack("<I", struct.pack("<f", number))[0]
    return bits


def _extreme(build: Builder, left: int, right: int, bits: int, least: bool) -> int:
    """Return the smaller or larger float; NaN if one is NaN. Zero is larger than minus zero, which
    the instruction does not promise: equal numbers have equal bits, or are both zeros."""
    found = build.alu("fmin" if least else "fmax", bits, left, right)
    alike = build.alu("ior" if least else "iand", bits, left, right)
    found = build.alu("bcsel", bits, build.alu("feq", 1, left, right), alike, found)
    for value in (left, right):
        nan = build.alu("fneu", 1, value, value)
        found = build.alu("bcsel", bits, nan, value, found)
    return found


def _copysign(build: Builder, number: int, sign: int, bits: int) -> int:
    top = 1 << bits - 1
    size = build.alu("iand", bits, number, build.constant(bits, top - 1))
    return build.alu("ior", bits, size, build.alu("iand", bits, sign, build.constant(bits, top)))


def compared_bits(build: Builder, kind: str, left: int, right: int) -> int:
    """Compare truth values as integers of one bit; signed, true is -1."""
    if kind in ("eq", "ne"):
        different = build.alu("ixor", 1, left, right)
        return different if kind == "ne" else build.alu("inot", 1, different)
    if kind[0] == "s":
        left, right = right, left
    if kind[1:] in ("gt", "ge"):
        left, right = right, left
    operation = "iand" if kind[1:] in ("lt", "gt") else "ior"
    return build.alu(operation, 1, build.alu("inot", 1, left), right)


def reshaped(build: Builder, values: Sequence[int], old: int, new: int) -> tuple[int, ...]:
    """Return lanes of another width, with the same bits in memory's order."""
    if new < old:
        return tuple(
            build.alu(f"u2u{new}", new,
                      build.alu("ushr", old, value, build.constant(32, place)) if place else value)
            for value in values
            for place in range(0, old, new)
        )  # fmt: skip
    found = []
    count = new // old
    for first in range(0, len(values), count):
        total = build.alu(f"u2u{new}", new, values[first])
        for place in range(1, count):
            part = build.alu(f"u2u{new}", new, values[first + place])
            part = build.alu("ishl", new, part, build.constant(32, place * old))
            total = build.alu("ior", new, total, part)
        found.append(total)
    return tuple(found)
