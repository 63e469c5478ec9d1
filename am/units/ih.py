"""IH: the interrupt ring, through which every block reports.

Pointers are byte offsets; an entry is 32 bytes. Source: Linux 6.12 ih_v6_0.c (set-up, overflow),
amdgpu_ih.c (entry layout).
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass

from ugpu.am.chip.chip import Chip
from ugpu.am.units.nbio import Nbio
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.bare.chip import batched
from ugpu.hcq.bare.space import Mapping

log = logging.getLogger(__name__)

RING_SIZE = 0x10000  # bytes, 2048 entries
ENTRY_SIZE = 32
_WRITEBACK = RING_SIZE  # the write pointer's copy lies behind the ring, in the same mapping
MEMORY_SIZE = RING_SIZE + 4096
_MC_SPACE_VIRTUAL = 4  # ring addressed in VMID 0, as the kernel's ring is
_STORM_DELAY = 3
_OVERFLOW = 1
_ENTRY = struct.Struct("<8I")


@dataclass(frozen=True)
class Interrupt:
    """One decoded entry."""

    client: int
    source: int
    ring: int
    vmid: int
    mmhub: bool  # vmid_src: which hub's VMID
    timestamp: int
    pasid: int
    data: tuple[int, int, int, int]

    @staticmethod
    def decode(raw: bytes | memoryview) -> Interrupt:
        word = _ENTRY.unpack(raw)
        return Interrupt(
            client=word[0] & 0xFF,
            source=word[0] >> 8 & 0xFF,
            ring=word[0] >> 16 & 0xFF,
            vmid=word[0] >> 24 & 0xF,
            mmhub=bool(word[0] >> 31),
            timestamp=word[1] | (word[2] & 0xFFFF) << 32,
            pasid=word[3] & 0xFFFF,
            data=word[4:8],
        )

    @property
    def queue(self) -> tuple[int, int, int]:
        """Micro engine, pipe and queue, for sources of the command processor."""
        return self.ring >> 2 & 3, self.ring & 3, self.ring >> 4 & 7


class Ih:
    """Drive ring 0. `memory` is HOST memory of MEMORY_SIZE bytes, mapped in VMID 0."""

    def __init__(self, chip: Chip, nbio: Nbio, memory: Mapping) -> None:
        self.chip = chip
        self.nbio = nbio
        self.memory = memory
        self.ring = memory.view[:RING_SIZE]
        self.writeback = memory.view[_WRITEBACK : _WRITEBACK + 4]
        self.read_pointer = 0
        self.overflows = 0
        self._processes: dict[int, int] = {}  # VMID -> PASID

    @property
    def pointer(self) -> Mapping:
        """The memory of the write pointer's copy, which is zero when the ring starts. Entries
        beyond the pointer are not read."""
        return self.memory.part(_WRITEBACK, 4)

    @batched
    def start(self, dummy_address: int) -> None:
        """As a step: set the ring up and switch interrupts on. dummy_address: a bus address to read
        from."""
        self.stop()
        self.nbio.route_interrupts(dummy_address)
        ih = self.chip.osssys
        address = self.memory.address
        # The ring is off: its registers are written in the order of their addresses.
        ih.IH_RB_CNTL.update(
            MC_SPACE=_MC_SPACE_VIRTUAL,
            WPTR_OVERFLOW_CLEAR=1,
            WPTR_OVERFLOW_ENABLE=1,
            RB_SIZE=(RING_SIZE // 4).bit_length() - 1,
            WPTR_WRITEBACK_ENABLE=1,
            MC_SNOOP=1,
            MC_RO=0,
            MC_VMID=0,
            RPTR_REARM=1 if self.chip.transport.interrupts is not None else 0,
        )
        writeback = address + _WRITEBACK
        ih.IH_RB_BASE.write(address >> 8 & 0xFFFF_FFFF)
        ih.IH_RB_BASE_HI.write(address >> 40 & 0xFF)
        ih.IH_RB_RPTR.write(0)
        ih.IH_RB_WPTR.write(0)
        ih.IH_RB_WPTR_ADDR_HI.write(writeback >> 32 & 0xFFFF)
        ih.IH_RB_WPTR_ADDR_LO.write(writeback & 0xFFFF_FFFF)
        ih.IH_DOORBELL_RPTR.write(0)  # the read pointer goes through its register
        ih.IH_STORM_CLIENT_LIST_CNTL.update(CLIENT18_IS_STORM_CLIENT=1)
        ih.IH_INT_FLOOD_CNTL.update(FLOOD_CNTL_ENABLE=1)
        ih.IH_MSI_STORM_CTRL.update(DELAY=_STORM_DELAY)
        # The overflow bit clears on the 0 to 1 edge, and must be 0 for the next overflow to show.
        ih.IH_RB_CNTL.update(RB_ENABLE=1, WPTR_OVERFLOW_CLEAR=0)
        ih.IH_RB_CNTL.update(WPTR_OVERFLOW_CLEAR=1)
        ih.IH_RB_CNTL.update(WPTR_OVERFLOW_CLEAR=0, ENABLE_INTR=1)
        self.read_pointer = 0
        for vmid, pasid in self._processes.items():
            self._write_name(vmid, pasid)

    def name(self, vmid: int, pasid: int) -> None:
        """Make entries of a VMID carry a PASID, even after the ring is started again; 0 ends that
        (Linux 6.12 amdgpu_amdkfd_gfx_v11.c, set_pasid_vmid_mapping_v11)."""
        self._processes[vmid] = pasid
        if not pasid:
            self._processes.pop(vmid)
        self._write_name(vmid, pasid)

    def _write_name(self, vmid: int, pasid: int) -> None:
        self.chip.osssys[f"IH_VMID_{vmid}_LUT"].write(PASID=pasid)

    def stop(self) -> None:
        """Switch both rings off; ring 1 stays off."""
        ih = self.chip.osssys
        ih.IH_RB_CNTL.update(RB_ENABLE=0, ENABLE_INTR=0)
        ih.IH_RB_RPTR.write(0)
        ih.IH_RB_WPTR.write(0)
        ih.IH_RB_CNTL_RING1.update(RB_ENABLE=0)
        self.read_pointer = 0

    def close(self) -> None:
        """Release the views of the ring's memory, which its owner frees."""
        self.ring.release()
        self.writeback.release()

    def drain(self) -> list[Interrupt]:
        """Take all entries that have arrived. Reads host memory once if there are none."""
        pointer = int.from_bytes(self.writeback, "little")
        if pointer == self.read_pointer:
            return []
        if pointer == ALL_ONES:  # memory behind a link that is gone
            self.chip.check_present("reading the interrupt ring")
        if pointer & _OVERFLOW:
            # The copy keeps the bit until the next entry is written, the register until it is
            # cleared.
            pointer = int(self.chip.osssys.IH_RB_WPTR.read())
        if pointer & _OVERFLOW:
            self._overflowed(pointer & RING_SIZE - 1 & ~_OVERFLOW)
        pointer &= RING_SIZE - 1 & ~_OVERFLOW
        entries = []
        while self.read_pointer != pointer:
            start = self.read_pointer
            end = pointer if pointer > start else RING_SIZE
            raw = bytes(self.ring[start:end])
            for at in range(0, end - start, ENTRY_SIZE):
                entries.append(Interrupt.decode(raw[at : at + ENTRY_SIZE]))
            self.read_pointer = end % RING_SIZE
        self.chip.osssys.IH_RB_RPTR.write(self.read_pointer)
        return entries

    @property
    def crowded(self) -> bool:
        """Return whether the ring is half full, as far as the host knows, and must be drained. One
        read of host memory."""
        pointer = int.from_bytes(self.writeback, "little")
        return (pointer - self.read_pointer) % RING_SIZE > RING_SIZE // 2

    def _overflowed(self, pointer: int) -> None:
        """Note that entries were lost, and go on behind the oldest one that still exists."""
        ih = self.chip.osssys
        self.read_pointer = (pointer + ENTRY_SIZE) % RING_SIZE
        self.overflows += 1
        log.warning("interrupt ring overflow: entries were lost")
        ih.IH_RB_CNTL.update(WPTR_OVERFLOW_CLEAR=1)
        ih.IH_RB_CNTL.update(WPTR_OVERFLOW_CLEAR=0)
