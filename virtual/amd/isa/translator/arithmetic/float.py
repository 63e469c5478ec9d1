"""Vector floating-point arithmetic of 16, 32 and 64 bits, translated to LLVM IR.

16-bit operations are computed in 32 bits and rounded once more, which is correct rounding for
single operations; the fused multiply-add uses `fused_half`.
Source: RDNA3 ISA document, chapters of the VOP1, VOP2 and VOP3 opcodes.
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers
from ugpu.virtual.shader.text import ELEMENT_BITS, bits_of, constant, integer_of

Function = Callable[[Registers, str, tuple[str, ...]], str]

SUFFIXES = {"f16": "half", "f32": "float", "f64": "double"}
_FRACTION_LIMIT = {"half": 0x3BFF, "float": 0x3F7FFFFF, "double": 0x3FEFFFFFFFFFFFFF}
QUIET = {"half": 1 << 9, "float": 1 << 22, "double": 1 << 51}  # of a NaN
_INFINITE = {"half": 0x7C00, "float": 0x7F800000, "double": 0x7FF0000000000000}
_MASK = {"half": 0xFFFF, "float": 0xFFFFFFFF, "double": 0xFFFFFFFFFFFFFFFF}
_ONE = {"half": 0x3C00, "float": 0x3F800000, "double": 0x3FF0000000000000}


def computed(kind: str, count: int, function: Function, accumulates: bool = False) -> Handler:
    """Create an emitter; 16-bit sources are widened to f32 and the result is rounded to f16.

    accumulates: the destination is also the last source.
    """

    def emit(e: Registers, i: Instruction) -> None:
        operands = list(i.srcs[:count])
        if accumulates:
            assert i.dst is not None
            operands.append(i.dst)
        values = tuple(e.source(operand, kind) for operand in operands)
        if kind == "half":
            values = tuple(e.convert("fpext", "half", "float", value) for value in values)
            result = function(e, "float", values)
            result = e.convert("fptrunc", "float", "half", result)
        else:
            result = function(e, kind, values)
        e.set_result(i, kind, result)

    return emit


def fma(e: Registers, kind: str, a: str, b: str, c: str) -> str:
    """Fused multiply-add."""
    return e.intrinsic("fma", kind, a, b, c)


def narrow_to_odd(e: Registers, value: str) -> str:
    """Round f64 to f32 to odd, so that rounding again, to f16, gives the same as rounding once."""
    near = e.convert("fptrunc", "double", "float", value)
    back = e.convert("fpext", "float", "double", near)
    inexact = e.compare("one", "double", back, value)
    larger = e.compare(
        "ogt", "double", e.intrinsic("fabs", "double", back), e.intrinsic("fabs", "double", value)
    )
    bits = e.convert("bitcast", "float", "i32", near)
    bits = e.binary("sub", "i32", bits, e.convert("zext", "i1", "i32", larger))
    odd = e.binary("or", "i32", bits, e.convert("zext", "i1", "i32", inexact))
    return e.convert("bitcast", "i32", "float", odd)


def fused_half(e: Registers, a: str, b: str, c: str) -> str:
    """Fused multiply-add of halves, correctly rounded: computed in f64, then rounded to odd."""
    wide = [e.convert("fpext", "half", "double", value) for value in (a, b, c)]
    exact = fma(e, "double", *wide)
    return e.convert("fptrunc", "float", "half", narrow_to_odd(e, exact))


def fused(kind: str, accumulates: bool = False, legacy: bool = False) -> Handler:
    """Create an emitter for v_fma, v_fmac, v_fmaak, v_fmamk. legacy: 0 times anything is 0."""

    def emit(e: Registers, i: Instruction) -> None:
        operands = [*i.srcs[:2], i.dst if accumulates else i.srcs[2]]
        values = [e.source(operand, kind) for operand in operands if operand is not None]
        if legacy:
            zero = _either_zero(e, kind, values[0], values[1])
            total = fma(e, kind, *values)
            result = e.select(zero, kind, values[2], total)
        elif kind == "half":
            result = fused_half(e, *values)
        else:
            result = fma(e, kind, *values)
        e.set_result(i, kind, result)

    return emit


def _either_zero(e: Registers, kind: str, a: str, b: str) -> str:
    zero = constant(kind, 0)
    first, second = e.compare("oeq", kind, a, zero), e.compare("oeq", kind, b, zero)
    return e.binary("or", "i1", first, second)


def _arithmetic(operation: str, swapped: bool = False) -> Function:
    def function(e: Registers, kind: str, v: tuple[str, ...]) -> str:
        a, b = (v[1], v[0]) if swapped else (v[0], v[1])
        return e.binary(operation, kind, a, b)

    return function


def _legacy_product(e: Registers, kind: str, v: tuple[str, ...]) -> str:
    product = e.binary("fmul", kind, v[0], v[1])
    return e.select(_either_zero(e, kind, v[0], v[1]), kind, constant(kind, 0), product)


def _mullit(e: Registers, kind: str, v: tuple[str, ...]) -> str:
    """Multiply for specular lighting; the lowest float if exponent or base is invalid."""
    lowest = constant(kind, 0xFF7FFFFF)
    sound = e.compare("ogt", kind, v[1], lowest)  # neither -infinity nor NaN
    positive = e.compare("ogt", kind, v[2], constant(kind, 0))
    both = e.binary("and", "i1", sound, positive)
    return e.select(both, kind, _legacy_product(e, kind, v), lowest)


def extreme(e: Registers, kind: str, name: str, a: str, b: str) -> str:
    """Return the larger or smaller value; the number if the other is NaN; -0 is below +0. In IEEE
    mode a signalling NaN is the result, made quiet.

    name: "min" or "max".
    """
    integer = integer_of(kind)
    for fixed, other in ((a, b), (b, a)):
        limit = bits_of(fixed)
        if limit is not None and limit << 1 & _MASK[kind] <= 2 * _INFINITE[kind]:
            return _limited(e, kind, name, fixed, other)
    bits_a, bits_b = e.convert("bitcast", kind, integer, a), e.convert("bitcast", kind, integer, b)
    # Equal values can differ in bits only as +0 and -0: "and" of the bits gives +0, "or" gives -0.
    joined = e.binary("and" if name == "max" else "or", integer, bits_a, bits_b)
    equal = e.compare("oeq", kind, a, b)
    better = e.compare("ogt" if name == "max" else "olt", kind, a, b)
    b_is_nan = e.compare("uno", kind, b, b)
    take_a = e.binary("or", "i1", better, b_is_nan)
    chosen = e.select(take_a, integer, bits_a, bits_b)
    chosen = e.select(equal, integer, joined, chosen)
    if e.ieee:
        quiet = constant(integer, QUIET[kind])
        for bits in (bits_b, bits_a):
            signalling = signals(e, kind, bits)
            chosen = e.select(signalling, integer, e.binary("or", integer, bits, quiet), chosen)
    return e.convert("bitcast", integer, kind, chosen)


def _limited(e: Registers, kind: str, name: str, limit: str, value: str) -> str:
    """Return `extreme` of a constant, which is not a NaN, and a value. Of two zeros the constant is
    the result if the other cannot be: +0 of maxima, -0 of minima; else the value is."""
    integer = integer_of(kind)
    negative = bool((bits_of(limit) or 0) >> ELEMENT_BITS[kind] - 1)
    relation = ("ug" if name == "max" else "ul") + ("t" if negative == (name == "max") else "e")
    chosen = e.select(e.compare(relation, kind, limit, value), kind, limit, value)
    if not e.ieee:
        return chosen
    bits = e.convert("bitcast", kind, integer, value)
    quiet = e.binary("or", integer, bits, constant(integer, QUIET[kind]))
    quiet = e.convert("bitcast", integer, kind, quiet)
    return e.select(signals(e, kind, bits), kind, quiet, chosen)


def signals(e: Registers, kind: str, bits: str) -> str:
    """Return whether the bits are a signalling NaN: of those, and only those, is the magnitude
    above infinity's bits and the quiet bit once the quiet bit is turned."""
    integer, quiet = integer_of(kind), QUIET[kind]
    turned = e.binary("xor", integer, bits, constant(integer, quiet))
    largest = (1 << ELEMENT_BITS[kind] - 1) - 1
    size = e.binary("and", integer, turned, constant(integer, largest))
    return e.compare("ugt", integer, size, constant(integer, largest + 1 - quiet))


def _flushed(e: Registers, kind: str, value: str) -> str:
    """Replace denormals by zeros of their sign."""
    integer, bits = integer_of(kind), ELEMENT_BITS[kind]
    number = e.convert("bitcast", kind, integer, value)
    size = e.binary("and", integer, number, constant(integer, (1 << bits - 1) - 1))
    tiny = e.compare("ult", integer, size, constant(integer, 2 * QUIET[kind]))
    sign = e.binary("and", integer, number, constant(integer, 1 << bits - 1))
    return e.convert("bitcast", integer, kind, e.select(tiny, integer, sign, number))


def chosen_of(kind: str, count: int, function: Function) -> Handler:
    """Create an emitter whose result is one of its sources: halves are not widened, and the host
    flushes no denormals of it."""

    def emit(e: Registers, i: Instruction) -> None:
        values = tuple(e.source(operand, kind) for operand in i.srcs[:count])
        kept = {"float": e.singles, "double": e.doubles}.get(kind, 3)
        if kept & 1 == 0:
            values = tuple(_flushed(e, kind, value) for value in values)
        result = function(e, kind, values)
        e.set_result(i, kind, result if kept & 2 else _flushed(e, kind, result))

    return emit


def _extremes(name: str) -> Function:
    def function(e: Registers, kind: str, v: tuple[str, ...]) -> str:
        result = v[0]
        for value in v[1:]:
            result = extreme(e, kind, name, result, value)
        return result

    return function


def _mixed_extremes(first: str, second: str) -> Function:
    def function(e: Registers, kind: str, v: tuple[str, ...]) -> str:
        return extreme(e, kind, second, extreme(e, kind, first, v[0], v[1]), v[2])

    return function


def _median(e: Registers, kind: str, v: tuple[str, ...]) -> str:
    """Return the median of three; if one is NaN, the smallest of the others."""
    low = extreme(e, kind, "min", v[0], v[1])
    high = extreme(e, kind, "max", v[0], v[1])
    middle = extreme(e, kind, "max", low, extreme(e, kind, "min", high, v[2]))
    lowest = extreme(e, kind, "min", low, v[2])
    nan_a, nan_b = e.compare("uno", kind, v[0], v[1]), e.compare("uno", kind, v[2], v[2])
    any_nan = e.binary("or", "i1", nan_a, nan_b)
    return e.select(any_nan, kind, lowest, middle)


def _intrinsic(name: str) -> Function:
    return lambda e, kind, v: e.intrinsic(name, kind, v[0])


def _fraction(kind: str) -> Handler:
    """Compute x - floor(x), always below one."""
    work = "float" if kind == "half" else kind

    def emit(e: Registers, i: Instruction) -> None:
        value = e.source(i.srcs[0], kind)
        wide = e.convert("fpext", kind, work, value)
        result = e.binary("fsub", work, wide, e.intrinsic("floor", work, wide))
        result = e.convert("fptrunc", work, kind, result)
        back = e.convert("fpext", kind, work, result)
        whole = e.compare("oge", work, back, constant(work, _ONE[work]))
        e.set_result(i, kind, e.select(whole, kind, constant(kind, _FRACTION_LIMIT[kind]), result))

    return emit


def _reciprocal(e: Registers, kind: str, v: tuple[str, ...]) -> str:
    return e.binary("fdiv", kind, constant(kind, _ONE[kind]), v[0])


def _reciprocal_root(e: Registers, kind: str, v: tuple[str, ...]) -> str:
    return e.binary("fdiv", kind, constant(kind, _ONE[kind]), e.intrinsic("sqrt", kind, v[0]))


# -- exponents -----------------------------------------------------------------------------------


def scaled(e: Registers, kind: str, value: str, exponent: str) -> str:
    """Return value * 2**exponent (i32 lanes), correctly rounded.

    f32 is computed in f64, where the product is exact. f64 is multiplied by powers of two in steps,
    of which only the last can be inexact.
    """
    limit = 300 if kind == "float" else 2200
    exponent = e.intrinsic("smax", "i32", exponent, constant("i32", -limit))
    exponent = e.intrinsic("smin", "i32", exponent, constant("i32", limit))
    if kind == "float":
        wide = e.convert("fpext", "float", "double", value)
        product = e.binary("fmul", "double", wide, _power(e, exponent))
        return e.convert("fptrunc", "double", "float", product)
    return _scaled_double(e, value, exponent)


def _scaled_double(e: Registers, value: str, exponent: str) -> str:
    """Scale an f64: split off its own exponent, so that mantissa times powers of two is exact."""
    mantissa, own = frexp_double(e, value)
    total = e.binary("add", "i32", own, exponent)
    # total in about -3300..3300. A mantissa in 0.5..1 times 2**(-1021) is normal, so only the last
    # factor, 2**rest with rest >= -1000 or so, can round.
    first = e.intrinsic("smax", "i32", total, constant("i32", -1000))
    first = e.intrinsic("smin", "i32", first, constant("i32", 1000))
    rest = e.binary("sub", "i32", total, first)
    second = e.intrinsic("smax", "i32", rest, constant("i32", -1000))
    second = e.intrinsic("smin", "i32", second, constant("i32", 1000))
    result = e.binary("fmul", "double", mantissa, _power(e, first))
    return e.binary("fmul", "double", result, _power(e, second))


def _power(e: Registers, exponent: str) -> str:
    """Return 2**exponent as f64, for exponents of normal numbers."""
    biased = e.binary("add", "i32", exponent, constant("i32", 1023))
    wide = e.convert("zext", "i32", "i64", biased)
    return e.convert("bitcast", "i64", "double", e.binary("shl", "i64", wide, constant("i64", 52)))


def frexp_double(e: Registers, value: str) -> tuple[str, str]:
    """Return mantissa (0.5..1 with sign) and exponent (i32; 0 for zero, infinity and NaN)."""
    bits = e.convert("bitcast", "double", "i64", value)
    tiny = e.compare(
        "olt", "double", e.intrinsic("fabs", "double", value), constant("double", 0x10000000000000)
    )
    raised = e.binary("fmul", "double", value, constant("double", (1023 + 64) << 52))
    bits = e.select(tiny, "i64", e.convert("bitcast", "double", "i64", raised), bits)
    raw = e.binary("and", "i64", e.binary("lshr", "i64", bits, constant("i64", 52)),
                   constant("i64", 0x7FF))  # fmt: skip
    exponent = e.convert("trunc", "i64", "i32", raw)
    exponent = e.binary("sub", "i32", exponent, constant("i32", 1022))
    offset = e.select(tiny, "i32", constant("i32", 64), constant("i32", 0))
    exponent = e.binary("sub", "i32", exponent, offset)
    kept = e.binary("and", "i64", bits, constant("i64", 0x800FFFFFFFFFFFFF))
    mantissa = e.binary("or", "i64", kept, constant("i64", 0x3FE0000000000000))
    mantissa = e.convert("bitcast", "i64", "double", mantissa)
    special = _zero_or_special(e, value)
    mantissa = e.select(special, "double", value, mantissa)
    return mantissa, e.select(special, "i32", constant("i32", 0), exponent)


def _zero_or_special(e: Registers, value: str) -> str:
    zero = e.compare("oeq", "double", value, constant("double", 0))
    magnitude = e.intrinsic("fabs", "double", value)
    special = e.compare("uge", "double", magnitude, constant("double", 0x7FF << 52))
    return e.binary("or", "i1", zero, special)


def _widened(e: Registers, kind: str, value: str) -> str:
    return e.convert("fpext", kind, "double", value) if kind != "double" else value


def _frexp_exponent(kind: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        _, exponent = frexp_double(e, _widened(e, kind, e.source(i.srcs[0], kind)))
        if kind == "half":
            e.set_result(i, "i16", e.convert("trunc", "i32", "i16", exponent))
        else:
            e.set_result(i, "i32", exponent)

    return emit


def _frexp_mantissa(kind: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        mantissa, _ = frexp_double(e, _widened(e, kind, e.source(i.srcs[0], kind)))
        if kind == "double":  # a NaN becomes quiet, as by the conversions of the other kinds
            bits = e.convert("bitcast", "double", "i64", mantissa)
            quiet = e.binary("or", "i64", bits, constant("i64", QUIET[kind]))
            nan = e.compare("uno", "double", mantissa, mantissa)
            bits = e.select(nan, "i64", quiet, bits)
            mantissa = e.convert("bitcast", "i64", "double", bits)
        e.set_result(i, kind, _narrowed(e, kind, mantissa))

    return emit


def _narrowed(e: Registers, kind: str, value: str) -> str:
    """Round f64 to `kind` in a single rounding."""
    if kind == "double":
        return value
    if kind == "float":
        return e.convert("fptrunc", "double", "float", value)
    return e.convert("fptrunc", "float", "half", narrow_to_odd(e, value))


def _ldexp(kind: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        value = e.source(i.srcs[0], kind)
        if kind == "half":
            exponent = e.convert("sext", "i16", "i32", e.source(i.srcs[1], "i16"))
            wide = e.convert("fpext", "half", "double", value)
            exponent = e.intrinsic("smax", "i32", exponent, constant("i32", -100))
            exponent = e.intrinsic("smin", "i32", exponent, constant("i32", 100))
            product = e.binary("fmul", "double", wide, _power(e, exponent))
            e.set_result(i, "half", _narrowed(e, "half", product))
        else:
            e.set_result(i, kind, scaled(e, kind, value, e.source(i.srcs[1])))

    return emit


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found: dict[str, Handler] = {}
    for suffix, kind in SUFFIXES.items():
        found[f"v_add_{suffix}"] = computed(kind, 2, _arithmetic("fadd"))
        found[f"v_sub_{suffix}"] = computed(kind, 2, _arithmetic("fsub"))
        found[f"v_subrev_{suffix}"] = computed(kind, 2, _arithmetic("fsub", swapped=True))
        found[f"v_mul_{suffix}"] = computed(kind, 2, _arithmetic("fmul"))
        for name in ("fma", "fmaak", "fmamk"):
            found[f"v_{name}_{suffix}"] = fused(kind)
        found[f"v_fmac_{suffix}"] = fused(kind, accumulates=True)
        for name in ("min", "max"):
            found[f"v_{name}_{suffix}"] = chosen_of(kind, 2, _extremes(name))
            found[f"v_{name}3_{suffix}"] = chosen_of(kind, 3, _extremes(name))
        found[f"v_minmax_{suffix}"] = chosen_of(kind, 3, _mixed_extremes("min", "max"))
        found[f"v_maxmin_{suffix}"] = chosen_of(kind, 3, _mixed_extremes("max", "min"))
        found[f"v_med3_{suffix}"] = chosen_of(kind, 3, _median)
        for name, intrinsic in (
            ("trunc", "trunc"), ("ceil", "ceil"), ("rndne", "roundeven"), ("floor", "floor"),
            ("sqrt", "sqrt"),
        ):  # fmt: skip
            found[f"v_{name}_{suffix}"] = computed(kind, 1, _intrinsic(intrinsic))
        found[f"v_fract_{suffix}"] = _fraction(kind)
        found[f"v_rcp_{suffix}"] = computed(kind, 1, _reciprocal)
        found[f"v_rsq_{suffix}"] = computed(kind, 1, _reciprocal_root)
        found[f"v_frexp_mant_{suffix}"] = _frexp_mantissa(kind)
        bits = 16 if suffix == "f16" else 32
        found[f"v_frexp_exp_i{bits}_{suffix}"] = _frexp_exponent(kind)
        found[f"v_ldexp_{suffix}"] = _ldexp(kind)
    found["v_rcp_iflag_f32"] = found["v_rcp_f32"]
    found["v_mullit_f32"] = computed("float", 3, _mullit)
    found["v_mul_dx9_zero_f32"] = computed("float", 2, _legacy_product)
    found["v_fma_dx9_zero_f32"] = fused("float", legacy=True)
    found["v_fmac_dx9_zero_f32"] = fused("float", accumulates=True, legacy=True)
    return found
