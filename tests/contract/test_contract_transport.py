"""The transport contract, over every transport there is: in process, VFIO, vfio-user, wrapped."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from am.virtual.bus.served import ServedChip
from am.virtual.gpu import attach, build_chip
from am.virtual.options import ChipOptions
from hcq.errors import BadArgument, Closed
from hcq.transport.base import Transport
from hcq.transport.record import record
from hcq.transport.recording import Recording
from hcq.transport.replay import ReplayTransport
from hcq.transport.trace import Access, TracingTransport
from hcq.transport.vfio import VfioTransport
from hcq.transport.vfio_user.client import VfioUserTransport
from tests.support.fake_vfio import MSIX, VfioMachine
from tests.support.pcifunction import PlainFunction
from tests.support.vfio_user_device import MemoryDevice
from tests.support.vfio_user_served import served


def plain() -> Transport:
    return PlainFunction()


def traced() -> Transport:
    return TracingTransport(PlainFunction(), lambda access: None)


def virtual() -> Transport:
    transport: Transport = attach(vram=256 << 20).transport
    command = transport.config_read(4, 2)
    transport.config_write(4, command | 6, 2)  # memory space and bus master, as a driver sets them
    return transport


def traced_virtual() -> Transport:
    return TracingTransport(virtual(), lambda access: None)


def machine() -> VfioMachine:
    """A made-up kernel with one card in vfio-pci's hands; its files go with the object."""
    folder = tempfile.TemporaryDirectory()
    made = VfioMachine(Path(folder.name))
    made.load("vfio-pci")
    made.add("0000:03:00.0", driver="vfio-pci")
    weakref.finalize(made, folder.cleanup)
    return made


def vfio() -> Transport:
    made = machine()
    return VfioTransport("0000:03:00.0", system=made, on_close=made.free)


def vfio_msix() -> Transport:
    made = machine()
    made.irqs[MSIX] = 4
    return VfioTransport("0000:03:00.0", system=made, on_close=made.free)


def vfio_by_file() -> Transport:
    made = machine()
    made.mappable = False
    return VfioTransport("0000:03:00.0", system=made, on_close=made.free)


def iommufd() -> Transport:
    made = machine()
    made.offer_iommufd("0000:03:00.0")
    return VfioTransport("0000:03:00.0", system=made, iommufd=True, on_close=made.free)


@contextmanager
def vfio_user_plain() -> Iterator[Transport]:
    with served(MemoryDevice()) as server, VfioUserTransport(str(server.path)) as transport:
        yield transport


@contextmanager
def vfio_user_vectors() -> Iterator[Transport]:
    """More vectors than a message of the protocol carries descriptors."""
    with (
        served(MemoryDevice(vectors=20)) as server,
        VfioUserTransport(str(server.path)) as transport,
    ):
        yield transport


@contextmanager
def vfio_user_navi31(map_vram: bool = False) -> Iterator[Transport]:
    """The virtual Navi31 behind a server; each access is a message, VRAM where it is not mapped."""
    chip = build_chip(ChipOptions(vram=256 << 20, shared_vram=map_vram))
    model = ServedChip(chip, map_vram=map_vram)
    with served(model) as server, VfioUserTransport(str(server.path)) as transport:
        transport.config_write(4, transport.config_read(4, 2) | 6, 2)
        yield transport
    chip.close()


@contextmanager
def vfio_user_mapped() -> Iterator[Transport]:
    with vfio_user_navi31(map_vram=True) as transport:
        yield transport


@contextmanager
def vfio_user_traced() -> Iterator[Transport]:
    with vfio_user_plain() as transport:
        yield TracingTransport(transport, lambda access: None)


MAKERS: list[Callable[[], AbstractContextManager[Transport]]] = [
    plain, traced, virtual, traced_virtual, vfio, vfio_msix, vfio_by_file, iommufd,
    vfio_user_plain, vfio_user_vectors, vfio_user_traced, vfio_user_navi31, vfio_user_mapped,
]  # fmt: skip


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    make: Callable[[], AbstractContextManager[Transport]] = request.param
    with make() as opened:
        yield opened


def test_configuration_space_says_who_it_is(transport: Transport) -> None:
    identity = transport.identity
    assert transport.config_read(0, 4) == identity.vendor | identity.device << 16
    assert transport.config_read(0, 2) == identity.vendor
    assert transport.config_read(2, 2) == identity.device
    assert transport.config_read(0, 1) == identity.vendor & 0xFF
    assert transport.present()
    assert f"{identity.vendor:04x}" in str(identity)


def test_a_window_is_the_same_object_each_time(transport: Transport) -> None:
    window = transport.window(0)
    assert transport.window(0) is window and window.index == 0 and window.size > 0
    for absent in (-1, 1, 6, 99):
        with pytest.raises(BadArgument):
            transport.window(absent)


def test_memory_keeps_what_is_written(transport: Transport) -> None:
    window = transport.window(0)
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


@pytest.mark.parametrize("bar", [0, 5])
def test_accesses_are_aligned_and_inside(transport: Transport, bar: int) -> None:
    window = transport.window(bar)
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


def test_blocks_are_whole_dwords_inside(transport: Transport) -> None:
    window = transport.window(0)
    for offset, size in ((2, 4), (-4, 4), (window.size - 4, 8), (window.size, 4)):
        with pytest.raises(BadArgument):
            window.read(offset, size)
        with pytest.raises(BadArgument):
            window.write(offset, bytes(size))


def test_memory_for_the_device(transport: Transport) -> None:
    memory = transport.allocate_dma(5000)
    assert memory.size == len(memory.view) == 8192
    assert bytes(memory.view) == bytes(8192), "zero at first"
    assert sum(segment.size for segment in memory.segments) == memory.size
    assert all(segment.address % 4096 == 0 for segment in memory.segments)
    memory.view[10:14] = b"abcd"
    assert bytes(memory.view[10:14]) == b"abcd"
    whole = transport.allocate_dma(4 << 20, contiguous=True)
    assert len(whole.segments) == 1
    places = [(s.address, s.address + s.size) for s in (*memory.segments, *whole.segments)]
    places.sort()
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(places))
    for taken in (memory, whole, memory):
        taken.close()


def test_closed_use(transport: Transport) -> None:
    transport.close()
    transport.close()
    for use in (
        lambda: transport.config_read(0),
        lambda: transport.config_write(4, 0),
        lambda: transport.window(0),
        lambda: transport.allocate_dma(4096),
    ):
        with pytest.raises(Closed):
            use()
    assert not transport.present()


def test_use_of_a_window_after_the_end_is_refused_or_all_ones(transport: Transport) -> None:
    window = transport.window(5)
    transport.close()
    with suppress(Closed):
        assert window.read32(8) in (0, 0xFFFF_FFFF)


def test_threads_may_follow_each_other(transport: Transport) -> None:
    window = transport.window(0)
    window.write32(0x40, 0)

    def add() -> None:
        for _ in range(50):
            with turn:
                window.write32(0x40, window.read32(0x40) + 1)

    turn = threading.Lock()
    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert window.read32(0x40) == 200


def test_nothing_is_left_open(transport: Transport) -> None:
    before = len(os.listdir("/proc/self/fd"))
    memories = [transport.allocate_dma(4096) for _ in range(20)]
    for memory in memories:
        memory.close()
        memory.close()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert transport.present()


def test_interrupts_are_waited_for_with_a_limit(transport: Transport) -> None:
    interrupts = transport.interrupts
    if interrupts is not None:
        assert not interrupts.wait(0)
        assert not interrupts.wait(0.01)


def test_vectors_are_enabled_before_they_are_waited_for(transport: Transport) -> None:
    interrupts = transport.interrupts
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
    assert not any(interrupts.wait(0, vector) for vector in range(vectors))


def drive(transport: Transport) -> list[object]:
    """What a driver might do; what it read."""
    memory = transport.window(0)
    memory.write32(0x100, 1)
    memory.write64(0x108, 2)
    memory.write(0x200, bytes(range(64)))
    values = (memory.read32(0x100), memory.read64(0x108), memory.read(0x200, 64))
    return [transport.config_read(0), transport.config_read(8, 1), *values]


def test_a_recording_replays_without_the_device(transport: Transport) -> None:
    recorder, recording = record(transport)
    seen = drive(recorder)
    replay = ReplayTransport(Recording.load(recording.save()))
    assert replay.identity == transport.identity
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
