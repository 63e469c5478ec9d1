"""AMD code objects: real ones from LLVM, checked by another reader; broken ones refused."""

from __future__ import annotations

import io
import struct

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kernels import amd_table_object
from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.hcq.objects.code_object import CodeObject, parse_amdhsa
from ugpu.hcq.objects.elf import read_object

BASE = 0x7F00_0000_1000


def test_kernels_descriptors_and_arguments() -> None:
    code = parse_amdhsa(amd_table_object())
    assert code.target == "gfx1100" and set(code.kernels) == {"look_up", "implicit"}
    kernel = code.kernels["look_up"]
    assert kernel.descriptor.is_wave32 and not kernel.descriptor.uses_dynamic_stack
    assert kernel.kernarg_size == 20 and kernel.max_threads == 256
    assert [(a.name, a.offset, a.size, a.is_address, a.kind) for a in kernel.arguments] == [
        ("out", 0, 8, True, ""),
        ("x", 8, 8, True, ""),
        ("offset", 16, 4, False, "integer"),
    ]
    assert kernel.hidden == ()
    assert kernel.descriptor.user_sgprs["kernarg_segment_ptr"]
    hidden = {argument.kind: argument for argument in code.kernels["implicit"].hidden}
    assert hidden["hidden_block_count_x"].size == 4
    assert len(code.kernels["implicit"].arguments) == 1
    assert code.kernels["implicit"].entry % 256 == 0


def test_another_reader_sees_the_same_sections_and_symbols() -> None:
    image = amd_table_object()
    ours, theirs = read_object(image), ELFFile(io.BytesIO(image))
    assert [section.name for section in ours.sections] == [s.name for s in theirs.iter_sections()]
    table = theirs.get_section_by_name(".symtab")
    assert [(s.name, s.value, s.size) for s in ours.symbols] == [
        (s.name, s["st_value"], s["st_size"]) for s in table.iter_symbols()
    ]
    assert len(ours.relocations) == sum(
        section.num_relocations()
        for section in theirs.iter_sections()
        if section.name[:5] == ".rela"
    )


def test_linking_reaches_both_tables() -> None:
    """Code finds a local table by distance, an exported one through a slot with its address."""
    code = parse_amdhsa(amd_table_object())
    image = code.link(BASE)
    local = image.index(struct.pack("<4I", 11, 22, 33, 44))
    shown = image.index(struct.pack("<4I", 1000, 2000, 3000, 4000))
    slot = image.index(struct.pack("<Q", BASE + shown))
    reached = set()
    for relocation in code.layout.elf.relocations:
        place = code.layout.offsets[relocation.section] + relocation.offset
        if relocation.kind in (
            8,
            10,
        ):  # the low word; s_getpc_b64 gave the address 4 bytes before it
            low, high = struct.unpack_from("<I4xI", image, place)
            reached.add((place - 4 + (high << 32 | low)) & 0xFFFF_FFFF_FFFF_FFFF)
    assert reached == {local, slot}
    for kernel in code.kernels.values():
        entry = struct.unpack_from("<q", image, kernel.descriptor_at + 16)[0]
        assert kernel.descriptor_at + entry == kernel.entry


def test_a_misaligned_base_is_refused() -> None:
    with pytest.raises(BadCodeObject):
        parse_amdhsa(amd_table_object()).link(BASE + 64)


@pytest.mark.parametrize("cpu", ["gfx942", "gfx1201"])
def test_other_processors_are_named(cpu: str) -> None:
    assert parse_amdhsa(amd_table_object(cpu)).target == cpu


def test_an_unknown_processor_is_an_honest_gap() -> None:
    image = bytearray(amd_table_object())
    struct.pack_into("<I", image, 48, 0x2A)
    with pytest.raises(NotSupported):
        parse_amdhsa(bytes(image))


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, b"\x7fELG", "magic"),
        (4, b"\x01", "64-bit"),
        (16, b"\x02\x00", "shared object"),
        (16, b"\x03\x00", "has no program headers"),
        (18, b"\x3e\x00", "AMD HSA"),
        (7, b"\x00", "AMD HSA"),
        (8, b"\x09", "version"),
        (40, b"\xff\xff\xff\xff", "section table"),
        (60, b"\xff\xff", "section table"),
        (62, b"\x02\x00", "section names"),
    ],
)
def test_broken_headers_say_what_is_wrong(at: int, value: bytes, reason: str) -> None:
    image = bytearray(amd_table_object())
    image[at : at + len(value)] = value
    with pytest.raises(BadCodeObject, match=reason):
        parse_amdhsa(bytes(image))


def check(image: bytes) -> CodeObject | None:
    """Either a code object whose parts all lie inside it, or BadCodeObject; nothing else."""
    try:
        code = parse_amdhsa(image)
        linked = code.link(BASE)
    except (BadCodeObject, NotSupported):
        return None
    assert len(linked) == code.size
    for kernel in code.kernels.values():
        assert 0 <= kernel.entry <= code.size - 4
        assert 0 <= kernel.descriptor_at <= code.size - 64
    return code


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_flipped_bytes(data: st.DataObject) -> None:
    image = bytearray(amd_table_object())
    # Half of the flips go where structure is dense: the headers, or behind the code.
    structure = image.index(b"AMDGPU\0")
    place = st.one_of(
        st.integers(0, 63), st.integers(structure, len(image) - 1), st.integers(0, len(image) - 1)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        image[data.draw(place)] = data.draw(st.integers(0, 255))
    check(bytes(image))


@given(st.integers(0, 100_000), st.binary(max_size=64))
@settings(max_examples=200, deadline=None)
def test_truncated_and_continued(length: int, tail: bytes) -> None:
    image = amd_table_object()
    check(image[: length % len(image)] + tail)


@given(st.binary(max_size=300))
def test_noise(noise: bytes) -> None:
    assert check(noise) is None
    assert check(b"\x7fELF\x02\x01\x01\x40" + noise) is None


@given(st.integers(0, 10), st.integers(0, 9), st.integers(0, 2**64 - 1))
@settings(max_examples=300, deadline=None)
def test_any_field_of_any_section_header(section: int, field: int, value: int) -> None:
    image = bytearray(amd_table_object())
    table = struct.unpack_from("<Q", image, 40)[0]
    widths, offsets = "IIQQQQIIQQ", [0, 4, 8, 16, 24, 32, 40, 44, 48, 56]
    mask = 0xFFFF_FFFF if widths[field] == "I" else 2**64 - 1
    struct.pack_into(
        "<" + widths[field], image, table + section * 64 + offsets[field], value & mask
    )
    check(bytes(image))
