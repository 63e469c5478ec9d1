"""Untyped buffer loads, stores and atomics (MUBUF), and s_buffer_load, translated to LLVM IR.

The four scalars of the resource: base address (48 bits), stride, number of records, flags. Only
buffers without swizzling, index or thread id are translated, as raw buffers: a lane whose bytes are
not all below the number of records reads zero and writes nothing.
Source: RDNA3 ISA document, "Vector memory buffer instructions", table of the buffer resource.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.translator.access.local import ATOMIC_NAMES, atomic_call, memory_hosts
from ugpu.virtual.amd.isa.translator.access.memory import (
    LOADS,
    STORES,
    check_registers,
    data_registers,
    io_column,
    load_to_columns,
    narrow_result,
    part_of,
    set_registers,
    store_wide,
)
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers, Unsupported
from ugpu.virtual.shader import context
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.text import LANES, constant


class Buffer:
    """The addresses of one buffer access: base and offsets, and the lanes within bounds."""

    def __init__(self, e: Registers, i: Instruction, size: int) -> None:
        if i.srsrc is None or i.idxen or i.tfe:
            raise Unsupported(f"{i.name} with an index or a fault report")
        first = i.srsrc.index
        low, high = e.scalar_register(first), e.scalar_register(first + 1)
        top = e.value(f"and i32 {high}, 65535")
        base = e.pair(low, top)
        if i.soffset is not None:
            extra = e.value(f"zext i32 {e.scalar(i.soffset)} to i64")
            base = e.value(f"add i64 {base}, {extra}")
        self.base = base
        offsets = constant("i32", i.offset)
        if i.offen and i.addr is not None:
            own = e.vector_register(i.addr.index)
            offsets = e.intrinsic("uadd.sat", "i32", own, offsets)
        self.offsets = offsets
        records = e.broadcast("i32", e.scalar_register(first + 2))
        end = e.intrinsic("uadd.sat", "i32", offsets, constant("i32", size))
        inside = e.compare("ule", "i32", end, records)
        mask = e.exec_mask()
        if mask is not None:
            inside = e.binary("and", "i1", inside, mask)
        self.mask = inside
        self.lanes = e.as_bits(inside)

    def arguments(self, e: Registers) -> list[tuple[str, str]]:
        """Return the arguments for the functions of near accesses."""
        return [("i64", self.base), (e.vector, self.offsets), (LANES, self.lanes)]


def _load(size: int, how: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        check_registers(e, i.dst, i.addr)
        buffer = Buffer(e, i, size)
        arguments, name = buffer.arguments(e), f"near_load_{size}"
        e.note_access()
        if size <= 4:
            values = [e.by_passes("i32", PREFIX + name, ("ptr", "%context"), *arguments)]
        else:
            column = ("ptr", io_column(e, 0))
            values = load_to_columns(e, i.dst.width, name, *arguments, column)
        for k, value in enumerate(values):
            value = e.select(buffer.mask, "i32", value, constant("i32", 0))
            e.set_vector_register(i.dst.index + k, narrow_result(e, i.dst, value, size, how))

    return emit


def _store(size: int, high: bool) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.data is not None
        check_registers(e, i.data, i.addr)
        buffer = Buffer(e, i, size)
        arguments, name = buffer.arguments(e), f"near_store_{size}"
        if size > 4:
            store_wide(e, i.data, name, *arguments)
            return
        value = e.vector_register(i.data.index)
        if high:
            value = e.binary("lshr", "i32", value, constant("i32", 16))
        e.note_access()
        e.by_passes("", PREFIX + name, ("ptr", "%context"), *arguments, (e.vector, value))

    return emit


def _atomic(bits: int, operation: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.data is not None
        check_registers(e, i.data, i.addr, i.dst)
        buffer = Buffer(e, i, bits // 8)
        wide = e.convert("zext", "i32", "i64", buffer.offsets)
        addresses = e.binary("add", "i64", e.broadcast("i64", buffer.base), wide)
        data, returns = data_registers(e, i.data), i.dst is not None
        hosts = memory_hosts(e, bits, addresses, False, buffer.lanes)
        old = atomic_call(e, bits, operation, hosts, buffer.lanes, data, returns)
        if i.dst is not None:
            inside = [e.select(buffer.mask, "i32", value, constant("i32", 0)) for value in old]
            set_registers(e, i.dst, inside)

    return emit


def _scalar_place(e: Registers, i: Instruction) -> tuple[str, str, str]:
    """Return base, offset and number of records of a scalar load as i64."""
    first = i.srcs[0].index
    top = e.value(f"and i32 {e.scalar_register(first + 1)}, 65535")
    base = e.pair(e.scalar_register(first), top)
    offset = str(i.offset)
    if i.soffset is not None:
        offset = e.value(f"add i32 {e.scalar(i.soffset)}, {i.offset}")
    wide = e.value(f"zext i32 {offset} to i64")
    return base, wide, e.value(f"zext i32 {e.scalar_register(first + 2)} to i64")


def _scalar_dword(e: Registers, base: str, start: str, size: int, records: str) -> str:
    """Load the dword at an offset, of which `size` bytes are wanted: 0 beyond the records."""
    end = e.value(f"add i64 {start}, {size}")
    inside = e.value(f"icmp ule i64 {end}, {records}")
    wanted = e.value(f"select i1 {inside}, i64 {start}, i64 0")
    address = e.value(f"and i64 {e.value(f'add i64 {base}, {wanted}')}, {-4 if size < 4 else -1}")
    number = e.value(f"zext i1 {inside} to i64")
    e.call(
        "void", PREFIX + "scalar_load", ("ptr", "%context"), ("i64", address), ("i64", number)
    )  # fmt: skip
    at = e.value(f"getelementptr i8, ptr %context, i64 {context.IO}")
    return e.value(f"select i1 {inside}, i32 {e.value(f'load i32, ptr {at}')}, i32 0")


def _scalar_load(count: int) -> Handler:
    """Load scalars; each dword beyond the number of records reads zero."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        base, offset, records = _scalar_place(e, i)
        e.note_access()
        for k in range(count):
            start = e.value(f"add i64 {offset}, {4 * k}")
            e.set_scalar(i.dst, _scalar_dword(e, base, start, 4, records), k)

    return emit


def _narrow_scalar_load(bits: int, extend: str) -> Handler:
    """Load part of a dword, of gfx12. extend: LLVM's "sext" or "zext"."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        base, offset, records = _scalar_place(e, i)
        e.note_access()
        word = _scalar_dword(e, base, offset, bits // 8, records)
        e.set_scalar(i.dst, part_of(e, word, e.value(f"add i64 {base}, {offset}"), bits, extend))

    return emit


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found: dict[str, Handler] = {}
    for name, (size, how) in LOADS.items():
        found[f"buffer_{name}"] = _load(size, how)
    for name, (size, high) in STORES.items():
        found[f"buffer_{name}"] = _store(size, high)
    for name, (bits, operation) in ATOMIC_NAMES.items():
        found[f"buffer_atomic_{name}"] = _atomic(bits, operation)
    for count in (1, 2, 3, 4, 8, 16):
        found[f"s_buffer_load_b{32 * count}"] = _scalar_load(count)
    for bits in (8, 16):
        found[f"s_buffer_load_i{bits}"] = _narrow_scalar_load(bits, "sext")
        found[f"s_buffer_load_u{bits}"] = _narrow_scalar_load(bits, "zext")
    return found
