"""Objects for AArch64, as LLVM emits them, linked at chosen addresses and decoded again.

The decoder below reads instructions by the tables of the Arm Architecture Reference Manual (DDI
0487, C4.1 and C6.2) and shares nothing with hcq.cpu.aarch64.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import compile_ir
from ugpu.hcq.cpu import object as object_module
from ugpu.hcq.cpu.aarch64 import RELOCATIONS_AARCH64, jump, jump_through
from ugpu.hcq.cpu.memory import CodeMemory, flush_instructions
from ugpu.hcq.cpu.object import load_object
from ugpu.hcq.errors import BadCodeObject, HostError, NotSupported
from ugpu.hcq.objects.elf import ElfObject, read_object
from ugpu.hcq.objects.linking import Layout, lay_out, link

TRIPLE = "aarch64-unknown-linux-gnu"
KERNEL = """
@near = internal constant [5 x i32] [i32 3, i32 1, i32 4, i32 1, i32 5]
@bytes = internal constant [7 x i8] c"abcdefg"
@halves = internal constant [6 x i16] [i16 1, i16 2, i16 3, i16 4, i16 5, i16 6]
@wide = internal constant [4 x i64] [i64 1, i64 2, i64 3, i64 4]
@vector = internal constant <4 x float> <float 1.5, float 2.5, float 3.5, float 4.5>
@table = internal constant [2 x ptr] [ptr @first, ptr @second]
@elsewhere = external global i64
declare float @expf(float)
declare void @outside()
define internal i64 @first(i64 %x) noinline { %r = mul i64 %x, 3  ret i64 %r }
define internal i64 @second(i64 %x) noinline { %r = add i64 %x, 7  ret i64 %r }
define void @kernel(ptr %args, ptr %launch) {
  %out = load ptr, ptr %args
  %i = load i64, ptr %launch
  %n.at = getelementptr [5 x i32], ptr @near, i64 0, i64 3
  %n = load volatile i32, ptr %n.at
  %b.at = getelementptr [7 x i8], ptr @bytes, i64 0, i64 5
  %b = load volatile i8, ptr %b.at
  %h.at = getelementptr [6 x i16], ptr @halves, i64 0, i64 3
  %h = load volatile i16, ptr %h.at
  %w.at = getelementptr [4 x i64], ptr @wide, i64 0, i64 2
  %w = load volatile i64, ptr %w.at
  %v = load volatile <4 x float>, ptr @vector
  store <4 x float> %v, ptr %out, align 4
  %e = load volatile i64, ptr @elsewhere
  %f.at = getelementptr [2 x ptr], ptr @table, i64 0, i64 %i
  %f = load ptr, ptr %f.at
  %r = call i64 %f(i64 %e)
  %s = call i64 @first(i64 %r)
  %x = sitofp i64 %s to float
  %y = call float @expf(float %x)
  %out2 = getelementptr float, ptr %out, i64 4
  store float %y, ptr %out2
  %some = icmp ugt i64 %i, 9
  br i1 %some, label %leave, label %done
leave:
  tail call void @outside()
  ret void
done:
  ret void
}
@kernel.ugpu = constant { i32, i32 } { i32 1, i32 8 }
"""
OUTSIDE = {"expf": 0x7F12_3456_7890, "outside": 0x55AA_0000_0040, "elsewhere": 0x7FFF_0000_1238}
BASES = st.integers(0, 1 << 35).map(lambda n: n << 12)


def _object() -> ElfObject:
    return read_object(compile_ir(KERNEL, TRIPLE, "cortex-a55"))


def _layout(elf: ElfObject) -> Layout:
    return lay_out(elf, RELOCATIONS_AARCH64, 16)


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 & 1 else value


class _Decoded:
    """What one instruction says of an address: `page` and `low` of it, or all as `target`."""

    def __init__(self, word: int, place: int) -> None:
        self.target: int | None = None
        self.page: int | None = None
        self.low: int | None = None
        if word >> 26 & 0x1F == 0b00101:  # B, BL
            self.target = place + 4 * _signed(word & (1 << 26) - 1, 26)
        elif word >> 24 & 0x9F == 0b10010000:  # ADRP
            number = _signed((word >> 5 & (1 << 19) - 1) << 2 | word >> 29 & 3, 21)
            self.page = (place >> 12) + number
        elif word >> 23 & 0x1FF == 0b100100010:  # ADD (immediate), 64-bit, no shift
            self.low = word >> 10 & 0xFFF
        elif word >> 27 & 7 == 0b111 and word >> 24 & 3 == 0b01:  # LDR, STR (unsigned offset)
            scale = word >> 30
            if word >> 26 & 1 and word >> 23 & 1 and not scale:
                scale = 4  # 128 bits of a vector register
            self.low = (word >> 10 & 0xFFF) << scale
        else:
            raise AssertionError(f"{word:#010x} at {place:#x} takes no address")


@given(BASES)
def test_every_patched_instruction_has_the_address_of_its_symbol(base: int) -> None:
    elf = _object()
    layout = _layout(elf)
    image = link(layout, base, OUTSIDE, jump)
    seen = set()
    for relocation in elf.relocations:
        if relocation.section not in layout.offsets:
            continue
        seen.add(relocation.kind)
        symbol = elf.symbols[relocation.symbol]
        offset = layout.offsets[relocation.section] + relocation.offset
        through = RELOCATIONS_AARCH64[relocation.kind].through
        if symbol.section is None:
            wanted = OUTSIDE[symbol.name]
        else:
            wanted = base + layout.offsets[symbol.section] + symbol.value + relocation.addend
        if relocation.kind in (257, 260, 261):
            width = 4 if relocation.kind == 261 else 8
            value = int.from_bytes(image[offset : offset + width], "little", signed=True)
            minus = 0 if relocation.kind == 257 else base + offset
            assert value + minus == wanted
            continue
        word = int.from_bytes(image[offset : offset + 4], "little")
        found = _Decoded(word, base + offset)
        if through == "slot":  # the address of a word that holds the address
            (number,) = struct.unpack_from("<Q", image, layout.slots[relocation.symbol])
            assert number == wanted
            wanted = base + layout.slots[relocation.symbol]
        if through == "call" and symbol.section is None:
            assert found.target is not None
            first, second, number = struct.unpack_from("<IIQ", image, found.target - base)
            # ldr x16, <8 bytes on>; br x16
            assert (first >> 24, first >> 5 & 0x7FFFF, first & 31) == (0x58, 2, 16)
            assert (second & ~(31 << 5), second >> 5 & 31) == (0xD61F0000, 16)
            assert number == wanted
        elif found.target is not None:
            assert found.target == wanted
        elif found.page is not None:
            assert found.page == wanted >> 12
        else:
            assert found.low == wanted & 0xFFF
    # pages, their low halves at each width, calls in and out, slots, and addresses as data
    assert {275, 277, 283, 311, 312, 257} <= seen and seen & {282} and seen & {285, 286, 299}


def test_nothing_else_of_an_instruction_changes() -> None:
    elf = _object()
    layout = _layout(elf)
    base = 0x7000_0000
    image = link(layout, base, OUTSIDE, jump)
    fields = {275: 0x60FFFFE0, 311: 0x60FFFFE0, 282: 0x03FFFFFF, 283: 0x03FFFFFF}
    for relocation in elf.relocations:
        if relocation.section not in layout.offsets or relocation.kind in (257, 260, 261):
            continue
        offset = layout.offsets[relocation.section] + relocation.offset
        data = elf.sections[relocation.section].data
        before = int.from_bytes(data[relocation.offset : relocation.offset + 4], "little")
        after = int.from_bytes(image[offset : offset + 4], "little")
        assert (before ^ after) & ~fields.get(relocation.kind, 0x003FFC00) == 0


@pytest.mark.parametrize(
    ("kind", "word", "value", "expected"),
    [  # encodings by hand, from the tables of the manual
        (275, 0x90000000, 0x2345_6789, 0xB011A2A0),  # adrp x0, 0x23456000
        (283, 0x94000000, 0x1000 + 0x100, 0x94000040),  # bl +0x100
        (282, 0x14000000, 0x1000 - 4, 0x17FFFFFF),  # b -4
        (277, 0x91000000, 0x5ABC, 0x912AF000),  # add x0, x0, #0xabc
        (286, 0xF9400000, 0x5AB8, 0xF9455C00),  # ldr x0, [x0, #0xab8]
        (299, 0x3DC00000, 0x5AB0, 0x3DC2AC00),  # ldr q0, [x0, #0xab0]
        (280, 0x54000000, 0x1000 + 8, 0x54000040),  # b.eq +8
        (279, 0x36000000, 0x1000 - 8, 0x3607FFC0),  # tbz w0, #0, -8
        (273, 0x58000000, 0x1000 + 0xC, 0x58000060),  # ldr x0, +12
        (274, 0x10000000, 0x1000 + 5, 0x30000020),  # adr x0, +5
        (263, 0xD2800000, 0x1234, 0xD2824680),  # movz x0, #0x1234
        (266, 0xF2A00000, 0x9ABC_1234, 0xF2B35780),  # movk x0, #0x9abc, lsl 16
        (268, 0xF2C00000, 0x5678_9ABC_1234, 0xF2CACF00),  # movk x0, #0x5678, lsl 32
        (269, 0xF2E00000, 0xFEDC_5678_9ABC_1234, 0xF2FFDB80),  # movk x0, #0xfedc, lsl 48
    ],
)
def test_instructions_by_hand(kind: int, word: int, value: int, expected: int) -> None:
    """An instruction at 0x1000 and what it refers to."""
    image = link(_layout(_one(kind, word, value)), 0x1000)
    (found,) = struct.unpack_from("<I", image)
    assert f"{found:#010x}" == f"{expected:#010x}"


@pytest.mark.parametrize(
    ("kind", "word", "value"),
    [
        (283, 0x94000000, 0x1000 + (1 << 27)), (283, 0x94000000, 0x1002),
        (280, 0x54000000, 0x1000 + (1 << 20)), (279, 0x36000000, 0x1000 + (1 << 15)),
        (275, 0x90000000, 0x1000 + (1 << 32)), (274, 0x10000000, 0x1000 + (1 << 20)),
        (286, 0xF9400000, 0x5ABC), (299, 0x3DC00000, 0x5AB8), (284, 0x79400000, 0x5AB1),
        (263, 0xD2800000, 1 << 16), (265, 0xD2A00000, 1 << 32), (258, 0, 1 << 32),
        (261, 0, 0x1000 + (1 << 31)),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(kind: int, word: int, value: int) -> None:
    layout = _layout(_one(kind, word, value))
    with pytest.raises(BadCodeObject, match="does not fit"):
        link(layout, 0x1000)


def _one(kind: int, word: int, value: int) -> ElfObject:
    """An object of one instruction and one relocation, to an absolute address."""
    names = b"\0.text\0.rela.text\0.symtab\0.strtab\0there\0"
    text, rela = struct.pack("<IQ", word, 0), struct.pack("<QQq", 0, 1 << 32 | kind, 0)
    there = names.index(b"there")
    symbols = bytes(24) + struct.pack("<IBBHQQ", there, 0x10, 0, 0xFFF1, value % (1 << 64), 0)
    bodies = [b"", text, rela, symbols, names]
    table = [(0, 0, 0, 0, 0, 0), (1, 1, 6, 0, 0, 4), (7, 4, 0, 3, 1, 8), (18, 2, 0, 4, 1, 8),
             (26, 3, 0, 0, 0, 1)]  # fmt: skip
    at, image, rows = 64, b"", b""
    for (name, type_, flags, linked, info, align), body in zip(table, bodies, strict=True):
        rows += struct.pack("<IIQQQQIIQQ", name, type_, flags, 0, at, len(body), linked, info,
                            align, 24 if type_ in (2, 4) else 0)  # fmt: skip
        padded = body + bytes(-len(body) % 8)
        image += padded
        at += len(padded)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1" + bytes(9), 1, 183, 1, 0, 0, at, 0,
                         64, 0, 0, 64, 5, 4)  # fmt: skip
    return read_object(header + image + rows)


@given(st.data())
def test_corrupted_objects_are_linked_or_refused(data: st.DataObject) -> None:
    image = bytearray(compile_ir(KERNEL, TRIPLE, "cortex-a55"))
    for _ in range(data.draw(st.integers(1, 5))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    try:
        elf = read_object(bytes(image))
        layout = _layout(elf)
        outside = {symbol.name: 0x1000 for symbol in elf.symbols}
        assert len(link(layout, 1 << 20, outside, jump)) == layout.size
    except BadCodeObject:
        return


def test_jumps_through_a_word_differ_from_jumps_in_the_distance() -> None:
    """Arm Architecture Reference Manual, "LDR (literal)": imm19, in words, is in bits 5 to 23."""
    assert jump_through(8) == jump(0)[:8]
    for distance in (16, 4096, (1 << 20) - 4):
        (load,) = struct.unpack_from("<I", jump_through(distance))
        assert load >> 5 & 0x7FFFF == distance // 4 and load & ~(0x7FFFF << 5) == 0x58000010


def test_hosts_load_their_own_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an AArch64 host its objects are placed and flushed; others are refused."""
    ours = compile_ir(KERNEL, TRIPLE, "cortex-a55")
    foreign = compile_ir("define void @f() { ret void }", "x86_64-unknown-linux-gnu", "x86-64")
    filled: list[bytes] = []
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(CodeMemory, "fill", lambda memory, image: filled.append(image))
    monkeypatch.setattr(object_module, "_find_outside", OUTSIDE.__getitem__)
    memory, kernels = load_object(ours)
    assert kernels["kernel"].kernarg_size == 8 and memory.holds(kernels["kernel"].address)
    layout = _layout(_object())
    code = link(layout, memory.address, OUTSIDE, jump)
    assert len(filled) == 1 and filled[0].startswith(code)
    entry = kernels["kernel"].address - memory.address
    assert filled[0][entry : entry + 8] == jump_through(memory.words_at - entry)
    memory.close()
    with pytest.raises(BadCodeObject, match="not an object for this machine"):
        load_object(foreign)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(NotSupported, match="riscv64"):
        load_object(ours)


def test_new_code_is_flushed_where_caches_disagree(tmp_path: Path) -> None:
    calls: list[tuple[int | None, int | None]] = []

    class _Library:
        def __init__(self, name: str) -> None:
            assert name == "libgcc_s.so.1"

    def clear(start: ctypes.c_void_p, end: ctypes.c_void_p) -> None:
        calls.append((start.value, end.value))

    setattr(_Library, "__clear_cache", staticmethod(clear))
    flush_instructions(0x1000, 0x2000, "aarch64", _Library)
    assert calls == [(0x1000, 0x3000)]
    flush_instructions(0x1000, 0x2000, "x86_64", _Library)
    assert len(calls) == 1

    def missing(name: str) -> ctypes.CDLL:
        raise OSError(name)

    with pytest.raises(HostError, match="__clear_cache"):
        flush_instructions(0x1000, 0x2000, "aarch64", missing)
