"""The cubin loader against pyelftools, its images, and everything that may be wrong with a file."""

from __future__ import annotations

import contextlib
import io
import struct

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nvidia.nv_ptx import TARGETS, cubin, full
from ugpu.hcq.errors import BadCodeObject, NotSupported, UgpuError
from ugpu.nv.abi.note import NOTE_FORMAT, NOTE_MAGIC, NOTE_SIZE
from ugpu.nv.code.cubin import parse_cubin
from ugpu.nv.code.image import lay_out

BASE = 0x100_0000_0000
# Where parameters start in constant bank 0, by hand from what cuobjdump shows of CUDA 13's code.
PARAMETERS_AT = {"sm_75": 0x160, "sm_80": 0x160, "sm_86": 0x160, "sm_89": 0x160, "sm_90": 0x210,
                 "sm_100": 0x380, "sm_120": 0x380}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_and_their_needs(target: str) -> None:
    code = parse_cubin(cubin(target))
    assert code.target == target
    assert set(code.kernels) == {"full", "small"}
    kernel = code.kernels["full"]
    assert kernel.parameters_at == PARAMETERS_AT[target]
    assert kernel.parameters_size == 24
    assert kernel.arguments is not None
    assert [(a.offset, a.size, a.is_address) for a in kernel.arguments] == [
        (0, 8, True),
        (8, 8, False),
        (16, 4, False),
        (20, 4, False),
    ]
    assert kernel.stack_size == 64
    assert kernel.shared_size in (512, 512 + 1024)
    assert code.counts_reserved == (kernel.shared_size > 512)
    assert kernel.barriers == 1
    assert 8 <= kernel.registers <= 64
    assert {0, 3} <= set(kernel.constants) <= {0, 3, 4}  # 4: addresses, where ptxas puts them
    small = code.kernels["small"]
    assert small.required_block == (64, 1, 1)
    assert small.arguments is not None
    assert small.arguments[0].is_address is None  # PTX without `.ptr` does not tell
    assert small.shared_size == 0 and small.stack_size == 0


@pytest.mark.parametrize("target", TARGETS)
def test_sections_and_symbols_agree_with_pyelftools(target: str) -> None:
    data = cubin(target)
    code, other = parse_cubin(data), ELFFile(io.BytesIO(data))
    assert [section.name for section in code.sections] == [s.name for s in other.iter_sections()]
    for ours, theirs in zip(code.sections, other.iter_sections(), strict=True):
        assert (ours.size, ours.kind == 8) == (
            theirs.header.sh_size,
            theirs.header.sh_type == "SHT_NOBITS",
        )
        if theirs.header.sh_type not in ("SHT_NOBITS", "SHT_NULL"):
            assert ours.data == theirs.data()
    table = other.get_section_by_name(".symtab")
    assert [(s.name, s.value, s.size) for s in code.symbols] == [
        (s.name, s.entry.st_value, s.entry.st_size) for s in table.iter_symbols()
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_linked_and_noted(target: str) -> None:
    ptx = full(target)
    image = lay_out(parse_cubin(cubin(target)), ptx)
    linked = image.link(BASE)
    assert len(linked) == image.size
    for name in ("full", "small"):
        entry = image.entry(name)
        assert entry % 256 == 0
        magic, version, at, size, length, where, ptx_size, *listed, name_at = struct.unpack_from(
            NOTE_FORMAT, linked, entry - NOTE_SIZE
        )
        assert (magic, version, at) == (NOTE_MAGIC, 3, PARAMETERS_AT[target])
        assert size == (24 if name == "full" else 8)
        assert linked[name_at - BASE :][:length].decode() == name
        assert linked[where - BASE :][:ptx_size] == ptx
    # `pointer` is initialised with the address of `table`. The code has both halves of it, or
    # (ptxas) loads them from constant bank 4.
    cubin_ = image.cubin
    symbols = {symbol.name: symbol for symbol in cubin_.symbols}
    table, pointer = symbols["table"], symbols["pointer"]
    assert table.section is not None
    at = BASE + image.offsets[table.section] + table.value
    assert linked[at - BASE :][:16] == struct.pack("<4I", 1, 2, 3, 4)
    names = linked[listed[0] - BASE :][: listed[1]]
    assert struct.pack("<QI", at, 5) + b"table" in names
    if pointer.section is not None:
        place = image.offsets[pointer.section] + pointer.value
        assert struct.unpack_from("<Q", linked, place)[0] == at
    entry = image.entry("full")
    code = linked[entry : entry + cubin_.kernels["full"].code_size]
    words = {struct.unpack_from("<I", code, offset + 4)[0] for offset in range(0, len(code), 16)}
    for index in {**cubin_.constants, **cubin_.kernels["full"].constants}.values():
        start = image.offsets.get(index)
        if start is not None:
            size = cubin_.sections[index].size
            words.update(struct.unpack_from(f"<{size // 4}I", linked, start))
    assert {at & 0xFFFF_FFFF, at >> 32} <= words


def test_the_ptx_may_be_absent() -> None:
    image = lay_out(parse_cubin(cubin("sm_90")))
    linked = image.link(BASE)
    note = image.entry("small") - NOTE_SIZE
    *_, where, size, _, _, _ = struct.unpack_from(NOTE_FORMAT, linked, note)
    assert (where, size) == (0, 0)


def _changed(offset: int, data: bytes) -> bytes:
    original = cubin("sm_90")
    return original[:offset] + data + original[offset + len(data) :]


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (b"", "too short for a cubin"),
        (b"\x7fELF" + bytes(200), "expected PTX text"),
        (_changed(18, b"\xe0\x00"), "not for NVIDIA GPUs"),
        (_changed(40, b"\xff\xff\xff"), "section table"),
        (cubin("sm_90")[:3000], "beyond the file|section table"),
    ],
)
def test_broken_files_are_named(image: bytes, words: str) -> None:
    with pytest.raises(BadCodeObject, match=words):
        parse_cubin(image)


@pytest.mark.parametrize(
    ("member", "value", "words"),
    [
        (24, None, "end of the file"),  # it begins in the file and ends beyond it
        (48, 3, "alignment"),
        (48, 1 << 17, "alignment"),
        (32, 1 << 40, "size"),
    ],
)
def test_broken_sections_are_named(member: int, value: int | None, words: str) -> None:
    """The section of a kernel's code, at its header in the file."""
    data = bytearray(cubin("sm_90"))
    elf = ELFFile(io.BytesIO(bytes(data)))
    number = elf.get_section_index(".text.full")
    row = elf.header.e_shoff + number * elf.header.e_shentsize
    size = elf.get_section(number).header.sh_size
    struct.pack_into("<Q", data, row + member, len(data) - size + 1 if value is None else value)
    with pytest.raises(BadCodeObject, match=words):
        parse_cubin(bytes(data))


def test_an_unknown_relocation_is_an_honest_gap() -> None:
    data = bytearray(cubin("sm_90"))
    code = parse_cubin(bytes(data))
    section = next(
        s for s in ELFFile(io.BytesIO(data)).iter_sections() if s.name == ".rela.text.full"
    )
    struct.pack_into("<I", data, section.header.sh_offset + 8, 0x77)
    assert code.relocations
    with pytest.raises(NotSupported, match="0x77"):
        lay_out(parse_cubin(bytes(data)))


@pytest.mark.parametrize("target", ["sm_75", "sm_90", "sm_120"])
def test_a_kernel_whose_code_is_not_loaded_is_named(target: str) -> None:
    """The section's name says that it is code; without it the kernel's symbol leads nowhere."""
    data = cubin(target).replace(b"\0.text.full\0", b"\0.texx.full\0")
    with pytest.raises(BadCodeObject, match="full"):
        lay_out(parse_cubin(data)).link(BASE)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_tables_end_in_an_error_of_ours(data: st.DataObject) -> None:
    """Fields of section headers, symbols, relocations and attributes, and letters of names."""
    target = data.draw(st.sampled_from(("sm_75", "sm_90", "sm_120")))
    image = bytearray(cubin(target))
    elf = ELFFile(io.BytesIO(bytes(image)))
    start, count = elf.header.e_shoff, elf.header.e_shnum
    tables = [(start, 64 * count)]
    for section in elf.iter_sections():
        if section.name.startswith((".rel", ".nv.info", ".symtab", ".strtab", ".shstrtab")):
            tables.append((section.header.sh_offset, section.header.sh_size))
    for _ in range(data.draw(st.integers(1, 4))):
        at, size = data.draw(st.sampled_from([table for table in tables if table[1] >= 8]))
        place = at + data.draw(st.integers(0, size - 8))
        width = data.draw(st.sampled_from((1, 2, 4, 8)))
        value = data.draw(
            st.sampled_from((0, 1, count - 1, count, 0xFFF1, len(image), (1 << 64) - 1))
            | st.integers(0, count)
        )
        image[place : place + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")
    with contextlib.suppress(UgpuError):
        lay_out(parse_cubin(bytes(image)), b"ptx").link(BASE)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_damage_ends_in_an_error_of_ours(data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(("sm_75", "sm_90", "sm_120")))
    image = bytearray(cubin(target))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(image) - 1))
        size = data.draw(st.sampled_from((1, 2, 4, 8)))
        image[at : at + size] = data.draw(st.binary(min_size=size, max_size=size))
    cut = data.draw(st.integers(0, len(image)))
    kept = bytes(image if data.draw(st.booleans()) else image[:cut])
    with contextlib.suppress(UgpuError):
        lay_out(parse_cubin(kept), b"ptx").link(BASE)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_end_in_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(BadCodeObject):
        parse_cubin(b"\x7fELF\x02\x01\x01" + data)
