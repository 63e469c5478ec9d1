"""Duplicates by the GSP's RPC DUP_OBJECT, as NVIDIA's UVM asks for them: another client's handle
shares the object and its lifetime. The rules are those of rs_server.c (serverCopyResource)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.support.nvidia.gsp.gsp_script import ROOT, Script
from tests.virtual.nvidia.gsp.test_virtual_gsp_memory import (
    CHANNEL,
    CLIENT,
    DEVICE,
    SPACE,
    SUBDEVICE,
    channel_params,
    make,
    objects,
    tables,
)
from ugpu.nv import abi
from ugpu.virtual.nvidia.gsp.options import FIRMWARES
from ugpu.virtual.nvidia.rm.channels import ChannelGroup, ChannelObject
from ugpu.virtual.nvidia.rm.resources import VaSpace
from ugpu.virtual.nvidia.status import Status

OTHER = CLIENT + 1  # UVM's client, with a device of the same handle
GROUP, SHARE, SECOND, DUPLICATE, RETAINER = 0x7001, 0x7002, 0x7003, 0x7004, 0x7005
GRAPHICS, COPY_ENGINE = 1, 11
GROUP_CLASS, SHARE_CLASS, RETAINER_CLASS, DEVICE_CLASS = 0xA06C, 0x9067, 0xC574, 0x80


@pytest.fixture(params=FIRMWARES)
def script(request: pytest.FixtureRequest) -> Iterator[Script]:
    """A booted card with two clients; the first has an address space with tables."""
    made = make(request.param)
    made.boot()
    objects(made)
    root = bytes(ROOT[made.version])
    assert made.allocate(0, 0, OTHER, root, client=OTHER)[0] == 0
    assert made.allocate(DEVICE_CLASS, OTHER, DEVICE, bytes(0x38), client=OTHER)[0] == 0
    directory = tables(made, 0x400000, 0x200000)
    params = struct.pack("<QIIIIII", directory, 4, 0, SPACE, 0, 0, 0)
    assert made.control(0x801813, DEVICE, params)[0] == 0
    yield made
    made.close()
    made.card.close()


def group(script: Script, handle: int = GROUP, engine: int = COPY_ENGINE) -> None:
    layout = abi.select(script.version).structs.NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS
    params = layout.new(engineType=engine, hVASpace=SPACE)
    assert script.allocate(GROUP_CLASS, DEVICE, handle, bytes(params.raw))[0] == 0


def share(script: Script, handle: int = SHARE, number: int = 3) -> int:
    return script.allocate(SHARE_CLASS, GROUP, handle, struct.pack("<3I", SPACE, 2, number))[0]


def duplicate(
    script: Script,
    source: int,
    *,
    parent: int = DEVICE,
    handle: int = DUPLICATE,
    client: int = OTHER,
    source_client: int = CLIENT,
    flags: int = 0,
) -> int:
    """DUP_OBJECT: its result."""
    words = (client, parent, handle, source_client, source, flags, 0)
    return script.call(21, struct.pack("<7I", *words)).result


def channel(script: Script, handle: int, number: int, parent: int = GROUP) -> int:
    params = channel_params(script, number, space=0, engine=0)
    return script.allocate(0xC56F, parent, handle, params)[0]


def found(script: Script, handle: int, client: int = CLIENT) -> object:
    return script.card.machine.clients[client].objects[handle]


def test_the_rules_of_a_duplicate(script: Script) -> None:
    group(script)
    assert share(script) == 0 and channel(script, CHANNEL, 9) == 0
    group(script, SECOND)
    assert duplicate(script, SECOND, handle=SECOND) == 0
    answers = {
        "no such client": duplicate(script, GROUP, client=5),
        "no such source client": duplicate(script, GROUP, source_client=5),
        "no such object": duplicate(script, 0x4242),
        "no such parent": duplicate(script, GROUP, parent=0x4242),
        "a parent of another kind": duplicate(script, GROUP, parent=SECOND),
        "a handle that is taken": duplicate(script, GROUP, handle=DEVICE),
        "unknown flags": duplicate(script, GROUP, flags=2),
        "rights that nobody gave": duplicate(script, GROUP, flags=1),
        "a channel": duplicate(script, CHANNEL),
        "a device": duplicate(script, DEVICE),
        "a subdevice": duplicate(script, SUBDEVICE),
        "a share in another group": duplicate(script, SHARE, parent=SECOND),
        "a short message": script.call(21, bytes(24)).result,
    }
    assert {name: Status(status).name for name, status in answers.items()} == {
        "no such client": "INVALID_CLIENT",
        "no such source client": "INVALID_CLIENT",
        "no such object": "OBJECT_NOT_FOUND",
        "no such parent": "OBJECT_NOT_FOUND",
        "a parent of another kind": "INVALID_OBJECT_PARENT",
        "a handle that is taken": "INSERT_DUPLICATE_NAME",
        "unknown flags": "INVALID_ARGUMENT",
        "rights that nobody gave": "INSUFFICIENT_PERMISSIONS",
        "a channel": "INVALID_ARGUMENT",
        "a device": "INVALID_ARGUMENT",
        "a subdevice": "INVALID_ARGUMENT",
        "a share in another group": "INVALID_OBJECT_PARENT",
        "a short message": "INVALID_ARGUMENT",
    }
    own = {"client": CLIENT, "handle": DUPLICATE}
    assert duplicate(script, GROUP, flags=1, **own) == 0, "its owner may"
    assert script.card.violations == []


def test_a_group_is_one_group_by_each_handle(script: Script) -> None:
    group(script)
    assert duplicate(script, GROUP) == 0
    assert channel(script, CHANNEL, 9) == 0
    both = [found(script, GROUP), found(script, DUPLICATE, OTHER)]
    assert all(isinstance(handle, ChannelGroup) for handle in both)
    made = found(script, CHANNEL)
    assert isinstance(made, ChannelObject) and not made.channel.enabled
    schedule = 0xA06C0101
    assert script.control(schedule, DUPLICATE, b"\1\0", client=OTHER)[0] == 0
    assert made.channel.enabled, "scheduled by the other client's handle"
    assert script.free(GROUP) == 0, "frees its channels; the group is still there"
    assert script.control(schedule, DUPLICATE, b"\0\0", client=OTHER)[0] == 0
    assert script.free(DUPLICATE, OTHER) == 0
    assert script.free(DUPLICATE, OTHER) == Status.OBJECT_NOT_FOUND


def test_a_subcontext_s_number_is_kept_by_its_duplicate(script: Script) -> None:
    group(script, engine=GRAPHICS)
    assert share(script) == 0
    assert duplicate(script, GROUP) == 0
    kept = DUPLICATE + 0x100
    assert duplicate(script, SHARE, parent=DUPLICATE, handle=kept) == 0
    assert script.free(SHARE) == 0
    assert share(script, SHARE + 0x100) == Status.STATE_IN_USE
    again = {"source_client": OTHER, "parent": DUPLICATE, "handle": kept + 1}
    assert duplicate(script, kept, **again) == 0, "a duplicate of a duplicate"
    assert script.free(kept, OTHER) == 0
    assert share(script, SHARE + 0x100) == Status.STATE_IN_USE
    assert script.free(DUPLICATE, OTHER) == 0, "and all below it"
    assert share(script, SHARE + 0x100) == 0


def test_a_space_s_tables_live_as_long_as_either_handle(script: Script) -> None:
    space = script.card.machine.clients[CLIENT].objects[SPACE]
    assert duplicate(script, SPACE) == 0
    assert script.free(SPACE) == 0
    copied = found(script, DUPLICATE, OTHER)
    assert isinstance(space, VaSpace) and isinstance(copied, VaSpace)
    assert space.space is copied.space and copied.space.has_directory
    assert script.free(DUPLICATE, OTHER) == 0


def test_a_retainer_keeps_a_channel_s_number(script: Script) -> None:
    group(script)
    assert channel(script, CHANNEL, 9) == 0
    assert duplicate(script, GROUP) == 0
    layout = abi.select(script.version).structs.NV_UVM_CHANNEL_RETAINER_ALLOC_PARAMS

    def retain(client: int, held: int, parent: int = DUPLICATE) -> int:
        params = bytes(layout.new(hClient=client, hChannel=held).raw)
        return script.allocate(RETAINER_CLASS, parent, RETAINER, params, client=OTHER)[0]

    assert retain(5, CHANNEL) == Status.INVALID_CLIENT
    assert retain(CLIENT, 0x4242) == Status.OBJECT_NOT_FOUND
    assert retain(CLIENT, GROUP) == Status.INVALID_CHANNEL
    assert retain(CLIENT, CHANNEL, OTHER) == Status.INVALID_OBJECT_PARENT
    assert retain(CLIENT, CHANNEL) == 0
    assert script.free(CHANNEL) == 0
    assert channel(script, CHANNEL, 9) == Status.INSUFFICIENT_RESOURCES
    assert script.free(RETAINER, OTHER) == 0
    assert channel(script, CHANNEL, 9) == 0


def test_a_stopped_channel_does_no_more_work(script: Script) -> None:
    group(script)
    assert channel(script, CHANNEL, 9) == 0
    made = found(script, CHANNEL)
    assert isinstance(made, ChannelObject)
    assert script.control(0xA06F0112, CHANNEL, b"\2")[0] == Status.INVALID_ARGUMENT
    assert not made.channel.stopped
    assert script.control(0xA06F0112, CHANNEL, b"\1")[0] == 0
    assert made.channel.stopped and not made.channel.has_work
    assert script.free(CHANNEL) == 0


def test_the_context_of_a_channel_is_evicted(script: Script) -> None:
    group(script, engine=GRAPHICS)
    assert channel(script, CHANNEL, 9) == 0
    made = found(script, CHANNEL)
    assert isinstance(made, ChannelObject)

    def evict(held: int = CHANNEL, engine: int = GRAPHICS) -> int:
        params = struct.pack("<5I", engine, 0, 0, CLIENT, held)
        return script.control(0x2080012C, SUBDEVICE, params)[0]

    assert evict() == Status.INVALID_STATE, "no object of the graphics engine yet"
    assert script.allocate(0xC9C0, CHANNEL, 0x7100)[0] == 0
    assert evict(GROUP) == Status.INVALID_OBJECT
    assert evict(engine=COPY_ENGINE) == Status.NOT_SUPPORTED
    made.contexts_mapped = True
    assert evict() == 0 and not made.contexts_mapped


def test_a_class_whose_block_no_header_has_is_refused(script: Script) -> None:
    """The firmware answers; it does not stop."""
    table = abi.select(script.version)
    blocks = {number: rule.struct for number, rule in table.classes.items() if rule.struct}
    number = next(number for number, block in blocks.items() if block not in table.structs)
    assert script.allocate(number, DEVICE, GROUP, bytes(12))[0] == Status.NOT_SUPPORTED
    assert script.free(0x4242) == Status.OBJECT_NOT_FOUND


def test_the_gsp_chooses_a_handle_where_the_cpu_names_none(script: Script) -> None:
    """As NVK's copy objects by nouveau; rs_client.c, clientAssignResourceHandle."""
    assert script.allocate(0xC56F, DEVICE, CHANNEL, channel_params(script, 9))[0] == 0
    group(script)
    before = dict(script.card.machine.clients[CLIENT].objects)
    assert script.allocate(0xC7B5, CHANNEL, 0, struct.pack("<II", 1, COPY_ENGINE))[0] == 0
    assert duplicate(script, GROUP, handle=0) == 0
    made = [
        handle
        for client in (CLIENT, OTHER)
        for handle in script.card.machine.clients[client].objects
        if handle not in before
    ]
    assert len(made) == 2 + 1 and 0 not in made  # and the other client itself
    assert script.free(0) == Status.OBJECT_NOT_FOUND


def test_objects_of_one_class_share_what_executes_its_methods(script: Script) -> None:
    """As two copy objects of NVK on one channel of Turing: kfifoAddObject refuses nothing."""
    assert script.allocate(0xC56F, DEVICE, CHANNEL, channel_params(script, 9))[0] == 0
    for handle in (0x8001, 0x8002):
        params = struct.pack("<II", 1, COPY_ENGINE)
        assert script.allocate(0xC7B5, CHANNEL, handle, params)[0] == 0
    owner = script.card.machine.clients[CLIENT].objects[CHANNEL]
    assert isinstance(owner, ChannelObject)
    engine = owner.channel.engines[0xC7B5]
    assert script.free(0x8001) == 0 and owner.channel.engines == {0xC7B5: engine}
    assert script.free(0x8002) == 0 and owner.channel.engines == {}


@pytest.mark.parametrize("number", [0x902D, 0xA140, 0xC997])
def test_graphics_classes_need_the_graphics_engine(script: Script, number: int) -> None:
    """FERMI_TWOD_A, KEPLER_INLINE_TO_MEMORY_B, ADA_A: objects that NVK makes of each channel."""
    params = channel_params(script, 9, engine=GRAPHICS)
    assert script.allocate(0xC56F, DEVICE, CHANNEL, params)[0] == 0
    assert script.allocate(number, CHANNEL, 0x8001)[0] == 0
    params = channel_params(script, 10, instance=0x1A00000, userd=0x1A02000)
    assert script.allocate(0xC56F, DEVICE, CHANNEL + 1, params)[0] == 0
    assert script.allocate(number, CHANNEL + 1, 0x8002)[0] == Status.INVALID_ARGUMENT
