"""Suspend and resume of the GSP in the order of Linux's nouveau (r570/fbsr.c, r535/gsp.c, tu102.c),
by a script, and what the card refuses of it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from tests.support.nvidia.gsp.gsp_script import GSP, MIB, PAGE, SB, Script
from tests.virtual.nvidia.gsp.test_virtual_gsp_boot import objections
from tests.virtual.nvidia.gsp.test_virtual_gsp_memory import (
    CLIENT,
    DEVICE,
    SPACE,
    SUBDEVICE,
    objects,
)
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions
from ugpu.virtual.nvidia.status import Status

LIST = 0xCAF00003
PREPARE, SCHEDULE = 0x20800AC2, 0x20800AC3
MAGIC, REVISION = 0x8A3BB9E6C6C39D93, 2
RESUMED = struct.pack("<IIB", 3, 5, 1)  # srInit


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script(build_card("ad102", CardOptions(memory=1 << 30)))
    made.boot()
    objects(made)
    yield made
    made.close()
    made.card.close()


def list_memory(script: Script, size: int) -> int:
    """ALLOC_MEMORY of NV01_MEMORY_LIST_SYSTEM, as nouveau fills it in; the result."""
    memory = script.host(b"", size)
    first, count = memory.segments[0].address // PAGE, size // PAGE
    head = struct.pack("<7I4xQI4xI4x", CLIENT, DEVICE, LIST, 0x81, 1 << 30 | 1 << 4, 0, 0, size,
                       count, count << 16)  # fmt: skip
    return script.call(4, head + struct.pack(f"<{count}Q", *range(first, first + count))).result


def describe(script: Script, **changes: int) -> int:
    """Write GspFwSRMeta; return its address."""
    size = script.meta["end"] - script.meta["start"]
    region = script.host(b"", size)
    words = {"magic": MAGIC, "revision": REVISION, "root": script.radix3(region, size),
             "size": size, **changes}  # fmt: skip
    return script.host(struct.pack("<4Q", *words.values()), PAGE).segments[0].address


def prepare(script: Script, address: int) -> int:
    assert list_memory(script, 3 * MIB) == 0
    params = struct.pack("<IIB7xQ", CLIENT, LIST, 1, address)
    status = script.control(PREPARE, SUBDEVICE, params)[0]
    assert script.free(LIST) == 0
    return status


def suspend(script: Script, address: int) -> int:
    """The calls before the unload, and FWSEC-SB; the result of booter's unload."""
    assert script.control(SCHEDULE, SUBDEVICE, b"\1")[0] == 0
    assert prepare(script, address) == 0
    assert script.call(47, struct.pack("<BBHI", 1, 0, 0, 3)).result == 0
    script.poll(GSP + 0x40, 0xFFFF_FFFF, 0x8000_0000)
    script.reset(GSP)
    script.fwsec(SB)
    return script.booter("booter_unload", address)


def resume(script: Script, address: int) -> int:
    """Booter's load, without FWSEC-FRTS and a reset of the GSP; its result."""
    script.rm_arguments.view[0x20 : 0x20 + len(RESUMED)] = RESUMED
    return script.booter("booter_load", address)


def lose_power(script: Script) -> None:
    """As a host does that sleeps: it restores configuration space."""
    saved = script.card.config.snapshot()
    script.card.power_cycle()
    script.card.config.restore(saved)


def test_a_platform_takes_the_power_away_in_d3() -> None:
    """PCI Bus Power Management 1.2: PMCSR at 4 behind the capability, PowerState 1:0; D3cold."""
    for cut in (False, True):
        card = build_card("ad102", CardOptions(memory=1 << 28, platform=False, cut_in_d3=cut))
        card.config.write(4, 6, 2)
        card.gpu.memory.view[:4] = b"kept"
        card.config.write(0x64, 3, 2)
        assert not card.decodes and card.config.read(0x64, 2) == 3
        card.config.write(0x64, 0, 2)
        assert card.config.read(4, 2) == (0 if cut else 6)
        assert bytes(card.gpu.memory.view[:4]) == (bytes(4) if cut else b"kept")
        card.close()


@pytest.mark.slow
def test_objects_and_queues_outlast_a_loss_of_power(script: Script) -> None:
    address = describe(script)
    assert suspend(script, address) == 0 and not script.card.wpr.up
    lose_power(script)
    script.power_on()
    assert resume(script, address) == 0 and script.card.wpr.up
    assert script.read(GSP + 0x1388) == 0x80, "the core runs; its messages follow"
    script.until(0x1001)
    assert script.control(SCHEDULE, SUBDEVICE, b"\0")[0] == 0
    assert script.free(SPACE) == 0, "made before the suspend"
    assert script.allocate(0x90F1, DEVICE, SPACE, bytes(0x30))[0] == 0
    assert script.card.violations == []
    script.unload()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"magic": 1}, "magic 0x1"), ({"revision": 1}, "revision 1"),
        ({"size": MIB}, "0x100000 bytes, not"), ({"root": 0x1000}, "cannot read 4096 bytes"),
    ],
)  # fmt: skip
def test_a_description_that_does_not_fit_is_refused(
    script: Script, changes: dict[str, int], words: str
) -> None:
    assert suspend(script, describe(script, **changes)) != 0
    assert words in objections(script) and script.card.wpr.up


def test_the_order_is_checked(script: Script) -> None:
    moving = struct.pack("<BBHI", 1, 0, 0, 3)
    assert script.call(47, moving).result == Status.INVALID_STATE, "FBSR_INIT comes first"
    assert list_memory(script, MIB) == 0
    small = struct.pack("<IIB7xQ", CLIENT, LIST, 1, 0)
    assert script.control(PREPARE, SUBDEVICE, small)[0] == Status.INVALID_ARGUMENT
    assert script.free(LIST) == 0
    assert prepare(script, describe(script)) == 0
    wrong = struct.pack("<BBHI", 1, 0, 0, 0)
    assert script.call(47, wrong).result == Status.INVALID_ARGUMENT, "the level"


def spoil_page(script: Script, address: int) -> None:
    """Change what was saved."""
    raw = script.card.bus_read(address, 32)
    assert raw is not None
    (root,) = struct.unpack_from("<Q", raw, 16)
    for _ in range(3):
        table = script.card.bus_read(root, 8)
        assert table is not None
        (root,) = struct.unpack("<Q", table)
    script.card.bus_write(root, b"changed")


def spoil_proof(script: Script, address: int) -> None:
    script.card.bus_write(address + 0x20, bytes(32))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "words"), [(spoil_page, "was changed"), (spoil_proof, "not that of the last suspend")]
)
def test_only_what_was_saved_last_goes_on(
    script: Script, spoil: Callable[[Script, int], None], words: str
) -> None:
    address = describe(script)
    assert suspend(script, address) == 0
    spoil(script, address)
    assert resume(script, address) != 0
    assert words in objections(script) and not script.card.wpr.up and not script.card.gsp.active
    lose_power(script)
    script.sent = script.sequence = script.pointer = 0
    script.boot()
    assert script.card.machine.clients.keys() & {CLIENT} == set(), "a cold start has no objects"
