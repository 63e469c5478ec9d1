"""Page tables of NVIDIA's MMU, version 2 (Turing to Ada) and 3 (from Hopper on).

Pages have 4 KiB and 2 MiB. An entry of the last directory has two words: for a table of large
pages or a page of 2 MiB, and for a table of small pages. Sources: nv.abi.mmu (dev_mmu.h of
gh100); Linux 7.3 nouveau subdev/mmu/vmmgp100.c, vmmgh100.c.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.paging.page_table import Level

Pages = NDArray[np.uint64]
_VALID = 1
_VIDEO_TABLE, _COHERENT = 1 << 1, 2 << 1  # apertures; video memory is 1 in directories, 0 in pages
_PAGE_SHIFT = 12


class Mmu2Format:
    """hcq.bare.tables.TableFormat of version 2. The root has 4 entries: 49 bits of addresses."""

    levels: tuple[Level, ...] = (
        Level(47, 2), Level(38, 9), Level(29, 9), Level(21, 8, words=2, table_word=1), Level(12, 9),
    )  # fmt: skip
    leaf_levels: tuple[int, ...] = (3, 4)
    max_fragment = 0
    _read_only, _atomic_off = 1 << 6, 1 << 7
    _volatile = 1 << 3
    _kind = 6 << 56  # generic memory
    _address = ((1 << 46) - 1) << 8
    data_flags = 0
    code_flags = _read_only | _atomic_off
    host_flags = _COHERENT | _volatile
    shared_flags = _volatile
    privileged = 1 << 5
    _flags = code_flags | host_flags | privileged

    def leaf(self, level: int, physical: Pages, flags: int, fragment: Pages) -> Pages:
        """Entries for pages at `physical`. flags: those above; VALID is added."""
        if flags & ~self._flags:
            raise BadArgument("the value contains bits that are not page flags", flags=flags)
        return (physical >> np.uint64(_PAGE_SHIFT - 8)) | np.uint64(_VALID | flags | self._kind)

    def table(self, level: int, physical: int) -> int:
        """The entry that points to the next level's table, in video memory."""
        return physical >> (_PAGE_SHIFT - 8) | _VIDEO_TABLE

    def is_table(self, level: int, entry: int) -> bool:
        last = level == len(self.levels) - 1
        return not last and not entry & _VALID and bool(entry & 6)

    def physical(self, level: int, entry: int) -> int:
        return (entry & self._address) << (_PAGE_SHIFT - 8)

    def root(self, physical: int) -> int:
        """Return what the resource manager is told of the root table: its address."""
        return physical


class Mmu3Format:
    """hcq.bare.tables.TableFormat of version 3: 57 bits of addresses."""

    levels: tuple[Level, ...] = (
        Level(56, 1), Level(47, 9), Level(38, 9), Level(29, 9),
        Level(21, 8, words=2, table_word=1), Level(12, 9),
    )  # fmt: skip
    leaf_levels: tuple[int, ...] = (4, 5)
    max_fragment = 0
    _uncached, _privileged, _read_only, _atomic_off = (1 << bit for bit in (3, 4, 5, 6))  # PCF
    _kind = 6 << 8
    _address = ((1 << 40) - 1) << 12
    _directory_pcf = 2 << 3  # valid, cached, ATS not allowed
    data_flags = 0
    code_flags = _read_only | _atomic_off
    host_flags = _COHERENT | _uncached
    shared_flags = _uncached
    privileged = _privileged
    _flags = code_flags | host_flags | privileged

    def leaf(self, level: int, physical: Pages, flags: int, fragment: Pages) -> Pages:
        """Entries for pages at `physical`. flags: those above; VALID is added."""
        if flags & ~self._flags:
            raise BadArgument("the value contains bits that are not page flags", flags=flags)
        return physical | np.uint64(_VALID | flags | self._kind)

    def table(self, level: int, physical: int) -> int:
        """The entry that points to the next level's table, in video memory."""
        return physical | _VIDEO_TABLE | self._directory_pcf

    def is_table(self, level: int, entry: int) -> bool:
        last = level == len(self.levels) - 1
        return not last and not entry & _VALID and bool(entry & 6)

    def physical(self, level: int, entry: int) -> int:
        return entry & self._address

    def root(self, physical: int) -> int:
        """Return what the resource manager is told of the root table: its address."""
        return physical
