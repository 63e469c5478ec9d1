"""NBIO and HDP: the bus interface. Doorbell routing, the HDP flush, and device straps.

Source: Linux 6.12 nbio_v4_3.c and hdp_v6_0.c.
"""

from __future__ import annotations

from ugpu.am.chip.chip import Chip
from ugpu.hcq.bare.chip import batched
from ugpu.hcq.registers.fields import BoundRegister

# Byte offset of the hole in the register BAR that the HDP flush registers are mapped to.
REMAP_OFFSET = 0x80000 - 0x1000
# Doorbell routes as the kernel writes them (nbio_v4_3.c, gc_doorbell_init): port 0 is GFX and MEC,
# port 3 the scheduler; AWID 3 and 6, AWADDR[31:28] 3.
_GC_ROUTE = 0x30000007
_SCHEDULER_ROUTE = 0x3000000D
_SDMA_AWID = 0xE
_SDMA_AWADDR = 3


class Nbio:
    """Drive NBIO and HDP of one chip."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.flush_index = REMAP_OFFSET // 4

    @batched
    def start(self) -> None:
        """Open the doorbell BAR and map the HDP flush registers into the register BAR."""
        nbio = self.chip.nbio
        # A function reset of the audio sibling must reach it (nbio_v4_3.c, init_registers).
        nbio.RCC_DEV0_EPF2_STRAP2.update(STRAP_NO_SOFT_RESET_DEV0_F2=0)
        nbio.BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL.write(REMAP_OFFSET)
        nbio.BIF_BX0_REMAP_HDP_REG_FLUSH_CNTL.write(REMAP_OFFSET + 4)
        nbio.RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN.update(BIF_DOORBELL_APER_EN=1)

    def stop(self) -> None:
        self.chip.nbio.RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN.update(BIF_DOORBELL_APER_EN=0)

    def route_interrupts(self, dummy_address: int) -> None:
        """Set the target of the IH's dummy read (a bus address) and how the IH requests.

        The register has 40 address bits. Dummy reads are off with message-signalled interrupts, the
        only kind used here, so higher bits may be cut off.
        """
        nbio = self.chip.nbio
        nbio.BIF_BX0_INTERRUPT_CNTL2.write(dummy_address >> 8 & 0xFFFF_FFFF)
        nbio.BIF_BX0_INTERRUPT_CNTL.update(IH_DUMMY_RD_OVERRIDE=0, IH_REQ_NONSNOOP_EN=0)

    def route_compute_doorbells(self) -> None:
        self._route(0).write(_GC_ROUTE)
        self._route(3).write(_SCHEDULER_ROUTE)

    def _route(self, port: int) -> BoundRegister:
        return self.chip.nbio[f"{self.chip.generation.doorbell_route}_{port}_CTRL"]

    @batched
    def route_sdma_doorbells(self, first: int, size: int) -> None:
        """Send the doorbell dwords [first, first+size) to the SDMA engines."""
        self._route(2).update(
            S2A_DOORBELL_PORT2_ENABLE=1,
            S2A_DOORBELL_PORT2_AWID=_SDMA_AWID,
            S2A_DOORBELL_PORT2_RANGE_OFFSET=first,
            S2A_DOORBELL_PORT2_RANGE_SIZE=size,
            S2A_DOORBELL_PORT2_AWADDR_31_28_VALUE=_SDMA_AWADDR,
        )

    def post_hdp(self) -> None:
        """Flush HDP before another posted write, to a doorbell or a register: that write stays
        behind the flush on the bus. See `flush_hdp`."""
        self.chip.bus.write32(self.flush_index, 0)

    def flush_hdp(self) -> None:
        """Make the host's writes through BAR0 visible to the chip.

        ORDER: the read of the memory size posts the write (hdp_v6_0.c).
        """
        self.chip.bus.write32(self.flush_index, 0)
        self.chip.memory_size_mb()
