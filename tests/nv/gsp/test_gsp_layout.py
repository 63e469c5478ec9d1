"""The carve-out, the heap's size, the tables of the image and the arguments of a start."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.nvidia.gsp import gsp_files as made
from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.nv.abi.firmware import firmware
from ugpu.nv.gsp.images.containers import read_boot_loader
from ugpu.nv.gsp.layout import radix3
from ugpu.nv.gsp.layout.arguments import (
    log_header,
    manager_arguments,
    region_list,
    wpr_metadata,
)
from ugpu.nv.gsp.layout.framebuffer import (
    GIB,
    MIB,
    carve_out,
    heap_size,
    vga_workspace,
)


def heap(vram: int) -> int:
    return heap_size(firmware("570.144"), vram, libos=3, fsp=False)


@pytest.mark.parametrize(
    ("release", "libos", "fsp", "gib", "size"),
    [
        # What nouveau asked of a card with 1 GiB (Linux 6.12 and 7.3).
        ("570.144", 3, False, 1, 0x7F0_0000),
        ("535.113.01", 3, False, 1, 0x7D0_0000),
        ("570.144", 2, False, 1, 0x690_0000),
        ("570.144", 3, True, 1, 0x850_0000),
        ("570.144", 3, False, 24, 129 * MIB),
        ("570.144", 3, False, 4096, 280 * MIB),
    ],
)
def test_the_heap_is_as_large_as_nouveaus(
    release: str, libos: int, fsp: bool, gib: int, size: int
) -> None:
    assert heap_size(firmware(release), gib * GIB, libos=libos, fsp=fsp) == size


def test_a_carve_out_by_hand() -> None:
    """24 GiB, no display, 570.144 with its real sizes; each place from the one above it."""
    found = carve_out(
        24 * GIB, 24 * GIB - MIB, boot_size=0x9000, image_size=0x3C99000, heap=heap(24 * GIB)
    )
    assert found == {
        "fbSize": 0x6_0000_0000, "vgaWorkspaceOffset": 0x5_FFF0_0000, "vgaWorkspaceSize": MIB,
        "gspFwWprEnd": 0x5_FFF0_0000, "frtsOffset": 0x5_FFE0_0000, "frtsSize": 0x10_0000,
        "bootBinOffset": 0x5_FFDF_7000, "gspFwOffset": 0x5_FC15_0000,
        "gspFwHeapOffset": 0x5_F400_0000, "gspFwHeapSize": 0x810_0000,
        "gspFwWprStart": 0x5_F3F0_0000, "nonWprHeapOffset": 0x5_F3E0_0000,
        "gspFwRsvdStart": 0x5_F3E0_0000, "nonWprHeapSize": 0x10_0000,
    }  # fmt: skip
    taken = found["fbSize"] - found["nonWprHeapOffset"]
    assert taken < 256 * MIB, "the board's firmware has cleared that much"


@given(st.integers(1, 192), st.integers(0, 8), st.integers(1, 64), st.integers(1 << 16, 1 << 26))
def test_parts_of_a_carve_out_do_not_overlap(gib: int, vga: int, boot: int, image: int) -> None:
    vram = gib * GIB
    found = carve_out(
        vram, vram - vga * 128 * 1024, boot_size=boot << 10, image_size=image, heap=heap(vram)
    )
    own, code, loader = (
        found[name] for name in ("gspFwHeapOffset", "gspFwOffset", "bootBinOffset")
    )
    places = [found["nonWprHeapOffset"], found["nonWprHeapOffset"] + found["nonWprHeapSize"]]
    places += [found["gspFwWprStart"], own, own + found["gspFwHeapSize"], code, code + image]
    places += [loader, loader + (boot << 10), found["frtsOffset"], found["gspFwWprEnd"]]
    places += [found["vgaWorkspaceOffset"], vram]
    assert places == sorted(places)
    assert found["gspFwWprStart"] % MIB == own % MIB == code % (64 << 10) == 0


def test_a_small_card_is_refused() -> None:
    with pytest.raises(NotSupported, match="too little memory"):
        carve_out(128 * MIB, 127 * MIB, boot_size=4096, image_size=4096, heap=heap(GIB))
    with pytest.raises(BadArgument):
        carve_out(GIB, 2 * GIB, boot_size=4096, image_size=4096, heap=heap(GIB))


@pytest.mark.parametrize(
    ("base", "place"),
    [(None, GIB - MIB), (GIB - 2 * MIB, GIB - (128 << 10)), (GIB - MIB, GIB - MIB)],
)
def test_the_vga_workspace(base: int | None, place: int) -> None:
    assert vga_workspace(GIB, base) == place


@pytest.mark.parametrize(
    ("size", "counts"),
    [(1, (1, 1, 1, 1)), (512 * 4096, (1, 1, 1, 512)), (0x1B34EA0, (1, 1, 14, 6965))],
)
def test_the_tables_lead_to_every_page(size: int, counts: tuple[int, ...]) -> None:
    assert radix3.level_pages(size) == counts
    pages = [0x10_0000 + 0x3000 * number for number in range(sum(counts))]
    content = radix3.tables(size, pages)
    assert len(content) == sum(counts[:3]) * 4096

    def page(address: int) -> list[int]:
        at = pages.index(address) * 4096
        return [word for word in struct.unpack_from("<512Q", content, at) if word]

    middle = page(pages[0])
    last = [entry for table in middle for entry in page(table)]
    assert [entry for table in last for entry in page(table)] == pages[sum(counts[:3]) :]


@pytest.mark.parametrize(
    ("pages", "counts"),
    [(1 << 18, (1, 1, 512, 1 << 18)), ((1 << 18) + 1, (1, 2, 513, (1 << 18) + 1))],
)
def test_a_full_table_needs_no_other(pages: int, counts: tuple[int, ...]) -> None:
    assert radix3.level_pages(pages * 4096) == counts


@pytest.mark.parametrize("size", [0, (radix3.MOST_PAGES + 1) * 4096])
def test_an_image_of_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(BadArgument):
        radix3.level_pages(size)


@pytest.mark.parametrize(("release", "sizes"), [("570.144", 0x48), ("535.113.01", 0x50)])
def test_the_arguments_name_the_queues(release: str, sizes: int) -> None:
    raw = manager_arguments(firmware(release), 0x1234_5000)
    assert len(raw) == sizes
    # By hand: address, 129 pages (one of them the table), command queue behind the table, status
    # queue behind that.
    assert struct.unpack_from("<QIxxxxQQ", raw) == (0x1234_5000, 129, 0x1000, 0x41000)


def test_the_list_of_regions_by_hand() -> None:
    raw = region_list(firmware("570.144"), {"LOGINIT": (0x1000, 0x10000), "RMARGS": (0x2000, 4096)})
    assert raw[:8] == b"TINIGOL\0" and raw[32:40] == b"SGRAMR\0\0"
    assert struct.unpack_from("<QQBB", raw, 8) == (0x1000, 0x10000, 1, 1)
    assert log_header([0xA000, 0xB000]) == struct.pack("<3Q", 0, 0xA000, 0xB000)


def test_the_metadata_are_what_booter_reads() -> None:
    loader = read_boot_loader("bootloader", made.boot_loader())
    carveout = carve_out(GIB, GIB - MIB, boot_size=0x2000, image_size=0x3456, heap=heap(GIB))
    parts = {
        "Radix3Elf": (0x10_0000, 0x3456), "Bootloader": (0x20_0000, 0x2000),
        "Signature": (0x30_0000, 0x1000),
    }  # fmt: skip
    raw = wpr_metadata(firmware("570.144"), parts, loader, carveout)
    words = struct.unpack("<32Q", raw)
    assert words[:11] == (
        0xDC3AAE21371A60B3, 1, 0x10_0000, 0x3456, 0x20_0000, 0x2000, 0x1800, 0x800, 0, 0x30_0000,
        0x1000,
    )  # fmt: skip
    names = (
        "nonWprHeapOffset", "nonWprHeapOffset", "nonWprHeapSize", "gspFwWprStart",
        "gspFwHeapOffset", "gspFwHeapSize", "gspFwOffset", "bootBinOffset", "frtsOffset",
    )  # fmt: skip
    assert words[11:22] == (*(carveout[name] for name in names), MIB, GIB - MIB)
    assert words[22:25] == (GIB, GIB - MIB, MIB)
    assert not any(words[25:]), "booter marks it as verified"
