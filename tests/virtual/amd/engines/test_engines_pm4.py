"""The compute queue's packets, one by one, as dwords from the documents."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amd.virtual_engines import (
    DATA,
    EOP,
    RING_DWORDS,
    RPTR_REPORT,
    UNMAPPED,
    Bench,
    high,
    low,
)
from ugpu.virtual.amd.engines.cp.pm4 import packets
from ugpu.virtual.amd.engines.cp.pm4.packets import BadPacket
from ugpu.virtual.amd.objections import Level

# Written by hand: type 3 in [31:30], payload dwords - 1 in [29:16], opcode in [15:8].
NOP_ONE = 0xFFFF1000
WRITE_DATA_1 = 0xC0033700  # control, address, one dword
WRITE_DATA_2 = 0xC0043700
WAIT_REG_MEM = 0xC0053C00
COPY_DATA = 0xC0044000
RELEASE_MEM = 0xC0064900
ACQUIRE_MEM = 0xC0065800
DMA_DATA = 0xC0055000
INDIRECT_BUFFER = 0xC0023F00
EVENT_WRITE = 0xC0004600
ATOMIC_MEM = 0xC0071E00
COND_EXEC = 0xC0032200
PRED_EXEC = 0xC0002300
SET_UCONFIG_REG_1 = 0xC0017900
SET_SH_REG_1 = 0xC0017600

TO_MEMORY = 5 << 8 | 1 << 20  # DST_SEL memory, WR_CONFIRM
FENCE_EVENT = 0x14 | 5 << 8 | 1 << 12 | 1 << 13 | 1 << 21 | 1 << 22  # as the kernel's fence
DATA_64 = 2 << 29
DATA_32 = 1 << 29
DATA_CLOCK = 3 << 29
INTERRUPT = 2 << 24


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.start_mec()
    bench.activate()
    yield bench
    bench.close()


@pytest.fixture
def clean(bench: Bench) -> Iterator[Bench]:
    yield bench
    assert bench.chip.violations == []


def write(address: int, *values: int) -> list[int]:
    header = 0xC0003700 | (len(values) + 2) << 16
    return [header, TO_MEMORY, low(address), high(address), *values]


def release(address: int, value: int, how: int = DATA_64, context: int = 0) -> list[int]:
    return [
        RELEASE_MEM,
        FENCE_EVENT,
        how,
        low(address),
        high(address),
        low(value),
        high(value),
        context,
    ]


def test_write_data(clean: Bench) -> None:
    clean.submit([WRITE_DATA_2, 0x00100500, low(DATA), high(DATA), 0x11223344, 0x55667788])
    assert clean.load(DATA, 8) == bytes.fromhex("4433221188776655")


def test_write_data_to_one_address_keeps_the_last(clean: Bench) -> None:
    clean.submit([WRITE_DATA_2, TO_MEMORY | 1 << 16, low(DATA), high(DATA), 1, 2])
    assert clean.load(DATA, 8) == struct.pack("<II", 2, 0)


def test_write_data_to_a_register(clean: Bench) -> None:
    scratch = 0xA000 + 0x2040
    clean.submit([WRITE_DATA_1, 1 << 20, scratch, 0, 0xCAFE])
    assert clean.get("SCRATCH_REG0") == 0xCAFE


def test_nops_of_all_sizes(clean: Bench) -> None:
    clean.submit([NOP_ONE], [0xC0001000, 7], [0xC0031000, 1, 2, 3, 4], write(DATA, 5))
    assert clean.dword(DATA) == 5


def test_set_uconfig_reg(clean: Bench) -> None:
    clean.submit([SET_UCONFIG_REG_1, 0x46, 0x1234])  # SCRATCH_REG6 = 0xC046
    assert clean.get("SCRATCH_REG6") == 0x1234


def test_copy_data_register_to_memory(clean: Bench) -> None:
    clean.set("SCRATCH_REG7", 0x777)
    clean.submit([COPY_DATA, 0 | 5 << 8 | 1 << 20, 0xC047, 0, low(DATA), high(DATA)])
    assert clean.dword(DATA) == 0x777


def test_copy_data_memory_to_memory_and_immediate(clean: Bench) -> None:
    clean.store(DATA, struct.pack("<Q", 0x1122334455667788))
    clean.submit(
        [COPY_DATA, 1 | 5 << 8 | 1 << 16, low(DATA), high(DATA), low(DATA + 8), high(DATA)],
        [COPY_DATA, 5 | 5 << 8, 0xABCD, 0, low(DATA + 16), high(DATA)],
    )
    assert clean.qword(DATA + 8) == 0x1122334455667788
    assert clean.dword(DATA + 16) == 0xABCD


def test_clock_rises_between_two_stamps(clean: Bench) -> None:
    stamp = [COPY_DATA, 9 | 5 << 8 | 1 << 16, 0, 0]
    clean.submit([*stamp, low(DATA), high(DATA)], release(DATA + 8, 0, DATA_CLOCK))
    first, second = clean.qword(DATA), clean.qword(DATA + 8)
    assert 0 < first <= second < first + 100_000_000  # less than a second at 100 MHz


def test_release_mem_writes_and_interrupts(clean: Bench) -> None:
    clean.submit(release(DATA, 0x1_0000_0002, DATA_64 | INTERRUPT, context=0x55))
    assert clean.qword(DATA) == 0x1_0000_0002
    # client GRBM_CP 0x14, source 181, ring id me 1 pipe 0 queue 0
    assert clean.interrupts() == [(0x14, 181, 4, 0, (0x55, 0, 0, 0))]
    assert clean.qword(EOP) == DATA  # the EOP buffer is used


def test_release_mem_of_32_bits_leaves_the_rest(clean: Bench) -> None:
    clean.store(DATA, b"\xff" * 8)
    clean.submit(release(DATA, 0x1_0000_0002, DATA_32))
    assert clean.load(DATA, 8) == bytes.fromhex("02000000ffffffff")


def test_no_interrupt_unless_the_pipe_enables_it(clean: Bench) -> None:
    clean.set("CP_ME1_PIPE0_INT_CNTL", 0)
    clean.submit(release(DATA, 3, DATA_64 | INTERRUPT))
    assert clean.interrupts() == []
    assert clean.get("CPC_INT_STATUS") == 1 << 26


@pytest.mark.parametrize(
    ("function", "value", "met"),
    [(0, 0, True), (1, 4, True), (1, 5, False), (2, 5, True), (3, 5, True), (3, 4, False),
     (4, 4, True), (5, 5, True), (5, 4, False), (6, 6, True), (6, 5, False)],
)  # fmt: skip
def test_wait_reg_mem_functions(bench: Bench, function: int, value: int, met: bool) -> None:
    bench.store(DATA, struct.pack("<I", value | 0xF0))
    wait = [WAIT_REG_MEM, function | 1 << 4, low(DATA), high(DATA), 5, 0xF, 4]
    bench.submit(wait, write(DATA + 8, 1), wait=False)
    if met:
        bench.wait(lambda: bench.dword(DATA + 8) == 1)
    else:
        bench.wait(bench.asleep)
        assert bench.dword(DATA + 8) == 0


def test_a_wait_ends_when_memory_changes(clean: Bench) -> None:
    wait = [WAIT_REG_MEM, 3 | 1 << 4, low(DATA), high(DATA), 9, 0xFFFFFFFF, 4]
    clean.submit(wait, write(DATA + 8, 1), wait=False)
    clean.store(DATA, struct.pack("<I", 9))
    clean.wait(lambda: clean.dword(DATA + 8) == 1)


def test_hdp_flush_by_write_then_wait(clean: Bench) -> None:
    space = clean.chip.space
    request = space.index("nbio", "BIF_BX_PF0_GPU_HDP_FLUSH_REQ")
    done = space.index("nbio", "BIF_BX_PF0_GPU_HDP_FLUSH_DONE")
    clean.submit([WAIT_REG_MEM, 3 | 1 << 6, request, done, 2, 2, 0x20], write(DATA, 1))
    assert clean.dword(DATA) == 1


def test_atomic_mem(clean: Bench) -> None:
    clean.store(DATA, struct.pack("<Q", 40))
    add_64 = [ATOMIC_MEM, 0x2F, low(DATA), high(DATA), 2, 0, 0, 0, 0]
    clean.submit(add_64)
    assert clean.qword(DATA) == 42


def test_atomic_mem_loop_waits_for_the_compare_value(clean: Bench) -> None:
    swap = [ATOMIC_MEM, 0x08 | 1 << 8, low(DATA), high(DATA), 7, 0, 3, 0, 16]
    clean.submit(swap, wait=False)
    clean.store(DATA, struct.pack("<I", 3))
    clean.wait(lambda: clean.dword(DATA) == 7)


def test_dma_data_copies_and_fills(clean: Bench) -> None:
    clean.store(DATA, bytes(range(64)))
    target = DATA + 0x5000
    sync = 1 << 31
    clean.submit(
        [
            DMA_DATA,
            sync | 3 << 29 | 3 << 20,
            low(DATA + 1),
            high(DATA),
            low(target),
            high(target),
            50,
        ],
        [DMA_DATA, sync | 2 << 29 | 3 << 20, 0x01020304, 0, low(target + 64), high(target), 12],
        [DMA_DATA, sync, low(DATA), high(DATA), low(target + 80), high(target), 0],
    )
    assert clean.load(target, 51) == bytes(range(1, 51)) + b"\0"
    assert clean.load(target + 64, 20) == bytes([4, 3, 2, 1] * 3) + bytes(8)


def test_dma_data_that_overlaps_leaves_poison(bench: Bench) -> None:
    bench.submit([DMA_DATA, 0, low(DATA), high(DATA), low(DATA + 4), high(DATA), 16])
    assert bench.load(DATA + 4, 16) == b"\xdb" * 16
    assert "overlaps itself" in bench.chip.violations[0]


def test_cond_exec_skips(clean: Bench) -> None:
    clean.store(DATA, struct.pack("<II", 0, 1))
    five = write(DATA + 16, 5)
    six = write(DATA + 20, 6)
    clean.submit(
        [COND_EXEC, low(DATA), high(DATA), 0, len(five)],
        five,
        [COND_EXEC, low(DATA + 4), high(DATA), 0, len(six)],
        six,
    )
    assert clean.load(DATA + 16, 8) == struct.pack("<II", 0, 6)


def indirect(bench: Bench, words: Sequence[int], control: int = 1 << 23) -> list[int]:
    body = DATA + 0x1000
    bench.store(body, struct.pack(f"<{len(words)}I", *words))
    return [INDIRECT_BUFFER, low(body), high(body), control | len(words)]


def test_indirect_buffer_and_what_follows(clean: Bench) -> None:
    body = [*write(DATA, 1), *write(DATA + 4, 2)]
    clean.submit(indirect(clean, body), write(DATA + 8, 3))
    assert clean.load(DATA, 12) == struct.pack("<III", 1, 2, 3)


def test_indirect_buffer_chains(clean: Bench) -> None:
    second = DATA + 0x2000
    tail = write(DATA + 4, 2)
    clean.store(second, struct.pack(f"<{len(tail)}I", *tail))
    chain = [INDIRECT_BUFFER, low(second), high(second), 1 << 23 | 1 << 20 | len(tail)]
    clean.submit(indirect(clean, [*write(DATA, 1), *chain]))
    assert clean.load(DATA, 8) == struct.pack("<II", 1, 2)


def test_pred_exec_inside_an_indirect_buffer(clean: Bench) -> None:
    skipped, done = write(DATA, 1), write(DATA + 4, 2)
    body = [PRED_EXEC, 2 << 24 | len(skipped), *skipped, PRED_EXEC, 1 << 24 | len(done), *done]
    clean.submit(indirect(clean, body))
    assert clean.load(DATA, 8) == struct.pack("<II", 0, 2)


def test_acquire_mem_and_events(clean: Bench) -> None:
    acquire = [ACQUIRE_MEM, 0, 0xFFFFFFFF, 0xFFFFFF, 0, 0, 0xA, 0x4000 | 0x300]
    clean.submit(acquire, [EVENT_WRITE, 7 | 4 << 8], [EVENT_WRITE, 0x16], write(DATA, 1))
    assert clean.dword(DATA) == 1


def test_ring_wraps_inside_a_packet(clean: Bench) -> None:
    for number in range(40):
        filler = RING_DWORDS // 8 - 6
        clean.submit([0xC0001000 | (filler - 2) << 16, *[0] * (filler - 1)], write(DATA, number))
        assert clean.dword(DATA) == number
    assert clean.wptr > RING_DWORDS
    assert clean.dword(RPTR_REPORT) == clean.wptr % RING_DWORDS
    assert clean.get("CP_HQD_PQ_RPTR") == clean.wptr % RING_DWORDS


def test_half_a_packet_waits_for_the_rest(clean: Bench) -> None:
    packet = write(DATA, 0x77)
    clean.submit(packet[:3], wait=False)
    clean.submit(packet[3:])
    assert clean.dword(DATA) == 0x77


REFUSED = {
    "unknown opcode": ([0xC000FF00, 0], "unknown opcode"),
    "not modelled": ([0xC0009800, 0], "INVALIDATE_TLBS is not modelled"),
    "dma of registers": ([DMA_DATA, 0, 0, 0, 0, 0, 1 << 26 | 4], "DMA_DATA"),
    "dma of GDS": ([DMA_DATA, 1 << 20, 0, 0, 0, 0, 4], "GDS is not modelled"),
    "dma engine": ([DMA_DATA, 1, 0, 0, 0, 0, 4], "PFP"),
    "type 0": ([0x00000000], "packet type must be 3, got 0"),
    "type 2": ([0x80000000], "packet type must be 3, got 2"),
    "short": ([0xC0013700, 0, 0], "WRITE_DATA has 2"),
    "long": ([0xC0074900, *[0] * 8], "RELEASE_MEM has 8"),
    "engine": ([WRITE_DATA_1, 5 << 8 | 1 << 30, low(DATA), high(DATA), 0], "engine"),
    "destination": ([WRITE_DATA_1, 3 << 8, 0, 0, 0], "destination 3"),
    "misaligned": ([WRITE_DATA_1, 5 << 8, low(DATA) + 2, high(DATA), 0], "not 4-byte aligned"),
    "wait function": ([WAIT_REG_MEM, 7 | 16, low(DATA), high(DATA), 0, 0, 4], "WAIT_REG_MEM"),
    "release event": ([RELEASE_MEM, 0x07 | 5 << 8, 0, 0, 0, 0, 0, 0], "event 0x7"),
    "release index": ([RELEASE_MEM, 0x14 | 6 << 8, 0, 0, 0, 0, 0, 0], "index 6"),
    "release alignment": (
        [RELEASE_MEM, FENCE_EVENT, DATA_64, low(DATA) + 4, high(DATA), 0, 0, 0],
        "not 8-byte aligned",
    ),
    "invalid buffer": ([INDIRECT_BUFFER, low(DATA), high(DATA), 4], "must have VALID"),
    "empty buffer": ([INDIRECT_BUFFER, low(DATA), high(DATA), 1 << 23], "at least 1 dword"),
    "misaligned buffer": (
        [INDIRECT_BUFFER, low(DATA) + 2, high(DATA), 1 << 23 | 4],
        "not aligned to 4 bytes",
    ),
    "chain in the ring": (
        [INDIRECT_BUFFER, low(DATA), high(DATA), 1 << 23 | 1 << 20 | 4],
        "level 0",
    ),
    "flush index": ([EVENT_WRITE, 7], "event index must be 4: 0"),
    "graphics event": ([EVENT_WRITE, 0x2A], "EVENT_WRITE 0x2a"),
    "predication in the ring": ([PRED_EXEC, 1 << 24 | 1], "only in indirect buffers"),
    "beyond SH": ([0xC0027600, 0x3FF, 0, 0], "outside SH space"),
    "beyond uconfig": ([0xC0027900, 0x3FFF, 0, 0], "outside UCONFIG space"),
}


FORGIVEN = {
    "reserved header bits": ([0xC0001004, 0], "NOP: reserved header bits 0x4"),
    "predicate": ([0xC0001001, 0], "NOP: reserved header bits 0x1"),
    "reserved control bits": (
        [WRITE_DATA_1, 5 << 8 | 1 << 5, low(DATA), high(DATA), 1],
        "WRITE_DATA payload dword 0: reserved bits 0x20",
    ),
    "high address": (
        [WRITE_DATA_1, 5 << 8, low(DATA), high(DATA) | 0x10000, 1],
        "WRITE_DATA payload dword 2: reserved bits 0x10000",
    ),
    "coherence control": ([ACQUIRE_MEM, 1, 0, 0, 0, 0, 0, 0], "ACQUIRE_MEM payload dword 0"),
}
ACCEPTED = {
    "coherence size": (
        [ACQUIRE_MEM, 0, 0xFFFFFFFF, 0xFFFFFFFF, 0, 0, 0, 0],
        "ACQUIRE_MEM payload dword 2: reserved bits 0xff000000",
    ),
    "release of nothing": (
        [RELEASE_MEM, FENCE_EVENT, INTERRUPT, low(DATA), high(DATA), 1, 0, 0],
        "the write of no data",
    ),
}


@pytest.mark.parametrize("name", FORGIVEN | ACCEPTED)
def test_what_boards_forgive_is_counted_and_done(bench: Bench, name: str) -> None:
    words, text = (FORGIVEN | ACCEPTED)[name]
    bench.submit(write(DATA, 1), words, words, write(DATA + 4, 2))
    assert (bench.dword(DATA), bench.dword(DATA + 4)) == (1, 2)
    level = Level.NOTE if name in ACCEPTED else Level.VIOLATION
    counts = [count for said, count in bench.chip.objections.of(level).items() if text in said]
    assert counts == [2]
    assert len(bench.chip.violations) == (name in FORGIVEN)


def test_a_release_of_nothing_that_asks_for_an_interrupt_gets_it(bench: Bench) -> None:
    bench.set("CP_ME1_PIPE0_INT_CNTL", 1 << 26)
    bench.submit([RELEASE_MEM, FENCE_EVENT, 2 << 24, low(DATA), high(DATA), 1, 0, 0x33])
    assert [(entry[1], entry[4][0]) for entry in bench.interrupts()] == [(181, 0x33)]
    assert bench.dword(DATA) == 0


@pytest.mark.parametrize("name", REFUSED)
def test_refused_packets_halt_the_queue(bench: Bench, name: str) -> None:
    words, reason = REFUSED[name]
    bench.submit(write(DATA, 1), words, write(DATA, 2), wait=False)
    assert reason in bench.hung()
    assert bench.dword(DATA) == 1
    # bad opcode: source 183; the pointer shows the packet
    entries = bench.interrupts()
    assert [entry[:4] for entry in entries] == [(0x14, 183, 4, 0)]
    assert entries[0][4][0] == words[0]
    assert bench.get("CPC_INT_STATUS") >> 24 & 1
    assert bench.get("CP_HQD_PQ_RPTR") == len(write(DATA, 1))
    assert bench.get("CP_CPC_STATUS")
    if "not modelled" in reason:
        assert any("not modelled" in text for text in bench.chip.violations)


def test_nested_buffer_is_refused(bench: Bench) -> None:
    inner = [INDIRECT_BUFFER, low(DATA), high(DATA), 1 << 23 | 4]
    bench.submit(indirect(bench, inner), wait=False)
    assert "level 1" in bench.hung()


def test_packet_beyond_the_buffer_is_refused(bench: Bench) -> None:
    bench.submit(indirect(bench, write(DATA, 1)[:-1]), wait=False)
    assert "ends outside the buffer" in bench.hung()


def test_privileged_register_needs_a_privileged_queue() -> None:
    bench = Bench()
    bench.start_mec()
    bench.activate(CP_HQD_VMID=1)
    # VMID 1 maps nothing, so the queue cannot even fetch; make it fetch through VMID 0 instead.
    bench.queue().vmid = 0
    bench.submit([WRITE_DATA_1, 1 << 20, 0xA900, 0, 0], wait=False)  # GRBM_GFX_CNTL
    assert "privileged queue" in bench.hung()
    assert [entry[1] for entry in bench.interrupts()] == [184]
    bench.close()


def test_fault_while_fetching_a_buffer(bench: Bench) -> None:
    packet = [INDIRECT_BUFFER, low(UNMAPPED), high(UNMAPPED), 1 << 23 | 16]
    bench.submit(packet, write(DATA, 1), wait=False)
    assert "page fault" in bench.hung()
    bench.select()
    assert bench.get("CP_HQD_ERROR") == 1 << 9  # IB_UTCL1_ERROR
    status = bench.get("GCVM_L2_PROTECTION_FAULT_STATUS")
    assert status >> 9 & 0x1FF == 4  # CID: CPF
    assert bench.dword(DATA) == 0


def test_faulting_write_vanishes_and_the_queue_goes_on(bench: Bench) -> None:
    bench.submit(write(UNMAPPED, 1), release(DATA, 1))
    assert bench.qword(DATA) == 1
    status = bench.get("GCVM_L2_PROTECTION_FAULT_STATUS")
    assert (status >> 9 & 0x1FF, status >> 18 & 1) == (5, 1)  # CPC, a write
    # UTCL2 fault of the graphics hub: client GFX, source 0, page number in the data
    fault = bench.interrupts()[0]
    assert fault[:2] == (0x0A, 0)
    assert fault[4][0] == UNMAPPED >> 12 & 0xFFFF_FFFF


@given(st.lists(st.integers(0, 0xFFFF_FFFF), min_size=1, max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_dwords_are_accepted_or_refused(words: list[int]) -> None:
    header = words[0]
    try:
        count = packets.payload_length(header)
        if len(words) > count:
            packets.check(header, words, 1)
    except BadPacket as bad:
        assert bad.header == header
