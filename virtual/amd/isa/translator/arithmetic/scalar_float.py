"""Scalar floating-point operations of gfx12, translated to LLVM IR.

Denormals are those of MODE, as for vector operations. Source: RDNA4 ISA document, chapters of the
SOP1, SOP2 and SOPC opcodes. Minima and maxima are in extremes.py.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.decoder.operands import Operand
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers

_KINDS = {"f32": ("float", 32), "f16": ("half", 16)}
# Conditions of SOPC by name: LLVM's predicate.
_CONDITIONS = {
    "lt": "olt", "eq": "oeq", "le": "ole", "gt": "ogt", "lg": "one", "ge": "oge", "o": "ord",
    "u": "uno", "nge": "ult", "nlg": "ueq", "ngt": "ule", "nle": "ugt", "neq": "une", "nlt": "uge",
}  # fmt: skip
_ROUNDINGS = {"ceil": "ceil", "floor": "floor", "trunc": "trunc", "rndne": "roundeven"}


def _read(e: Registers, operand: Operand, suffix: str) -> str:
    kind, bits = _KINDS[suffix]
    word = e.scalar(operand)
    if bits == 16:
        word = e.value(f"trunc i32 {word} to i16")
    return e.value(f"bitcast i{bits} {word} to {kind}")


def _write(e: Registers, i: Instruction, suffix: str, value: str) -> None:
    assert i.dst is not None
    kind, bits = _KINDS[suffix]
    word = e.value(f"bitcast {kind} {value} to i{bits}")
    e.set_scalar(i.dst, e.value(f"zext i16 {word} to i32") if bits == 16 else word)


def _binary(operation: str, suffix: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        a, b = (_read(e, source, suffix) for source in i.srcs)
        _write(e, i, suffix, e.value(f"{operation} {_KINDS[suffix][0]} {a}, {b}"))

    return emit


def _fused(suffix: str, *, accumulates: bool) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        sources = [*i.srcs, i.dst] if accumulates else i.srcs
        a, b, c = (_read(e, source, suffix) for source in sources)
        if suffix == "f16":
            _write(e, i, suffix, _fused_half(e, a, b, c))
            return
        result = e.call("float", "llvm.fma.f32", ("float", a), ("float", b), ("float", c))
        _write(e, i, suffix, result)

    return emit


def _fused_half(e: Registers, a: str, b: str, c: str) -> str:
    """Fused multiply-add of halves, rounded once: of doubles, whose sum of 22 bits and 11 loses
    only what a sticky bit can tell. No host has it for halves."""
    wide = [("double", e.value(f"fpext half {value} to double")) for value in (a, b, c)]
    exact = e.call("double", "llvm.fma.f64", *wide)
    near = e.value(f"fptrunc double {exact} to float")
    back = e.value(f"fpext float {near} to double")
    sizes = [e.call("double", "llvm.fabs.f64", ("double", value)) for value in (back, exact)]
    larger = e.value(f"fcmp ogt double {sizes[0]}, {sizes[1]}")
    inexact = e.value(f"fcmp one double {back}, {exact}")
    bits = e.value(f"bitcast float {near} to i32")
    bits = e.value(f"sub i32 {bits}, {e.value(f'zext i1 {larger} to i32')}")
    bits = e.value(f"or i32 {bits}, {e.value(f'zext i1 {inexact} to i32')}")
    odd = e.value(f"bitcast i32 {bits} to float")
    return e.value(f"fptrunc float {odd} to half")


def _packed_toward_zero(e: Registers, i: Instruction) -> None:
    """Convert two floats to halves, toward zero: one bit less where the nearest half is larger."""
    assert i.dst is not None
    halves = []
    for source in i.srcs:
        value = _read(e, source, "f32")
        near = e.value(f"fptrunc float {value} to half")
        back = e.value(f"fpext half {near} to float")
        sizes = [e.call("float", "llvm.fabs.f32", ("float", number)) for number in (back, value)]
        larger = e.value(f"fcmp ogt float {sizes[0]}, {sizes[1]}")
        finite = e.value(f"fcmp olt float {sizes[1]}, 0x7FF0000000000000")
        step = e.value(f"zext i1 {e.value(f'and i1 {larger}, {finite}')} to i16")
        bits = e.value(f"sub i16 {e.value(f'bitcast half {near} to i16')}, {step}")
        halves.append(e.value(f"zext i16 {bits} to i32"))
    e.set_scalar(i.dst, e.value(f"or i32 {halves[0]}, {e.value(f'shl i32 {halves[1]}, 16')}"))


def _compared(predicate: str, suffix: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        a, b = (_read(e, source, suffix) for source in i.srcs)
        e.set_scc(e.value(f"fcmp {predicate} {_KINDS[suffix][0]} {a}, {b}"))

    return emit


def _rounded(function: str, suffix: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        kind = _KINDS[suffix][0]
        a = _read(e, i.srcs[0], suffix)
        _write(e, i, suffix, e.call(kind, f"llvm.{function}.{suffix}", (kind, a)))

    return emit


def _from_integer(operation: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        _write(e, i, "f32", e.value(f"{operation} i32 {e.scalar(i.srcs[0])} to float"))

    return emit


def _to_integer(function: str) -> Handler:
    """Convert toward zero; values out of range give the limit, a NaN zero."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        a = _read(e, i.srcs[0], "f32")
        e.set_scalar(i.dst, e.call("i32", f"llvm.{function}.sat.i32.f32", ("float", a)))

    return emit


def _widened(e: Registers, i: Instruction) -> None:
    _write(e, i, "f32", e.value(f"fpext half {_read(e, i.srcs[0], 'f16')} to float"))


def _narrowed(e: Registers, i: Instruction) -> None:
    _write(e, i, "f16", e.value(f"fptrunc float {_read(e, i.srcs[0], 'f32')} to half"))


def handlers() -> dict[str, Handler]:
    """Return this module's handlers by instruction name."""
    found: dict[str, Handler] = {
        "s_cvt_f32_i32": _from_integer("sitofp"),
        "s_cvt_f32_u32": _from_integer("uitofp"),
        "s_cvt_i32_f32": _to_integer("fptosi"),
        "s_cvt_u32_f32": _to_integer("fptoui"),
        "s_cvt_f32_f16": _widened,
        "s_cvt_f16_f32": _narrowed,
        "s_cvt_pk_rtz_f16_f32": _packed_toward_zero,
        "s_fmaak_f32": _fused("f32", accumulates=False),
        "s_fmamk_f32": _fused("f32", accumulates=False),
    }
    for suffix in _KINDS:
        for name, operation in (("add", "fadd"), ("sub", "fsub"), ("mul", "fmul")):
            found[f"s_{name}_{suffix}"] = _binary(operation, suffix)
        found[f"s_fmac_{suffix}"] = _fused(suffix, accumulates=True)
        for name, predicate in _CONDITIONS.items():
            found[f"s_cmp_{name}_{suffix}"] = _compared(predicate, suffix)
        for name, function in _ROUNDINGS.items():
            found[f"s_{name}_{suffix}"] = _rounded(function, suffix)
    return found
