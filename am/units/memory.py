"""Device memory: what lies where in VRAM, apart from the driver's heap (hcq.bare.space).

Kinds of addresses: offsets in VRAM; MC addresses, which PSP, SMU and CP use untranslated, through
the system aperture of VMID 0; physical addresses, which page tables contain; and virtual addresses
of the driver's own address space. All are in bytes. See docs/am-bringup.md for the map.
"""

from __future__ import annotations

from ugpu.hcq.bare.vram import PAGE, MemoryMap
from ugpu.hcq.errors import OutOfMemory

MIB = 1 << 20
# The space lies far above every system aperture, below the canonical hole: no address in it can be
# mistaken for device memory, whichever VMID uses it.
VIRTUAL_BASE = 0x2000_0000_0000
VIRTUAL_END = 0x8000_0000_0000
TMR_SPACE = 32 * MIB  # below the firmware's own reserve; the TOC has the size in use


class Carveout:
    """Fixed places in VRAM for data that outlives a process: firmware, and data it points to.

    A warm attach finds them where the cold boot put them. Everything except the TMR is in the first
    4 MiB, which a BAR of any size shows. Only the chip accesses the TMR.
    """

    def __init__(self, size: int, reserved: int, fb_base: int, fb_offset: int) -> None:
        self.size = size
        self.fb_base = fb_base
        self.fb_offset = fb_offset
        # Side by side, so that an image, its command and its frame are one write.
        self.psp_private = 1 * MIB
        self.psp_command = 2 * MIB
        self.psp_ring = 2 * MIB + 0x1000
        self.reservations = 2 * MIB + 0x2000  # see am.boot.reservation
        self.scratch_page = 2 * MIB + 0x3000  # default of the system aperture
        self._mqd = 2 * MIB + 0x4000
        self.list_pointers = 2 * MIB + 0x5000  # see am.units.lists
        self.list_eop = 2 * MIB + 0x6000
        self.list_mqd = 2 * MIB + 0x7800  # and its ring, side by side
        self.list_ring = 2 * MIB + 0x8000
        self.smu_table = 2 * MIB + 0x10000
        self.smu_table_size = 0x10000
        self._tenants = 2 * MIB + 0x20000  # descriptors of tenants, a page for each
        self.heap = 4 * MIB
        self.tmr_space = TMR_SPACE
        self.tmr = (size - reserved - TMR_SPACE) // MIB * MIB
        if self.tmr <= self.heap:
            raise OutOfMemory(
                "the card has too little VRAM for the driver's own structures", vram=size
            )

    def mqd(self, index: int) -> int:
        """Return the VRAM offset of a compute queue's descriptor. index: of its holder's seat."""
        return self._mqd if index == 0 else self._tenants + index * PAGE

    def mc(self, address: int) -> int:
        """Return the MC address of VRAM offset `address`."""
        return self.fb_base + address

    def map(self, bus_bits: int) -> MemoryMap:
        """Return the driver's part of VRAM. bus_bits: of host memory in page table entries."""
        return MemoryMap(self.heap, self.tmr, self.fb_offset, bus_bits, VIRTUAL_BASE, VIRTUAL_END)

    def physical(self, address: int) -> int:
        """Return the address that page tables hold for VRAM offset `address`."""
        return self.fb_offset + address
