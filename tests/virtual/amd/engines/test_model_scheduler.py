"""The scheduler of the virtual chip, worked by hand: pipes, frames, KIQ packets, mapped queues."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amd.virtual_engines import DATA, MQD, RING, Bench, high, low
from ugpu.virtual.amd.engines.cp.hqd import Slot
from ugpu.virtual.amd.engines.cp.mapping import KIQ_PIPE, SCHEDULER_PIPE, CannotMap
from ugpu.virtual.amd.engines.cp.mes_processes import Process, Processes, Resources
from ugpu.virtual.amd.engines.cp.pm4 import kernel
from ugpu.virtual.amd.engines.cp.queue import ComputeQueue
from ugpu.virtual.amd.engines.cp.state import Kind

KIQ_RING = RING + 0x1_0000
SCHEDULER_RING = RING + 0x2_0000
QUEUE_RING = RING + 0x3_0000
KIQ_MQD, SCHEDULER_MQD, QUEUE_MQD = MQD, MQD + 0x1000, MQD + 0x2000
WPTR, FENCE = DATA + 0x100, DATA + 0x200
CONTEXT = DATA + 0x1000
KIQ_DOORBELL, SCHEDULER_DOORBELL, QUEUE_DOORBELL = 0, 0x16, 0x20
SCRATCH = 0x2040 + 0xA000  # SCRATCH_REG0, gc_11_0_0_offset.h
RING_LOG2 = 9  # 1024 dwords


def header(opcode: int, count: int) -> int:
    return 3 << 30 | (count - 1) << 16 | opcode << 8


def compute_mqd(place: int, ring: int, doorbell: int) -> list[int]:
    """Dwords by struct v11_compute_mqd."""
    words = [0] * 512
    words[0] = 0xC0310800
    words[128], words[129] = low(place), high(place)
    words[136], words[137] = ring >> 8 & 0xFFFF_FFFF, ring >> 40
    words[139], words[140] = low(DATA), high(DATA)  # rptr report
    words[143] = doorbell << 2 | 1 << 30
    words[145] = 5 << 8 | RING_LOG2 | 1 << 27  # NO_UPDATE_RPTR
    words[165], words[166] = DATA >> 8 & 0xFFFF_FFFF, DATA >> 40  # EOP
    return words


def graphics_mqd(place: int, ring: int, doorbell: int) -> list[int]:
    """Dwords by struct v11_gfx_mqd."""
    words = [0] * 512
    words[128], words[129] = low(place), high(place)
    words[136], words[137] = ring >> 8 & 0xFFFF_FFFF, ring >> 40
    words[139], words[140] = low(DATA), high(DATA)
    words[143] = doorbell << 2 | 1 << 30
    words[145] = RING_LOG2
    return words


class Scheduler:
    """A bench with both pipes of ME 3 running and the KIQ active."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        bench.chip.psp.loaded.update(bench.chip.generation.commands.scheduler_firmware)
        bench.start_mec()
        for pipe in range(2):
            bench.select(pipe, me=3)
            bench.set("CP_MES_PRGRM_CNTR_START", 0xC00)
        bench.set("CP_MES_CNTL", 3 << 16)
        bench.set("CP_MES_CNTL", 3 << 26)
        bench.set("CP_ME_CNTL", 0)
        bench.set("CP_RB_DOORBELL_RANGE_LOWER", 0x458)
        bench.set("CP_RB_DOORBELL_RANGE_UPPER", 0x7F8)
        self.wptr = {KIQ_DOORBELL: 0, SCHEDULER_DOORBELL: 0, QUEUE_DOORBELL: 0}
        self.rings = {
            KIQ_DOORBELL: KIQ_RING,
            SCHEDULER_DOORBELL: SCHEDULER_RING,
            QUEUE_DOORBELL: QUEUE_RING,
        }
        self._activate_kiq()

    def _activate_kiq(self) -> None:
        bench = self.bench
        mqd = compute_mqd(KIQ_MQD, KIQ_RING, KIQ_DOORBELL)
        bench.store(KIQ_MQD, struct.pack("<512I", *mqd))
        bench.select(KIQ_PIPE, me=3)
        for name, dword in (
            ("CP_MQD_BASE_ADDR", 128), ("CP_MQD_BASE_ADDR_HI", 129), ("CP_HQD_PQ_BASE", 136),
            ("CP_HQD_PQ_BASE_HI", 137), ("CP_HQD_PQ_CONTROL", 145),
            ("CP_HQD_PQ_DOORBELL_CONTROL", 143),
        ):  # fmt: skip
            bench.set(name, mqd[dword])
        bench.set("CP_MQD_CONTROL", 0)
        bench.set("CP_HQD_ACTIVE", 1)

    def submit(self, doorbell: int, *packets: Sequence[int]) -> None:
        """Put words into a ring and ring its doorbell."""
        for word in (word for packet in packets for word in packet):
            self.bench.store(
                self.rings[doorbell] + 4 * self.wptr[doorbell], struct.pack("<I", word)
            )
            self.wptr[doorbell] += 1
        with self.bench.chip.lock:
            assert self.bench.gfx.doorbell(doorbell, self.wptr[doorbell])

    def queue(self, slot: Slot) -> ComputeQueue:
        """The slot's queue, which has to be there."""
        self.bench.wait(lambda: slot.active, "no queue in the slot")
        assert slot.active is not None
        return slot.active

    @property
    def kiq(self) -> Slot:
        return self.bench.gfx.mec.scheduler.slots[KIQ_PIPE]

    @property
    def scheduler(self) -> Slot:
        return self.bench.gfx.mec.scheduler.slots[SCHEDULER_PIPE]

    def map(self, kind: str, mqd: list[int], place: int, pipe: int = 0, queue: int = 0) -> None:
        """Submit MAP_QUEUES to the KIQ."""
        self.bench.store(place, struct.pack("<512I", *mqd))
        self.bench.store(WPTR, bytes(8))
        me, engine = {"compute": (1, 0), "graphics": (0, 4), "scheduler": (2, 5)}[kind]
        control = queue << 13 | pipe << 16 | me << 18 | engine << 26 | 1 << 29
        doorbell = mqd[143] >> 2 & 0x3FF_FFFF
        self.submit(KIQ_DOORBELL, [
            header(kernel.MAP_QUEUES, 6), control, doorbell << 2, low(place), high(place),
            low(WPTR), high(WPTR),
        ])  # fmt: skip

    def start_scheduler(self) -> None:
        """Map the scheduler's queue and tell it its resources."""
        mqd = compute_mqd(SCHEDULER_MQD, SCHEDULER_RING, SCHEDULER_DOORBELL)
        self.map("scheduler", mqd, SCHEDULER_MQD)
        self.queue(self.scheduler)
        resources = frame(0, status=50)
        resources[1:3] = [0xFF00, 0xFF00]
        resources[5:17] = [0xC] * 4 + [0] * 4 + [0xFFFF_FFFE, 0, 0xFC, 0xFC]
        resources[22:26] = [low(CONTEXT), high(CONTEXT)] * 2
        self.call(resources)

    def call(self, words: list[int]) -> None:
        """Submit a frame and wait for its fence."""
        self.bench.store(FENCE, bytes(8))
        self.submit(SCHEDULER_DOORBELL, words)
        queue = self.queue(self.scheduler)
        self.bench.wait(lambda: queue.hung or self.bench.qword(FENCE) == 1, "no fence")
        assert not queue.hung, queue.hung

    def hang(self, slot: Slot) -> str:
        """Why the slot's queue hangs; waits for it."""
        queue = self.queue(slot)
        self.bench.wait(lambda: queue.hung, "it does not hang")
        return queue.hung


def frame(opcode: int, status: int) -> list[int]:
    words = [0] * 64
    words[0] = 1 | opcode << 4 | 64 << 12
    words[status : status + 4] = [low(FENCE), high(FENCE), 1, 0]
    return words


def add_queue(kind: int, doorbell: int, mqd: int, *, legacy: bool, pipe: int = 0) -> list[int]:
    words = frame(2, 37)
    words[1] = 0x8001  # PASID
    words[10:12] = [low(CONTEXT), high(CONTEXT)]
    words[18:23] = [doorbell, low(mqd), high(mqd), low(WPTR), high(WPTR)]
    words[27] = kind
    words[35] = 0x1FFFE01
    words[36] = int(legacy) << 13
    words[48] = pipe
    return words


def remove_queue(doorbell: int, *, legacy: bool) -> list[int]:
    words = frame(3, 5)
    words[1], words[4] = doorbell, int(legacy) << 3
    return words


@pytest.fixture
def machine() -> Iterator[Scheduler]:
    bench = Bench(manual_time=False)
    yield Scheduler(bench)
    bench.close()


def scratch(machine: Scheduler, doorbell: int, value: int) -> None:
    """Let a queue write SCRATCH_REG0 and wait until it has."""
    index = machine.bench.chip.space.index("gc", "SCRATCH_REG0")
    machine.submit(doorbell, [header(0x79, 2), index - 0xC000, value])
    machine.bench.wait(lambda: machine.bench.get("SCRATCH_REG0") == value, "scratch")


def test_versions_are_read_behind_the_select_of_a_running_pipe(machine: Scheduler) -> None:
    bench = machine.bench
    for pipe in range(2):
        bench.select(pipe, me=3)
        assert bench.get("CP_MES_GP3_LO") & 0xFFF >= 0x47
    bench.select(0, me=1)
    assert bench.get("CP_MES_GP3_LO") == 0
    bench.set("CP_MES_CNTL", 1 << 30)
    bench.select(0, me=3)
    assert bench.get("CP_MES_GP3_LO") == 0


@pytest.mark.parametrize("lack", ["firmware", "reset", "start"])
def test_a_pipe_that_cannot_start_is_named(lack: str) -> None:
    bench = Bench(manual_time=False)
    try:
        if lack != "firmware":
            bench.chip.psp.loaded.update(bench.chip.generation.commands.scheduler_firmware)
        bench.select(0, me=3)
        bench.set("CP_MES_PRGRM_CNTR_START", 0x123 if lack == "start" else 0xC00)
        if lack != "reset":
            bench.set("CP_MES_CNTL", 1 << 16)
        bench.set("CP_MES_CNTL", 1 << 26)
        words = {"firmware": "its firmware", "reset": "pulse of its reset", "start": "0x123"}
        assert any(words[lack] in text for text in bench.chip.violations)
        assert bench.gfx.mec.scheduler.running(0) is (lack == "reset")
    finally:
        bench.close()


def test_the_kiq_takes_pm4_and_maps_a_compute_queue(machine: Scheduler) -> None:
    scratch(machine, KIQ_DOORBELL, 0xDEAD)
    mqd = compute_mqd(QUEUE_MQD, QUEUE_RING, QUEUE_DOORBELL)
    machine.submit(KIQ_DOORBELL, [header(kernel.SET_RESOURCES, 7), 10 << 16, 0xFF, 0, 0, 0, 0, 0])
    machine.map("compute", mqd, QUEUE_MQD, queue=1)
    machine.queue(machine.bench.gfx.mec.slots[0][1])
    scratch(machine, QUEUE_DOORBELL, 0xBEEF)
    assert machine.bench.active(0, 1) and not machine.bench.active(0, 0)
    machine.submit(
        KIQ_DOORBELL,
        [header(kernel.UNMAP_QUEUES, 5), 1 << 29, QUEUE_DOORBELL << 2, 0, 0, 0],
    )
    machine.bench.wait(lambda: not machine.bench.active(0, 1), "not unmapped")
    assert machine.bench.chip.violations == []


def test_a_graphics_queue_takes_state_and_refuses_draws(machine: Scheduler) -> None:
    doorbell = 0x116
    machine.rings[doorbell], machine.wptr[doorbell] = QUEUE_RING, 0
    machine.map("graphics", graphics_mqd(QUEUE_MQD, QUEUE_RING, doorbell), QUEUE_MQD)
    slot = machine.bench.gfx.mec.graphics.slots[0]
    machine.bench.wait(lambda: slot.active, "not mapped")
    queue = slot.active
    assert queue is not None
    machine.submit(doorbell, [header(0x4A, 1), 2 << 28], [header(0x28, 2), 1 << 31, 1 << 31],
                   [header(0x69, 3), 0, 7, 8], [header(0x12, 1), 0])  # fmt: skip
    scratch(machine, doorbell, 0xFEED)
    machine.submit(doorbell, [header(0x2D, 2), 3, 2])  # DRAW_INDEX_AUTO
    machine.bench.wait(lambda: queue.hung, "it drew")
    assert "(no draws)" in queue.hung


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([0xA2, 1 << 29 | 3 << 26], "not modelled"),  # SDMA by the KIQ
        ([0xA2, 1 << 29 | 1 << 18 | 3 << 16 | 7 << 13], "compute queue 3.7 does not exist"),
        ([0xA2, 2 << 29 | 1 << 18], "not modelled"),  # two queues at once
        ([0xA2, 1 << 29], "an ME that has no compute queues"),
        ([0xA3, 1 << 29, 0x999 << 2], "no queue uses doorbell 0x999"),
        ([0xA3, 1 << 29 | 3], "not modelled"),
    ],
)
def test_bad_requests_stop_the_kiq(machine: Scheduler, words: list[int], reason: str) -> None:
    opcode, *rest = words
    count = 6 if opcode == 0xA2 else 5
    machine.submit(KIQ_DOORBELL, [header(opcode, count), *rest, *[0] * (count - len(rest))])
    assert reason in machine.hang(machine.kiq)


def test_the_scheduler_maps_the_kernels_queue_and_fences(machine: Scheduler) -> None:
    machine.start_scheduler()
    mqd = compute_mqd(QUEUE_MQD, QUEUE_RING, QUEUE_DOORBELL)
    machine.bench.store(QUEUE_MQD, struct.pack("<512I", *mqd))
    machine.call(add_queue(1, QUEUE_DOORBELL, QUEUE_MQD, legacy=True, pipe=0))
    scratch(machine, QUEUE_DOORBELL, 0x1234)
    machine.call(remove_queue(QUEUE_DOORBELL, legacy=True))
    assert not machine.bench.active(0, 0)
    machine.call(frame(11, 2))  # QUERY_SCHEDULER_STATUS
    assert machine.bench.chip.violations == []


def test_the_scheduler_reads_writes_and_waits_for_registers(machine: Scheduler) -> None:
    machine.start_scheduler()
    index = machine.bench.chip.space.index("gc", "SCRATCH_REG0")
    write, read, wait = frame(14, 2), frame(14, 2), frame(14, 2)
    write[1], write[6:8] = 0, [index, 0xABCD]
    machine.call(write)
    assert machine.bench.get("SCRATCH_REG0") == 0xABCD
    read[1], read[6:9] = 3, [index, low(DATA + 0x300), high(DATA + 0x300)]
    machine.call(read)
    assert machine.bench.dword(DATA + 0x300) == 0xABCD
    # Write the first register, wait for the second under a mask narrower than what was written.
    wait[1], wait[6:11] = 4, [1, 0x1FF, 0xF, index, index]
    machine.call(wait)
    assert machine.bench.get("SCRATCH_REG0") == 0x1FF


def test_a_process_gets_a_vmid_and_a_slot_that_the_mask_allows(machine: Scheduler) -> None:
    machine.start_scheduler()
    mqd = compute_mqd(QUEUE_MQD, QUEUE_RING, QUEUE_DOORBELL)
    machine.bench.store(QUEUE_MQD, struct.pack("<512I", *mqd))
    machine.call(add_queue(1, QUEUE_DOORBELL, QUEUE_MQD, legacy=False))
    queue = machine.bench.gfx.mec.slots[0][2].active  # the first of mask 0xc
    assert queue is not None and queue.vmid == 8
    assert machine.bench.get("IH_VMID_8_LUT", "osssys") == 0x8001
    assert machine.bench.get("GCVM_CONTEXT8_CNTL") == 0x1FFFE01
    assert machine.bench.get("GCVM_CONTEXT8_PAGE_TABLE_BASE_ADDR_LO32") == 1
    machine.call(remove_queue(QUEUE_DOORBELL, legacy=False))
    assert machine.bench.gfx.mec.slots[0][2].active is None


@pytest.mark.parametrize("every", [False, True])
def test_a_queue_goes_on_where_it_was_suspended(machine: Scheduler, every: bool) -> None:
    """Its doorbell may ring meanwhile: the scheduler reads the write pointer in memory."""
    machine.start_scheduler()
    mqd = compute_mqd(QUEUE_MQD, QUEUE_RING, QUEUE_DOORBELL)
    machine.bench.store(QUEUE_MQD, struct.pack("<512I", *mqd))
    machine.bench.store(WPTR, bytes(8))
    gang, suspended = CONTEXT + 0x800, DATA + 0x310
    added = add_queue(1, QUEUE_DOORBELL, QUEUE_MQD, legacy=False)
    added[14:16] = [low(gang), high(gang)]
    machine.call(added)
    slots = machine.bench.gfx.mec.slots[0]
    suspend, resume = frame(6, 7), frame(7, 4)
    for words in (suspend, resume):
        words[1:4] = [1, 0, 0] if every else [0, low(gang), high(gang)]
    suspend[4:7] = [low(suspended), high(suspended), 0x51]
    machine.call(suspend)
    assert machine.bench.dword(suspended) == 0x51
    assert slots[2].active is None
    machine.call(suspend)  # nothing is left to suspend
    machine.submit(QUEUE_DOORBELL, [header(0x10, 1), 0])
    machine.bench.store(WPTR, struct.pack("<Q", machine.wptr[QUEUE_DOORBELL]))
    assert slots[2].active is None
    machine.call(resume)
    queue = slots[2].active
    assert queue is not None
    assert (queue.vmid, queue.wptr) == (8, machine.wptr[QUEUE_DOORBELL])


def test_the_scheduler_resets_a_queue_that_hangs(machine: Scheduler) -> None:
    machine.start_scheduler()
    mqd = compute_mqd(QUEUE_MQD, QUEUE_RING, QUEUE_DOORBELL)
    machine.bench.store(QUEUE_MQD, struct.pack("<512I", *mqd))
    reset = frame(8, 24)
    reset[1], reset[4] = 1, QUEUE_DOORBELL
    slots = machine.bench.gfx.mec.slots[0]
    for legacy in (True, False):
        machine.wptr[QUEUE_DOORBELL] = 0
        machine.bench.store(WPTR, bytes(8))
        machine.bench.store(QUEUE_MQD, struct.pack("<512I", *mqd))
        machine.call(add_queue(1, QUEUE_DOORBELL, QUEUE_MQD, legacy=legacy))
        slot = slots[0 if legacy else 2]
        machine.submit(QUEUE_DOORBELL, [header(0xFE, 2), 0, 0])  # no such packet
        assert machine.hang(slot)  # a process's ring is not mapped here, which hangs it too
        machine.call(reset)
        assert slot.active is None
        machine.call([*frame(7, 4)[:1], 1, *frame(7, 4)[2:]])  # RESUME leaves it alone
        assert slot.active is None
        if not legacy:
            machine.call(remove_queue(QUEUE_DOORBELL, legacy=False))
    machine.call(frame(11, 2))


def test_an_sdma_queue_of_a_process(machine: Scheduler) -> None:
    machine.start_scheduler()
    doorbell = 0xA00
    words = [0] * 512
    words[0] = 8 << 1 | 1 << 12 | 4 << 16
    words[1], words[2] = QUEUE_RING >> 8 & 0xFFFF_FFFF, QUEUE_RING >> 40
    words[7], words[8] = high(DATA), low(DATA)
    words[17], words[19] = 1 << 28, doorbell << 2
    machine.bench.store(QUEUE_MQD, struct.pack("<512I", *words))
    machine.call(add_queue(2, doorbell, QUEUE_MQD, legacy=False))
    engine = machine.bench.gfx.sdma[0]
    queue = engine.slots[2].queue
    assert queue is not None and queue.vmid == 8 and not queue.privileged
    machine.call(remove_queue(doorbell, legacy=False))
    assert engine.slots[2].queue is None
    assert machine.bench.get("SDMA0_QUEUE2_RB_CNTL") == 0x40800


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({0: 2 | 11 << 4 | 64 << 12}, "type 2"),
        ({0: 1 | 11 << 4 | 32 << 12}, "32 dwords"),
        ({0: 1 | 4 << 4 | 64 << 12}, "PERFORM_YIELD of the scheduler is not modelled"),
        ({0: 1 | 6 << 4 | 64 << 12, 1: 2}, "flags 0x2 are reserved"),
        ({0: 1 | 7 << 4 | 64 << 12, 2: 0x7000}, "no queue is of the gang 0x7000"),
        ({0: 1 | 8 << 4 | 64 << 12, 1: 2}, "RESET with flags 0x2 is not modelled"),
        ({0: 1 | 8 << 4 | 64 << 12, 1: 1, 4: 0x777}, "no queue uses doorbell 0x777"),
        ({0: 1 | 99 << 4 | 64 << 12}, "unknown opcode 99"),
        ({0: 1 | 3 << 4 | 64 << 12, 1: 0x777}, "no process has a queue with doorbell 0x777"),
        ({0: 1 | 14 << 4 | 64 << 12, 1: 10}, "MISC 10"),
        ({0: 1 | 14 << 4 | 64 << 12, 1: 9, 7: 1}, "MISC 9"),  # one process at a time
        ({0: 1 | 2 << 4 | 64 << 12, 27: 7}, "type 7"),
    ],
)
def test_bad_frames_stop_the_scheduler(
    machine: Scheduler, change: dict[int, int], reason: str
) -> None:
    machine.start_scheduler()
    words = [0] * 64
    for at, value in change.items():
        words[at] = value
    machine.submit(SCHEDULER_DOORBELL, words)
    assert reason in machine.hang(machine.scheduler)


def test_frames_before_the_resources_are_refused(machine: Scheduler) -> None:
    mqd = compute_mqd(SCHEDULER_MQD, SCHEDULER_RING, SCHEDULER_DOORBELL)
    machine.map("scheduler", mqd, SCHEDULER_MQD)
    machine.queue(machine.scheduler)
    machine.submit(SCHEDULER_DOORBELL, remove_queue(1, legacy=True))
    assert "SET_HW_RSRC must come first" in machine.hang(machine.scheduler)


def test_slots_and_vmids_run_out(machine: Scheduler) -> None:
    machine.start_scheduler()
    resources = Resources(0x300, (0xC, 0, 0, 0), (2, 0), (4, 4))
    with machine.bench.chip.lock:
        processes = Processes(machine.bench.gfx.mec, resources)

        def add(number: int, doorbell: int) -> None:
            mqd = compute_mqd(QUEUE_MQD, QUEUE_RING, doorbell)
            machine.bench.store(QUEUE_MQD, struct.pack("<512I", *mqd))
            process = Process(number, number << 12, 0, 0, 0, 0x1FFFE01)
            processes.add(process, Kind.COMPUTE, doorbell, QUEUE_MQD, WPTR)

        add(1, 0x20)
        with pytest.raises(CannotMap, match="in use"):
            add(1, 0x20)
        add(2, 0x22)
        with pytest.raises(CannotMap, match="no free slot"):
            add(2, 0x24)
        slot = processes.remove(0x22)
        assert isinstance(slot, Slot)
        slot.unmap(reset=True)
    machine.bench.wait(lambda: machine.bench.gfx.mec.slots[0][3].active is None, "not gone")
    with machine.bench.chip.lock:
        add(3, 0x24)  # the VMID of process 2 is free again
        with pytest.raises(CannotMap, match="no process"):
            processes.remove(0x22)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 0xFFFF_FFFF), min_size=64, max_size=64))
def test_any_frame_ends_in_a_fence_or_a_named_hang(words: list[int]) -> None:
    bench = Bench(manual_time=False)
    try:
        machine = Scheduler(bench)
        machine.start_scheduler()
        words[0] = 1 | (words[0] % 20) << 4 | 64 << 12
        if words[0] >> 4 & 0xFF == 14:
            words[1] = 9  # registers are anybody's; a write of noise to them is not the point
        machine.submit(SCHEDULER_DOORBELL, words)
        queue = machine.queue(machine.scheduler)
        bench.wait(lambda: queue.hung or not queue.busy, "the frame neither ends nor hangs")
        assert not any("bug in engine" in text for text in bench.chip.violations)
    finally:
        bench.close()
