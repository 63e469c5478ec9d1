"""The board's ROM: images, BIT, and FWSEC with its command and signature."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nvidia.gsp import gsp_files as made
from ugpu.hcq.errors import FirmwareInvalid, NotSupported
from ugpu.nv.gsp.images.fwsec import FRTS, READ_VBIOS, RETURN, Fwsec, frts_arguments
from ugpu.nv.gsp.images.rom import SIZE, Vbios, read_images


def window(rom: bytes) -> Callable[[int, int], bytes]:
    whole = rom.ljust(SIZE, b"\xff")

    def read(offset: int, size: int) -> bytes:
        assert offset % 4 == 0 and size % 4 == 0 and 0 <= offset <= SIZE - size
        return whole[offset : offset + size]

    return read


def program(rom: bytes) -> Fwsec:
    return Fwsec.find(Vbios.read(window(rom)))


@pytest.mark.parametrize("ifr", [0, 1, 2, 3])
def test_images_are_found_behind_every_kind_of_header(ifr: int) -> None:
    rom = made.vbios() if not ifr else made.with_ifr(made.vbios(), ifr)
    images = list(read_images(window(rom)))
    assert [image.kind for image in images] == [0x00, 0x03, 0xE0]
    assert len(images[2].data) > 512, "NPDE's size counts, not PCIR's"


@pytest.mark.parametrize("efi", [True, False])
def test_pointers_skip_the_images_between(efi: bool) -> None:
    found = program(made.vbios(efi=efi))
    descriptor = found.descriptor
    assert (descriptor.imem, descriptor.dmem) == (made.IMEM, 0x500)
    assert (descriptor.engines, descriptor.ucode, descriptor.version) == (1 << 10, 9, 3)
    assert found.image[:256] == bytes(range(256))


def test_a_rom_is_read_only_as_far_as_it_is_used() -> None:
    rom, far = made.vbios(), 0
    read = window(rom)

    def watched(offset: int, size: int) -> bytes:
        nonlocal far
        far = max(far, offset + size)
        return read(offset, size)

    Vbios.read(watched)
    assert far <= len(rom) + 16


def test_the_command_and_the_region_are_where_fwsec_looks() -> None:
    found = program(made.vbios())
    image = found.with_command(FRTS, frts_arguments(0xFC00_0000, 1 << 20), b"S" * 384)
    dmem = image[made.IMEM :]
    assert struct.unpack_from("<I", dmem, made.MAPPER + 0x2C) == (0x15,)
    # By hand: read_vbios {1, 24, 0, 0, 2}, frts {1, 20, address >> 12, 1 MiB >> 12, framebuffer}
    assert dmem[made.BUFFER : made.BUFFER + 44] == bytes.fromhex(
        "010000001800000000000000000000000000000002000000010000001400000000c00f000001000002000000"
    )
    assert dmem[made.SIGNATURE : made.SIGNATURE + 384] == b"S" * 384
    back = found.with_command(RETURN, READ_VBIOS)
    assert struct.unpack_from("<I", back, made.IMEM + made.MAPPER + 0x2C) == (0x19,)
    assert found.image[made.IMEM + made.BUFFER] == 0, "the program itself is not changed"


@pytest.mark.parametrize(
    ("versions", "fuse", "signature"),
    [(0b1, 0, 0xA0), (0b11, 0, 0xA0), (0b11, 1, 0xA1), (0b1010, 1, 0xA0), (0b1010, 0b110, 0xA1)],
)
def test_the_signature_is_that_of_the_fuse_version(
    versions: int, fuse: int, signature: int
) -> None:
    """A fuse register with highest bit n means version n + 1; signatures are for bits of
    `versions`."""
    found = program(made.vbios(made.fwsec(versions=versions)))
    assert found.signature(fuse) == bytes((signature,)) * 384


def test_a_chip_that_requires_a_newer_bios_is_named() -> None:
    found = program(made.vbios(made.fwsec(versions=0b11)))
    with pytest.raises(FirmwareInvalid, match="not signed for this chip") as caught:
        found.signature(0b10)
    assert caught.value.facts["fuse_version"] == 2


def test_turings_descriptor_has_no_signature() -> None:
    found = program(made.vbios(made.fwsec(2)))
    descriptor = found.descriptor
    assert (descriptor.secure_base, descriptor.secure_size) == (0x100, made.IMEM - 0x100)
    assert found.signature(0xFF) == b""


@pytest.mark.parametrize(
    ("rom", "text"),
    [
        (b"", "no ROM signature"),
        (made.rom_image(0, b"", last=True), "code type 0xe0"),
        (made.rom_image(3, b"", last=False) + made.rom_image(0xE0, b"", last=True), "code type 0"),
        (made.rom_image(0, b"", last=False) * 20, "at most 16 images"),
        (made.vbios(token=0x71), "no falcon data"),
        (made.vbios(application=0x45), "expected FWSEC"),
        (made.vbios(made.fwsec()[:60]), "extends past the end"),
        (made.vbios(made.fwsec().replace(b"\x01\x03", b"\x01\x04", 1)), "version 2 or 3"),
        (made.with_ifr(made.vbios(), 4), "IFR version"),
    ],
)
def test_a_rom_without_what_is_needed_is_refused(rom: bytes, text: str) -> None:
    with pytest.raises(FirmwareInvalid, match=text):
        program(rom)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_byte_of_a_rom_breaks_the_parser(data: st.DataObject) -> None:
    rom = bytearray(made.vbios(made.fwsec(data.draw(st.sampled_from((2, 3))))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(rom) - 1))
        rom[at] = data.draw(st.integers(0, 255))
    try:
        found = program(bytes(rom))
        found.with_command(FRTS, frts_arguments(0x1000_0000, 1 << 20), found.signature(1))
    except (FirmwareInvalid, NotSupported):
        return
