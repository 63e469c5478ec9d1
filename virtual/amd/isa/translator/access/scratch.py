"""Scratch instructions, translated to LLVM IR.

A wave's scratch is interleaved by dwords: dword k of all its lanes is one row of consecutive bytes.
Where all enabled lanes access the same aligned offset, as spills do, an access moves whole rows in
the kernel, if they are within the wave's scratch and in a page of the TLB; all others call
`runtime.scratch`, once for each pass.
Source: RDNA3 ISA document, "Flat scratch instructions" and "Scratch space (private) addressing".
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.translator.access.memory import (
    LOADS,
    STORES,
    check_registers,
    data_registers,
    load_lanes,
    narrow_result,
    store_lanes,
    stored,
)
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers
from ugpu.virtual.shader.memory import Access
from ugpu.virtual.shader.text import LANES, constant
from ugpu.virtual.shader.tlb import hit, tlb_of

_DWORD = 4


@dataclass(frozen=True)
class _Rows:
    """The rows of an access by all lanes at one offset.

    good: whether they may be moved (i1). host: address of the first row. first: the offset (i32).
    """

    good: str
    host: str
    first: str

    def row(self, e: Registers, number: int) -> str:
        """Return the address of a row."""
        at = number * e.lanes * _DWORD
        return e.value(f"getelementptr i8, ptr {self.host}, i64 {at}") if at else self.host

    def bits(self, e: Registers) -> str:
        """Return, as a vector, the place in its dword of what a narrow access moves."""
        place = e.value(f"shl i32 {e.value(f'and i32 {self.first}, 3')}, 3")
        return e.broadcast("i32", place)


def _offsets(e: Registers, i: Instruction) -> tuple[str, str, str]:
    """Return each lane's offset, that of lane 0 (i32), and whether no enabled lane has another
    one."""
    shared = str(i.offset)
    if i.saddr is not None:
        shared = e.value(f"add i32 {e.scalar(i.saddr)}, {i.offset}")
    if i.addr is None:
        return e.broadcast("i32", shared), shared, "true"
    own = e.vector_register(i.addr.index)
    if shared != "0":
        own = e.binary("add", "i32", own, e.broadcast("i32", shared))
    first = e.lane("i32", own, 0)
    others = e.as_bits(e.compare("ne", "i32", own, e.broadcast("i32", first)))
    if not e.full:
        others = e.value(f"and {e.bits} {others}, {e.exec()}")
    return own, first, e.value(f"icmp eq {e.bits} {others}, 0")


def _rows(e: Registers, first: str, same: str, size: int, access: Access) -> _Rows:
    """Find the rows of an access to the offset `first`, if it is the same for all lanes."""
    shift, count = e.lanes.bit_length() - 1, -(-size // _DWORD)
    last = _DWORD - min(size, _DWORD)  # byte of a dword in which an access may begin
    conditions = [] if same == "true" else [same]
    if first.isdigit():
        number = int(first)
        end, row = str(number + size << shift), str((number & -_DWORD) << shift)
        if number % _DWORD > last:
            conditions.append("false")
    else:
        wide = e.value(f"zext i32 {first} to i64")
        end = e.value(f"shl i64 {e.value(f'add i64 {wide}, {size}')}, {shift}")
        row = e.value(f"shl i64 {e.value(f'and i64 {wide}, {-_DWORD}')}, {shift}")
        byte = e.value(f"and i32 {first}, {_DWORD - 1}")
        conditions.append(e.value(f"icmp ule i32 {byte}, {last}"))
    conditions.append(e.value(f"icmp ule i64 {end}, {e.context(layout.SCRATCH_WAVE, 'i64')}"))
    address = e.value(f"add i64 {e.context(layout.WAVE_SCRATCH, 'i64')}, {row}")
    good, host = hit(e, tlb_of(e), address, count * e.lanes * _DWORD, access)
    for condition in conditions:
        good = e.value(f"and i1 {good}, {condition}")
    return _Rows(good, host, first)


def _load(size: int, how: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        check_registers(e, i.dst, i.addr)
        e.exec_mask()
        own, first, same = _offsets(e, i)
        rows = _rows(e, first, same, size, Access.READ)
        fast, slow, done = e.new_label("fast"), e.new_label("slow"), e.new_label("done")
        e.do(f"br i1 {rows.good}, label %{fast}, label %{slow}, !prof !0")
        e.begin(fast)
        for number in range(i.dst.width):
            value = e.value(f"load {e.vector}, ptr {rows.row(e, number)}, align 1")
            if size < _DWORD:
                value = e.binary("lshr", "i32", value, rows.bits(e))
                value = e.binary("and", "i32", value, constant("i32", (1 << 8 * size) - 1))
                value = narrow_result(e, i.dst, value, size, how)
            e.set_vector_register(i.dst.index + number, value)
        e.do(f"br label %{done}")
        e.begin(slow)
        load_lanes(e, i, size, how, f"scratch_load_{size}", [(e.vector, own), (LANES, e.exec())])
        e.do(f"br label %{done}")
        e.begin(done)

    return emit


def _store(size: int, high: bool) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.data is not None
        check_registers(e, i.data, i.addr)
        mask = e.exec_mask()
        own, first, same = _offsets(e, i)
        rows = _rows(e, first, same, size, Access.WRITE)
        fast, slow, done = e.new_label("fast"), e.new_label("slow"), e.new_label("done")
        e.do(f"br i1 {rows.good}, label %{fast}, label %{slow}, !prof !0")
        e.begin(fast)
        if size < _DWORD:
            values = [_inserted(e, rows, stored(e, i, high), size)]
        else:
            values = data_registers(e, i.data)
        for number, value in enumerate(values):
            _store_row(e, rows.row(e, number), value, mask)
        e.do(f"br label %{done}")
        e.begin(slow)
        arguments = [(e.vector, own), (LANES, e.exec())]
        store_lanes(e, i, size, high, f"scratch_store_{size}", arguments)
        e.do(f"br label %{done}")
        e.begin(done)

    return emit


def _inserted(e: Registers, rows: _Rows, value: str, size: int) -> str:
    """Put a narrow value into the dwords of the row; no other wave has this scratch."""
    old = e.value(f"load {e.vector}, ptr {rows.host}, align 1")
    place, field = rows.bits(e), constant("i32", (1 << 8 * size) - 1)
    new = e.binary("shl", "i32", e.binary("and", "i32", value, field), place)
    other = e.binary("xor", "i32", e.binary("shl", "i32", field, place), constant("i32", ~0))
    return e.binary("or", "i32", e.binary("and", "i32", old, other), new)


def _store_row(e: Registers, at: str, value: str, mask: str | None) -> None:
    if mask is None:
        e.do(f"store {e.vector} {value}, ptr {at}, align 1")
        return
    e.call(
        "void", f"llvm.masked.store.v{e.lanes}i32.p0", (e.vector, value), ("ptr align 1", at),
        (e.vector_of("i1"), mask),
    )  # fmt: skip


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    loads = {f"scratch_{name}": _load(size, how) for name, (size, how) in LOADS.items()}
    stores = {f"scratch_{name}": _store(size, high) for name, (size, high) in STORES.items()}
    return loads | stores
