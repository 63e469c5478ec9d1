"""Queue slots: selects, activation, doorbells, pointers, dequeue, resets, removal."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import pytest

from tests.support.amd.virtual_engines import (
    DATA,
    DOORBELL_DWORD,
    MQD,
    RING,
    RING_DWORDS,
    RPTR_REPORT,
    UNMAPPED,
    WPTR_POLL,
    Bench,
    high,
    low,
    spin_until_aborted,
)
from ugpu.virtual.amd.engines.engine import Stopped
from ugpu.virtual.shader.memory import Abort

WRITE = [0xC0033700, 0x00100500, low(DATA), high(DATA)]
BAD = [0xC000FF00, 0]
FOREVER = [0xC0053C00, 0x13, low(DATA), high(DATA), 0x5EED, 0xFFFFFFFF, 4]  # never met


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


@pytest.fixture
def ready(bench: Bench) -> Bench:
    bench.start_mec()
    bench.activate()
    return bench


def test_boot_status_follows_autoload() -> None:
    bench = Bench()
    chip = bench.chip
    assert bench.get("RLC_RLCS_BOOTLOAD_STATUS") >> 31 == 1
    assert bench.get("CP_STAT") == 0
    chip.power_cycle()
    assert bench.get("RLC_RLCS_BOOTLOAD_STATUS") == 0
    with chip.lock:
        chip.autoload()
    assert bench.get("CP_STAT") != 0
    assert bench.get("RLC_RLCS_BOOTLOAD_STATUS") >> 31 == 0
    bench.advance(1)
    assert bench.get("CP_STAT") == 0
    assert bench.get("RLC_RLCS_BOOTLOAD_STATUS") >> 31 == 1
    assert bench.get("CP_MEC_RS64_CNTL") == 0x40000000  # halted
    bench.close()


def test_autoload_can_be_planned_to_fail(bench: Bench) -> None:
    bench.chip.power_cycle()
    bench.chip.faults.autoload_never = True
    with bench.chip.lock:
        bench.chip.autoload()
    bench.advance(60)
    assert bench.get("RLC_RLCS_BOOTLOAD_STATUS") >> 31 == 0
    assert bench.get("CP_STAT") != 0


def test_safe_mode_clears_its_command(bench: Bench) -> None:
    bench.set("RLC_SAFE_MODE", 3)  # CMD, MESSAGE 1: enter
    assert bench.get("RLC_SAFE_MODE") & 1
    bench.advance(1)
    assert bench.get("RLC_SAFE_MODE") & 1 == 0
    bench.set("RLC_CNTL", 0)
    bench.set("RLC_SAFE_MODE", 1)
    bench.advance(1)
    assert bench.get("RLC_SAFE_MODE") & 1  # nobody is there to answer


def test_selects_bank_queues_and_vmids(bench: Bench) -> None:
    bench.select(pipe=1, queue=2)
    bench.set("CP_HQD_PQ_BASE", 0x1111)
    bench.select(pipe=1, queue=3)
    assert bench.get("CP_HQD_PQ_BASE") == 0
    bench.select(pipe=1, queue=2)
    assert bench.get("CP_HQD_PQ_BASE") == 0x1111
    for vmid in range(16):
        bench.select(me=0, vmid=vmid)
        bench.set("SH_MEM_BASES", vmid << 16 | 2)
    bench.select(me=0, vmid=5)
    assert bench.get("SH_MEM_BASES") == 5 << 16 | 2
    assert bench.gfx.mec.apertures(5) == (5 << 48, 2 << 48)
    assert bench.chip.violations == []


def test_a_leaked_select_is_noticed(bench: Bench) -> None:
    bench.select(me=0)
    bench.set("CP_HQD_ACTIVE", 1)
    assert "GRBM_GFX_CNTL selects me 0" in bench.chip.violations[0]
    assert bench.active() == 0


def test_a_fence_frees_its_place_in_the_ring(ready: Bench) -> None:
    """The read pointer moves packet by packet: what a driver learns by a fence is not an overrun,
    although packets that were fetched with the fence still wait."""
    ready.push([*WRITE, 7])
    ready.push(FOREVER)
    ready.ring()
    ready.wait(ready.asleep, "the queue does not wait")
    assert ready.dword(DATA) == 7 and ready.queue().rptr == 5 + len(FOREVER)
    ready.push([0xC000_1000 | (RING_DWORDS - 3) << 16, *[0] * (RING_DWORDS - 2)])
    ready.ring()  # to the end of the ring and on to the place of the first packet
    assert ready.queue().wptr - ready.queue().rptr <= RING_DWORDS
    assert ready.chip.violations == []
    ready.store(DATA, struct.pack("<I", 0x5EED))
    ready.wait(ready.idle, "the queue does not go on")


def test_the_engine_survives_an_overrun(ready: Bench) -> None:
    """Pointers are modular, whatever the driver does: here during a packet that waits."""
    ready.submit(FOREVER, wait=False)
    ready.wait(ready.asleep, "the queue does not wait")
    with ready.chip.lock:
        assert ready.gfx.doorbell(DOORBELL_DWORD, 3 * RING_DWORDS + 2)
    ready.store(DATA, struct.pack("<I", 0x5EED))
    assert "header 0x" in ready.hung()  # it goes on with what the ring's places hold: zeros
    text = "\n".join(ready.chip.violations)
    assert "dwords ahead of rptr" in text and "Error" not in text


def test_doorbell_runs_the_queue_and_latches_hit(ready: Bench) -> None:
    ready.submit([*WRITE, 7])
    assert ready.dword(DATA) == 7
    ready.select()
    assert ready.get("CP_HQD_PQ_DOORBELL_CONTROL") >> 31 == 1
    assert ready.dword(RPTR_REPORT) == 5
    assert ready.get("CP_HQD_PQ_RPTR") == 5
    assert ready.get("CP_HQD_PQ_WPTR_LO") == 5
    assert ready.chip.violations == []


@pytest.mark.parametrize("dword", [DOORBELL_DWORD + 2, 0x200, 0x116])
def test_doorbells_of_others_are_not_taken(ready: Bench, dword: int) -> None:
    with ready.chip.lock:
        assert not ready.gfx.doorbell(dword, 5)


def test_doorbell_outside_the_range_is_lost(ready: Bench) -> None:
    ready.set("CP_MEC_DOORBELL_RANGE_UPPER", DOORBELL_DWORD * 4 - 8)
    ready.push([*WRITE, 7])
    with ready.chip.lock:
        assert not ready.gfx.doorbell(DOORBELL_DWORD, ready.wptr)
    assert ready.dword(DATA) == 0


def test_doorbell_when_doorbells_are_off(ready: Bench) -> None:
    ready.set("CP_PQ_STATUS", 0)
    with ready.chip.lock:
        assert not ready.gfx.doorbell(DOORBELL_DWORD, 5)


def test_stray_doorbell_interrupts_if_enabled(ready: Bench) -> None:
    ready.set("CP_INT_CNTL", 1 << 11)
    with ready.chip.lock:
        assert not ready.gfx.doorbell(8, 5)
    assert [entry[:2] for entry in ready.interrupts()] == [(0x14, 200)]


def test_wptr_by_register_and_by_polling(ready: Bench) -> None:
    ready.push([*WRITE, 7])
    ready.select()
    ready.set("CP_HQD_PQ_WPTR_LO", ready.wptr)
    ready.wait(ready.idle)
    assert ready.dword(DATA) == 7
    ready.set("CP_PQ_WPTR_POLL_CNTL", 1 << 31)
    ready.push([*WRITE, 8])
    ready.store(WPTR_POLL, struct.pack("<Q", ready.wptr))
    ready.set("CP_HQD_PQ_WPTR_LO", 5)  # wakes the poller once
    ready.wait(lambda: ready.dword(DATA) == 8)


def test_overrun_and_backward_pointers_are_noticed(ready: Bench) -> None:
    with ready.chip.lock:
        ready.gfx.doorbell(DOORBELL_DWORD, 2 * RING_DWORDS)
        assert "dwords ahead" in ready.chip.violations[0]
        ready.gfx.doorbell(DOORBELL_DWORD, 1)
        assert "moved back" in ready.chip.violations[1]


def test_activation_checks(bench: Bench) -> None:
    bench.start_mec()
    bench.activate(
        CP_MQD_BASE_ADDR=low(MQD) + 4,
        CP_HQD_EOP_BASE_ADDR=0,
        CP_HQD_EOP_BASE_ADDR_HI=0,
        CP_HQD_PQ_BASE=0,
        CP_HQD_PQ_BASE_HI=0,
        CP_HQD_PQ_WPTR_POLL_ADDR=low(WPTR_POLL) + 4,
        CP_HQD_VMID=3,
    )
    text = "\n".join(bench.chip.violations)
    for part in ("multiple of 256 bytes", "EOP buffer", "without a ring", "not aligned", "VMID 3"):
        assert part in text


def test_mqd_is_read_when_the_first_work_comes(bench: Bench) -> None:
    bench.start_mec()
    bench.activate()
    bench.select()
    bench.set("CP_HQD_DEQUEUE_REQUEST", 1)
    bench.wait(bench.gone)
    bench.store(MQD, b"\0" * 4)
    bench.select()
    bench.set("CP_HQD_ACTIVE", 1)
    assert bench.chip.violations == []
    bench.submit([*WRITE, 7])
    assert "begins with 0x00000000" in bench.chip.violations[0]


def test_mqd_that_is_written_after_activation_holds(bench: Bench) -> None:
    bench.start_mec()
    bench.activate()
    bench.store(MQD + 4 * 22, b"\x05\0\0\0")  # COMPUTE_RESOURCE_LIMITS, v11_structs.h
    bench.submit([*WRITE, 7])
    bench.select()
    assert bench.get("COMPUTE_RESOURCE_LIMITS") == 5
    assert bench.chip.violations == []


def test_mqd_that_cannot_be_read(bench: Bench) -> None:
    bench.start_mec()
    bench.activate(CP_MQD_BASE_ADDR=low(UNMAPPED), CP_MQD_BASE_ADDR_HI=high(UNMAPPED))
    bench.submit([*WRITE, 7])
    assert "cannot be read" in bench.chip.violations[0]


def test_writing_setup_while_active_is_noticed(ready: Bench) -> None:
    ready.select()
    ready.set("CP_HQD_PQ_BASE", 0x1234)
    assert "CP_HQD_PQ_BASE written" in ready.chip.violations[0]


def test_a_halted_engine_fetches_nothing_until_it_runs(bench: Bench) -> None:
    bench.start_mec()
    bench.set("CP_MEC_RS64_CNTL", 1 << 30)
    bench.activate()
    bench.submit([*WRITE, 7], wait=False)
    bench.wait(lambda: bench.queue().worker.asleep)
    assert bench.dword(DATA) == 0
    bench.set("CP_MEC_RS64_CNTL", 1 << 26)
    bench.wait(lambda: bench.dword(DATA) == 7)
    assert bench.chip.violations == []


def test_what_comes_after_the_firmware_stopped_does_not_run(ready: Bench) -> None:
    """Also where the queue's thread was at work when it stopped."""
    ready.push(FOREVER)
    ready.ring()
    ready.wait(ready.asleep, "the queue does not wait")
    ready.chip.faults.mec_crashed = True
    ready.push([*WRITE, 7])
    ready.ring()
    ready.store(DATA, struct.pack("<I", 0x5EED))
    ready.wait(lambda: not ready.queue().executing, "the wait does not end")
    ready.queue().worker.stop()
    assert ready.queue().worker.join(60)
    assert (ready.dword(DATA), ready.queue().rptr) == (0x5EED, len(FOREVER))


def test_a_pipe_that_was_never_started_is_noticed(bench: Bench) -> None:
    bench.set("CP_MEC_RS64_CNTL", 1 << 27)
    assert "pipe 1 started without" in bench.chip.violations[0]


def test_a_pipe_that_starts_elsewhere_does_nothing(bench: Bench) -> None:
    bench.start_mec()
    bench.select()
    bench.set("CP_MEC_RS64_PRGRM_CNTR_START", 0x3000)  # bytes, where instructions are counted
    bench.set("CP_MEC_RS64_CNTL", 1 << 16)
    bench.set("CP_MEC_RS64_CNTL", 1 << 26)
    assert "pipe 0 started at 0x3000" in bench.chip.violations[0]
    bench.activate()
    bench.submit([*WRITE, 7], wait=False)
    bench.wait(lambda: bench.queue().worker.asleep)
    assert bench.dword(DATA) == 0


def test_queues_run_side_by_side(bench: Bench) -> None:
    """One queue waits for what another one, on the same pipe, writes."""
    bench.start_mec()
    second_ring = RING + 0x4000
    bench.activate(queue=1, doorbell=8, CP_HQD_PQ_BASE=second_ring >> 8 & 0xFFFF_FFFF)
    bench.activate()
    bench.submit(FOREVER, [*WRITE[:2], low(DATA + 8), high(DATA), 1], wait=False)
    bench.store(second_ring, struct.pack("<5I", *WRITE, 0x5EED))
    with bench.chip.lock:
        assert bench.gfx.doorbell(8, 5)
    bench.wait(lambda: bench.dword(DATA + 8) == 1)
    assert bench.chip.violations == []


def dequeue(bench: Bench, request: int) -> None:
    bench.select()
    bench.set("CP_HQD_DEQUEUE_REQUEST", request)


def test_dequeue_drains_and_keeps_the_pointers(ready: Bench) -> None:
    ready.submit([*WRITE, 7])
    dequeue(ready, 1)
    assert ready.active() == 1  # it takes a while
    ready.wait(ready.gone)
    assert ready.get("CP_HQD_PQ_RPTR") == 5
    assert ready.get("CP_HQD_PQ_WPTR_LO") == 5
    assert ready.dword(MQD + 4 * 138) == 5
    assert ready.get("CP_HQD_DEQUEUE_REQUEST") == 0
    assert ready.chip.violations == []
    ready.activate()
    ready.submit([*WRITE, 8])
    assert ready.dword(DATA) == 8


@pytest.mark.parametrize("words", [BAD, FOREVER])
def test_a_hung_queue_leaves_only_by_resetting_waves(ready: Bench, words: list[int]) -> None:
    ready.submit(words, wait=False)
    queue = ready.queue()
    ready.wait(ready.asleep)
    dequeue(ready, 1)
    ready.advance(10)
    assert ready.active() == 1
    dequeue(ready, 2)
    ready.wait(ready.gone)
    assert not queue.worker.alive
    ready.activate()
    ready.submit([*WRITE, 8])
    assert ready.dword(DATA) == 8


def test_waves_are_reset_after_the_dequeue_and_in_safe_mode(ready: Bench) -> None:
    ready.submit(FOREVER, wait=False)
    ready.wait(ready.asleep)
    ready.set("RLC_SAFE_MODE", 3)
    ready.advance(1)
    dequeue(ready, 2)
    ready.set("SPI_COMPUTE_QUEUE_RESET", 1)
    ready.wait(ready.gone)
    assert [note for note in ready.chip.notes if "SPI_COMPUTE" in note] == []
    ready.set("RLC_SAFE_MODE", 1)
    ready.advance(1)
    ready.activate()
    ready.set("SPI_COMPUTE_QUEUE_RESET", 1)
    assert [note.partition("SPI_COMPUTE_QUEUE_RESET ")[2] for note in ready.chip.notes[-2:]] == [
        "before DEQUEUE_REQUEST 2",
        "outside RLC safe mode",
    ]


def test_pipe_reset_takes_the_queues_of_that_pipe_alone(bench: Bench) -> None:
    bench.start_mec()
    bench.activate(pipe=1, doorbell=8)
    bench.activate()
    bench.submit(BAD, wait=False)
    bench.hung()
    bench.set("CP_MEC_RS64_CNTL", 1 << 16 | 1 << 26)
    bench.set("CP_MEC_RS64_CNTL", 1 << 26)
    assert bench.active() == 0
    assert bench.get("CP_HQD_PQ_BASE") == 0
    assert bench.active(pipe=1) == 1


def test_grbm_soft_reset_loses_all_queues(ready: Bench) -> None:
    ready.submit(BAD, wait=False)
    ready.hung()
    ready.set("GRBM_SOFT_RESET", 1 | 1 << 18)
    ready.set("GRBM_SOFT_RESET", 0)
    assert ready.active() == 0
    assert ready.get("CP_MEC_RS64_CNTL") == 0x40000000
    assert ready.get("CP_MEC_DOORBELL_RANGE_UPPER") == 0x450, "drivers do not write it again"
    ready.start_mec()
    ready.activate()
    ready.submit([*WRITE, 9])
    assert ready.dword(DATA) == 9


def test_vmid_reset(ready: Bench) -> None:
    ready.submit(BAD, wait=False)
    ready.hung()
    ready.set("CP_VMID_RESET", 0xFFFF)
    assert ready.active() == 0
    ready.advance(1)
    assert ready.get("CP_VMID_RESET") == 0


def test_clearing_active_by_hand_is_noticed(ready: Bench) -> None:
    ready.select()
    ready.set("CP_HQD_ACTIVE", 0)
    assert "without a dequeue" in ready.chip.violations[0]
    assert ready.active() == 0


def test_the_unnamed_dwords_of_the_mqd_range_can_be_written(bench: Bench) -> None:
    bench.select()
    with bench.chip.lock:
        bench.chip.space.write(0x3219, 0)  # dword 144 of the MQD
    assert bench.chip.violations == []


def test_unplugging_stops_a_running_shader_and_all_threads() -> None:
    before = set(threading.enumerate())
    bench = Bench()
    bench.start_mec()
    bench.activate()
    bench.core.body = spin_until_aborted
    sh = bench.gfx.mec.slots[0][0].sh
    at = bench.gfx.mec.sh_registers.at("COMPUTE_NUM_THREAD_X")
    sh[at : at + 3] = [1, 1, 1]
    bench.submit([0xC0031500, 1, 1, 1, 0x8005], wait=False)
    bench.wait(lambda: bench.core.launches)
    bench.chip.unplug()
    bench.close()
    bench.close()
    assert bench.core.closed == 1
    assert set(threading.enumerate()) <= before


def test_a_launch_that_is_about_to_begin_when_power_is_lost_runs_nothing(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waves of the life before would reach memory through a hub that has just been reset."""
    bench, done = ready, threading.Event()
    part = bench.gfx.array._part

    def loses_power(abort: Abort) -> object:
        made = part(abort)
        bench.chip.unplug()
        bench.chip.power_cycle()
        done.set()
        return made

    monkeypatch.setattr(bench.gfx.array, "_part", loses_power)
    sh = bench.gfx.mec.slots[0][0].sh
    at = bench.gfx.mec.sh_registers.at("COMPUTE_NUM_THREAD_X")
    sh[at : at + 3] = [1, 1, 1]
    worker = bench.queue().worker
    bench.submit([0xC0031500, 1, 1, 1, 0x8005], wait=False)
    bench.wait(done.is_set)
    assert worker.join(60)
    assert bench.core.launches == []


def test_a_bug_of_the_model_does_not_pass_as_a_hang(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(address: int, data: bytes) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr(ready.queue(), "end_of_pipe", broken)
    ready.submit([0xC0064900, 0x14 | 5 << 8, 2 << 29, low(DATA), high(DATA), 1, 0, 0], wait=False)
    ready.wait(lambda: ready.chip.violations)
    assert "bug in engine cp-1.0.0" in ready.chip.violations[0]


def test_a_killed_queue_touches_nothing_more(ready: Bench) -> None:
    queue = ready.queue()
    ready.set("GRBM_SOFT_RESET", 1)
    with pytest.raises(Stopped):
        queue.store(0, DATA, b"late")
    with pytest.raises(Stopped):
        queue.end_of_pipe_interrupt(0)
    with pytest.raises(Stopped):
        queue.write_register(0xC046, 1)
    assert ready.dword(DATA) == 0
    assert ready.interrupts() == []
