"""Recordings: saved, loaded, replayed; a driver that strays is told where."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcq.errors import BadArgument, Closed, NotSupported, TransportError
from hcq.transport.base import PciIdentity, ResetKind, Transport
from hcq.transport.record import Recording, ReplayTransport, record
from hcq.transport.trace import CONFIG, Access
from tests.support.pcifunction import PlainFunction


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
    with pytest.raises(TransportError, match="not the recorded access") as caught:
        replay.window(5).read32(8)
    assert caught.value.facts["recorded"] == "read config 0x0 4 0x56781234"
    replay.config_read(0)
    replay.window(5).read32(0)
    replay.window(5).read32(0)
    with pytest.raises(TransportError):
        replay.config_write(4, 7, 2)
    with pytest.raises(TransportError, match="missing"):
        replay.finish()


def test_what_a_recording_cannot_do() -> None:
    replay = ReplayTransport(recorded()[1])
    assert replay.interrupts is None and replay.present()
    with pytest.raises(NotSupported):
        replay.reset(ResetKind.FUNCTION)
    with pytest.raises(BadArgument):
        replay.window(2)
    with pytest.raises(BadArgument):
        replay.window(5).read32(3)
    assert len(replay.allocate_dma(100).view) == 4096
    replay.close()
    with pytest.raises(Closed):
        replay.config_read(0)


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
    st.binary(max_size=40),
)  # fmt: skip


@given(st.lists(accesses, max_size=20))
def test_any_recording_survives_being_saved(taken: list[Access]) -> None:
    recording = Recording(PciIdentity(1, 2, 3, 4, 5, 6), {5: 4096}, taken)
    assert Recording.load(recording.save()) == recording


@given(st.text(max_size=200))
def test_noise_is_refused(text: str) -> None:
    for prefix in ("", "identity 1:2 0 3:4 0\n"):
        with contextlib.suppress(BadArgument):
            Recording.load(prefix + text)


@pytest.mark.parametrize(
    "line",
    ["read bar5", "peek bar5 0 4 0", "read bar5 zz 4 0", "read bar5 0 4 data 00", "window 5"],
)
def test_wrong_lines_are_named(line: str) -> None:
    with pytest.raises(BadArgument, match="line 2"):
        Recording.load(f"identity 1:2 0 3:4 0\n{line}\n")
