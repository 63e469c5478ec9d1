"""The apertures, the interrupt tree, DMA and the rest of a register-level card; the RM's objects
behind its RPCs. The script that boots is tests/support/nvidia/gsp/gsp_script.py."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.nvidia.gsp.gsp_script import FRTS, PAGE, ROOT, STATIC_INFO, Message, Script
from tests.support.waiting import until
from ugpu.hcq.errors import BadArgument, DeviceBusy, DeviceNotFound
from ugpu.hcq.find.registry import Attachment, attach_virtual
from ugpu.hcq.state.memory import BusAddr
from ugpu.nv import abi
from ugpu.nv.abi.firmware import firmware
from ugpu.virtual.nvidia.gsp.bus.pci import ApertureWindow, VirtualTransport
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.gpu import attach, build_card
from ugpu.virtual.nvidia.gsp.options import FIRMWARES, CardOptions
from ugpu.virtual.nvidia.status import Status

MEMORY = 1 << 30
CLIENT, DEVICE, SUBDEVICE, SPACE, CHANNEL, COPY = (
    0xC1D00000, 0xDE1D0000, 0x5D1D0000, 0x90F10000, 0xF1F00000, 0xC7B50000,
)  # fmt: skip
ONES = 0xFFFF_FFFF
# Where the script puts its own things in video memory.
TABLES, INSTANCE, RING, PUSH, SOURCE, TARGET = (0x100000 * n for n in range(1, 7))


def make(version: str = "570.144", **options: Any) -> Script:
    return Script(build_card("ad102", CardOptions(memory=MEMORY, **options)), version)


@pytest.fixture
def cold() -> Iterator[Script]:
    made = make()
    yield made
    made.close()
    made.card.close()


@pytest.fixture(params=FIRMWARES)
def script(request: pytest.FixtureRequest) -> Iterator[Script]:
    made = make(request.param)
    made.boot()
    yield made
    made.close()
    made.card.close()


def video(script: Script, address: int, content: bytes) -> None:
    """Write video memory through the PRAMIN window."""
    for at in range(0, len(content), 4):
        script.write(0x1700, address + at >> 16)
        (word,) = struct.unpack_from("<I", content, at)
        script.write(0x700000 + (address + at & 0xFFFF), word)


def tables(script: Script, virtual: int, physical: int, *, base: int = TABLES) -> int:
    """Map 2 MiB of video memory at an address of an MMU of version 2; return the directory."""
    pages = [base + PAGE * level for level in range(4)]
    for page, below, shift in zip(pages, pages[1:], (47, 38, 29), strict=False):
        entry = below >> 12 << 8 | 1 << 1
        video(script, page + 8 * (virtual >> shift & 0x1FF), entry.to_bytes(8, "little"))
    leaf = physical >> 12 << 8 | 1
    video(script, pages[3] + 16 * (virtual >> 21 & 0xFF), struct.pack("<QQ", leaf, 0))
    return pages[0]


def test_all_ones_without_decoding_and_after_unplug(cold: Script) -> None:
    assert cold.read(0) == 0x192000A1
    cold.transport.config_write(4, 4, 2)
    assert cold.read(0) == ONES
    cold.transport.config_write(4, 6, 2)
    cold.card.unplug()
    assert (cold.read(0), cold.transport.window(1).read32(0)) == (ONES, ONES)
    assert cold.transport.config_read(0) == ONES and not cold.transport.present()


def test_an_undefined_register_reads_as_a_bus_error(cold: Script) -> None:
    assert cold.read(0x123450) >> 16 == 0xBADF
    cold.write(0x123450, 1)
    assert cold.card.registers.unknown == {"read 0x123450": 1, "write 0x123450": 1}


def test_dma_is_refused_with_bus_mastering_off(cold: Script) -> None:
    cold.power_on()
    cold.layout()
    cold.arguments()
    cold.fwsec(FRTS)
    cold.to_riscv()
    meta = cold.meta_at
    cold.transport.config_write(4, 2, 2)
    cold.booter("booter_load", meta)
    assert any("with bus mastering off" in text for text in cold.card.violations)
    assert not cold.card.gsp.active


def test_dma_to_memory_that_was_given_back_is_refused(cold: Script) -> None:
    memory = cold.host(bytes(PAGE))
    address = memory.segments[0].address
    memory.close()
    assert cold.card.bus_read(address, 16) is None
    assert "the IOMMU refuses" in cold.card.violations[-1]


@pytest.mark.parametrize("assigned", [True, False], ids=["assigned", "unassigned"])
def test_memory_at_an_address_of_bar1_is_the_iommu_s(assigned: bool) -> None:
    """A guest's IOMMU has addresses of its own; a card behind a server has no address in BAR1."""
    card = build_card("ad102", CardOptions(memory=MEMORY, platform=assigned))
    inside = card.config.bar_address(1) + (16 << 20)
    with VirtualTransport(card, owns_card=True) as transport:
        transport.config_write(4, 6, 2)
        memory = transport.place_dma(PAGE, BusAddr(inside))
        memory.view[:4] = b"host"
        card.gpu.memory.view[16 << 20 : (16 << 20) + 4] = b"card"
        assert card.bus_read(inside, 4) == b"host"
        memory.close()
        assert card.bus_read(inside, 4) == (b"card" if assigned else None)


def test_pramin_shows_video_memory(cold: Script) -> None:
    video(cold, 0x12340, b"abcdefgh")
    assert bytes(cold.card.gpu.memory.view[0x12340:0x12348]) == b"abcdefgh"
    cold.write(0x1700, MEMORY >> 16)
    assert cold.read(0x700000) == ONES


def test_protected_memory_cannot_be_reached(script: Script) -> None:
    where = script.meta["firmware"]
    script.write(0x1700, where >> 16)
    assert script.read(0x700000 + (where & 0xFFFF)) == ONES
    before = bytes(script.card.gpu.memory.view[where : where + 4])
    script.write(0x700000 + (where & 0xFFFF), 0)
    assert bytes(script.card.gpu.memory.view[where : where + 4]) == before


def test_bar1_is_physical_until_the_gsp_runs_and_then_translated(script: Script) -> None:
    window = script.transport.window(1)
    video(script, SOURCE, b"physical")
    assert window.read32(SOURCE) == ONES  # nothing is mapped
    directory = tables(script, 0x400000, SOURCE)
    video(script, INSTANCE + 0x200, directory.to_bytes(8, "little"))
    script.write(0x1704, 1 << 31 | INSTANCE >> 12)
    assert window.read(0x400000, 8) == b"physical"
    script.write(0x1704, 0)
    assert window.read(SOURCE, 8) == b"physical"


def test_a_stale_translation_stays_until_it_is_invalidated(script: Script) -> None:
    window = script.transport.window(1)
    video(script, SOURCE, b"old page")
    video(script, TARGET, b"new page")
    directory = tables(script, 0x400000, SOURCE & -0x200000)
    video(script, INSTANCE + 0x200, directory.to_bytes(8, "little"))
    script.write(0x1704, 1 << 31 | INSTANCE >> 12)
    at, other = 0x400000 + SOURCE % 0x200000, 0x400000 + TARGET % 0x200000
    assert window.read(at, 8) == b"old page"
    tables(script, 0x400000, TARGET & -0x200000)
    assert window.read(at, 8) == b"old page"
    script.write(0xB830A0, 0x1230)  # of another directory
    script.write(0xB830B0, 1 << 31 | 1)
    assert window.read(at, 8) == b"old page"
    script.write(0xB830A0, directory >> 8)
    script.write(0xB830B0, 1 << 31 | 1)
    assert window.read(other, 8) == b"new page"


def test_bar2_takes_the_entry_of_an_rpc(script: Script) -> None:
    window = script.transport.window(3)
    video(script, SOURCE, b"instance")
    directory = tables(script, SOURCE % 0x200000, SOURCE & -0x200000)
    entry = directory + PAGE >> 12 << 8 | 2
    assert script.call(70, struct.pack("<IxxxxQQ", 1, entry, 38)).result == Status.INVALID_ARGUMENT
    assert script.call(70, struct.pack("<IxxxxQQ", 1, entry, 47)).result == 0
    at = SOURCE % 0x200000
    assert window.read(at, 8) == b"instance"
    assert isinstance(window, ApertureWindow)
    window.write_bytes(at + 1, b"xyz")
    assert bytes(script.card.gpu.memory.view[SOURCE : SOURCE + 8]) == b"ixyzance"


def test_time_is_set_and_runs(cold: Script) -> None:
    cold.write(0x9410, 0x1234)
    cold.write(0x9400, 0x5678_0000)
    assert (cold.read(0x9410), cold.read(0x9400) & 0x1F) == (0x1234, 0)
    assert cold.read(0x9400) >> 16 >= 0x5678


def test_interrupts_need_both_enables_and_the_rearm(cold: Script) -> None:
    interrupts = cold.transport.interrupts
    cold.write(0xB81640, 160)  # a vector by software
    assert cold.read(0xB81014) == 1 and cold.read(0xB81600) == 0
    cold.write(0xB81214, 1)
    assert cold.read(0xB81600) == 1 << 2 and not interrupts.wait(0)
    cold.write(0xB81608, 0xF)
    assert interrupts.wait(1)
    cold.write(0xB81640, 160)
    assert not interrupts.wait(0)  # not rearmed
    cold.write(0x88704, 0)
    assert interrupts.wait(1)
    cold.write(0xB81014, 1)
    assert cold.read(0xB81600) == 0
    cold.write(0x88704, 0)
    assert not interrupts.wait(0)


def test_a_message_with_bus_mastering_off_is_a_violation(cold: Script) -> None:
    cold.transport.config_write(4, 2, 2)
    for offset, value in ((0xB81214, 1), (0xB81608, 0xF), (0xB81640, 160)):
        cold.write(offset, value)
    assert not cold.transport.interrupts.wait(0)
    assert cold.card.violations == ["MSI with bus mastering off"]


# The resource manager's objects


def objects(script: Script) -> None:
    """Create client, device, subdevice and an address space with the script's tables."""
    root = bytes(ROOT[script.version])
    share = struct.pack("<II", 0, CLIENT).ljust(0x38, b"\0")
    for number, parent, handle, params in (
        (0, 0, CLIENT, root), (0x80, CLIENT, DEVICE, share), (0x2080, DEVICE, SUBDEVICE, bytes(4)),
        (0x90F1, DEVICE, SPACE, bytes(0x30)),
    ):  # fmt: skip
        assert script.allocate(number, parent, handle, params)[0] == 0


def test_static_info_has_the_version_s_size(script: Script) -> None:
    size = STATIC_INFO[script.version]
    reply = script.call(65, bytes(size))
    assert (reply.result, len(reply.body)) == (0, size)
    assert b"NVIDIA GeForce RTX 4090" in reply.body
    assert script.call(65, bytes(size - 8)).result == Status.INVALID_ARGUMENT
    assert script.call(200, b"").result == Status.NOT_SUPPORTED


def test_objects_follow_the_rules_of_the_ioctl_way(script: Script) -> None:
    objects(script)
    table = abi.select(script.version)
    memory, info = table.classes[0x3E].struct, table.controls[0x20801201]
    assert memory is not None and info is not None
    sizes = table.structs[memory].size, table.structs[info].size
    answers = {
        "no such client": script.allocate(0x80, 1, 2, bytes(0x38), client=5)[0],
        "size of another version": script.allocate(0x80, CLIENT, 0x10, bytes(0x30))[0],
        "parent": script.allocate(0x2080, CLIENT, 0x11, bytes(4))[0],
        "handle taken": script.allocate(0x2080, DEVICE, SPACE, bytes(4))[0],
        "class of another chip": script.allocate(0xC6C0, DEVICE, 0x12)[0],
        "unknown class": script.allocate(0xABCD, DEVICE, 0x13)[0],
        "memory": script.allocate(0x3E, DEVICE, 0x14, bytes(sizes[0]))[0],
        "root twice": script.allocate(0, 0, CLIENT, bytes(ROOT[script.version]))[0],
        "control of nobody": script.control(0x20800ABC, SUBDEVICE, b"")[0],
        "control's size": script.control(0x20800A5C, SUBDEVICE, bytes(8))[0],
        "pointers": script.control(0x20801201, SUBDEVICE, bytes(sizes[1]))[0],
    }
    assert {name: Status(status).name for name, status in answers.items()} == {
        "no such client": "INVALID_CLIENT",
        "size of another version": "INVALID_PARAM_STRUCT",
        "parent": "INVALID_OBJECT_PARENT",
        "handle taken": "INSERT_DUPLICATE_NAME",
        "class of another chip": "INVALID_OBJECT_PARENT",
        "unknown class": "INVALID_CLASS",
        "memory": "NOT_SUPPORTED",
        "root twice": "INSERT_DUPLICATE_NAME",
        "control of nobody": "NOT_SUPPORTED",
        "control's size": "INVALID_PARAM_STRUCT",
        "pointers": "NOT_SUPPORTED",
    }
    assert script.free(0x77) == Status.OBJECT_NOT_FOUND
    assert script.free(CLIENT) == 0 and script.card.violations == []
    assert len(script.card.machine.clients) == 1  # the GSP's own


def test_two_clients_may_use_the_same_handles(script: Script) -> None:
    root = bytes(ROOT[script.version])
    for client in (CLIENT, CLIENT + 1):
        assert script.allocate(0, 0, client, root, client=client)[0] == 0
        assert script.allocate(0x80, client, DEVICE, bytes(0x38), client=client)[0] == 0
    assert script.free(CLIENT) == 0
    assert script.allocate(0x2080, DEVICE, SUBDEVICE, bytes(4), client=CLIENT + 1)[0] == 0


def test_a_message_in_several_records(script: Script) -> None:
    """A big registry table of 100 KiB; and a big call, which is answered in several records."""
    objects(script)
    name = b"N" * 100_000 + b"\0"
    script.send(
        73, struct.pack("<II", 24 + len(name), 1) + struct.pack("<IB3xII", 24, 1, 7, 4) + name
    )
    assert script.card.server is not None
    assert list(script.card.server.registry.values()) == [7]
    script.send(71, b"")
    assert "continuation record without a message" in script.card.violations[-1]


def channel_params(script: Script, number: int, **changes: int) -> bytes:
    """NV_CHANNEL_ALLOC_PARAMS with an instance block, USERD and a method buffer."""
    raw = bytearray(0x170 if script.version == "570.144" else 0x168)
    fields = {"flags": 1 << 21 | number % 8 << 8 | number // 8 << 12 | 1 << 5, "space": SPACE,
              "engine": 11, "instance": INSTANCE, "userd": INSTANCE + 0x2000,
              **changes}  # fmt: skip
    struct.pack_into("<QII", raw, 8, fields.get("ring", 0x400000), 64, fields["flags"])
    struct.pack_into("<I", raw, 0x1C, fields["space"])
    struct.pack_into("<I", raw, 0x80, fields["engine"])
    for at, base, size in (
        (0x90, fields["instance"], 0x1000), (0xA8, fields["userd"], 0x200),
        (0xC0, fields["instance"], 0x200), (0xD8, INSTANCE + 0x4000, 0x5000),
    ):  # fmt: skip
        struct.pack_into("<QQII", raw, at, base, size, 2, 0)
    return bytes(raw)


def test_a_channel_copies_and_tells_by_its_interrupt(script: Script) -> None:
    """The driver's whole way: tables, channel, copy object, ring, doorbell, semaphore, vector."""
    objects(script)
    low, high = 0x400000, 0x600000
    base = TABLES
    directory = tables(script, low, 0x200000, base=base)
    leaf = 0x400000 >> 12 << 8 | 1
    video(script, base + 3 * PAGE + 16 * (high >> 21 & 0xFF), struct.pack("<QQ", leaf, 0))
    params = struct.pack("<QIIIIII", directory, 4, 0, SPACE, 0, 0, 0)
    assert script.control(0x801813, DEVICE, params)[0] == 0
    assert script.allocate(0xC56F, DEVICE, CHANNEL, channel_params(script, 9))[0] == 0
    taken = script.allocate(0xC56F, DEVICE, CHANNEL + 1, channel_params(script, 9))[0]
    assert taken == Status.INSUFFICIENT_RESOURCES
    assert script.control(0xA06F0104, CHANNEL, struct.pack("<I", 11))[0] == 0
    assert script.control(0xA06F0103, CHANNEL, b"\1\0")[0] == 0
    assert script.allocate(0xC7B5, CHANNEL, COPY, struct.pack("<II", 1, 11))[0] == 0
    content = bytes(range(256)) * 8
    video(script, 0x380000, content)
    push, ring, copied = 0x300000, 0x200000, 0x480000
    words = [
        0x2001_8000, 0xC7B5, 0x2004_8100, 0, low + 0x180000, 0, high + 0x80000, 0x2001_8106,
        len(content), 0x2001_80C0, 0x182, 0x2005_0017, low + 0x10000, 0, 0x1234, 0, 1 << 20 | 1,
        0x2001_0008, 0,
    ]  # fmt: skip
    video(script, push, struct.pack(f"<{len(words)}I", *words))
    video(script, ring, struct.pack("<II", low + 0x100000, len(words) << 10))
    video(script, INSTANCE + 0x2000 + 0x8C, struct.pack("<I", 1))
    script.write(0xB81200, 1 << 2)  # copy engine 2's vector
    script.write(0xB81608, 0xF)
    script.write(0xBB0090, 1 << 16 | 9)
    memory = script.card.gpu.memory.view
    until(lambda: bytes(memory[0x210000:0x210002]) == b"\x34\x12", "the semaphore")
    assert bytes(memory[copied : copied + len(content)]) == content
    assert script.transport.interrupts.wait(5)
    assert script.card.violations == [] and script.card.machine.refused[-1].count("taken")


# Bytes, and the words with engine, channel and Xid: g_rpc-structures.h of each version
RC_TRIGGERED = {
    "535.113.01": (0x14, (0, 1, 2)), "550.163.01": (0x1C, (0, 1, 3)), "570.144": (0x30, (0, 1, 4)),
}  # fmt: skip


@pytest.mark.parametrize("version", RC_TRIGGERED)
def test_a_channel_s_fault_reaches_the_host(request: pytest.FixtureRequest, version: str) -> None:
    """550.163.01's firmware is NVIDIA's module's alone: its tables are put behind another one."""
    script = make(version if version in FIRMWARES else "570.144")
    request.addfinalizer(script.card.close)
    request.addfinalizer(script.close)
    script.boot()
    objects(script)
    directory = tables(script, 0x400000, 0x200000)
    params = struct.pack("<QIIIIII", directory, 4, 0, SPACE, 0, 0, 0)
    assert script.control(0x801813, DEVICE, params)[0] == 0
    assert (
        script.allocate(0xC56F, DEVICE, CHANNEL, channel_params(script, 1, ring=0x9000000))[0] == 0
    )
    assert script.control(0xA06F0103, CHANNEL, b"\1\0")[0] == 0
    video(script, INSTANCE + 0x2000 + 0x8C, struct.pack("<I", 1))
    assert script.card.server is not None
    script.card.server.interface = firmware(version)
    script.write(0xBB0090, 1 << 16 | 1)
    received: list[Message] = []

    def told() -> bool:
        while (message := script.receive()) is not None:
            received.append(message)
        return [message.function for message in received[-2:]] == [0x1006, 0x1004]

    until(told, "OS_ERROR_LOG and RC_TRIGGERED")
    size, (engine, channel, xid) = RC_TRIGGERED[version]
    body = received[-1].body
    assert len(body) == size
    words = struct.unpack_from(f"<{size // 4}I", body)
    assert (words[engine], words[channel], words[xid]) == (11, 1, 31)
    assert sum(words[:xid]) == 12, "nothing else before the error's number"
    assert received[-2].body[12:].startswith(b"Xid 31: Ch 00000001"), "g_rpc-structures.h"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"instance": MEMORY}, Status.INVALID_ADDRESS),
        ({"userd": MEMORY}, Status.INVALID_ADDRESS),
        ({"space": 0x55}, Status.INVALID_OBJECT_HANDLE),
        ({"engine": 77}, Status.INVALID_ARGUMENT),
        ({"ring": 4}, Status.INVALID_ARGUMENT),
        ({}, Status.INVALID_STATE),  # no page directory yet
    ],
)
def test_a_channel_is_refused(changes: dict[str, int], status: Status) -> None:
    script = make()
    try:
        script.boot()
        objects(script)
        if changes:
            directory = struct.pack("<QIIIIII", TABLES, 4, 0, SPACE, 0, 0, 0)
            assert script.control(0x801813, DEVICE, directory)[0] == 0
        answer = script.allocate(0xC56F, DEVICE, CHANNEL, channel_params(script, 1, **changes))
        assert Status(answer[0]) is status
    finally:
        script.close()
        script.card.close()


# The names


def test_the_registry_attaches_a_card() -> None:
    attachment = attach_virtual("ad102+gsp", memory=MEMORY)
    assert isinstance(attachment, Attachment) and isinstance(attachment.chip, Card)
    with attachment.transport as transport:
        assert str(transport.identity) == "10de:2684"
        assert "nvidia/ad102/gsp/booter_load-570.144.bin" in (attachment.firmware or {})
    for name in ("navi31+gsp", "ad102+rm"):
        with pytest.raises(DeviceNotFound, match="no variant"):
            attach_virtual(name)


def test_a_card_is_attached_once_and_keeps_its_power() -> None:
    card = build_card("ad102", CardOptions(memory=MEMORY))
    try:
        with VirtualTransport(card), pytest.raises(DeviceBusy):
            VirtualTransport(card)
        with attach("ad102", chip=card).transport:
            pass
        with pytest.raises(BadArgument, match="a virtual card with ga102"):
            attach("ga102", chip=card)
    finally:
        card.close()
