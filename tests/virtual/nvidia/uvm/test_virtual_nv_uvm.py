"""UVM's rules, by hand-written calls: order, registrations, ranges, mappings, peers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.nvidia.rm_program import RmProgram, StatusError, pattern
from ugpu.virtual.nvidia.faults import Xid
from ugpu.virtual.nvidia.memory.faults import Client, FaultAccess, MmuFault
from ugpu.virtual.nvidia.memory.space import AddressSpace, Translation
from ugpu.virtual.nvidia.rm.channels import ChannelObject
from ugpu.virtual.nvidia.rm.memory import Memory
from ugpu.virtual.nvidia.rm.resources import VaSpace
from ugpu.virtual.nvidia.status import Status

TWO_MB = 2 << 20


@pytest.fixture
def opened() -> Iterator[RmProgram]:
    with RmProgram() as made:
        made.open_client()
        made.open_device()
        yield made


@pytest.fixture
def program(opened: RmProgram) -> RmProgram:
    opened.open_space()
    return opened


def refused(error: pytest.ExceptionInfo[StatusError]) -> Status:
    return Status(error.value.status)


def space_of(program: RmProgram) -> AddressSpace:
    found = program.machine.clients[program.client].objects[program.space]
    assert isinstance(found, VaSpace)
    return found.space


def translated(program: RmProgram, address: int) -> Translation:
    found = space_of(program).translate(address, FaultAccess.READ, Client.SM)
    assert isinstance(found, Translation)
    return found


def test_initialise_comes_first(opened: RmProgram) -> None:
    opened.uvm = opened.node.open("/dev/nvidia-uvm")
    with pytest.raises(StatusError) as error:
        opened.uvm_uuid("UVM_REGISTER_GPU", "gpu_uuid")
    assert refused(error) is Status.ILLEGAL_ACTION
    with pytest.raises(StatusError) as error:
        opened.uvm_call("UVM_INITIALIZE", flags=0x80)
    assert refused(error) is Status.INVALID_ARGUMENT
    opened.uvm_call("UVM_INITIALIZE")
    with pytest.raises(StatusError) as error:
        opened.uvm_call("UVM_INITIALIZE")
    assert refused(error) is Status.INVALID_STATE
    with pytest.raises(OSError, match="UVM"):
        opened.node.ioctl(opened.uvm, 0x7777, bytearray(64))
    with pytest.raises(OSError, match="bytes"):
        opened.node.ioctl(opened.uvm, 37, bytearray(8))


def test_a_gpu_registers_once(opened: RmProgram) -> None:
    with pytest.raises(StatusError) as error:
        opened.uvm_uuid("UVM_REGISTER_GPU", "gpu_uuid")
    assert refused(error) is Status.INVALID_DEVICE
    right, opened.uuid = opened.uuid, bytes(16)
    with pytest.raises(StatusError) as error:
        opened.uvm_uuid("UVM_REGISTER_GPU", "gpu_uuid")
    assert refused(error) is Status.INVALID_DEVICE
    opened.uuid = right
    opened.uvm_uuid("UVM_UNREGISTER_GPU", "gpu_uuid")
    with pytest.raises(StatusError) as error:
        opened.open_space()
    assert refused(error) is Status.INVALID_DEVICE
    opened.uvm_uuid("UVM_REGISTER_GPU", "gpu_uuid")
    opened.open_space()


def test_a_space_registers_once_and_must_be_uvms(opened: RmProgram) -> None:
    plain, _ = opened.alloc(opened.device, 0x90F1, "NV_VASPACE_ALLOCATION_PARAMETERS")
    values = {"rmCtrlFd": opened.ctl, "hClient": opened.client}
    with pytest.raises(StatusError) as error:
        opened.uvm_uuid("UVM_REGISTER_GPU_VASPACE", "gpuUuid", hVaSpace=plain, **values)
    assert refused(error) is Status.NOT_SUPPORTED
    with pytest.raises(StatusError) as error:
        opened.uvm_uuid("UVM_REGISTER_GPU_VASPACE", "gpuUuid", hVaSpace=opened.device, **values)
    assert refused(error) is Status.INVALID_OBJECT
    opened.open_space()
    with pytest.raises(StatusError) as error:
        opened.uvm_uuid("UVM_REGISTER_GPU_VASPACE", "gpuUuid", hVaSpace=opened.space, **values)
    assert refused(error) is Status.INVALID_DEVICE


@pytest.mark.parametrize(
    ("base", "length"),
    [(0, 4096), (0x1000, 0), (0x1001, 4096), (0x1000, 100), ((1 << 64) - 4096, 8192 - 4096)],
)
def test_ranges_are_whole_pages(program: RmProgram, base: int, length: int) -> None:
    with pytest.raises(StatusError) as error:
        program.uvm_call("UVM_CREATE_EXTERNAL_RANGE", base=base, length=length)
    assert refused(error) is Status.INVALID_ADDRESS


def test_ranges_do_not_overlap(program: RmProgram) -> None:
    program.uvm_call("UVM_CREATE_EXTERNAL_RANGE", base=TWO_MB, length=TWO_MB)
    for base, length in (
        (TWO_MB, 4096), (TWO_MB - 4096, 8192), (2 * TWO_MB - 4096, 4096), (4096, 8 * TWO_MB),
    ):  # fmt: skip
        with pytest.raises(StatusError) as error:
            program.uvm_call("UVM_CREATE_EXTERNAL_RANGE", base=base, length=length)
        assert refused(error) is Status.UVM_ADDRESS_IN_USE
    program.uvm_call("UVM_CREATE_EXTERNAL_RANGE", base=2 * TWO_MB, length=4096)
    with pytest.raises(StatusError) as error:
        program.uvm_call("UVM_FREE", base=TWO_MB, length=4096)
    assert refused(error) is Status.INVALID_ADDRESS
    program.uvm_call("UVM_FREE", base=TWO_MB, length=TWO_MB)
    with pytest.raises(StatusError) as error:
        program.uvm_call("UVM_FREE", base=TWO_MB, length=TWO_MB)
    assert refused(error) is Status.INVALID_ADDRESS
    program.uvm_call("UVM_CREATE_EXTERNAL_RANGE", base=TWO_MB, length=4096)


def test_mappings_lie_in_ranges_and_memory(program: RmProgram) -> None:
    memory = program.video_memory(TWO_MB)
    program.uvm_call("UVM_CREATE_EXTERNAL_RANGE", base=8 * TWO_MB, length=TWO_MB)
    for base, size, offset, status in (
        (4 * TWO_MB, 4096, 0, Status.INVALID_ADDRESS),
        (9 * TWO_MB - (64 << 10), 128 << 10, 0, Status.INVALID_ADDRESS),
        (8 * TWO_MB, TWO_MB, 64 << 10, Status.INVALID_LIMIT),
        (8 * TWO_MB, 4096, 100, Status.INVALID_ADDRESS),
    ):
        with pytest.raises(StatusError) as error:
            program.gpu_map_at(memory, base, size, offset=offset)
        assert refused(error) is status
    with pytest.raises(StatusError) as error:
        program.gpu_map_at(0x4242, 8 * TWO_MB, TWO_MB)
    assert refused(error) is Status.OBJECT_NOT_FOUND
    with pytest.raises(StatusError) as error:
        program.gpu_map_at(program.device, 8 * TWO_MB, TWO_MB)
    assert refused(error) is Status.INVALID_OBJECT
    with pytest.raises(StatusError) as error:
        program.gpu_map_at(memory, 8 * TWO_MB, TWO_MB, kind=4)
    assert refused(error) is Status.INVALID_ARGUMENT


def test_the_largest_page_that_fits_is_used(program: RmProgram) -> None:
    """The largest size that base, length, offset and the memory's pages are multiples of."""
    huge = program.video_memory(2 * TWO_MB, page=3)
    base = program.gpu_map(huge, 2 * TWO_MB)
    assert translated(program, base).size == TWO_MB
    big = program.gpu_map(program.video_memory(TWO_MB, page=2), TWO_MB)
    assert translated(program, big).size == 64 << 10
    odd = program.gpu_map(huge, 4096)
    assert translated(program, odd).size == 4096
    system = program.gpu_map(program.system_memory(TWO_MB), TWO_MB)
    assert translated(program, system).size == 4096


def test_mapping_again_replaces_and_splits(program: RmProgram) -> None:
    first, second = program.video_memory(4 << 20, page=1), program.video_memory(4 << 20, page=1)
    base = program.gpu_map(first, 1 << 20)
    program.gpu_map_at(second, base + (256 << 10), 256 << 10)
    hosts = [translated(program, base + (k << 18)).host for k in range(4)]
    objects = program.machine.clients[program.client].objects
    memories = objects[first], objects[second]
    assert isinstance(memories[0], Memory) and isinstance(memories[1], Memory)
    one, two = memories[0].backing, memories[1].backing
    assert hosts == [one.host, two.host, one.host + (2 << 18), one.host + (3 << 18)]
    assert (one.users, two.users) == (3, 2)
    program.uvm_uuid("UVM_UNMAP_EXTERNAL", "gpuUuid", base=base, length=1 << 20)
    assert (one.users, two.users) == (1, 1)
    found = space_of(program).translate(base, FaultAccess.READ, Client.SM)
    assert isinstance(found, MmuFault), "unmapping invalidates"


def test_a_mapping_outlives_its_memory_object(program: RmProgram) -> None:
    before = program.machine.live_bytes()
    memory = program.system_memory(1 << 20)
    base = program.gpu_map(memory, 1 << 20)
    program.free(memory)
    assert translated(program, base)
    program.uvm_call("UVM_FREE", base=base, length=1 << 20)
    assert program.machine.live_bytes() == before


def test_read_only_mappings(program: RmProgram) -> None:
    program.open_channel()
    program.method(4, 0, program.facts.copy_class)
    memory = program.video_memory(TWO_MB)
    base = program.gpu_map(memory, TWO_MB, kind=3)
    program.method(4, 0x400, 0, program.work_address >> 32)
    program.words = []
    program.method(4, 0, program.facts.copy_class)
    source = program.work_address + 0x20_0000
    program.method(4, 0x400, source >> 32, source & 0xFFFF_FFFF, base >> 32, base & 0xFFFF_FFFF)
    program.method(4, 0x418, 256, 1)
    program.method(4, 0x300, 0x182)
    program.submit()
    assert program.wait_error() == (Xid.MMU_FAULT, 0xFFFF)
    info = program.control(program.channel, "NV906F_CTRL_CMD_GET_MMU_FAULT_INFO")
    assert info.addrHi << 32 | info.addrLo == base
    assert bytes(info.faultString).split(b"\0")[0] == b"FAULT_RO_VIOLATION"
    again = program.control(program.channel, "NV906F_CTRL_CMD_GET_MMU_FAULT_INFO")
    assert again.addrLo == again.addrHi == 0, "reading clears it"
    assert bytes(again.faultString).split(b"\0")[0] == b"NONE", "as on an H100"


def test_channels_register_after_their_objects(program: RmProgram) -> None:
    """Graphics work in a space of UVM's needs its context buffers mapped."""
    program.open_channel()
    channel = program.machine.clients[program.client].objects[program.channel]
    assert isinstance(channel, ChannelObject)
    channel.contexts_mapped = False
    program.method(0, 0, program.facts.compute_class)
    program.submit()
    assert program.wait_error()[0] == Xid.MMU_FAULT
    assert "UVM_REGISTER_CHANNEL" in program.machine.log[-1].text
    with pytest.raises(StatusError) as error:
        program.uvm_uuid(
            "UVM_REGISTER_CHANNEL", "gpuUuid", hClient=program.client, hChannel=program.channel,
            base=0x20_0000_0000, length=1 << 30,
        )  # fmt: skip
    assert refused(error) is Status.INVALID_CHANNEL, "registered already"


def test_a_channel_needs_the_page_directory(opened: RmProgram) -> None:
    opened.space, _ = opened.alloc(
        opened.device, 0x90F1, "NV_VASPACE_ALLOCATION_PARAMETERS", flags=0x48
    )
    opened.group, _ = opened.alloc(
        opened.device, 0xA06C, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS", hVASpace=opened.space,
        engineType=1,
    )  # fmt: skip
    memory = opened.system_memory(TWO_MB)
    with pytest.raises(StatusError) as error:
        opened.alloc(
            opened.group, opened.facts.gpfifo_class, "NV_CHANNEL_ALLOC_PARAMS", gpFifoOffset=4096,
            gpFifoEntries=64, hUserdMemory=[memory, *[0] * 7],
        )  # fmt: skip
    assert refused(error) is Status.INVALID_STATE


def test_peers_reach_each_others_memory() -> None:
    with RmProgram(gpus=2) as program:
        program.open_client()
        program.open_device(0)
        other = RmProgram.__new__(RmProgram)
        other.__dict__.update(program.__dict__)
        other.next_handle = 0x5000
        other.gpu_file = other.node.open("/dev/nvidia1")
        other.device, _ = other.alloc(
            other.client, 0x80, "NV0080_ALLOC_PARAMETERS", deviceId=1, hClientShare=other.client
        )
        other.subdevice, _ = other.alloc(other.device, 0x2080, "NV2080_ALLOC_PARAMETERS")
        other.uuid = program.machine.gpus[1].uuid
        other.uvm_uuid("UVM_REGISTER_GPU", "gpu_uuid")
        program.open_space()
        memory = other.video_memory(TWO_MB)
        with pytest.raises(StatusError) as error:
            program.gpu_map(memory, TWO_MB)
        assert refused(error) is Status.INVALID_DEVICE
        block = program.table.structs.UVM_ENABLE_PEER_ACCESS_PARAMS.new()
        block.gpuUuidA.raw[:], block.gpuUuidB.raw[:] = program.uuid, other.uuid
        number = program.table.ioctls["UVM_ENABLE_PEER_ACCESS"].number
        program.node.ioctl(program.uvm, number, block.raw)
        assert block.rmStatus == 0
        program.node.ioctl(program.uvm, number, block.raw)
        assert block.rmStatus == Status.INVALID_DEVICE
        base = program.gpu_map(memory, TWO_MB)
        data = pattern(4096).tobytes()
        space_of(program).write(base + 64, data, Client.COPY)
        video = program.machine.gpus[1].memory
        offset = translated(program, base).host - video.base
        assert np.frombuffer(video.view[offset + 64 : offset + 4160], np.uint8).tobytes() == data


@pytest.mark.parametrize("chip", ["tu102", "ga102", "gh100", "gb202"])
def test_context_buffers_fit_what_is_reserved_on_boards(chip: str) -> None:
    """tinygrad 0.14 names 64 MiB when it registers a channel, and runs on GA102 to GB202."""
    with RmProgram(chip) as program:
        program.bring_up()
        names = {"hClient": program.client, "hChannel": program.channel}
        program.uvm_uuid("UVM_UNREGISTER_CHANNEL", "gpuUuid", **names)
        program.uvm_uuid(
            "UVM_REGISTER_CHANNEL", "gpuUuid", **names, base=0x30_0000_0000, length=64 << 20
        )


@pytest.mark.parametrize(
    ("chip", "bits"), [("tu102", 40), ("ga102", 40), ("ad102", 40), ("gh100", 47), ("gb202", 47)]
)
def test_context_buffers_have_as_many_address_bits_as_uvm_allows(chip: str, bits: int) -> None:
    """max_channel_va of uvm_turing.c to uvm_blackwell.c. NVIDIA's own module refuses the rest."""
    with RmProgram(chip) as program:
        program.bring_up()
        names = {"hClient": program.client, "hChannel": program.channel}
        program.uvm_uuid("UVM_UNREGISTER_CHANNEL", "gpuUuid", **names)
        length = 64 << 20

        def register(base: int) -> None:
            program.uvm_uuid("UVM_REGISTER_CHANNEL", "gpuUuid", **names, base=base, length=length)

        if bits == 40:
            with pytest.raises(StatusError) as error:
                register((1 << bits) - length + 4096)
            assert refused(error) is Status.OUT_OF_RANGE
        register((1 << bits) - length)


def test_context_buffers_need_their_place(program: RmProgram) -> None:
    program.open_channel()
    size = program.control(
        program.subdevice, "NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE", hChannel=program.channel
    ).totalBufferSize
    small = size - (64 << 10)
    names = {"hClient": program.client, "hChannel": program.channel}
    program.uvm_uuid("UVM_UNREGISTER_CHANNEL", "gpuUuid", **names)
    with pytest.raises(StatusError) as error:
        program.uvm_uuid(
            "UVM_REGISTER_CHANNEL", "gpuUuid", **names, base=0x30_0000_0000, length=small
        )
    assert refused(error) is Status.INVALID_ADDRESS
    assert "context buffer" in program.machine.refused[-1]
    program.uvm_call("UVM_CREATE_EXTERNAL_RANGE", base=0x30_0000_0000, length=TWO_MB)
    program.uvm_uuid(
        "UVM_REGISTER_CHANNEL", "gpuUuid", **names, base=0x30_0000_0000, length=size + TWO_MB
    )
    with pytest.raises(StatusError) as error:
        program.uvm_call("UVM_CREATE_EXTERNAL_RANGE", base=0x30_0020_0000, length=TWO_MB)
    assert refused(error) is Status.UVM_ADDRESS_IN_USE
    with pytest.raises(StatusError) as error:
        program.uvm_call("UVM_FREE", base=0x30_0020_0000, length=1 << 20)
    assert refused(error) is Status.INVALID_ADDRESS
    program.uvm_uuid("UVM_UNREGISTER_CHANNEL", "gpuUuid", **names)
    program.uvm_call("UVM_CREATE_EXTERNAL_RANGE", base=0x30_0020_0000, length=TWO_MB)


def test_channels_of_one_group_share_their_context_buffers(program: RmProgram) -> None:
    """uvm_user_channel.c, find_va_range: a range is shared within a group (TSG), not beyond it."""

    def registered(group: int, share: int, length: int) -> None:
        program.share = share
        channel, _ = program.alloc(
            group, program.facts.gpfifo_class, "NV_CHANNEL_ALLOC_PARAMS", **program.channel_values()
        )
        program.alloc(channel, program.facts.compute_class)
        program.uvm_uuid(
            "UVM_REGISTER_CHANNEL", "gpuUuid", rmCtrlFd=program.ctl, hClient=program.client,
            hChannel=channel, base=0x30_0000_0000, length=length,
        )  # fmt: skip

    program.open_channel()
    registered(program.group, program.share, 4096)  # no place for any, and none is needed
    other, _ = program.alloc(
        program.device, 0xA06C, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS", hVASpace=program.space,
        engineType=1,
    )  # fmt: skip
    share, _ = program.alloc(
        other, 0x9067, "NV_CTXSHARE_ALLOCATION_PARAMETERS", hVASpace=program.space, flags=1
    )
    with pytest.raises(StatusError) as error:
        registered(other, share, 4096)
    assert refused(error) is Status.INVALID_ADDRESS
    registered(other, share, 64 << 20)


@pytest.mark.parametrize("chip", ["tu102", "gh100", "gb202"])
def test_a_channel_on_the_graphics_engine_registers_once_its_group_has_a_context(chip: str) -> None:
    """nvGpuOpsRetainChannel asks for the buffers of the group's graphics context, which the first
    compute object makes (kgrctxGetCtxBuffers; observed on an H100). A copy object makes none."""
    with RmProgram(chip) as program:
        program.bring_up()
        group, _ = program.alloc(
            program.device, 0xA06C, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
            hVASpace=program.space, engineType=1,
        )  # fmt: skip
        values = {**program.channel_values(), "hContextShare": 0}
        first, second = (
            program.alloc(group, program.facts.gpfifo_class, "NV_CHANNEL_ALLOC_PARAMS", **values)[0]
            for _ in range(2)
        )
        program.alloc(
            first, program.facts.copy_class, "NVB0B5_ALLOCATION_PARAMETERS", version=1, engineType=9
        )

        def register(channel: int) -> None:
            program.uvm_uuid(
                "UVM_REGISTER_CHANNEL", "gpuUuid", rmCtrlFd=program.ctl, hClient=program.client,
                hChannel=channel, base=0x30_0000_0000, length=1 << 30,
            )  # fmt: skip

        for channel in (first, second):
            with pytest.raises(StatusError) as error:
                register(channel)
            assert refused(error) is Status.INVALID_OBJECT
        program.alloc(second, program.facts.compute_class)
        register(first)  # the context is the group's
        register(second)
