"""Page tables of MMU versions 2 and 3: entries against NVIDIA's header, walked by the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.paging.page_table import PageTable
from ugpu.nv import abi
from ugpu.nv.gsp.chip.tables import Mmu2Format, Mmu3Format

Format = Mmu2Format | Mmu3Format


class Memory:
    """Tables in a dictionary of words."""

    zeroed = True

    def __init__(self) -> None:
        self.words: dict[int, int] = {}
        self.next = 0x10_0000

    def allocate(self, size: int) -> int:
        self.next += 0x1_0000
        return self.next

    def free(self, physical: int) -> None: ...

    def write(self, physical: int, entries: NDArray[np.uint64]) -> None:
        for number, word in enumerate(entries.tolist()):
            self.words[physical + 8 * number] = word

    def entry(self, table: int, index: int, size: int = 8) -> bytes:
        at = table + index * size
        return b"".join(
            self.words.get(at + offset, 0).to_bytes(8, "little") for offset in range(0, size, 8)
        )


def number(version: int, kind: str, raw: bytes, name: str) -> int:
    return abi.mmu().descriptor(f"VER{version}_{kind}").get(raw, name)


@pytest.mark.parametrize(("version", "make"), [(2, Mmu2Format), (3, Mmu3Format)])
def test_entries_have_the_headers_fields(version: int, make: Callable[[], Format]) -> None:
    memory, form = Memory(), make()
    tables = PageTable(form, memory)
    va, vram, host = 0x10_0020_0000, 0x1234_5000, 0xAB_CDEF_7000
    tables.map(va, [(vram, 4096)], form.code_flags)
    tables.map(va + 4096, [(host, 4096)], form.data_flags | form.host_flags)
    tables.map(va + (4 << 20), [(0x4000_0000, 2 << 20)], form.data_flags)
    path = tables.path(va)
    assert len(path) == len(form.levels)
    for table, level, below in zip(path, form.levels, path[1:], strict=False):
        index = va >> level.shift & ((1 << level.bits) - 1)
        if level.words == 2:
            raw = memory.entry(table, index, 16)
            kind, small = "DUAL_PDE", "_SMALL"
        else:
            raw, kind, small = memory.entry(table, index), "PDE", ""
        assert number(version, kind, raw, f"APERTURE{small}") == 1, "video memory"
        name = f"ADDRESS{small}" if version == 3 else f"ADDRESS{small}_VID"
        assert number(version, kind, raw, name) == below >> 12
    page = memory.entry(path[-1], va >> 12 & 0x1FF)
    assert number(version, "PTE", page, "VALID") == 1
    assert number(version, "PTE", page, "APERTURE") == 0
    assert number(version, "PTE", page, "KIND") == 6
    bus = memory.entry(path[-1], (va + 4096) >> 12 & 0x1FF)
    assert number(version, "PTE", bus, "APERTURE") == 2, "coherent system memory"
    assert number(version, "PTE", bus, "ADDRESS" if version == 3 else "ADDRESS_SYS") == host >> 12
    huge = memory.entry(path[-2], (va + (4 << 20)) >> 21 & 0xFF, 16)
    assert number(version, "PTE", huge[:8], "VALID") == 1 and huge[8:] == bytes(8)
    if version == 2:
        assert number(2, "PTE", page, "READ_ONLY") == 1
        assert number(2, "PTE", page, "ADDRESS_VID") == vram >> 12
    else:
        pcf = abi.mmu().descriptor("VER3_PTE").field("PCF").values
        assert number(3, "PTE", page, "PCF") == pcf["REGULAR_RO_NO_ATOMIC_CACHED_ACE"]
    found = tables.lookup(va + (4 << 20) + 5)
    assert found is not None and found.physical == 0x4000_0005
    assert form.is_table(0, int.from_bytes(memory.entry(path[0], 0), "little"))


@pytest.mark.parametrize("form", [Mmu2Format(), Mmu3Format()])
def test_other_flags_are_refused(form: Format) -> None:
    with pytest.raises(BadArgument, match="not page flags"):
        form.leaf(4, np.array([0], np.uint64), 1 << 60, np.array([0], np.uint64))
