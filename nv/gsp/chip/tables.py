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


class _Format:
    """What the versions share; see hcq.bare.tables.TableFormat. Flags of a page: those that a
    version names, VALID is added."""

    levels: tuple[Level, ...]
    leaf_levels: tuple[int, ...]
    max_fragment = 0
    data_flags = 0
    code_flags: int
    host_flags: int
    privileged: int
    _kind: int
    _shift: int  # of a page's address in an entry
    _address: int  # bits of an entry
    _directory = 0  # flags of an entry that points to a table

    def leaf(self, level: int, physical: Pages, flags: int, fragment: Pages) -> Pages:
        """Entries for pages at `physical`."""
        if flags & ~(self.code_flags | self.host_flags | self.privileged):
            raise BadArgument("the value contains bits that are not page flags", flags=flags)
        return (physical >> np.uint64(self._shift)) | np.uint64(_VALID | flags | self._kind)

    def table(self, level: int, physical: int) -> int:
        """The entry that points to the next level's table, in video memory."""
        return physical >> self._shift | _VIDEO_TABLE | self._directory

    def physical(self, level: int, entry: int) -> int:
        return (entry & self._address) << self._shift

    def is_table(self, level: int, entry: int) -> bool:
        last = level == len(self.levels) - 1
        return not last and not entry & _VALID and bool(entry & 6)

    def root(self, physical: int) -> int:
        """Return what the resource manager is told of the root table: its address."""
        return physical


class Mmu2Format(_Format):
    """Version 2. The root has 4 entries: 49 bits of addresses."""

    levels: tuple[Level, ...] = (
        Level(47, 2), Level(38, 9), Level(29, 9), Level(21, 8, words=2, table_word=1), Level(12, 9),
    )  # fmt: skip
    leaf_levels: tuple[int, ...] = (3, 4)
    _read_only, _atomic_off = 1 << 6, 1 << 7
    _kind = 6 << 56  # generic memory
    _shift = 4
    _address = ((1 << 46) - 1) << 8
    shared_flags = 1 << 3  # volatile
    code_flags = _read_only | _atomic_off
    host_flags = _COHERENT | shared_flags
    privileged = 1 << 5


class Mmu3Format(_Format):
    """Version 3: 57 bits of addresses."""

    levels: tuple[Level, ...] = (
        Level(56, 1), Level(47, 9), Level(38, 9), Level(29, 9),
        Level(21, 8, words=2, table_word=1), Level(12, 9),
    )  # fmt: skip
    leaf_levels: tuple[int, ...] = (4, 5)
    shared_flags, privileged, _read_only, _atomic_off = (1 << bit for bit in (3, 4, 5, 6))  # PCF
    _kind = 6 << 8
    _shift = 0
    _address = ((1 << 40) - 1) << 12
    _directory = 2 << 3  # PCF: valid, cached, ATS not allowed
    code_flags = _read_only | _atomic_off
    host_flags = _COHERENT | shared_flags
