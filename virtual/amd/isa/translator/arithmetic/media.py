"""Cube map coordinates and sums of absolute differences of bytes, translated to LLVM IR.

Source: RDNA3 ISA document, V_CUBE* and V_QSAD*, V_MQSAD* opcodes.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers
from ugpu.virtual.shader.text import constant

_FLOAT = "float"


def _number(value: int) -> str:
    """Return a small integer as f32 lanes."""
    bits = {0: 0, 1: 0x3F800000, 2: 0x40000000, 3: 0x40400000, 4: 0x40800000, 5: 0x40A00000}
    return constant(_FLOAT, bits[value])


def _major(e: Registers, x: str, y: str, z: str) -> tuple[str, str]:
    """Return the lanes where z is the major axis, and the lanes where y is if z is not."""
    size_x, size_y, size_z = (e.intrinsic("fabs", _FLOAT, v) for v in (x, y, z))
    over_x = e.compare("oge", _FLOAT, size_z, size_x)
    over_y = e.compare("oge", _FLOAT, size_z, size_y)
    on_z = e.binary("and", "i1", over_x, over_y)
    return on_z, e.compare("oge", _FLOAT, size_y, size_x)


def _cube(which: str) -> Handler:
    """Create an emitter. which: "id" is the face, "sc" and "tc" are the coordinates on it, "ma" is
    twice the major axis."""

    def emit(e: Registers, i: Instruction) -> None:
        x, y, z = (e.source(operand, _FLOAT) for operand in i.srcs[:3])
        on_z, on_y = _major(e, x, y, z)

        def negative(value: str) -> str:
            return e.compare("olt", _FLOAT, value, constant(_FLOAT, 0))

        def by_sign(value: str, below: str, above: str) -> str:
            return e.select(negative(value), _FLOAT, below, above)

        def minus(value: str) -> str:
            return e.unary("fneg", _FLOAT, value)

        if which == "id":
            faces = [by_sign(v, _number(k + 1), _number(k)) for v, k in ((z, 4), (y, 2), (x, 0))]
        elif which == "sc":
            faces = [by_sign(z, minus(x), x), x, by_sign(x, z, minus(z))]
        elif which == "tc":
            faces = [minus(y), by_sign(y, minus(z), z), minus(y)]
        else:
            faces = [e.binary("fmul", _FLOAT, v, _number(2)) for v in (z, y, x)]
        result = e.select(on_y, _FLOAT, faces[1], faces[2])
        e.set_result(i, _FLOAT, e.select(on_z, _FLOAT, faces[0], result))

    return emit


def _byte(e: Registers, word: str, number: int) -> str:
    moved = e.binary("lshr", "i32", word, constant("i32", 8 * number))
    return e.binary("and", "i32", moved, constant("i32", 0xFF))


def _windows(e: Registers, i: Instruction, masked: bool) -> list[str]:
    """Return four sums of |window of the first source - second source|; windows are a byte apart.

    masked: ignore bytes that are zero in the second source.
    """
    low, high = e.split(e.source(i.srcs[0], "i64"))
    reference = e.source(i.srcs[1])
    stream = [_byte(e, word, number) for word in (low, high) for number in range(4)]
    wanted = [_byte(e, reference, number) for number in range(4)]
    zero = constant("i32", 0)
    sums = []
    for window in range(4):
        total = zero
        for number in range(4):
            a, b = stream[window + number], wanted[number]
            part = e.binary(
                "sub", "i32", e.intrinsic("umax", "i32", a, b), e.intrinsic("umin", "i32", a, b)
            )
            if masked:
                part = e.select(e.compare("eq", "i32", b, zero), "i32", zero, part)
            total = e.binary("add", "i32", total, part)
        sums.append(total)
    return sums


def _packed_sums(masked: bool) -> Handler:
    """Add the sums to the four 16-bit parts of the third source; saturating if CLAMP is set."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        sums = _windows(e, i, masked)
        parts = []
        for number, word in enumerate(e.split(e.source(i.srcs[2], "i64"))):
            low = e.binary("and", "i32", word, constant("i32", 0xFFFF))
            high = e.binary("lshr", "i32", word, constant("i32", 16))
            for half, added in enumerate((low, high)):
                total = e.binary("add", "i32", sums[2 * number + half], added)
                if i.clamp:
                    total = e.intrinsic("umin", "i32", total, constant("i32", 0xFFFF))
                parts.append(e.binary("and", "i32", total, constant("i32", 0xFFFF)))
        for number in (0, 1):
            raised = e.binary("shl", "i32", parts[2 * number + 1], constant("i32", 16))
            word = e.binary("or", "i32", parts[2 * number], raised)
            e.set_vector_register(i.dst.index + number, word)

    return emit


def _wide_sums(e: Registers, i: Instruction) -> None:
    """Add the masked sums to the four 32-bit parts of source 3; saturating if CLAMP is set."""
    assert i.dst is not None
    sums = _windows(e, i, True)
    added = [e.vector_register(i.srcs[2].index + number) for number in range(4)]
    for number in range(4):
        if i.clamp:
            total = e.intrinsic("uadd.sat", "i32", sums[number], added[number])
        else:
            total = e.binary("add", "i32", sums[number], added[number])
        e.set_vector_register(i.dst.index + number, total)


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found: dict[str, Handler] = {f"v_cube{k}_f32": _cube(k) for k in ("id", "sc", "tc", "ma")}
    found["v_qsad_pk_u16_u8"] = _packed_sums(False)
    found["v_mqsad_pk_u16_u8"] = _packed_sums(True)
    found["v_mqsad_u32_u8"] = _wide_sums
    return found
