"""The page table walker of a hub: a directory cache, and checks of reserved bits.

Facts: Linux 6.12 amdgpu_vm.h, gmc_v11_0.c, gfxhub_v3_0.c; GCVM_CONTEXT0_CNTL. The
meaning of WALKER_ERROR numbers is not public. UNSURE: 1 is "context off or out of range", 2 to 5
are entries of PDB2 to PTB. A board's reports would settle it.
"""

from __future__ import annotations

from typing import NamedTuple

from ugpu.virtual.amd.memory.entries import EntryFormat
from ugpu.virtual.amd.memory.hub import HubState
from ugpu.virtual.amd.memory.tlb import EXECUTE, READ, WRITE, Entry


class Refusal(NamedTuple):
    """Why a translation failed, in the terms of L2_PROTECTION_FAULT_STATUS.

    permission: bit 0 valid, 1 read, 2 write, 3 execute.
    """

    walker: int = 0
    permission: int = 0
    mapping: bool = False


class Walker:
    """Walks the tables of one hub, using its directory cache."""

    def __init__(self, hub: HubState, form: EntryFormat) -> None:
        self._hub = hub
        self._form = form
        self._physical_end = 1 << form.physical_bits

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
        block = self._form.table_bits + control.PAGE_TABLE_BLOCK_SIZE
        root = self._pair(name + "PAGE_TABLE_BASE_ADDR_")
        return self._descend(vmid, address, page - start, depth, block, root)

    def _pair(self, name: str) -> int:
        return self._hub.get(name + "LO32") | self._hub.get(name + "HI32") << 32

    def _descend(
        self, vmid: int, address: int, page: int, depth: int, block: int, root: int
    ) -> Entry | Refusal:
        """Walk from the lowest cached directory entry, or the root, down to a leaf."""
        form, directories = self._form, self._hub.caches.directories(vmid)

        def covers(level: int) -> int:  # log2 of the pages below one entry of a level
            return block + form.table_bits * (level - 1) if level else 0

        table, level = root, depth
        for cached in range(1, depth + 1):
            entry = directories.get((cached, page >> covers(cached)))
            if entry is not None:
                table, level = entry, cached - 1
                break
        while True:
            error = 2 + (3 - level)
            if not table & form.valid or table & form.table >= self._physical_end:
                return Refusal(walker=min(error, 5), permission=1)
            shift = covers(level)
            slot = page >> shift
            if level != depth:  # the root has as many entries as the context's range requires
                slot &= (1 << (block if level == 0 else form.table_bits)) - 1
            entry = self._load(table, slot)
            if entry is None:
                return Refusal(walker=min(error, 5), mapping=True)
            if not entry & form.valid:
                return Refusal(walker=error if level else 0, permission=1)
            if level == 0 or entry & form.leaf:
                return self._leaf(address, entry, level, 12 + shift)
            if entry & ~form.table_defined:
                return Refusal(walker=error)
            directories[level, page >> shift] = entry
            table, level = entry, level - 1

    def _leaf(self, address: int, entry: int, level: int, shift: int) -> Entry | Refusal:
        form = self._form
        misplaced = level == 0 and bool(entry & form.leaf) != form.leaf_at_last
        reserved = entry & ~form.entry_defined or entry & form.type_mask not in form.types
        if reserved or level > 2 or misplaced:
            return Refusal(walker=5 - level)
        physical = entry & form.address
        if physical >= self._physical_end:
            return Refusal(mapping=True)
        leaf = address >> shift << shift
        shift = max(shift, 12 + (entry >> form.fragment_shift & 0x1F))
        permissions = (
            (READ if entry & form.readable else 0)
            | (WRITE if entry & form.writeable else 0)
            | (EXECUTE if entry & form.executable else 0)
        )
        start = address >> shift << shift
        # The offset within the entry's block is added to the entry's address, which need not be
        # aligned: Linux derives level and fragment only from the virtual address and length
        # (amdgpu_vm_pt.c), and tinygrad mapped all VRAM of boards with 2 MiB entries whose memory
        # was aligned to 4 KiB. If a fragment is larger than the entry's own block, it begins before
        # the block, by the same distance in memory as in virtual addresses.
        base = physical - (leaf - start)
        return Entry(start, shift, base, bool(entry & form.system), permissions)

    def _load(self, table: int, slot: int) -> int | None:
        """Read one entry of a table; None if its address has no memory."""
        chip = self._hub.chip
        at = (table & self._form.table) + 8 * slot
        if table & self._form.system:
            return int.from_bytes(chip.dma_read(at, 8), "little")
        if at + 8 > chip.vram.size:
            return None
        return int.from_bytes(chip.vram.read(at, 8), "little")
