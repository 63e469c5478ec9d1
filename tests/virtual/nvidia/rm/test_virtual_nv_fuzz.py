"""Anything a program can hand to the virtual driver and chips: an error, never a broken model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.nvidia.rm_program import RmProgram, address_of
from ugpu.nv import abi
from ugpu.virtual.nvidia.engines.qmd import parse, qmd_size
from ugpu.virtual.nvidia.gpu import CHIPS, facts_of
from ugpu.virtual.nvidia.host.errors import ChannelError

WORD = st.integers(0, 0xFFFF_FFFF)
SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def machine() -> Iterator[RmProgram]:
    with RmProgram() as program:
        program.bring_up()
        yield program


def renew(program: RmProgram) -> None:
    """A new group and channel in the place of those that were ruined."""
    program.uvm_uuid(
        "UVM_UNREGISTER_CHANNEL", "gpuUuid", hClient=program.client, hChannel=program.channel
    )
    program.free(program.group)
    program.free(program.work)
    program.work_map.close()
    program.notifier.close()
    program.free(program.notifier_memory)
    program.uvm_call("UVM_FREE", base=program.work_address, length=4 << 20)
    program.next_address = program.work_address
    program.open_channel()


def checked(program: RmProgram) -> None:
    """The model itself is whole: no thread died, and a new channel works."""
    assert program.machine.gpu.wait_idle()
    for runlist in program.machine.gpu.runlists:
        assert runlist.error is None
    renew(program)
    program.words = []
    program.release(program.work_address + 0x4000, 0x55)
    program.submit()
    program.wait(0x4000, 0x55)


def header(draw: Any) -> list[int]:
    """A method header that is likely to be taken, and its data."""
    subchannel = draw(st.sampled_from([0, 0, 4, 1]))
    method = draw(st.integers(0, 0x1B10 // 4))
    data: list[int] = draw(st.lists(WORD | st.integers(0, 16), max_size=6))
    return [1 << 29 | len(data) << 16 | subchannel << 13 | method, *data]


@st.composite
def segments(draw: Any) -> list[int]:
    words: list[int] = [1 << 29 | 1 << 16, 0xCBC0, 1 << 29 | 1 << 16 | 4 << 13, 0xC8B5]
    for _ in range(draw(st.integers(1, 12))):
        words += header(draw)
    words.extend(draw(st.lists(WORD, max_size=4)))
    return words


@SETTINGS
@given(words=segments())
def test_push_buffers(machine: RmProgram, words: list[int]) -> None:
    blocking = {0x5C, 0x60, 0x64, 0x68, 0x6C}
    machine.submit_words(
        [word for word in words if not (word >> 29 == 1 and (word & 0xFFF) << 2 in blocking)]
    )
    checked(machine)


@SETTINGS
@given(entries=st.lists(st.tuples(WORD, WORD), min_size=1, max_size=4), put=st.integers(0, 100))
def test_rings(machine: RmProgram, entries: list[tuple[int, int]], put: int) -> None:
    for low, high in entries:
        machine.entry(low, high)
    machine.put = put if put > 90 else machine.put
    machine.ring()
    checked(machine)


@pytest.mark.parametrize("chip", CHIPS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_descriptors(chip: str, data: st.DataObject) -> None:
    """Any bytes parse, or are refused with a reason."""
    facts = facts_of(chip)
    program = RmProgram.__new__(RmProgram)
    program.facts, program.work_address = facts, 0x10_0000_0000
    raw = program.qmd(0x10_0010_0100)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, qmd_size(facts) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = parse(bytes(raw), facts)
    except ChannelError as error:
        assert error.text.startswith("launch descriptor: ")
    else:
        x, y, z = found.block
        assert 0 < x * y * z <= 1024
        assert found.shared_size <= found.carveout


CLASSES = sorted({0x0, 0x41, 0x80, 0x2080, 0x90F1, 0xA06C, 0x9067, 0xC86F, 0xCBC0, 0xC8B5, 0x40,
                  0x3E, 0x70, 0x71, 0x83DE, 0x5, 0xC661, 0x503B, 0xFFFF})  # fmt: skip


@SETTINGS
@given(
    class_id=st.sampled_from(CLASSES),
    parent=st.sampled_from(["client", "device", "subdevice", "group", "channel", "none"]),
    handle=st.sampled_from([0, 0x9000, 0x9001]),
    block=st.binary(min_size=400, max_size=400) | st.just(bytes(400)),
    size=st.sampled_from([0, 4, 12, 56, 128, 368]),
)
def test_allocations(
    machine: RmProgram, class_id: int, parent: str, handle: int, block: bytes, size: int
) -> None:
    before = len(machine.machine.clients)
    params = bytearray(block)
    request = machine.table.structs.NVOS64_PARAMETERS.new(
        hRoot=machine.client, hObjectParent=getattr(machine, parent, 0x4242), hObjectNew=handle,
        hClass=class_id, pAllocParms=address_of(memoryview(params)), paramsSize=size,
    )  # fmt: skip
    machine.node.ioctl(machine.ctl, machine.table.request("NV_ESC_RM_ALLOC"), request.raw)
    assert abi.status_name(request.status).startswith("NV_")
    if request.status == 0:
        root = request.hObjectNew if len(machine.machine.clients) > before else machine.client
        free = machine.table.structs.NVOS00_PARAMETERS.new(
            hRoot=root, hObjectOld=request.hObjectNew
        )
        machine.node.ioctl(machine.ctl, machine.table.request("NV_ESC_RM_FREE"), free.raw)
        assert free.status == 0


@SETTINGS
@given(
    command=st.sampled_from(sorted(abi.select("580.142").controls)),
    target=st.sampled_from(["client", "device", "subdevice", "group", "channel", "debugger"]),
    seed=st.binary(min_size=64, max_size=64) | st.just(bytes(64)),
)
def test_controls(machine: RmProgram, command: int, target: str, seed: bytes) -> None:
    if machine.table.control_name(command) == "NV906F_CTRL_CMD_RESET_CHANNEL":
        return
    name = machine.table.controls[command]
    layout = machine.table.structs.get(name) if name is not None else None
    size = layout.size if layout is not None else 0
    params = bytearray((seed * (size // 64 + 1))[:size] or b"\0")
    block = machine.call(
        machine.ctl, "NV_ESC_RM_CONTROL", hClient=machine.client, hObject=getattr(machine, target),
        cmd=command, params=address_of(memoryview(params)), paramsSize=size,
    )  # fmt: skip
    assert abi.status_name(block.status).startswith("NV_")


@SETTINGS
@given(
    request=WORD | st.integers(0, 100),
    size=st.integers(0, 256),
    target=st.sampled_from(["ctl", "gpu_file", "uvm", "tools"]),
)
def test_any_ioctl(machine: RmProgram, request: int, size: int, target: str) -> None:
    tools = machine.node.open("/dev/nvidia-uvm-tools")
    handle = tools if target == "tools" else getattr(machine, target)
    with suppress(OSError):
        machine.node.ioctl(handle, request, bytearray(size))
    machine.node.release(tools)


@SETTINGS
@given(
    name=st.sampled_from(["UVM_TOOLS_INIT_EVENT_TRACKER", "UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS",
                          "UVM_TOOLS_EVENT_QUEUE_DISABLE_EVENTS"]),
    block=st.binary(min_size=64, max_size=64),
    start=st.booleans(),
    count=st.sampled_from([0, 1, 2, 64, 1 << 31, 1 << 40]),
)  # fmt: skip
def test_calls_of_uvm_tools(
    machine: RmProgram, name: str, block: bytes, start: bool, count: int
) -> None:
    tools = machine.node.open("/dev/nvidia-uvm-tools")
    for each in (["UVM_TOOLS_INIT_EVENT_TRACKER"] if start else []) + [name]:
        ioctl = machine.table.ioctls[each]
        layout = machine.table.structs[ioctl.struct]
        argument = bytearray(block[: layout.size].ljust(layout.size, b"\0"))
        view = layout.view(argument)
        if each == "UVM_TOOLS_INIT_EVENT_TRACKER":
            view.uvmFd, view.queueBufferSize = machine.uvm, count
        machine.node.ioctl(tools, ioctl.number, argument)
        assert abi.status_name(view.rmStatus).startswith("NV_")
    machine.node.release(tools)


@SETTINGS
@given(
    name=st.sampled_from(["UVM_CREATE_EXTERNAL_RANGE", "UVM_FREE", "UVM_UNMAP_EXTERNAL",
                          "UVM_MAP_EXTERNAL_ALLOCATION", "UVM_REGISTER_CHANNEL",
                          "UVM_UNREGISTER_CHANNEL", "UVM_ENABLE_PEER_ACCESS",
                          "UVM_REGISTER_GPU_VASPACE"]),
    block=st.binary(min_size=64, max_size=64),
)  # fmt: skip
def test_calls_of_uvm(machine: RmProgram, name: str, block: bytes) -> None:
    ioctl = machine.table.ioctls[name]
    size = machine.table.structs[ioctl.struct].size
    argument = bytearray((block * (size // 64 + 1))[:size])
    machine.node.ioctl(machine.uvm, ioctl.number, argument)
    status = machine.table.structs[ioctl.struct].view(argument).rmStatus
    assert abi.status_name(status).startswith("NV_")
    if name == "UVM_CREATE_EXTERNAL_RANGE" and status == 0:
        machine.node.ioctl(
            machine.uvm, machine.table.ioctls["UVM_FREE"].number, bytearray(argument)
        )
