"""What privileged channels may do, and the older methods of the host unit; on a card at register
level, which is the only way to have such a channel."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.support.nvidia.gsp.gsp_script import Script
from tests.support.waiting import until
from tests.virtual.nvidia.gsp.test_virtual_gsp_memory import (
    CHANNEL,
    COPY,
    DEVICE,
    INSTANCE,
    SPACE,
    channel_params,
    objects,
    tables,
    video,
)
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions
from ugpu.virtual.nvidia.rm.resources import VaSpace

LOW, BASE = 0x400000, 0x200000  # where the channel sees video memory
RING, PUSH, MARK = BASE, BASE + 0x100000, BASE + 0x10000
PRIVILEGED = 1 << 5


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script(build_card("ad102", CardOptions(memory=1 << 30)))
    made.boot()
    objects(made)
    directory = tables(made, LOW, BASE)
    params = struct.pack("<QIIIIII", directory, 4, 0, SPACE, 0, 0, 0)
    assert made.control(0x801813, DEVICE, params)[0] == 0
    yield made
    made.close()
    made.card.close()


def execute(script: Script, words: list[int], *, privileged: bool = True) -> None:
    """Run methods on a new channel, then release the mark."""
    flags = 1 << 21 | 1 << 8 | (PRIVILEGED if privileged else 0)
    params = channel_params(script, 1, flags=flags)
    assert script.allocate(0xC56F, DEVICE, CHANNEL, params)[0] == 0
    assert script.control(0xA06F0103, CHANNEL, b"\1\0")[0] == 0
    assert script.allocate(0xC7B5, CHANNEL, COPY, struct.pack("<II", 1, 11))[0] == 0
    release = [0x2005_0017, LOW + 0x10000, 0, 0x77, 0, 1 << 20 | 1]
    words = [*words, *release]
    video(script, PUSH, struct.pack(f"<{len(words)}I", *words))
    video(script, RING, struct.pack("<II", LOW + 0x100000, len(words) << 10))
    video(script, INSTANCE + 0x2000 + 0x8C, struct.pack("<I", 1))
    script.write(0xBB0090, 1 << 16 | 1)


def marked(script: Script) -> bool:
    return script.card.gpu.memory.view[MARK] == 0x77


def test_the_older_semaphore_releases_and_acquires(script: Script) -> None:
    """SEMAPHOREA to D: a release of 16 bytes with the time, one of 4, and an acquire of it."""
    at = LOW + 0x20000
    words = [
        0x2004_0004, 0, at, 0x1234, 2,
        0x2004_0004, 0, at + 0x20, 0x5678, 1 << 24 | 2,
        0x2004_0004, 0, at + 0x20, 0x5678, 1,
        0x2004_0004, 0, at + 0x20, 0x5000, 4,
    ]  # fmt: skip
    execute(script, words)
    until(lambda: marked(script), "the mark")
    view = script.card.gpu.memory.view
    value, zero, stamp = struct.unpack_from("<IIQ", view, BASE + 0x20000)
    assert (value, zero) == (0x1234, 0) and stamp > 0
    assert struct.unpack_from("<IIQ", view, BASE + 0x20020) == (0x5678, 0, 0)


def physical_copy(script: Script, source: int, target: int) -> list[int]:
    """Methods that copy 256 bytes of physical memory: source video, target video."""
    return [
        0x2001_8000, 0xC7B5, 0x2002_8098, 0, 0, 0x2004_8100, 0, source, 0, target, 0x2001_8106, 256,
        0x2001_80C0, 0x182 | 3 << 12,
    ]  # fmt: skip


def test_a_privileged_channel_copies_physical_memory(script: Script) -> None:
    video(script, 0x700000, bytes(range(256)))
    execute(script, physical_copy(script, 0x700000, 0x800000))
    until(lambda: marked(script), "the mark")
    assert bytes(script.card.gpu.memory.view[0x800000:0x800100]) == bytes(range(256))


def test_another_channel_may_not(script: Script) -> None:
    execute(script, physical_copy(script, 0x700000, 0x800000), privileged=False)
    until(lambda: bool(script.card.machine.log), "the report")
    assert "privileged channel" in str(script.card.machine.log[0]) and not marked(script)


def test_a_privileged_channel_invalidates_translations(script: Script) -> None:
    found = script.card.machine.clients[0xC1D00000].objects[SPACE]
    assert isinstance(found, VaSpace)
    before = found.space.invalidations
    execute(script, [0x2004_000A, 0, 0, 1, 9 << 27])
    until(lambda: marked(script), "the mark")
    assert found.space.invalidations > before


def test_another_channel_may_not_invalidate(script: Script) -> None:
    execute(script, [0x2004_000A, 0, 0, 1, 9 << 27], privileged=False)
    until(lambda: bool(script.card.machine.log), "the report")
    assert "not privileged" in str(script.card.machine.log[0])
