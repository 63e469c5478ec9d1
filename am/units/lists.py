"""Lists of register accesses that the MEC executes, where an access from the host is a message.

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

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeAlias

from ugpu.am.chip import remedies as advice
from ugpu.am.chip.chip import Chip
from ugpu.am.packets.mqd import QueueMemory
from ugpu.am.packets.pm4 import Pm4
from ugpu.am.units.memory import Carveout
from ugpu.am.units.nbio import Nbio
from ugpu.hcq.bare.stages import or_silent
from ugpu.hcq.registers.fields import RegisterMap
from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.transport.base import DmaMemory
from ugpu.hcq.work.command import Symbol

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


class ListQueue:
    """A MEC queue that executes lists. The MEC runs, and the hubs translate. One thread uses the
    queue until the chip is set up; then the queue is idle until the MEC is reset.

    results: memory of at least `RESULTS_SIZE` bytes that the chip reaches at `address`, in VMID 0,
    and the host reads.
    """

    def __init__(
        self,
        chip: Chip,
        nbio: Nbio,
        carveout: Carveout,
        describe: Describe,
        results: Results,
        address: int,
    ) -> None:
        self.chip = chip
        self._describe = describe
        self._nbio = nbio
        self._carveout = carveout
        self._results = results
        self._address = address
        self._doorbell = 0  # dword index
        self._written = 0  # bytes of the ring
        self._number = 0  # of the last list
        self._load: Callable[[], object] | None = None  # see `describe`
        self._descriptor = b""  # padded with zeros up to the ring
        self._foreseen: dict[_Place, int] = {}  # values read for the next list

    def describe(self, load: Callable[[Struct], object]) -> None:
        """Make the queue's descriptor. `load` activates the queue with it before the first list,
        when both are in memory. The ring is empty again."""
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

    def run(self, words: Sequence[int], count: int = 0) -> list[int]:
        """Execute packets; return the `count` values that they stored with `store`."""
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

    def zero(self, address: int, size: int) -> None:
        """As a step of `execute`: zero memory by its address in VMID 0. The MEC's caches must not
        contain any of it."""
        assert self.chip.bus.recorder is not None
        self.chip.bus.recorder.fill(address, size)

    def put(self, place: int, content: bytes) -> None:
        """As a step of `execute`: write whole dwords of VRAM that the MEC's caches do not have."""
        assert self.chip.bus.recorder is not None
        words = [word for (word,) in struct.iter_unpack("<I", content)]
        self.chip.bus.recorder.put(self._carveout.mc(place), words)

    def place(self, number: int) -> Symbol:
        """Return where a list stores its value `number`, from 1 on; the mark is 0."""
        return Symbol.constant(self._address + 4 * number)

    def fetch(self, wanted: Sequence[_Place]) -> dict[_Place, int]:
        """Read registers, each under its selection; the last selection stays active."""
        found: dict[_Place, int] = {}
        selected: int | None = None
        for start in range(0, len(wanted), RESULTS):
            part, packets = wanted[start : start + RESULTS], Pm4()
            for number, (selection, index) in enumerate(part, 1):
                if selection is not None and selection != selected:
                    packets.write_register(self.selector, selection)
                    selected = selection
                packets.store_register(self.place(number), index)
            found.update(zip(part, self.run(packets.words, len(part)), strict=True))
        return found

    @property
    def selector(self) -> int:
        """Index of GRBM_GFX_INDEX, the register that selects shader arrays."""
        return self.chip.gc.GRBM_GFX_INDEX.index

    def execute(
        self,
        *steps: Callable[[], object],
        read: Sequence[int] = (),
        foresee: Sequence[Callable[[], object]] = (),
    ) -> list[int]:
        """Have the MEC do the register accesses of `steps`, in order. Steps only read, change and
        await registers. Each step is called twice: to find out what it reads, and with those
        values. Values that steps keep are passed to them at the end. read: places in VRAM to read
        after the steps; returns their content. foresee: steps of the next lists. What they will
        read is read now, except for registers that `steps` change. Nothing else may change it
        meanwhile."""
        bus = self.chip.bus
        look, ahead = _Reads(self.selector), _Reads(self.selector)
        for reads, those in ((look, steps), (ahead, foresee)):
            with bus.recorded(reads):
                for step in those:
                    step()
        if look.selection is not None:
            look.want(look.selection, self.selector)  # so that the fetch leaves it selected
        known, self._foreseen = self._foreseen, {}
        wanted = [each for each in ahead.wanted | look.wanted if each not in known]
        known |= self.fetch(wanted) if wanted else {}
        self._foreseen = {each: known[each] for each in ahead.wanted}
        with bus.recorded(record := _Record(self, known)):
            for step in steps:
                step()
        for each in [each for each in self._foreseen if each[1] in record.changed]:
            self._foreseen.pop(each)
        for place in read:
            record.read_word(self._carveout.mc(place))
        return record.run()


_Place: TypeAlias = tuple[
    int | None, int
]  # GRBM_GFX_INDEX's selection (None: as it is), register index


class _Reads:
    """Recorder that finds the registers that are read before they are written; they read as 0."""

    def __init__(self, selector: int) -> None:
        self.wanted: dict[_Place, None] = {}
        self.selection: int | None = None
        self._selector = selector
        self._written: dict[int, int] = {}

    def want(self, selection: int | None, index: int) -> None:
        self.wanted[selection, index] = None

    def read32(self, index: int) -> int:
        if index in self._written:
            return self._written[index]
        self.want(self.selection, index)
        return 0

    def write32(self, index: int, value: int) -> None:
        if index == self._selector:
            self.selection = value
        else:
            self._written[index] = value

    def wait(self, index: int, mask: int, value: int, *, differs: bool = False) -> None:
        """Do nothing: the wait is recorded later."""

    def keep(self, index: int, take: Callable[[int], object]) -> None:
        """Do nothing: the value is not known yet."""

    def fill(self, address: int, size: int) -> None:
        """Do nothing: this reads no register."""

    def put(self, address: int, words: Sequence[int]) -> None:
        """Do nothing: this reads no register."""


class _Record:
    """Recorder that makes a list of writes and waits. A read of an unknown value (where the course
    depends on a value) ends the list and begins another one."""

    def __init__(self, queue: ListQueue, known: dict[_Place, int]) -> None:
        self.packets = Pm4()
        self._queue = queue
        self._known = known
        self._selection: int | None = None
        self.changed: set[int] = set()  # registers that are written or awaited
        self._takers: list[Callable[[int], object] | None] = []  # of values; None: `run` returns it

    def read32(self, index: int) -> int:
        place = self._selection, index
        if place not in self._known:
            self.run()
            self._known.update(self._queue.fetch([place]))
        return self._known[place]

    def write32(self, index: int, value: int) -> None:
        if index == self._queue.selector:
            self._selection = value
        self.changed.add(index)
        self._known[self._selection, index] = value
        self.packets.write_register(index, value)

    def wait(self, index: int, mask: int, value: int, *, differs: bool = False) -> None:
        """Poll the register's bits; its content is unknown afterwards."""
        self.changed.add(index)
        self._known.pop((self._selection, index), None)
        self.packets.wait_register(index, mask, value, differs=differs)

    def keep(self, index: int, take: Callable[[int], object]) -> None:
        """Store the register with the list's values."""
        self.packets.store_register(self._queue.place(self._results(take)), index)

    def read_word(self, address: int) -> None:
        """Store a word of memory with the list's values; `run` returns it."""
        self.packets.copy_word(self._queue.place(self._results(None)), address)

    def _results(self, take: Callable[[int], object] | None) -> int:
        """Return the number of the next value."""
        assert len(self._takers) < RESULTS
        self._takers.append(take)
        return len(self._takers)

    def fill(self, address: int, size: int) -> None:
        self.packets.fill(Symbol.constant(address), 0, size)

    def put(self, address: int, words: Sequence[int]) -> None:
        self.packets.store_words(Symbol.constant(address), words)

    def run(self) -> list[int]:
        """Execute the packets made so far, and pass the kept values to their takers."""
        packets, self.packets = self.packets, Pm4()
        takers, self._takers = self._takers, []
        words: list[int] = []
        values = self._queue.run(packets.words, len(takers)) if packets.words else []
        for take, value in zip(takers, values, strict=True):
            if take is None:
                words.append(value)
            else:
                take(value)
        return words
