"""Loads of gfx12 that transpose tiles of 8 by 8 elements for matrix instructions.

Source: RDNA4 ISA document, 11.6.2; which lane gets which element, measured on gfx1201 boards by
others (B128: documentation of the compiler "tessera", RDNA3/RDNA4 WMMA fragment layout; B64: a
kernel of a fork of llama.cpp, rdna4_fp8_gemm). A wave of 64 uses the addresses of its lanes 0 to
31, and its upper lanes get the upper half of what these would get in a wave of 32 (Mesa 26.0,
radv_nir_lower_cooperative_matrix.c: addresses, and the rows of each lane). EXEC must be all ones or
zero; otherwise the result is undefined, here that of the enabled lanes' loads.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.translator.access.memory import (
    Address,
    arguments_of,
    begin_pass,
    check_registers,
    io_column,
    load_columns,
)
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.text import PASS, VECTOR


def _halves(lane: int, number: int) -> tuple[int, int]:
    """Return the lane whose element becomes 16-bit element `number` of a lane, and which it is."""
    return lane & -8 | number, lane % 8


def _bytes(lane: int, number: int) -> tuple[int, int]:
    """Return the same for bytes."""
    return lane & -16 | number // 4 << 3 | (lane >> 3 & 1) << 2 | number % 4, lane % 8


def _joined(e: Registers, kind: str, parts: list[str], size: int) -> str:
    """Concatenate vectors of `size` elements of type `kind`."""
    while len(parts) > 1:
        order = ", ".join(f"i32 {k}" for k in range(2 * size))
        vector = f"<{size} x {kind}>"
        parts = [
            e.value(f"shufflevector {vector} {a}, {vector} {b}, <{2 * size} x i32> <{order}>")
            for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
        size *= 2
    return parts[0]


def _transposed(registers: int, bits: int) -> Handler:
    """Load eight elements for each lane and exchange them between lanes."""
    source, each = (_halves if bits == 16 else _bytes), 32 // bits

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        check_registers(e, i.dst, i.addr)
        e.exec_mask()
        reach, arguments = arguments_of(e, Address(e, i))
        e.note_access()
        column = ("ptr", io_column(e, 0))
        function = f"{reach}_load_{4 * registers}"
        begin_pass(e, 0)
        first, *_ = e.cut_arguments(arguments)
        e.call("void", PREFIX + function, ("ptr", "%context"), *first, column)
        loaded = load_columns(e, registers)
        kind, size = f"i{bits}", PASS * each
        cast = [e.value(f"bitcast {VECTOR} {word} to <{size} x {kind}>") for word in loaded]
        whole, total = _joined(e, kind, cast, size), size * registers
        words = []
        for register in range(registers):
            order = []
            for lane in range(PASS):
                for number in range(register * each, (register + 1) * each):
                    origin, element = source(lane, number)
                    order.append(element // each * size + origin * each + element % each)
            places = ", ".join(f"i32 {place}" for place in order)
            vector = f"<{total} x {kind}>"
            picked = e.value(
                f"shufflevector {vector} {whole}, {vector} poison, <{size} x i32> <{places}>"
            )
            words.append(e.value(f"bitcast <{size} x {kind}> {picked} to {VECTOR}"))
        passes = len(e.passes)
        for register in range(registers // passes):
            parts = words[register :: registers // passes]
            e.set_vector_register(i.dst.index + register, e.whole("i32", parts))

    return emit


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    return {
        "global_load_tr_b128": _transposed(4, 16),
        "global_load_tr_b64": _transposed(2, 8),
    }
