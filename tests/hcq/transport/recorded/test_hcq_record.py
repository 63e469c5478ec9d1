"""Recordings: saved, loaded, replayed; a driver that strays is told where."""

from __future__ import annotations

import base64
import contextlib
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clocks import Manual
from tests.support.pci.pcifunction import PlainFunction, PlainMemory, PlainWindow
from ugpu.hcq.errors import BadArgument, Closed, NotSupported, TransportError
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.base import DmaSegment, PciIdentity, ResetKind, Transport
from ugpu.hcq.transport.recorded import format as recording_module
from ugpu.hcq.transport.recorded.accesses import CONFIG, Access
from ugpu.hcq.transport.recorded.format import (
    Allocation,
    Content,
    Entry,
    Free,
    LongWrite,
    Presence,
    Recording,
    Reset,
    Wait,
)
from ugpu.hcq.transport.recorded.recorder import RecordingTransport, record
from ugpu.hcq.transport.recorded.replay import ReplayTransport

TICK_S = 0.1  # of a clock in which nothing is spun for


def drive(transport: Transport) -> list[object]:
    """What a driver might do; returns what it read."""
    registers, memory = transport.window(5), transport.window(0)
    seen: list[object] = [transport.config_read(0), registers.read32(0), registers.read32(0)]
    transport.config_write(4, 6, 2)
    registers.write32(8, 77)
    memory.write64(16, 1 << 40)
    memory.write(32, bytes(range(16)))
    return [*seen, registers.read32(8), memory.read64(16), memory.read(32, 16)]


def recorded() -> tuple[list[object], Recording]:
    transport, recording = record(PlainFunction())
    with transport:
        return drive(transport), recording


def test_a_replay_gives_the_same_values() -> None:
    seen, recording = recorded()
    text = recording.save()
    loaded = Recording.load(text)
    assert loaded.save() == text and loaded == recording
    replay = ReplayTransport(loaded)
    assert drive(replay) == seen
    replay.finish()
    assert replay.identity.vendor == 0x1234
    with pytest.raises(TransportError, match="end of the recording"):
        replay.window(5).read32(0)


def test_the_text_is_readable() -> None:
    lines = recorded()[1].save().splitlines()
    assert lines[:4] == [
        "identity 1234:5678 0x1 1af4:1100 0x30000",
        "window 0 0x10000",
        "window 5 0x1000",
        "read config 0x0 4 0x56781234",
    ]
    assert lines[-1] == f"read bar0 0x20 16 data {bytes(range(16)).hex()}"


def test_straying_is_an_error() -> None:
    replay = ReplayTransport(recorded()[1])
    with pytest.raises(TransportError, match="the access differs from the recording") as caught:
        replay.window(5).read32(8)
    assert caught.value.facts["recorded"] == "read config 0x0 4 0x56781234"
    replay.config_read(0)
    replay.window(5).read32(0)
    replay.window(5).read32(0)
    with pytest.raises(TransportError):
        replay.config_write(4, 7, 2)
    with pytest.raises(TransportError, match="not made"):
        replay.finish()


def test_what_a_recording_cannot_do() -> None:
    replay = ReplayTransport(recorded()[1])
    assert replay.interrupts is None and replay.present()
    for stray in (
        lambda: replay.reset(ResetKind.FUNCTION),
        lambda: replay.allocate_dma(100),
        lambda: replay.config_write(4, 6, 2),
    ):
        with pytest.raises(TransportError, match="the access differs from the recording"):
            stray()
    for wrong in (
        lambda: replay.window(2),
        lambda: replay.window(5).read32(3),
        lambda: replay.allocate_dma(0),
    ):
        with pytest.raises(BadArgument):
            wrong()
    replay.close()
    with pytest.raises(Closed):
        replay.config_read(0)


class Doorbell(PlainWindow):
    """Writing register 8 has the device write that number into the memory it was given last."""

    memory = memoryview(b"")

    def write32(self, offset: int, value: int) -> None:
        super().write32(offset, value)
        if offset == 8:
            self.memory[value : value + 4] = value.to_bytes(4, "little")


class WritingFunction(PlainFunction):
    def __init__(self) -> None:
        super().__init__()
        self.doorbell = Doorbell(self, 5)
        self._windows[5] = self.doorbell

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> PlainMemory:
        memory = super().allocate_dma(size, contiguous=contiguous)
        self.doorbell.memory = memory.view
        return memory


def drive_memory(transport: Transport) -> list[bytes]:
    """Commands in memory, doorbells, answers in memory."""
    registers = transport.window(5)
    memory = transport.allocate_dma(8000)
    assert memory.segments[0].address == 0x10_0000
    seen = []
    for place in (16, 4096, 20):
        memory.view[0:4] = place.to_bytes(4, "little")
        registers.write32(8, place)
        seen.append(bytes(memory.view[place : place + 4]))
    transport.window(0).write(0, bytes(512))
    transport.reset(ResetKind.FUNCTION)
    memory.close()
    memory.close()
    registers.read32(8)
    return seen


def test_memory_shared_with_the_device_changes_as_it_did() -> None:
    recorder, recording = record(WritingFunction())
    seen = drive_memory(recorder)
    recorder.close()
    text = recording.save()
    loaded = Recording.load(text)
    assert loaded == recording
    contents = [entry for entry in loaded.entries if isinstance(entry, Content)]
    words = [value.to_bytes(8, "little") for value in (16, 4096)]
    assert contents[0] == Content(0, 0, words[0]), "the driver's"
    assert contents[1] == Content(0, 16, words[0], at_once=True), "the device's"
    assert contents[2] == Content(0, 0, words[1]), "the driver's next"
    replay = ReplayTransport(loaded)
    assert drive_memory(replay) == seen
    replay.finish()
    for kind in (LongWrite, Allocation, Free, Reset):
        assert any(isinstance(entry, kind) for entry in loaded.entries), kind
    replay = ReplayTransport(loaded)
    memory = replay.allocate_dma(8192)
    replay.window(5).write32(8, 16)
    assert int.from_bytes(memory.view[16:20], "little") == 16
    with pytest.raises(TransportError, match="the access differs from the recording"):
        replay.window(5).write32(8, 4095)


class LaterFunction(PlainFunction):
    """Writing register 8 has the device count up in memory, but only when the driver looks."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[int] = []
        self.memory = memoryview(b"")
        self.clock = Manual(TICK_S, on_sleep=self.answer)

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> PlainMemory:
        memory = super().allocate_dma(size, contiguous=contiguous)
        self.memory = memory.view
        return memory

    def answer(self, seconds: float) -> None:
        """What the device does while the driver sleeps."""
        if self.answers:
            self.memory[0] = self.answers.pop(0)


def drive_fence(transport: Transport) -> list[int]:
    """A fence that is waited for and taken back, twice, between two accesses; and a counter that
    is read back from memory."""
    memory = transport.allocate_dma(4096)
    transport.window(5).write32(8, 1)
    seen = []
    for value in (5, 6):
        memory.view[8] += 1
        transport.clock.wait_until(
            lambda value=value: memory.view[0] == value,
            unit="test", waiting_for="fence", limit_s=1.0,
        )  # fmt: skip
        memory.view[0] = 0
        seen.append(memory.view[8])
    transport.window(5).read32(0)
    return [*seen, memory.view[0], memory.view[8]]


def test_a_fence_that_is_taken_back_is_seen_each_time() -> None:
    function = LaterFunction()
    recorder, recording = record(function)
    function.answers = [0, 5, 0, 0, 6]
    assert drive_fence(recorder) == [1, 2, 0, 2]
    recorder.close()
    for _ in range(2):
        with ReplayTransport(Recording.load(recording.save()), clock=Manual(TICK_S)) as replay:
            assert drive_fence(replay) == [1, 2, 0, 2]
            replay.finish()


def test_a_fence_that_is_looked_at_in_a_loop_of_its_own_is_not() -> None:
    """The limit that the module's documentation states."""
    recorder, recording = record(WritingFunction())
    memory = recorder.allocate_dma(4096)
    memory.view[64:68] = b"mine"
    memory.view[0] = 5  # the device's, after the last access; nobody told the recorder
    memory.view[0] = 0
    recorder.window(5).read32(0)
    recorder.close()
    assert not any(isinstance(entry, Content) and entry.data[0] == 5 for entry in recording.entries)


@pytest.mark.parametrize("place", [0, 72, 4088])
def test_other_contents_of_shared_memory_are_named(place: int) -> None:
    recorder, recording = record(PlainFunction())
    with recorder:
        memory = recorder.allocate_dma(4096)
        memory.view[0:4] = b"good"
        recorder.window(5).write32(8, 1)
    with ReplayTransport(recording) as replay:
        memory = replay.allocate_dma(4096)
        memory.view[0:4] = b"good"
        memory.view[place : place + 3] = b"bad"
        with pytest.raises(TransportError, match="shared memory") as caught:
            replay.window(5).write32(8, 1)
        assert caught.value.facts["number"] == 0 and caught.value.facts["offset"] == place


def test_a_refused_reset_is_refused_again() -> None:
    recorder, recording = record(PlainFunction())
    with recorder, pytest.raises(NotSupported):
        recorder.reset(ResetKind.POWER)
    with ReplayTransport(Recording.load(recording.save())) as replay:
        with pytest.raises(NotSupported, match="switched off"):
            replay.reset(ResetKind.POWER)
        replay.finish()


def test_a_device_that_goes_is_gone_in_the_replay() -> None:
    function = PlainFunction()
    recorder, recording = record(function)

    def drive_loss(transport: Transport) -> list[object]:
        before = [transport.present(), transport.window(5).read32(8)]
        function.lost = True
        return [*before, transport.window(5).read32(8), transport.present(), transport.present()]

    with recorder:
        seen = drive_loss(recorder)
    assert seen == [True, 0, 0xFFFF_FFFF, False, False]
    with ReplayTransport(Recording.load(recording.save())) as replay:
        assert drive_loss(replay) == seen
        replay.finish()


def test_a_forked_child_does_not_write_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    with RecordingTransport(PlainFunction(), path) as recorder:
        child = os.fork()
        if not child:
            recorder.close()
            os._exit(int(path.stat().st_size > 0))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.exists()


def test_places_read_by_the_clock_are_outside_the_order() -> None:
    recorder, recording = record(PlainFunction())
    registers = recorder.window(5)
    registers.write32(16, 7)
    for offset in (8, 16, 16, 12, 16):
        registers.read32(offset)
    registers.write32(16, 8)
    for offsets in ((8, 12), (16, 8, 16, 16, 16, 12), (8, 16, 12, 16)):
        replay = ReplayTransport(recording, by_clock=[(5, 16)])
        window = replay.window(5)
        for _ in range(len(offsets)):
            window.write32(16, 9)
        try:
            assert [window.read32(at) for at in offsets] == [7 if at == 16 else 0 for at in offsets]
        except TransportError:
            assert offsets[0] == 16, "nothing is known of it yet"
            continue
        replay.finish()


def test_contents_of_memory_that_is_not_there_are_refused() -> None:
    for entries in (
        [Content(0, 0, b"1")],
        [Allocation(0, 4096, ()), Content(0, 4090, bytes(8))],
        [Allocation(0, 4096, ()), Content(1, 0, bytes(8))],
    ):
        recording = Recording(PciIdentity(1, 2), {}, [*entries])
        with pytest.raises(BadArgument, match="memory that was not allocated"):
            ReplayTransport(recording).allocate_dma(4096)


accesses = st.builds(
    lambda window, offset, width, is_write, data: Access(
        window, offset, len(data) if width == 0 else width, is_write,
        int.from_bytes(data[:width], "little") if width else None,
        None if width else data,
    ),
    st.sampled_from([CONFIG, 0, 2, 5]),
    st.integers(0, 1 << 32),
    st.sampled_from([0, 1, 2, 4, 8]),
    st.booleans(),
    st.binary(max_size=400),
)  # fmt: skip
numbers = st.integers(0, 1 << 20)
entries = st.one_of(
    accesses,
    st.builds(LongWrite, st.sampled_from([0, 5]), numbers, numbers, st.just("ab" * 32)),
    st.builds(
        lambda number, runs: Allocation(
            number,
            4096 * sum(count for _, count in runs),
            tuple(DmaSegment(BusAddr(at), 4096 * count) for at, count in runs),
        ),
        numbers,
        st.lists(st.tuples(numbers, st.integers(1, 9)), min_size=1, max_size=4),
    ),
    st.builds(Content, numbers, numbers, st.binary(max_size=400), st.booleans()),
    st.builds(Free, numbers),
    st.builds(Reset, st.sampled_from(ResetKind), st.sampled_from(["", "NotSupported not here"])),
    st.builds(Wait),
    st.builds(Presence, st.booleans()),
)


@given(st.lists(entries, max_size=20), st.integers(0, 9))
def test_any_recording_survives_being_saved(taken: list[Entry], interrupts: int) -> None:
    recording = Recording(PciIdentity(1, 2, 3, 4, 5, 6), {5: 4096}, taken, interrupts)
    assert Recording.load(recording.save()) == recording


@given(st.text(max_size=200))
def test_noise_is_refused(text: str) -> None:
    for prefix in ("", "identity 1:2 0 3:4 0\n"):
        with contextlib.suppress(BadArgument):
            Recording.load(prefix + text)


@pytest.mark.parametrize(
    "line",
    [
        "read bar5", "peek bar5 0 4 0", "read bar5 zz 4 0", "read bar5 0 4 data 00", "window 5",
        "write bar5 0 4 sha256 ab", "read bar5 0 4 sha256 " + "ab" * 32, "allocate 0 4096",
        "allocate 0 4096 0x1000+0x2000", "allocate 0 -4096 0x0+-0x1000", "memory 0 0 what 00",
        "memory 0 0 packed !!", "memory 0 0 packed eJw=", "reset hard", "free", "interrupts x",
        "present", "present maybe", "answer 0 0", "command " + "[" * 100_000,
    ],
)  # fmt: skip
def test_wrong_lines_are_named(line: str) -> None:
    with pytest.raises(BadArgument, match="line 2"):
        Recording.load(f"identity 1:2 0 3:4 0\n{line}\n")


def test_a_packed_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_module, "LARGEST", 1 << 16)
    bomb = base64.b64encode(zlib.compress(bytes(1 << 20))).decode()
    with pytest.raises(BadArgument, match="line 2"):
        Recording.load(f"identity 1:2 0 3:4 0\nmemory 0 0 packed {bomb}\n")
