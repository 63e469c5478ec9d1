"""The message queues and calls, against the GSP's end of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.interrupts import interrupted
from tests.support.nvidia.gsp.gsp_peer import COMMANDS, PAGE, SIZE, SLOTS, STATUSES, Memory, Peer
from ugpu.hcq.errors import DeviceLost, FirmwareError, FirmwareSilent
from ugpu.hcq.state.clock import Clock
from ugpu.nv.abi.firmware import firmware
from ugpu.nv.gsp.layout.memory import Pages
from ugpu.nv.gsp.rpc.calls import Calls
from ugpu.nv.gsp.rpc.messages import SETTINGS, registry, system_info
from ugpu.nv.gsp.rpc.queue import MessageQueues
from ugpu.nv.gsp.rpc.records import MOST_PAYLOAD, BadRecord, checksum

CONTROL, ALLOC, CONTINUATION = 76, 103, 71
INIT_DONE, PRINT, ERROR_LOG = 0x1001, 0x100C, 0x1006


class Steps(Clock):
    """A clock whose time passes only in sleeps and looks; each look lets the peer act."""

    def __init__(self) -> None:
        self.time = 0.0
        self.act: Callable[[], None] = lambda: None

    def now(self) -> float:
        self.act()
        self.time += 1e-3
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class World:
    def __init__(self, *, scattered: bool = False) -> None:
        memory = Memory(SIZE, scattered=scattered)

        class Toy:
            def allocate_dma(self, size: int, *, contiguous: bool = False) -> Memory:
                return memory

        self.pages = Pages(cast(Any, Toy()), SIZE, bits=47)
        self.clock = Steps()
        self.rings = 0
        self.queues = MessageQueues(self.pages, self.clock, self._ring)
        self.peer = Peer(self.pages.view)
        self.gone = False
        self.calls = Calls(
            self.queues, firmware("570.144"), check=self._check, state=lambda: {"mailbox0": 7}
        )

    def _ring(self) -> None:
        self.rings += 1

    def _check(self) -> None:
        if self.gone:
            raise DeviceLost("gone")

    def answer(self, reply: Callable[[int, bytes], list[tuple[int, bytes, int]]]) -> None:
        """Answer each command with the records that `reply` returns."""

        def act() -> None:
            found = self.peer.take()
            if found is not None:
                function, sequence, payload = found
                for number, body, result in reply(function, payload):
                    self.peer.send(number, body, result, sequence)

        self.clock.act = act


@pytest.fixture
def world() -> World:
    made = World()
    made.peer.link()
    return made


def test_the_region_describes_itself() -> None:
    world = World(scattered=True)
    view = world.pages.view
    entries = struct.unpack_from("<129Q", view)
    assert entries == tuple(0x10_0000 + 3 * PAGE * number for number in range(129))
    assert struct.unpack_from("<9I", view, COMMANDS) == (0, 0x40000, PAGE, 63, 0, 1, 0x20, PAGE, 0)
    assert bytes(view[STATUSES : STATUSES + 0x24]) == bytes(0x24), "the GSP writes that page"
    assert not world.queues.linked()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3 * MOST_PAYLOAD), min_size=1, max_size=6))
def test_messages_of_any_size_arrive_whole(sizes: list[int]) -> None:
    """They wrap around the end of the queue, and those that are longer than it are sent in parts
    while the GSP reads."""
    world = World()
    world.peer.link()
    taken: list[tuple[int, bytes]] = []

    def act() -> None:
        found = world.peer.take()
        if found is not None:
            taken.append((found[0], found[2]))

    world.clock.act = act
    for number, size in enumerate(sizes):
        payload = bytes((number + 1,)) * size
        world.queues.send(CONTROL, payload, number)
        while (found := world.peer.take()) is not None:
            taken.append((found[0], found[2]))
        assert taken[0][0] == CONTROL
        assert {function for function, _ in taken[1:]} <= {CONTINUATION}
        assert b"".join(part for _, part in taken) == payload
        taken.clear()
    assert world.rings >= len(sizes)


def test_numbers_are_handed_on_only_when_nothing_is_under_way(world: World) -> None:
    """Another process cannot go on while either side has a message that it has not read."""
    assert world.queues.indices() is not None
    world.queues.send(CONTROL, b"work", 1)
    assert world.queues.indices() is None, "the GSP has not read the command"
    world.peer.take()
    assert world.queues.indices() is not None
    world.peer.send(PRINT, b"done", 0, 0)
    assert world.queues.indices() is None, "the driver has not read the record"
    assert world.queues.receive() is not None
    assert world.queues.indices() is not None


def test_a_gsp_that_does_not_read_is_named() -> None:
    world = World()
    for _ in range(3):
        world.queues.send(CONTROL, bytes(0xF000), 0)
    with pytest.raises(FirmwareSilent, match="does not read its command queue"):
        world.queues.send(CONTROL, bytes(0xF000), 0)


def test_a_call_is_answered_among_events(world: World) -> None:
    seen: list[bytes] = []
    world.calls.on_event[PRINT] = seen.append

    def reply(function: int, payload: bytes) -> list[tuple[int, bytes, int]]:
        events = [(PRINT, bytes((n,)), 0) for n in range(70)]  # more than the queue has slots
        return [*events[:30], (function, payload[::-1], 0), *events[30:40]]

    world.answer(reply)
    assert world.calls.call(CONTROL, b"abc", what="a control") == b"cba"
    world.calls.drain()
    assert [event[0] for event in seen] == list(range(40))
    first = str(next(iter(world.calls.history)))
    assert first.endswith("bytes") or "a control" in first


@pytest.mark.parametrize("size", [MOST_PAYLOAD - 1, MOST_PAYLOAD, MOST_PAYLOAD + 1, 150_000])
def test_a_long_reply_comes_in_parts(world: World, size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    left: list[tuple[int, bytes]] = []

    def act() -> None:
        found = world.peer.take()
        if found is not None and found[0] == CONTROL:
            parts = [payload[at : at + MOST_PAYLOAD] for at in range(0, size, MOST_PAYLOAD)]
            left.extend((CONTROL if not n else CONTINUATION, p) for n, p in enumerate(parts))
        if left:
            world.peer.send(*left.pop(0))

    world.clock.act = act
    assert world.calls.call(CONTROL, payload) == payload
    world.answer(lambda function, body: [(function, body, 0)])
    assert world.calls.call(ALLOC, b"next") == b"next"


def test_refusals_and_silence(world: World) -> None:
    world.answer(lambda function, body: [(function, body, 0x56)])
    with pytest.raises(FirmwareError, match="NV_ERR_NOT_SUPPORTED to a control"):
        world.calls.call(CONTROL, b"", what="a control")
    world.clock.act = lambda: None
    with pytest.raises(FirmwareSilent, match="does not answer SET_PAGE_DIRECTORY") as caught:
        world.calls.call(54, b"")
    assert caught.value.facts["mailbox0"] == 7
    assert "SET_PAGE_DIRECTORY" in str(caught.value.facts["history"])
    with pytest.raises(FirmwareSilent, match="an earlier call failed"):
        world.calls.call(CONTROL, b"")


def test_a_lost_chip_ends_the_wait(world: World) -> None:
    world.gone = True
    with pytest.raises(DeviceLost):
        world.calls.call(CONTROL, b"")


def test_init_done_with_an_error_is_not_success(world: World) -> None:
    errors: list[bytes] = []
    world.calls.on_event[ERROR_LOG] = errors.append
    world.peer.send(ERROR_LOG, b"text")
    world.peer.send(INIT_DONE, b"", result=0x65)
    with pytest.raises(FirmwareError, match="GSP_INIT_DONE with NV_ERR_TIMEOUT"):
        world.calls.await_event(INIT_DONE, 1.0)
    assert errors == [b"text"]


def test_a_gsp_that_links_late_is_waited_for() -> None:
    world = World()
    looks = 0

    def act() -> None:
        nonlocal looks
        looks += 1
        if looks == 50:
            world.peer.link()
            world.peer.send(INIT_DONE)

    world.clock.act = act
    world.calls.await_event(INIT_DONE, 4.0)
    with pytest.raises(FirmwareSilent, match="does not report EVENT_GSP_INIT_DONE"):
        world.calls.await_event(INIT_DONE, 0.5)


def _word(at: int, value: int, *, seal: bool) -> Callable[[Peer, bytearray], None]:
    def change(peer: Peer, group: bytearray) -> None:
        struct.pack_into("<I", group, at, value)
        if seal:
            peer.seal(group)

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_word(0x54, 1, seal=False), "checksum"),
        (_word(0x30, 0x02000000, seal=True), "no RPC header"),
        (_word(0x38, 0x1F, seal=True), "invalid length"),
        (_word(0x38, 0x20000, seal=True), "invalid length"),
        (_word(0x28, 2, seal=True), "wrong number of pages"),
        (_word(0x24, 9, seal=True), "out of order"),
        (_word(0x38, 0x1800, seal=True), "longer than what it wrote"),
    ],
)
def test_damaged_records_are_named(
    world: World, change: Callable[[Peer, bytearray], None], text: str
) -> None:
    group = world.peer.group(INIT_DONE, b"payload!")
    change(world.peer, group)
    world.peer.put(group)
    with pytest.raises(BadRecord, match=text):
        world.queues.receive()


@pytest.mark.parametrize(
    ("at", "text"), [(STATUSES + 0x10, "write index"), (STATUSES + 0x20, "read index")]
)
def test_indices_outside_of_the_queue_are_refused(world: World, at: int, text: str) -> None:
    struct.pack_into("<I", world.pages.view, at, SLOTS)
    with pytest.raises(BadRecord, match=text):
        world.queues.receive()
        world.queues.send(CONTROL, b"", 0)


def test_a_record_that_comes_twice_is_dropped(world: World) -> None:
    world.peer.send(PRINT, b"1")
    world.peer.sent = 0
    world.peer.send(PRINT, b"1")
    assert world.queues.receive() is not None
    assert world.queues.receive() is None
    world.peer.sent = 1
    world.peer.send(PRINT, b"2")
    assert world.queues.receive() is not None
    world.peer.sent = 0  # an old one does not set the count back
    world.peer.send(PRINT, b"1")
    assert world.queues.receive() is None
    world.peer.sent = 2
    world.peer.send(PRINT, b"3")
    assert world.queues.receive() is not None


def test_a_continuation_of_nothing_is_refused(world: World) -> None:
    world.peer.send(CONTINUATION, b"x")
    with pytest.raises(BadRecord, match="did not begin"):
        world.calls.await_event(INIT_DONE, 1.0)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_word_of_the_status_queue_breaks_the_reader(data: st.DataObject) -> None:
    world = World()
    world.peer.link()
    for _ in range(data.draw(st.integers(1, 3))):
        world.peer.send(data.draw(st.sampled_from((INIT_DONE, CONTROL, CONTINUATION))), bytes(64))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.sampled_from((STATUSES, STATUSES + PAGE, STATUSES + 2 * PAGE)))
        place = at + 4 * data.draw(st.integers(0, 24))
        struct.pack_into("<I", world.pages.view, place, data.draw(st.integers(0, 0xFFFFFFFF)))
    try:
        for _ in range(70):
            world.calls.drain()
    except FirmwareError:
        return


@given(st.binary(max_size=200))
def test_the_checksum_folds_to_zero(data: bytes) -> None:
    whole = bytearray(data) + bytearray(-len(data) % 8) + bytearray(8)
    struct.pack_into("<I", whole, len(whole) - 8, checksum(whole))
    assert checksum(whole) == 0


def test_settings_by_hand() -> None:
    raw = registry(firmware("570.144"), {"RMx": 5})
    assert raw == struct.pack("<2I", 28, 1) + struct.pack("<IB3xII", 24, 1, 5, 4) + b"RMx\0"
    assert len(registry(firmware("570.144"), SETTINGS)) == 117


@pytest.mark.parametrize(
    ("release", "size", "mirror"), [("570.144", 0x3A0, 0x50), ("535.113.01", 0x298, 0x40)]
)
def test_the_machine_as_each_release_reads_it(release: str, size: int, mirror: int) -> None:
    facts = {
        "gpuPhysAddr": 0xF000_0000, "gpuPhysFbAddr": 0x40_0000_0000,
        "gpuPhysInstAddr": 0x50_0000_0000, "nvDomainBusDeviceFunc": 0x300,
        "PCIDeviceID": 0x2684_10DE, "PCIRevisionID": 0xA1, "pciConfigMirrorBase": 0x88000,
    }  # fmt: skip
    raw = system_info(firmware(release), facts)
    assert len(raw) == size
    assert struct.unpack_from("<3Q", raw) == (0xF000_0000, 0x40_0000_0000, 0x50_0000_0000)
    assert struct.unpack_from("<2I", raw, mirror) == (0x88000, 0x1000)


def test_a_call_after_one_that_was_cut_short_gets_its_own_reply(world: World) -> None:
    """An exception at any line of a call leaves queues and calls in agreement."""
    numbers = count(1)

    def reply(function: int, payload: bytes) -> list[tuple[int, bytes, int]]:
        return [(PRINT, b"", 0), (function, payload, 0)]

    world.answer(reply)

    def ask() -> None:
        payload = struct.pack("<Q", next(numbers))
        assert world.calls.call(CONTROL, payload) == payload

    places = 0
    for place in interrupted(ask):
        places += 1
        try:
            ask()
        except Exception as error:
            raise AssertionError(place) from error
    assert places > 50


def test_a_late_reply_without_a_sequence_number_is_dropped(world: World) -> None:
    """The firmware may answer 0: then the call that was cut short is owed one reply."""

    def cut() -> None:
        raise KeyboardInterrupt

    world.clock.act = cut
    with pytest.raises(KeyboardInterrupt):
        world.calls.call(CONTROL, b"first...")

    def act() -> None:
        found = world.peer.take()
        if found is not None:
            world.peer.send(found[0], found[2])

    world.clock.act = act
    assert world.calls.call(CONTROL, b"second..") == b"second.."
    assert world.calls.call(CONTROL, b"third...") == b"third..."
