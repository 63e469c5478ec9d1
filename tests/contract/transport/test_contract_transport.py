"""The transport contract, over every transport there is: accesses, memory, interrupts, loss.

Rules about opening, closing and leaving are in test_contract_transport_life.py. A rule that a
transport says of itself that it cannot keep (hcq.transport.base.Traits) is skipped there by name.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress

import pytest

from tests.support.pci.pcifunction import PlainFunction
from tests.support.pci.transport_stands import Subject, allocated, much, rule
from ugpu.hcq.errors import BadArgument, Closed, DeviceLost, NotSupported
from ugpu.hcq.transport.base import ResetKind, Transport
from ugpu.hcq.transport.recorded.accesses import Access, TracingTransport
from ugpu.hcq.transport.recorded.format import Recording
from ugpu.hcq.transport.recorded.recorder import record
from ugpu.hcq.transport.recorded.replay import ReplayTransport

LIMIT_S = 60.0


# ---- configuration space and windows -----------------------------------------------------------


@rule
def test_configuration_space_says_who_it_is(subject: Subject) -> None:
    transport = subject.transport
    identity = transport.identity
    assert transport.config_read(0, 4) == identity.vendor | identity.device << 16
    assert transport.config_read(0, 2) == identity.vendor
    assert transport.config_read(2, 2) == identity.device
    assert transport.config_read(0, 1) == identity.vendor & 0xFF
    assert transport.present()
    assert f"{identity.vendor:04x}" in str(identity)


@rule
def test_configuration_accesses_are_aligned_inside_and_of_their_width(subject: Subject) -> None:
    transport = subject.transport
    for offset, width in ((1, 2), (2, 4), (0, 3), (0, 8), (-4, 4), (4096, 1), (4094, 4)):
        with pytest.raises(BadArgument):
            transport.config_read(offset, width)
        with pytest.raises(BadArgument):
            transport.config_write(offset, 0, width)
    for value, width in ((1 << 32, 4), (1 << 16, 2), (-1, 1)):
        with pytest.raises(BadArgument):
            transport.config_write(4, value, width)


@rule
def test_a_window_is_the_same_object_each_time(subject: Subject) -> None:
    window = subject.transport.window(0)
    assert subject.transport.window(0) is window and window.index == 0 and window.size > 0
    for absent in (-1, 1, 6, 99):
        with pytest.raises(BadArgument):
            subject.transport.window(absent)


@rule
def test_memory_keeps_what_is_written(subject: Subject) -> None:
    window = subject.transport.window(0)
    window.write32(0x100, 0x11223344)
    window.write64(0x108, 0x8877_6655_4433_2211)
    assert window.read32(0x100) == 0x11223344
    assert window.read64(0x108) == 0x8877_6655_4433_2211
    assert window.read32(0x108) == 0x4433_2211, "little-endian"
    data = bytes(range(256)) * 16
    for kind in (bytes, bytearray, memoryview):
        window.write(0x1004, kind(data))
        assert window.read(0x1004, len(data)) == data
    assert window.read(0x1004, 0) == b""


@rule
def test_accesses_are_aligned_and_inside(subject: Subject) -> None:
    for window in (subject.transport.window(0), subject.transport.window(5)):
        for offset in (1, 2, -4, window.size, window.size + 4, window.size - 2):
            with pytest.raises(BadArgument):
                window.read32(offset)
            with pytest.raises(BadArgument):
                window.write32(offset, 0)
        for offset in (4, -8, window.size, window.size - 4):
            with pytest.raises(BadArgument):
                window.read64(offset)
            with pytest.raises(BadArgument):
                window.write64(offset, 0)


@rule
def test_registers_take_values_of_their_width(subject: Subject) -> None:
    for window in (subject.transport.window(0), subject.transport.window(5)):
        for value in (-1, 1 << 32):
            with pytest.raises(BadArgument):
                window.write32(8, value)
        for value in (-1, 1 << 64):
            with pytest.raises(BadArgument):
                window.write64(8, value)


@rule
def test_blocks_are_whole_dwords_inside(subject: Subject) -> None:
    window = subject.transport.window(0)
    for offset, size in ((2, 4), (-4, 4), (window.size - 4, 8), (window.size, 4), (0, 6)):
        with pytest.raises(BadArgument):
            window.read(offset, size)
        with pytest.raises(BadArgument):
            window.write(offset, bytes(size))


@rule
def test_writes_of_a_batch_arrive_in_their_order_before_what_follows(subject: Subject) -> None:
    transport = subject.transport
    window = transport.window(0)
    with transport.batch():
        window.write32(0x100, 1)
        window.write32(0x100, 2)
        with transport.batch():  # one within another
            window.write64(0x108, 3)
        window.write32(0x108, 4)
        assert window.read32(0x100) == 2 and window.read64(0x108) == 4
        window.write32(0x110, 5)
        window.write(0x110, bytes(8))
        for value in range(300):  # more than a message takes
            window.write32(0x200 + 4 * (value % 4), value)
    assert window.read64(0x110) == 0
    assert window.read(0x200, 16) == b"".join(n.to_bytes(4, "little") for n in range(296, 300))
    with pytest.raises(BadArgument), transport.batch():
        window.write32(0x100, 7)
        window.write32(0x101, 8)
    assert window.read32(0x100) == 7


@rule
def test_threads_may_follow_each_other(subject: Subject) -> None:
    window = subject.transport.window(0)
    window.write32(0x40, 0)
    turn = threading.Lock()

    def add() -> None:
        for _ in range(50):
            with turn:
                window.write32(0x40, window.read32(0x40) + 1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert window.read32(0x40) == 200


# ---- memory ------------------------------------------------------------------------------------


@rule
def test_memory_for_the_device(subject: Subject) -> None:
    transport = subject.transport
    for wrong in (0, -1):
        with pytest.raises(BadArgument):
            transport.allocate_dma(wrong)
    subject.needs("host_memory")
    memory = transport.allocate_dma(5000)
    assert memory.size == len(memory.view) == 8192
    assert bytes(memory.view) == bytes(8192), "zero at first"
    assert sum(segment.size for segment in memory.segments) == memory.size
    assert all(segment.address % 4096 == 0 for segment in memory.segments)
    memory.view[10:14] = b"abcd"
    assert bytes(memory.view[10:14]) == b"abcd"
    whole = transport.allocate_dma(much(transport), contiguous=True)
    assert len(whole.segments) == 1
    places = [(s.address, s.address + s.size) for s in (*memory.segments, *whole.segments)]
    places.sort()
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(places))
    for taken in (memory, whole, memory):
        taken.close()


# ---- interrupts --------------------------------------------------------------------------------


@rule
def test_interrupts_are_waited_for_with_a_limit(subject: Subject) -> None:
    subject.needs("counts_interrupts")
    interrupts = subject.transport.interrupts
    if interrupts is not None:
        assert not interrupts.wait(0)
        assert not interrupts.wait(0.01)


@rule
def test_vectors_are_enabled_before_they_are_waited_for(subject: Subject) -> None:
    interrupts = subject.transport.interrupts
    if interrupts is None:
        return
    vectors = interrupts.vectors
    assert vectors >= 1
    for wrong in (0, -1, vectors + 1):
        with pytest.raises(BadArgument):
            interrupts.enable(wrong)
    for vector in (-1, vectors, *range(1, vectors)):
        with pytest.raises(BadArgument):
            interrupts.wait(0, vector)
    interrupts.enable(vectors)
    interrupts.enable(vectors)
    if subject.transport.traits.counts_interrupts:
        assert not any(interrupts.wait(0, vector) for vector in range(vectors))


@rule
def test_what_was_written_before_an_interrupt_is_there_after_it(subject: Subject) -> None:
    """Each vector by itself, also when nobody waited yet as it came; once, and not twice."""
    interrupts, deliver = subject.transport.interrupts, subject.deliver
    if interrupts is None or deliver is None:
        assert interrupts is None, "a device that interrupts has its stand say how"
        return
    counts = subject.transport.traits.counts_interrupts
    subject.transport.config_write(4, subject.transport.config_read(4, 2) | 6, 2)
    memory = subject.transport.allocate_dma(4096)
    interrupts.enable(interrupts.vectors)
    for turn in range(3):
        for vector in range(interrupts.vectors):
            data = bytes([turn + 1, vector]) * 32
            deliver(subject.transport, memory, data, vector)
            assert interrupts.wait(LIMIT_S, vector)
            assert bytes(memory.view[:64]) == data
            others = range(interrupts.vectors)
            assert not counts or not any(interrupts.wait(0, other) for other in others)
    memory.close()


# ---- resets and loss ---------------------------------------------------------------------------


@rule
def test_a_reset_leaves_who_it_is(subject: Subject) -> None:
    transport = subject.transport
    before = transport.config_read(0)
    for kind in ResetKind:
        with suppress(NotSupported):
            transport.reset(kind)
        assert transport.present() and transport.config_read(0) == before


@rule
def test_a_device_that_is_lost_reads_all_ones_or_says_so(subject: Subject) -> None:
    transport = subject.transport
    window = transport.window(5)
    memories = allocated(transport, 4096)
    window.read32(8)
    assert transport.present()
    subject.lose()
    for _ in range(2):
        with suppress(DeviceLost):
            assert window.read32(8) == 0xFFFF_FFFF
        with suppress(DeviceLost):
            assert window.read64(16) == (1 << 64) - 1
        with suppress(DeviceLost):
            assert transport.config_read(0) == 0xFFFF_FFFF
        with suppress(DeviceLost):
            window.write32(64, 1)
    assert not transport.present()
    for memory in memories:
        if transport.traits.host_memory:
            memory.view[:4] = b"ours"
            assert bytes(memory.view[:4]) == b"ours"
        memory.close()
    transport.close()
    with pytest.raises(Closed):
        window.read32(8)


# ---- wrappers ----------------------------------------------------------------------------------


def drive(transport: Transport) -> list[object]:
    """What a driver might do; what it read."""
    memory = transport.window(0)
    memory.write32(0x100, 1)
    memory.write64(0x108, 2)
    memory.write(0x200, bytes(range(64)))
    values = (memory.read32(0x100), memory.read64(0x108), memory.read(0x200, 64))
    return [transport.config_read(0), transport.config_read(8, 1), *values]


@rule
def test_a_recording_replays_without_the_device(subject: Subject) -> None:
    recorder, recording = record(subject.transport)
    seen = drive(recorder)
    replay = ReplayTransport(Recording.load(recording.save()))
    assert replay.identity == subject.transport.identity
    assert drive(replay) == seen
    replay.finish()
    replay.close()
    with pytest.raises(Closed):
        replay.window(0)


def test_a_trace_holds_every_access_in_order() -> None:
    accesses: list[Access] = []
    with TracingTransport(PlainFunction(), accesses.append) as transport:
        window = transport.window(5)
        window.write32(8, 0xAB)
        window.read32(8)
        window.read64(8)
        transport.window(0).write(16, b"12345678")
        transport.config_read(0, 2)
        with pytest.raises(BadArgument):
            window.read32(1)
    assert [str(access) for access in accesses] == [
        "write bar5 0x8 4 0xab",
        "read bar5 0x8 4 0xab",
        "read bar5 0x8 8 0xab",
        "write bar0 0x10 8 8 bytes",
        "read config 0x0 2 0x1234",
    ]
    assert accesses[3].data == b"12345678"
