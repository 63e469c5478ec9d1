"""Page table entries of gfx11 and gfx12: four levels of 512 entries, 4 KiB pages, 2 MiB leaves.

Source: Linux 6.12 amdgpu_vm.h (AMDGPU_PTE_*), gmc_v11_0.c, gmc_v12_0.c (MTYPE, PDE_PTE). The
vectorised walker that uses this is hcq.paging.page_table.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.paging.page_table import Level

VALID = 1 << 0
SYSTEM = 1 << 1  # the address is a bus address, not one of VRAM
SNOOPED = 1 << 2
EXECUTABLE = 1 << 4
READABLE = 1 << 5
WRITABLE = 1 << 6
UNCACHED = 3 << 48  # MTYPE UC of gfx11; 0 is NC, the default for VRAM
UNCACHED_GFX12 = 3 << 54
PDE_AS_PTE = 1 << 54  # gfx11: a page in a directory
IS_PTE = 1 << 63  # gfx12: a page, in any table
_FRAGMENT_SHIFT = 7  # bits 11:7: the page is part of an aligned run of 2^fragment pages
_ADDRESS = 0x0000_0FFF_FFFF_F000  # 44 bits
_ACCESS = SYSTEM | SNOOPED | EXECUTABLE | READABLE | WRITABLE


class Gfx11Format:
    """hcq.paging.page_table.PageFormat of gfx11. Levels from the root: PDB2, PDB1, PDB0, PTB.
    large, small: what tells a page from a table, in a directory and in the last table."""

    large: ClassVar[int] = PDE_AS_PTE
    small: ClassVar[int] = 0
    uncached: ClassVar[int] = UNCACHED
    levels: tuple[Level, ...] = (Level(39, 9), Level(30, 9), Level(21, 9), Level(12, 9))
    leaf_levels: tuple[int, ...] = (2, 3)
    max_fragment = 9  # 2 MiB, the kernel's choice for this generation
    data_flags = READABLE | WRITABLE
    code_flags = READABLE | EXECUTABLE
    host_flags = SYSTEM | SNOOPED | UNCACHED
    shared_flags = UNCACHED

    def leaf(
        self, level: int, physical: NDArray[np.uint64], flags: int, fragment: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """Entries for pages at `physical`. flags: those above; VALID is added."""
        if flags & ~(_ACCESS | self.uncached):
            raise BadArgument("the value contains bits that are not page flags", flags=flags)
        base = VALID | flags | (self.large if level != len(self.levels) - 1 else self.small)
        return physical | (fragment << np.uint64(_FRAGMENT_SHIFT)) | np.uint64(base)

    def root(self, physical: int) -> int:
        """Return the value of the hubs' registers for the root table at `physical`."""
        return physical | VALID

    def table(self, level: int, physical: int) -> int:
        """The entry that points to the next level's table."""
        return physical | VALID

    def is_table(self, level: int, entry: int) -> bool:
        last = level == len(self.levels) - 1
        return bool(entry & VALID) and not last and not entry & self.large

    def physical(self, level: int, entry: int) -> int:
        return entry & _ADDRESS


class Gfx12Format(Gfx11Format):
    """The same of gfx12: every page has IS_PTE."""

    large = small = IS_PTE
    uncached = UNCACHED_GFX12
    host_flags = SYSTEM | SNOOPED | UNCACHED_GFX12
    shared_flags = UNCACHED_GFX12
