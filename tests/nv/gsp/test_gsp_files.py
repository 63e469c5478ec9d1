"""Containers of firmware files: what they contain, which signature is chosen, what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nvidia.gsp import gsp_files as made
from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.errors import FirmwareInvalid, FirmwareNotFound
from ugpu.nv.chips import boot_facts, names
from ugpu.nv.gsp.boot.files import PACKAGE, read_files
from ugpu.nv.gsp.images.containers import read_boot_loader, read_heavy_secure
from ugpu.nv.gsp.images.elf_sections import read_sections
from ugpu.nv.gsp.images.gsp_image import read_fmc, read_gsp


def test_booters_parts() -> None:
    found = read_heavy_secure("booter", made.booter())
    assert (found.code, found.application) == ((0, 0x100), (0x100, 0x200))
    assert (found.contents, found.signature_at) == ((0x300, 0x400), 0x310)
    assert (found.engines, found.ucode, found.parameters_at) == (1, 3, 0x10)


@pytest.mark.parametrize(
    ("count", "file_version", "chip", "index"),
    [(1, 0, 0, 0), (2, 1, 0, 1), (2, 1, 1, 0), (3, 4, 2, 2), (3, 4, 4, 0)],
)
def test_booters_signature_counts_down_from_the_files_version(
    count: int, file_version: int, chip: int, index: int
) -> None:
    found = read_heavy_secure("booter", made.booter(signatures=count, fuse=file_version))
    image = found.signed(chip)
    assert image[0x310 : 0x310 + 0x180] == bytes((0xB0 + index,)) * 0x180
    assert found.data[0x310] == 0, "the file's own bytes are not changed"


@pytest.mark.parametrize("chip", [1, 6])
def test_a_booter_for_other_fuses_is_refused(chip: int) -> None:
    found = read_heavy_secure("booter", made.booter(signatures=2, fuse=5))
    with pytest.raises(FirmwareInvalid, match="not signed for this chip"):
        found.signed(chip)


def test_the_boot_loaders_descriptor_ends_early_in_version_4() -> None:
    new = read_boot_loader("bootloader", made.boot_loader(5))
    assert (new.app_version, new.code, new.data_at, new.manifest) == (7, 0x1800, 0x800, 0)
    old = read_boot_loader("bootloader", made.boot_loader(4))
    assert (old.app_version, old.code, old.data_at, old.manifest) == (7, 0, 0, 0)


def test_the_gsps_image_is_for_a_chip_and_a_release() -> None:
    found = read_gsp("gsp", made.gsp("570.144", "ad10x"), "ad10x", "570.144")
    assert len(found.image) == 0x3456
    assert found.signature.startswith(b"ad10x")
    with pytest.raises(FirmwareInvalid, match=r"expected firmware 570\.144, found '570\.999'"):
        read_gsp("gsp", made.gsp("570.999"), "ad10x", "570.144")
    with pytest.raises(FirmwareInvalid, match="not signed for this chip") as caught:
        read_gsp("gsp", made.gsp("570.144", "ga10x"), "ad10x", "570.144")
    assert ".fwsignature_ga10x" in str(caught.value.facts["found"])


def test_a_damaged_section_of_the_fmc_is_named() -> None:
    data = bytearray(made.fmc())
    assert read_fmc("fmc", bytes(data)).digest == b"h" * 48
    data[data.index(b"iiii")] ^= 1
    with pytest.raises(FirmwareInvalid, match="section image is damaged"):
        read_fmc("fmc", bytes(data))


@pytest.mark.parametrize("wide", [True, False])
def test_sections_of_both_sizes(wide: bool) -> None:
    found = read_sections("x", made.elf({"one": b"1", "two": b"22"}, wide=wide))
    assert {name: bytes(part.data) for name, part in found.items()} == {"one": b"1", "two": b"22"}


def files(chip: str, release: str) -> dict[str, bytes]:
    boot = boot_facts(chip)
    assert boot is not None
    folder = f"{boot.firmware}/gsp"
    return {
        f"nvidia/{boot.image}/gsp/gsp-{release}.bin": made.gsp(release, boot.family),
        f"{folder}/bootloader-{release}.bin": made.boot_loader(5 if boot.dma else 4),
        f"{folder}/booter_load-{release}.bin": made.booter(),
        f"{folder}/booter_unload-{release}.bin": made.booter(),
        f"{folder}/fmc-{release}.bin": made.fmc(),
        f"{boot.firmware}/acr/bl.bin": made.container(
            struct.pack("<6I", 0xFD, 0, 0, 0x200, 0x200, 0x100), bytes(0x300)
        ),
    }


@pytest.mark.parametrize("chip", [name for name in names() if boot_facts(name)])
def test_the_files_of_every_chip(chip: str) -> None:
    boot = boot_facts(chip)
    assert boot is not None
    for release in boot.releases:
        found = read_files(FirmwareSource(PACKAGE, files(chip, release)), boot)
        assert found.abi.version == release
        assert (found.fmc is None) == (found.load is not None)


def test_a_missing_file_is_named_with_its_package() -> None:
    boot = boot_facts("ad102")
    assert boot is not None
    images = files("ad102", "570.144")
    del images["ad102/gsp/booter_unload-570.144.bin"]
    with pytest.raises(FirmwareNotFound) as caught:
        read_files(FirmwareSource(PACKAGE, images), boot)
    assert caught.value.facts["name"] == "ad102/gsp/booter_unload-570.144.bin"
    assert "firmware-nvidia-graphics" in str(caught.value.facts["remedy"])


READERS: tuple[tuple[bytes, Callable[[bytes], object]], ...] = (
    (made.booter(), lambda data: read_heavy_secure("x", data).signed(1)),
    (made.boot_loader(5), lambda data: read_boot_loader("x", data)),
    (made.gsp(size=256), lambda data: read_gsp("x", data, "ad10x", "570.144")),
    (made.fmc(), lambda data: read_fmc("x", data)),
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(range(len(READERS))), st.data())
def test_no_byte_of_a_file_breaks_its_parser(number: int, data: st.DataObject) -> None:
    content, read = READERS[number]
    damaged = bytearray(content[: data.draw(st.integers(0, len(content)))] or b"\0")
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, min(len(damaged), 0x400) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    try:
        read(bytes(damaged))
    except FirmwareInvalid:
        return
