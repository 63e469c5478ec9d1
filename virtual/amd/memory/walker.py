"""The page table walker of a hub: gfx11 entries, a directory cache, checks of reserved bits.

Facts: Linux 6.12 amdgpu_vm.h (entry bits), gmc_v11_0.c, gfxhub_v3_0.c; GCVM_CONTEXT0_CNTL. The
meaning of WALKER_ERROR numbers is not public. UNSURE: 1 is "context off or out of range", 2 to 5
are entries of PDB2 to PTB. A board's reports would settle it.
"""

from __future__ import annotations

from typing import NamedTuple

from ugpu.virtual.amd.memory.hub import HubState
from ugpu.virtual.amd.memory.tlb import EXECUTE, READ, WRITE, Entry

_VALID, _SYSTEM, _EXECUTABLE, _READABLE, _WRITEABLE = 1 << 0, 1 << 1, 1 << 4, 1 << 5, 1 << 6
_PDE_AS_PTE = 1 << 54
_ADDRESS = 0x0000_FFFF_FFFF_F000
_TABLE = 0x0000_FFFF_FFFF_FFC0
# Valid, system, snooped, TMZ, X, R, W, fragment, address, MTYPE [50:48], PRT 51, PDE-as-PTE 54,
# no-alloc 58.
_PTE_DEFINED = 0xFFF | _ADDRESS | 7 << 48 | 1 << 51 | _PDE_AS_PTE | 1 << 58
# Valid, system, snooped, address [47:6], block fragment size [63:59].
_PDE_DEFINED = 0x7 | _TABLE | 0x1F << 59
_PHYSICAL_END = 1 << 44
_TABLE_BITS = 9


class Refusal(NamedTuple):
    """Why a translation failed, in the terms of L2_PROTECTION_FAULT_STATUS.

    permission: bit 0 valid, 1 read, 2 write, 3 execute.
    """

    walker: int = 0
    permission: int = 0
    mapping: bool = False


class Walker:
    """Walks the tables of one hub, using its directory cache."""

    def __init__(self, hub: HubState) -> None:
        self._hub = hub

    def walk(self, vmid: int, address: int) -> Entry | Refusal:
        """Translate `address` with the context's tables."""
        hub = self._hub
        name = f"{hub.vm}CONTEXT{vmid}_"
        control = hub.fields(name + "CNTL")
        page = address >> 12
        start = self._pair(name + "PAGE_TABLE_START_ADDR_")
        end = self._pair(name + "PAGE_TABLE_END_ADDR_")
        if not control.ENABLE_CONTEXT or not start <= page <= end:
            return Refusal(walker=1)
        depth = control.PAGE_TABLE_DEPTH
        block = _TABLE_BITS + control.PAGE_TABLE_BLOCK_SIZE
        root = self._pair(name + "PAGE_TABLE_BASE_ADDR_")
        return self._descend(vmid, address, page - start, depth, block, root)

    def _pair(self, name: str) -> int:
        return self._hub.get(name + "LO32") | self._hub.get(name + "HI32") << 32

    def _descend(
        self, vmid: int, address: int, page: int, depth: int, block: int, root: int
    ) -> Entry | Refusal:
        """Walk from the lowest cached directory entry, or the root, down to a leaf."""
        directories = self._hub.caches.directories(vmid)

        def covers(level: int) -> int:  # log2 of the pages below one entry of a level
            return block + _TABLE_BITS * (level - 1) if level else 0

        table, level = root, depth
        for cached in range(1, depth + 1):
            entry = directories.get((cached, page >> covers(cached)))
            if entry is not None:
                table, level = entry, cached - 1
                break
        while True:
            error = 2 + (3 - level)
            if not table & _VALID or table & _TABLE >= _PHYSICAL_END:
                return Refusal(walker=min(error, 5), permission=1)
            shift = covers(level)
            slot = page >> shift
            if level != depth:  # the root has as many entries as the context's range requires
                slot &= (1 << (block if level == 0 else _TABLE_BITS)) - 1
            entry = self._load(table, slot)
            if entry is None:
                return Refusal(walker=min(error, 5), mapping=True)
            if not entry & _VALID:
                return Refusal(walker=error if level else 0, permission=1)
            if level == 0 or entry & _PDE_AS_PTE:
                return self._leaf(address, entry, level, 12 + shift)
            if entry & ~_PDE_DEFINED:
                return Refusal(walker=error)
            directories[level, page >> shift] = entry
            table, level = entry, level - 1

    def _leaf(self, address: int, entry: int, level: int, shift: int) -> Entry | Refusal:
        if entry & ~_PTE_DEFINED or level > 2 or (level == 0 and entry & _PDE_AS_PTE):
            return Refusal(walker=5 - level)
        physical = entry & _ADDRESS
        if physical >= _PHYSICAL_END:
            return Refusal(mapping=True)
        leaf = address >> shift << shift
        shift = max(shift, 12 + (entry >> 7 & 0x1F))
        permissions = (
            (READ if entry & _READABLE else 0)
            | (WRITE if entry & _WRITEABLE else 0)
            | (EXECUTE if entry & _EXECUTABLE else 0)
        )
        start = address >> shift << shift
        # The offset within the entry's block is added to the entry's address, which need not be
        # aligned: Linux derives level and fragment only from the virtual address and length
        # (amdgpu_vm_pt.c), and tinygrad mapped all VRAM of boards with 2 MiB entries whose memory
        # was aligned to 4 KiB. If a fragment is larger than the entry's own block, it begins before
        # the block, by the same distance in memory as in virtual addresses.
        base = physical - (leaf - start)
        return Entry(start, shift, base, bool(entry & _SYSTEM), permissions)

    def _load(self, table: int, slot: int) -> int | None:
        """Read one entry of a table; None if its address has no memory."""
        chip = self._hub.chip
        at = (table & _TABLE) + 8 * slot
        if table & _SYSTEM:
            return int.from_bytes(chip.dma_read(at, 8), "little")
        if at + 8 > chip.vram.size:
            return None
        return int.from_bytes(chip.vram.read(at, 8), "little")
