"""Lists of register accesses that the MEC executes, where an access from the host is a message
(hcq.bare.program).

Behind a USB bridge each register read takes two transfers and each write one, because registers
apart from each other cannot share one. Once the MEC runs, one of its queues, in VMID 0, executes
lists of accesses: six transfers each, whatever their length. The values that are read, and the mark
of the end, go to host memory that one transfer reads.

Source: Linux 6.12 gfx_v11_0.c: ring_emit_wreg, ring_emit_reg_wait and ring_emit_rreg, with which
the kernel lets a compute queue with PRIV_STATE and KMD_QUEUE access registers. Such a queue also
reaches registers outside the graphics core: gmc_v11_0.c flushes MMHUB's TLB this way, and under
SR-IOV all accesses of the kernel go there (amdgpu_kiq_wreg). UNSURE: whether HDP, ATHUB, IH, NBIO,
THM and MP1 take accesses from a queue on every board; a boot behind a bridge shows it. What
GRBM_GFX_CNTL selects for the host does not apply to the MEC: the host accesses banked registers
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from ugpu.am.chip import remedies as advice
from ugpu.am.chip.chip import Chip
from ugpu.am.packets.mqd import QueueMemory
from ugpu.am.packets.pm4 import Pm4
from ugpu.am.units.memory import Carveout
from ugpu.am.units.nbio import Nbio
from ugpu.hcq.bare.program import CardPrograms
from ugpu.hcq.bare.stages import or_silent
from ugpu.hcq.registers.fields import RegisterMap
from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.transport.base import DmaMemory
from ugpu.hcq.work.command_buffer import Symbol

RING_SIZE = 0x8000  # bytes; one list after the other, without wrapping around
EOP_SIZE = 4096
RESULTS = 120  # values of one list; a transfer reads 63 dwords, the first is the mark
RESULTS_SIZE = 4 * (1 + RESULTS)
# TIMEOUT: a list has no work of its own; its waits are for acknowledgements of 0.1 s at most.
_LIMIT_S = 2.0

Describe = Callable[[QueueMemory, RegisterMap], Struct]


class Results(Protocol):
    """Where lists put their values; see hcq.transport.bulk.BulkMemory."""

    def read_results(self, size: int) -> bytes: ...
    def clear_results(self) -> None: ...


class PageResults:
    """Results in DMA memory, of a transport that has some although its accesses are messages."""

    def __init__(self, memory: DmaMemory) -> None:
        self._memory = memory

    def read_results(self, size: int) -> bytes:
        """See Results."""
        return bytes(self._memory.view[:size])

    def clear_results(self) -> None:
        """See Results."""
        self._memory.view[:4] = bytes(4)


class ListQueue(CardPrograms):
    """A MEC queue that executes lists. The MEC runs, and the hubs translate. One thread uses the
    queue until the chip is set up; then the queue is idle until the MEC is reset.

    data: memory of at least `RESULTS_SIZE` bytes that the chip reaches at `address`, in VMID 0,
    and the host reads.
    """

    results = RESULTS

    def __init__(
        self,
        chip: Chip,
        nbio: Nbio,
        carveout: Carveout,
        describe: Describe,
        data: Results,
        address: int,
    ) -> None:
        super().__init__(chip, nbio.post_hdp)
        self.chip: Chip = chip
        self._describe = describe
        self._nbio = nbio
        self._carveout = carveout
        self._results = data
        self._address = address
        self._doorbell = 0  # dword index
        self._written = 0  # bytes of the ring
        self._number = 0  # of the last list
        self._load: Callable[[], object] | None = None  # see `attach`
        self._descriptor = b""  # padded with zeros up to the ring

    def attach(self, load: Callable[[Struct], object]) -> None:
        """See HostPrograms. `load` activates the queue with its descriptor before the first list,
        when both are in memory. The ring is empty again."""
        if not self.collects:
            return
        place = self._carveout
        doorbell = (self.chip.generation.doorbells.compute_ring0 + 1) * 2
        self._doorbell, self._written = doorbell, 0
        self._results.clear_results()  # of another driver's lists
        descriptor = self._describe(
            QueueMemory(
                mqd=place.mc(place.list_mqd),
                ring=place.mc(place.list_ring),
                ring_size=RING_SIZE,
                read_pointer=place.mc(place.list_pointers),
                write_pointer=place.mc(place.list_pointers + 64),
                eop=place.mc(place.list_eop),
                eop_size=EOP_SIZE,
                doorbell=doorbell,
                vmid=0,
            ),
            self.chip.gc.map,
        )
        control = self.chip.gc.CP_HQD_PQ_CONTROL.register
        descriptor.cp_hqd_pq_control = int(
            control.insert(descriptor.cp_hqd_pq_control, {"PRIV_STATE": 1, "KMD_QUEUE": 1})
        )
        self._descriptor = bytes(descriptor).ljust(place.list_ring - place.list_mqd, b"\0")
        self._load = partial(load, descriptor)

    def run_packets(self, words: Sequence[int], count: int = 0) -> list[int]:
        """See CardPrograms."""
        self._number += 1
        end = Pm4()
        end.store(self.place(0), self._number)
        image = b"".join(word.to_bytes(4, "little") for word in (*words, *end.words))
        start, self._written = self._written, self._written + len(image)
        assert self._written <= RING_SIZE
        load, self._load = self._load, None
        if load is not None:
            start, image = start - len(self._descriptor), self._descriptor + image
        with self.chip.bus.recorded(None):
            self.chip.vram.write(self._carveout.list_ring + start, image)
            self._nbio.post_hdp()
            if load is not None:
                load()
            if load is not None:
                self.chip.doorbells.write64(4 * self._doorbell, self._written // 4)
            else:  # the high half stays
                self.chip.doorbells.write32(4 * self._doorbell, self._written // 4)
            return self._await(count)

    def _await(self, count: int) -> list[int]:
        """Wait for the mark. It is stored after the values, at the place before them."""
        size = 4 * (1 + count)

        def probe() -> list[int] | None:
            raw = self._results.read_results(size)
            values = [int.from_bytes(raw[at : at + 4], "little") for at in range(0, size, 4)]
            return values if values[0] == self._number else None

        def state() -> dict[str, int]:
            self.chip.check_present("waiting for a list of register accesses")
            return {}

        text = "the MEC has not executed a list of register accesses"
        with or_silent(text, state, unit="MEC", limit_s=_LIMIT_S, remedy=advice.MODE1):
            found = self.chip.clock.wait_until(
                probe, unit="MEC", waiting_for="the end of a list of registers", limit_s=_LIMIT_S
            )
        return found[1:]

    def place(self, number: int) -> Symbol:
        """Return where a list stores its value `number`, from 1 on; the mark is 0."""
        return Symbol.constant(self._address + 4 * number)

    @property
    def selector(self) -> int:
        """Index of GRBM_GFX_INDEX, the register that selects shader arrays."""
        return self.chip.gc.GRBM_GFX_INDEX.index

    def packets(self) -> Pm4:
        """See CardPrograms."""
        return Pm4()

    def address(self, vram: int) -> int:
        """See CardPrograms."""
        return self._carveout.mc(vram)
