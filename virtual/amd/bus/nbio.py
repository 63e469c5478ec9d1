"""The bus interface: indirect registers, HDP flush locations and doorbell routing.

Facts: Linux 6.12 nbio_v4_3.c, amdgpu_device.c (indirect access), amdgpu_doorbell.h; nbio_4_3_0
register header.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ugpu.virtual.amd.block import Block, Reset
from ugpu.virtual.amd.firmware.vbios import POSTED

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

_REMAP_DEFAULT = 0x385C  # byte offset of HDP_MEM_COHERENCY_FLUSH_CNTL itself
_FLUSH_UNITS = 0xFFFF_FFFF
_GFX_PORT, _IH_PORT, _SDMA_PORT = 0, 1, 2
# The values that nbio_v4_3.c writes as AWID and AWADDR_31_28 for each port; a port with other
# values is ignored. The port with a bounded range comes first.
_PAGE_DWORDS = 1024
_TARGETS = {_SDMA_PORT: (0xE, 3), _IH_PORT: (0, 0), _GFX_PORT: (3, 3)}
MOST_ROUTES = 4096  # limit of cached routing decisions


class Nbio(Block):
    """Registers of the bus interface, and the doorbell BAR behind it.

    route: name of the register that routes a port's doorbells.
    """

    route = "S2A_DOORBELL_ENTRY_{}_CTRL"

    def __init__(self, chip: Board) -> None:
        super().__init__(chip, "nbio")
        self._entries = {port: self.route.format(port) for port in _TARGETS}
        self._flush_location: int | None = None
        self._doorbells: dict[int, int] = {}  # last 64-bit value by even dword
        self._routes: dict[tuple[int, int, int], bool] = {}  # port, its register's content, dword
        self._latched: dict[str, int] = {}  # indirect indices that were read back
        self.dropped_doorbells = 0
        space = chip.space
        self.on_read("BIF_BX_PF0_MM_DATA", self._read_vram)
        self.on_write("BIF_BX_PF0_MM_DATA", self._write_vram)
        for index, data in (
            ("BIF_BX0_PCIE_INDEX2", "BIF_BX0_PCIE_DATA2"),
            ("BIF_BX_PF0_RSMU_INDEX", "BIF_BX_PF0_RSMU_DATA"),
        ):
            self.on_read(index, partial(self._read_index, index))
            self.on_read(data, partial(self._read_indirect, index))
            self.on_write(data, partial(self._write_indirect, index))
        self.on_write("BIF_BX_PF0_HDP_MEM_COHERENCY_FLUSH_CNTL", self._flush)
        self.on_write("BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL", self._remap)
        self.on_write("BIF_BX_PF0_GPU_HDP_FLUSH_REQ", self._flush_request)
        space.read_only("nbio", "BIF_BX_PF0_GPU_HDP_FLUSH_DONE")
        space.read_only("nbio", "RCC_DEV0_EPF0_RCC_CONFIG_MEMSIZE")

    def reset(self, scope: Reset) -> None:
        """Enter the power-on state; the memory size appears when IFWI is done."""
        self._doorbells.clear()
        self._latched.clear()
        self.set("BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL", _REMAP_DEFAULT)
        self._remap(_REMAP_DEFAULT)
        # The strap value that IFWI leaves: a driver clears the bit (nbio_v4_3_init_registers).
        self.set("RCC_DEV0_EPF2_STRAP2", STRAP_NO_SOFT_RESET_DEV0_F2=1)

    def ifwi_done(self, discovery: int, size: int) -> None:
        """Show the memory size in MB, that the board has been posted, and where the discovery table
        is, for drivers that do not find it (amdgpu_discovery.c of later kernels)."""
        for number, value in enumerate((discovery & 0xFFFF_FFFF, discovery >> 32, size)):
            self.set(f"BIF_BX0_DRIVER_SCRATCH_{number}", value)
        self.set("RCC_DEV0_EPF0_RCC_CONFIG_MEMSIZE", self.chip.vram.size >> 20)
        self.set("BIF_BX0_BIOS_SCRATCH_7", POSTED)

    # ---- indirect access ----------------------------------------------------------------------

    def _read_index(self, name: str) -> int:
        value = self.get(name)
        self._latched[name] = value
        return value

    def _target(self, name: str) -> int:
        """Return the dword index that an index register selects."""
        if self.chip.options.index_latch:
            address = self._latched.get(name, 0)
        else:
            address = self.get(name)
        if address & 3:
            self.chip.violation(f"{name} holds {address:#x}: not a multiple of 4")
        return address >> 2

    def _read_indirect(self, name: str) -> int:
        return self.chip.space.read(self._target(name))

    def _write_indirect(self, name: str, value: int) -> None:
        self.chip.space.write(self._target(name), value)

    def _vram_address(self) -> int | None:
        index = self.fields("BIF_BX_PF0_MM_INDEX")
        address = int(index.MM_OFFSET) | self.get("BIF_BX_PF0_MM_INDEX_HI") << 31
        if not index.MM_APER or address & 3 or address + 4 > self.chip.vram.size:
            self.chip.fault(f"MM_DATA with MM_INDEX {int(index):#x}: no such memory")
            return None
        return address

    def _read_vram(self) -> int:
        address = self._vram_address()
        return 0 if address is None else int.from_bytes(self.chip.hdp.read(address, 4), "little")

    def _write_vram(self, value: int) -> None:
        address = self._vram_address()
        if address is not None:
            self.chip.hdp.write(address, value.to_bytes(4, "little"))

    # ---- HDP flush ----------------------------------------------------------------------------

    def _remap(self, value: int) -> None:
        """Move the flush location to a byte offset of the register BAR."""
        place = (value & 0x7FFFC) >> 2
        space = self.chip.space
        if self._flush_location is not None:
            space.on_write_at(self._flush_location, None)
            self._flush_location = None
        if place == self.index("BIF_BX_PF0_HDP_MEM_COHERENCY_FLUSH_CNTL"):
            return  # its location without remapping
        owner = space.owner(place)
        if owner is not None:
            self.chip.fault(f"HDP flush moved onto a register, {owner[1]}")
            return
        self._flush_location = place
        space.on_write_at(place, self._flush)

    def _flush(self, _value: int) -> None:
        self.chip.hdp.flush()

    def _flush_request(self, value: int) -> None:
        """Flush the HDP for an engine or the driver; DONE shows each requester's bit."""
        self.chip.hdp.flush()
        self.set("BIF_BX_PF0_GPU_HDP_FLUSH_DONE", value & _FLUSH_UNITS)

    # ---- doorbells ----------------------------------------------------------------------------

    def doorbell(self, offset: int, value: int, width: int) -> None:
        """Handle a write to the doorbell BAR. width: in bytes, 4 or 8."""
        if not self.fields("RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN").BIF_DOORBELL_APER_EN:
            self._drop(offset, "the aperture is closed")
            return
        if self.chip.faults.doorbells_lost:
            return
        dword = offset >> 2
        slot = dword & ~1
        if width == 8:
            whole = value
        else:
            shift = 32 * (dword & 1)
            whole = self._doorbells.get(slot, 0) & ~(0xFFFF_FFFF << shift) | value << shift
        self._doorbells[slot] = whole
        for port, target in _TARGETS.items():
            if self._routed(port, target, slot) and self._deliver(port, slot, whole):
                return
        self._drop(offset, "no engine listens to it")

    def _routed(self, port: int, target: tuple[int, int], dword: int) -> bool:
        """Return whether a port takes a doorbell, cached by the port register's content."""
        entry = self.get(self._entries[port])
        known = self._routes.get((port, entry, dword))
        if known is None:
            if len(self._routes) >= MOST_ROUTES:
                self._routes.clear()
            known = self._routes[port, entry, dword] = self._takes(port, target, dword)
        return known

    def _takes(self, port: int, target: tuple[int, int], dword: int) -> bool:
        entry = self.fields(self._entries[port])
        prefix = f"S2A_DOORBELL_PORT{port}_"
        if not entry[prefix + "ENABLE"]:
            return False
        if (entry[prefix + "AWID"], entry[prefix + "AWADDR_31_28_VALUE"]) != target:
            return False
        # Ranges compare a doorbell's offset within its 4 KiB page: Linux allocates the doorbells of
        # processes so that they fall into the ranges (Linux 6.12 amdgpu_mes.c, doorbell_get).
        dword &= _PAGE_DWORDS - 1
        first, count = entry[prefix + "RANGE_OFFSET"], entry[prefix + "RANGE_SIZE"]
        # The constant the kernel writes for port 0 has size 0, meaning everything from the offset.
        return first <= dword and (count == 0 or dword < first + count)

    def _deliver(self, port: int, dword: int, value: int) -> bool:
        if port != _IH_PORT:
            self.chip.smu.graphics.ring("SDMA" if port == _SDMA_PORT else "the graphics core")
        if port == _SDMA_PORT:
            return any(engine.doorbell(dword, value) for engine in self.chip.sdma)
        if port == _IH_PORT:
            return self.chip.ih.doorbell(dword, value)
        return (
            port == _GFX_PORT and self.chip.gfx is not None and self.chip.gfx.doorbell(dword, value)
        )

    def _drop(self, offset: int, reason: str) -> None:
        self.dropped_doorbells += 1
        self.chip.fault(f"doorbell at {offset:#x} dropped: {reason}")
