"""SDMA: registers, byte units, every packet, refusals, faults, polls and interrupts."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amd.virtual_engines import (
    DATA,
    SDMA_DOORBELL_DWORD,
    SDMA_RING_BYTES,
    SDMA_RPTR,
    UNMAPPED,
    Bench,
    high,
    low,
)
from ugpu.virtual.amd.engines.sdma.packets import BadSdmaPacket, SdmaExecutor
from ugpu.virtual.amd.generations.gfx11.copies import PACKETS

OTHER = DATA + 0x10_0000


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.start_sdma()
    yield bench
    bench.close()


@pytest.fixture
def clean(bench: Bench) -> Iterator[Bench]:
    yield bench
    assert bench.chip.violations == []


def copy(source: int, destination: int, size: int) -> list[int]:
    return [1, size - 1, 0, low(source), high(source), low(destination), high(destination)]


def fence(address: int, value: int) -> list[int]:
    return [0x00030005, low(address), high(address), value]  # MTYPE 3, as the kernel


def write(address: int, *values: int) -> list[int]:
    return [2, low(address), high(address), len(values) - 1, *values]


def test_copy_counts_from_zero(clean: Bench) -> None:
    clean.store(DATA, bytes(range(1, 17)))
    clean.sdma([1, 6, 0, low(DATA), high(DATA), low(OTHER), high(OTHER)])
    assert clean.load(OTHER, 8) == bytes([1, 2, 3, 4, 5, 6, 7, 0])


@pytest.mark.parametrize("size", [1, 3, 4095, 4097, 5 << 20])
def test_copies_of_any_size_and_alignment(clean: Bench, size: int) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    clean.store(DATA + 3, data)
    target = DATA + (10 << 20) + 1
    clean.sdma(copy(DATA + 3, target, size), fence(DATA - 64, 1))
    assert clean.load(target - 1, size + 2) == b"\0" + data + b"\0"


def test_overlapping_copy_leaves_poison(bench: Bench) -> None:
    bench.store(DATA, b"abcdefgh" * 8)
    bench.sdma(copy(DATA, DATA + 8, 32))
    assert bench.load(DATA + 8, 32) == b"\xdb" * 32
    assert "overlaps itself" in bench.chip.violations[0]


def test_write_fence_and_nops(clean: Bench) -> None:
    clean.sdma([0], [0x00020000, 0xDEAD, 0xBEEF], write(DATA, 1, 2, 3), [0, 0], fence(DATA + 12, 4))
    assert clean.load(DATA, 16) == struct.pack("<4I", 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("kind", "count", "expected"),
    [(0, 5 - 1, b"\x44" * 5), (1, 6 - 1, b"\x44\x33" * 3), (2, 8 - 1, b"\x44\x33\x22\x11" * 2),
     (2, 4, b"\x44\x33\x22\x11" * 2)],
)  # fmt: skip
def test_const_fill(clean: Bench, kind: int, count: int, expected: bytes) -> None:
    clean.sdma([11 | kind << 30, low(DATA), high(DATA), 0x11223344, count])
    assert clean.load(DATA, len(expected) + 1) == expected + b"\0"


def test_large_fill(clean: Bench) -> None:
    size = (9 << 20) + 4
    clean.sdma([11 | 2 << 30, low(DATA), high(DATA), 0x5A5A5A5A, size - 4])
    assert clean.load(DATA, size + 4) == b"\x5a" * size + b"\0" * 4


def test_timestamps_rise(clean: Bench) -> None:
    clean.sdma(
        [13 | 2 << 8, low(DATA), high(DATA)],
        [13 | 1 << 8, low(DATA + 8), high(DATA)],
    )
    assert 0 < clean.qword(DATA) <= clean.qword(DATA + 8)


def test_trap_interrupts_if_enabled(clean: Bench) -> None:
    clean.sdma([6, 0x123])
    # client GFX 0x0A, source 49; ring id: queue [3:0], instance [7:4]
    assert clean.interrupts() == [(0x0A, 49, 0, 0, (0x123, 0, 0, 0))]
    clean.start_sdma(1)
    clean.sdma([6, 0x456], instance=1)
    assert clean.interrupts()[-1] == (0x0A, 49, 0x10, 0, (0x456, 0, 0, 0))
    clean.set("SDMA0_CNTL", 0)
    clean.sdma([6, 0x789])
    assert len(clean.interrupts()) == 2


def test_context_empty_interrupt(clean: Bench) -> None:
    clean.set("SDMA0_CNTL", 1 << 28)
    clean.sdma(fence(DATA, 1))
    clean.wait(clean.interrupts)
    assert clean.interrupts()[0][:3] == (0x0A, 51, 0)


def test_pointers_are_bytes(clean: Bench) -> None:
    clean.sdma(fence(DATA, 1))
    assert clean.get("SDMA0_QUEUE0_RB_RPTR") == 16
    assert clean.get("SDMA0_QUEUE0_RB_WPTR") == 16
    clean.wait(lambda: clean.qword(SDMA_RPTR) == 16)
    assert clean.get("SDMA0_QUEUE0_DOORBELL") >> 30 & 1  # CAPTURED


def test_a_pointer_in_dwords_moves_a_quarter(bench: Bench) -> None:
    engine = bench.gfx.sdma[0]
    packets = [*fence(DATA, 1), *fence(DATA + 4, 2)]
    bench.store(DATA - 0x10_0000, struct.pack("<8I", *packets))  # SDMA_RING
    with bench.chip.lock:
        engine.doorbell(SDMA_DOORBELL_DWORD, len(packets))
    assert engine.queue is not None
    bench.wait(lambda: engine.queue is not None and engine.queue.worker.asleep)
    assert bench.dword(DATA) == 0


def test_ring_wraps(clean: Bench) -> None:
    for number in range(700):
        clean.sdma(fence(DATA, number), [0] * 3, wait=number % 50 == 0)
        if number % 50 == 49:
            clean.wait(lambda: not clean.gfx.sdma[0].busy())
    clean.wait(lambda: not clean.gfx.sdma[0].busy())
    assert clean.dword(DATA) == 699
    assert clean.sdma_wptr[0] > 4 * SDMA_RING_BYTES
    assert clean.get("SDMA0_QUEUE0_RB_RPTR") == clean.sdma_wptr[0]


def test_overrun_backward_and_odd_pointers_are_noticed(bench: Bench) -> None:
    engine = bench.gfx.sdma[0]
    with bench.chip.lock:
        engine.doorbell(SDMA_DOORBELL_DWORD, 2 * SDMA_RING_BYTES)
        engine.doorbell(SDMA_DOORBELL_DWORD, 16)
        engine.doorbell(SDMA_DOORBELL_DWORD, 17)
    text = "\n".join(bench.chip.violations)
    assert "bytes ahead of rptr" in text
    assert "moved back" in text
    assert "not a multiple of 4" in text


def test_doorbells_must_match_and_be_enabled(bench: Bench) -> None:
    engine = bench.gfx.sdma[0]
    with bench.chip.lock:
        assert not engine.doorbell(SDMA_DOORBELL_DWORD + 2, 16)
        bench.set("SDMA0_QUEUE0_DOORBELL", 0)
        assert not engine.doorbell(SDMA_DOORBELL_DWORD, 16)


def test_caching_that_no_proven_driver_sets_is_noted(bench: Bench) -> None:
    bench.set("SDMA0_F32_CNTL", 1)
    bench.set("SDMA0_UTCL1_PAGE", 2 << 12 | 3 << 14)
    bench.chip.notes.clear()
    bench.set("SDMA0_F32_CNTL", 0)
    assert bench.chip.notes == []
    bench.set("SDMA0_UTCL1_PAGE", 0)
    bench.set("SDMA0_F32_CNTL", 0)
    assert "L2 policies 0 (read) and 0 (write)" in bench.chip.notes[-1]


def test_a_halted_or_frozen_engine_waits(clean: Bench) -> None:
    clean.set("SDMA0_F32_CNTL", 1)
    clean.sdma(fence(DATA, 1), wait=False)
    engine = clean.gfx.sdma[0]
    clean.wait(lambda: engine.queue is not None and engine.queue.worker.asleep)
    assert clean.dword(DATA) == 0
    clean.set("SDMA0_FREEZE", 1 << 4)
    assert clean.get("SDMA0_FREEZE") >> 5 & 1  # FROZEN
    clean.set("SDMA0_F32_CNTL", 0)
    clean.wait(lambda: engine.queue is not None and engine.queue.worker.asleep)
    assert clean.dword(DATA) == 0
    clean.set("SDMA0_FREEZE", 0)
    clean.wait(lambda: clean.dword(DATA) == 1)


def test_poll_memory(clean: Bench) -> None:
    forever = 0xFFF << 16 | 4
    poll = [8 | 3 << 28 | 1 << 31, low(DATA), high(DATA), 5, 0xFF, forever]
    clean.sdma(poll, fence(DATA + 8, 1), wait=False)
    clean.wait(lambda: clean.gfx.memory_written.watched)
    assert clean.dword(DATA + 8) == 0
    clean.store(DATA, struct.pack("<I", 0xAB05))
    clean.wait(lambda: clean.dword(DATA + 8) == 1)


def test_bounded_poll_times_out_and_goes_on(clean: Bench) -> None:
    poll = [8 | 3 << 28 | 1 << 31, low(DATA), high(DATA), 5, 0xFF, 3 << 16 | 4]
    clean.sdma(poll, fence(DATA + 8, 1))
    assert clean.dword(DATA + 8) == 1
    assert clean.interrupts() == [(0x0A, 57, 0, 0, (low(DATA), high(DATA), 0, 0))]


def test_hdp_flush(clean: Bench) -> None:
    space = clean.chip.space
    done = space.index("nbio", "BIF_BX_PF0_GPU_HDP_FLUSH_DONE") << 2
    request = space.index("nbio", "BIF_BX_PF0_GPU_HDP_FLUSH_REQ") << 2
    bit = 1 << 10  # SDMA0
    clean.sdma([8 | 1 << 26 | 3 << 28, done, request, bit, bit, 0xFFF << 16 | 10], fence(DATA, 1))
    assert clean.dword(DATA) == 1


def test_one_engine_waits_for_the_other(clean: Bench) -> None:
    clean.start_sdma(1)
    poll = [8 | 3 << 28 | 1 << 31, low(DATA), high(DATA), 5, 0xFFFFFFFF, 0xFFF << 16 | 4]
    clean.sdma(poll, fence(DATA + 8, 1), wait=False)
    clean.sdma(fence(DATA, 5), instance=1)
    clean.wait(lambda: clean.dword(DATA + 8) == 1)


def test_atomic_and_conditional(clean: Bench) -> None:
    clean.store(DATA, struct.pack("<QI", 40, 3))
    clean.sdma(
        [10 | 0x2F << 25, low(DATA), high(DATA), 2, 0, 0, 0, 0],
        [9, low(DATA + 8), high(DATA), 4, 4],  # runs the next 4 dwords only if it reads 4
        fence(DATA + 16, 1),
        [9, low(DATA + 8), high(DATA), 3, 4],
        fence(DATA + 20, 2),
    )
    assert clean.qword(DATA) == 42
    assert clean.load(DATA + 16, 8) == struct.pack("<II", 0, 2)


def test_register_write_and_gcr(clean: Bench) -> None:
    clean.sdma([14 | 0xF << 28, 0xC046, 0x99, ], [17, 0, 0, 0, 0], fence(DATA, 1))  # fmt: skip
    assert clean.get("SCRATCH_REG6") == 0x99
    assert clean.dword(DATA) == 1


def test_register_write_without_privilege_is_reported(bench: Bench) -> None:
    bench.start_sdma(1, QUEUE0_RB_CNTL=1 | 10 << 1 | 1 << 12)
    bench.sdma([14 | 0xF << 28, 0xC046, 0x99], instance=1)
    assert bench.get("SCRATCH_REG6") == 0
    assert bench.interrupts() == [(0x0A, 50, 0x10, 0, (0xC046, 0, 0, 0))]


def indirect(bench: Bench, words: list[int], address: int = DATA + 0x1000) -> list[int]:
    bench.store(address, struct.pack(f"<{len(words)}I", *words))
    return [4, low(address), high(address), len(words), 0, 0]


def test_indirect_buffer_must_end_on_eight_dwords(clean: Bench) -> None:
    body = [*fence(DATA, 1), *fence(DATA + 4, 2)]
    clean.sdma([0x00010000, 0], indirect(clean, body), fence(DATA + 8, 3))
    assert clean.load(DATA, 12) == struct.pack("<III", 1, 2, 3)


REFUSED = {
    "unknown op": ([40], "op 40"),
    "tiled copy": ([1 | 1 << 8, 0, 0, 0, 0, 0, 0], "sub-op 1"),
    "copy with reserved bits": ([1 | 1 << 19, 0, 0, 0, 0, 0, 0], "COPY dword 0"),
    "copy that swaps": ([1, 0, 1 << 16, 0, 0, 0, 0], "COPY dword 2"),
    "copy beyond 48 bits": ([1, 0, 0, 0, 0x10000, 0, 0], "COPY dword 4"),
    "odd fence": ([5, low(DATA) + 1, high(DATA), 0], "FENCE dword 1"),
    "odd stamp": ([13 | 2 << 8, low(DATA) + 4, high(DATA)], "TIMESTAMP_GET_GLOBAL dword 1"),
    "poll function": ([8 | 7 << 28 | 1 << 31, low(DATA), high(DATA), 0, 0, 0], "POLL_REGMEM"),
    "trap bits": ([6, 0xF0000000], "TRAP dword 1"),
    "fill of quadwords": ([11 | 3 << 30, low(DATA), high(DATA), 0, 7], "CONST_FILL"),
    "atomic": ([10 | 0x01 << 25, low(DATA), high(DATA), 0, 0, 0, 0, 0], "ATOMIC"),
    "unaligned buffer": ([4, low(DATA) + 16, high(DATA), 8, 0, 0], "INDIRECT dword 1"),
    "badly placed buffer": ([4, low(DATA), high(DATA), 8, 0, 0], "8-dword boundary"),
    "nop bits": ([0x80000000], "NOP"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_packets_stop_the_queue(bench: Bench, name: str) -> None:
    words, reason = REFUSED[name]
    bench.sdma(fence(DATA, 1), words, fence(DATA, 2), wait=False)
    queue = bench.gfx.sdma[0].queue
    assert queue is not None
    bench.wait(lambda: queue.hung)
    assert reason in queue.hung
    assert bench.dword(DATA) == 1
    assert bench.get("SDMA0_QUEUE0_RB_RPTR") == 16  # at the packet
    assert [entry[:3] for entry in bench.interrupts()] == [(0x0A, 50, 0)]
    bench.advance(0.2)  # WATCHDOG_CNTL.QUEUE_HANG_COUNT 1: 100 ms
    assert [entry[1] for entry in bench.interrupts()] == [50, 55]


def test_faults_of_a_copy_are_reported_and_it_goes_on(bench: Bench) -> None:
    bench.set("SDMA0_CNTL", 1 | 1 << 13)
    bench.store(OTHER, b"\xff" * 16)
    bench.sdma(copy(UNMAPPED, OTHER, 8), fence(DATA, 1))
    assert bench.load(OTHER, 9) == b"\0" * 8 + b"\xff"
    assert bench.dword(DATA) == 1
    status = bench.get("GCVM_L2_PROTECTION_FAULT_STATUS")
    assert (status >> 9 & 0x1FF, status >> 18 & 1) == (13, 0)  # SDMA0, a read
    sources = [entry[:2] for entry in bench.interrupts()]
    assert sources == [(0x0A, 0), (0x0A, 60)]
    bench.set("GCVM_L2_PROTECTION_FAULT_CNTL", 1)
    bench.sdma(copy(OTHER, UNMAPPED, 8))
    assert bench.get("GCVM_L2_PROTECTION_FAULT_STATUS") >> 18 & 1  # a write


def test_fault_while_fetching_stops_the_queue(bench: Bench) -> None:
    body = [4, low(UNMAPPED), high(UNMAPPED), 8, 0, 0]
    bench.sdma([0x00010000, 0], body, wait=False)
    queue = bench.gfx.sdma[0].queue
    assert queue is not None
    bench.wait(lambda: queue.hung)
    assert "page fault while fetching" in queue.hung


def test_resets_free_a_hung_queue(bench: Bench) -> None:
    bench.sdma([40], wait=False)
    queue = bench.gfx.sdma[0].queue
    assert queue is not None
    bench.wait(lambda: queue.hung)
    bench.set("SDMA0_QUEUE_RESET_REQ", 1)
    bench.advance(1)
    assert bench.get("SDMA0_QUEUE_RESET_REQ") == 0
    bench.sdma_wptr[0] = 0
    bench.start_sdma()
    bench.sdma(fence(DATA, 1))
    bench.set("GRBM_SOFT_RESET", 1 << 23)
    bench.set("GRBM_SOFT_RESET", 0)
    assert bench.get("SDMA0_F32_CNTL") & 1
    assert bench.get("SDMA0_QUEUE0_RB_BASE") == 0
    bench.sdma_wptr[0] = 0
    bench.start_sdma()
    bench.sdma(fence(DATA, 2))
    assert bench.dword(DATA) == 2
    assert bench.chip.violations == []


def test_setup_mistakes_are_noticed(bench: Bench) -> None:
    bench.set("SDMA0_QUEUE0_RB_BASE", 1)
    bench.set("SDMA0_QUEUE3_RB_CNTL", 1)
    bench.start_sdma(1, QUEUE0_RB_BASE=0, QUEUE0_RB_BASE_HI=0, QUEUE0_RB_RPTR_ADDR_LO=4)
    text = "\n".join(bench.chip.violations)
    for part in ("while the ring is enabled", "queue 3: ring enabled", "enabled at 0x0", "8-byte"):
        assert part in text


class Nowhere:
    """Surroundings for fuzzing: reads zeros, keeps nothing."""

    vmid = 0
    privileged = True
    indirect_enabled = True

    def fetch(self, vmid: int, address: int, dwords: int) -> tuple[int, ...]:
        return (0,) * dwords

    def load(self, vmid: int, address: int, size: int) -> bytes:
        return bytes(size)

    def store(self, vmid: int, address: int, data: bytes) -> None:
        assert 0 <= address < 1 << 48

    def copy(self, vmid: int, source: int, destination: int, size: int) -> None:
        assert 0 < size <= 1 << 30

    def fill(self, vmid: int, destination: int, pattern: bytes, size: int) -> None:
        assert size % len(pattern) == 0

    def read_register(self, index: int) -> int:
        return 0

    def write_register(self, index: int, value: int) -> None:
        pass

    def trap(self, context: int) -> None:
        pass

    def poll_timeout(self, address: int) -> None:
        pass

    def refused_register(self, index: int) -> None:
        pass

    def pause(self, seconds: float) -> None:
        raise BadSdmaPacket("waits", 0)


word = st.integers(0, 0xFFFF_FFFF)
header = st.builds(lambda op, sub: op | sub << 8, st.integers(0, 18), st.integers(0, 2))


@given(st.lists(st.one_of(word, header, st.integers(0, 64)), max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_dwords_are_executed_or_refused(words: list[int]) -> None:
    executor = SdmaExecutor(Nowhere(), PACKETS)
    try:
        assert 0 <= executor.run(words) <= len(words)
    except BadSdmaPacket:
        assert 0 <= executor.consumed <= len(words)
