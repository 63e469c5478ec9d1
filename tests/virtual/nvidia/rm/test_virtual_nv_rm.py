"""The resource manager's rules, by hand-written calls: files, sizes, handles, parents, controls."""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from mmap import mmap
from typing import Any

import pytest

from tests.support.nvidia.rm_program import RmProgram, StatusError, address_of
from ugpu.hcq.errors import BadArgument
from ugpu.nv import abi
from ugpu.virtual.nvidia.gpu import CHIPS, attach
from ugpu.virtual.nvidia.memory.faults import Client, FaultAccess
from ugpu.virtual.nvidia.memory.space import Translation
from ugpu.virtual.nvidia.options import DRIVERS
from ugpu.virtual.nvidia.rm.resources import VaSpace
from ugpu.virtual.nvidia.status import Status


@pytest.fixture
def program() -> Iterator[RmProgram]:
    with RmProgram() as made:
        made.open_client()
        yield made


@pytest.fixture
def opened(program: RmProgram) -> RmProgram:
    program.open_device()
    return program


def refused(error: pytest.ExceptionInfo[StatusError]) -> Status:
    return Status(error.value.status)


# -- files ---------------------------------------------------------------------------------------


def test_files_that_are_there(program: RmProgram) -> None:
    for path in ("/dev/nvidia7", "/dev/nvidia", "/dev/nvidia-modeset", "/etc/passwd"):
        with pytest.raises(FileNotFoundError):
            program.node.open(path)
    handle = program.node.open("/dev/nvidia0")
    program.node.release(handle)
    with pytest.raises(BadArgument):
        program.node.release(handle)
    with pytest.raises(OSError, match="handle") as error:
        program.node.ioctl(handle, 0xC00446C9, bytearray(4))
    assert error.value.errno == errno.EBADF


def test_texts(program: RmProgram) -> None:
    text = program.node.read_text("/proc/driver/nvidia/version")
    assert "NVRM version: NVIDIA UNIX" in text
    assert "580.142" in text
    info = program.node.read_text("/proc/driver/nvidia/gpus/0000:01:00.0/information")
    assert "GPU UUID: \t GPU-" in info
    with pytest.raises(FileNotFoundError):
        program.node.read_text("/proc/driver/nvidia/gpus/0000:02:00.0/information")


def test_ioctl_numbers_carry_the_size(program: RmProgram) -> None:
    """REGISTER_FD by hand: _IOWR('F', 0xC9, 4 bytes); other sizes are EINVAL."""
    gpu = program.node.open("/dev/nvidia0")
    block = bytearray(struct.pack("<i", program.ctl))
    with pytest.raises(OSError, match="bytes") as error:
        program.node.ioctl(gpu, 3 << 30 | 8 << 16 | ord("F") << 8 | 0xC9, bytearray(8))
    assert error.value.errno == errno.EINVAL
    with pytest.raises(OSError, match="cannot read") as error:
        program.node.ioctl(gpu, 3 << 30 | 4 << 16 | ord("F") << 8 | 0xC9, bytearray(2))
    assert error.value.errno == errno.EFAULT
    program.node.ioctl(gpu, 3 << 30 | 4 << 16 | ord("F") << 8 | 0xC9, block)


@pytest.mark.parametrize(
    "name",
    ["NV_ESC_RM_ALLOC", "NV_ESC_RM_FREE", "NV_ESC_RM_CONTROL", "NV_ESC_RM_MAP_MEMORY",
     "NV_ESC_RM_MAP_MEMORY_DMA", "NV_ESC_CHECK_VERSION_STR", "NV_ESC_SYS_PARAMS"],
)  # fmt: skip
def test_each_call_has_its_size(program: RmProgram, name: str) -> None:
    number, size = program.table.ioctls[name].number, 0
    size = program.table.structs[program.table.ioctls[name].struct].size
    for wrong in (size - 4, size + 4, 0):
        request = 3 << 30 | wrong << 16 | ord("F") << 8 | number
        with pytest.raises(OSError, match=r"bytes|EINVAL|Invalid") as error:
            program.node.ioctl(program.ctl, request, bytearray(size + 8))
        assert error.value.errno == errno.EINVAL


def test_calls_belong_to_files(program: RmProgram) -> None:
    gpu = program.node.open("/dev/nvidia0")
    for name in ("NV_ESC_RM_ALLOC", "NV_ESC_RM_CONTROL", "NV_ESC_RM_FREE"):
        with pytest.raises(OSError, match="nvidiactl"):
            program.call(gpu, name)
    with pytest.raises(OSError, match="nvidiaN"):
        program.call(program.ctl, "NV_ESC_RM_ALLOC_MEMORY")
    with pytest.raises(OSError, match="not modelled"):
        program.node.ioctl(program.ctl, 3 << 30 | ord("F") << 8 | 0x7F, bytearray(0))


def test_registering_a_file_has_an_order(program: RmProgram) -> None:
    gpu, other = program.node.open("/dev/nvidia0"), program.node.open("/dev/nvidia0")
    for wrong in (gpu, other, 9999, -1):
        with pytest.raises(OSError, match="nvidiactl"):
            program.call(gpu, "NV_ESC_REGISTER_FD", ctl_fd=wrong)
    program.call(gpu, "NV_ESC_REGISTER_FD", ctl_fd=program.ctl)
    with pytest.raises(OSError, match="already"):
        program.call(gpu, "NV_ESC_REGISTER_FD", ctl_fd=program.ctl)
    with pytest.raises(OSError, match="itself"):
        program.call(program.ctl, "NV_ESC_REGISTER_FD", ctl_fd=program.ctl)


def version_call(program: RmProgram, cmd: int, text: str) -> tuple[int, str]:
    block = bytearray(72)
    block[0:4] = struct.pack("<I", cmd)
    block[8 : 8 + len(text)] = text.encode()
    code = 0
    try:
        program.node.ioctl(program.ctl, 3 << 30 | 72 << 16 | ord("F") << 8 | 0xD2, block)
    except OSError as error:
        code = error.errno or 0
    return code, bytes(block[8:]).split(b"\0")[0].decode()


def test_versions_are_compared(program: RmProgram) -> None:
    assert version_call(program, 0, "580.142") == (0, "580.142")
    assert version_call(program, 0, "580.65.06") == (errno.EINVAL, "580.142")
    assert version_call(program, ord("1"), "580.65.06")[0] == 0, "relaxed: to the first point"
    assert version_call(program, ord("1"), "570.65")[0] == errno.EINVAL
    assert version_call(program, ord("2"), "") == (0, "580.142")


def test_cards(program: RmProgram) -> None:
    block = bytearray(72 * 8)
    program.node.ioctl(program.ctl, 3 << 30 | len(block) << 16 | ord("F") << 8 | 0xC8, block)
    # valid u8 @0, pci_info @4: domain u32, bus u8, slot u8, function u8, vendor u16 @8, device @10
    assert block[0] == 1
    assert block[72] == 0
    assert struct.unpack_from("<HH", block, 4 + 8) == (0x10DE, program.facts.pci_device)
    assert struct.unpack_from("<I", block, 16)[0] == program.machine.gpu.gpu_id


# -- objects -------------------------------------------------------------------------------------


def test_a_device_needs_its_file_open(program: RmProgram) -> None:
    with pytest.raises(StatusError) as error:
        program.alloc(program.client, 0x80, "NV0080_ALLOC_PARAMETERS")
    assert refused(error) is Status.INVALID_DEVICE


def test_rules_of_handles(opened: RmProgram) -> None:
    first, _ = opened.alloc(opened.subdevice, opened.facts.usermode_class, handle=0x77)
    assert first == 0x77
    with pytest.raises(StatusError) as error:
        opened.alloc(opened.subdevice, opened.facts.usermode_class, handle=0x77)
    assert refused(error) is Status.INSERT_DUPLICATE_NAME
    with pytest.raises(StatusError) as error:
        opened.alloc(opened.subdevice, opened.facts.usermode_class, handle=opened.client)
    assert refused(error) is Status.INVALID_OBJECT_HANDLE
    with pytest.raises(StatusError) as error:
        opened.alloc(0x4242, opened.facts.usermode_class)
    assert refused(error) is Status.OBJECT_NOT_FOUND
    opened.free(0x77)
    with pytest.raises(StatusError) as error:
        opened.free(0x77)
    assert refused(error) is Status.OBJECT_NOT_FOUND, "double free"


def test_rules_of_parents_and_classes(opened: RmProgram) -> None:
    cases = (
        (opened.client, 0x2080, "NV2080_ALLOC_PARAMETERS", Status.INVALID_OBJECT_PARENT),
        (opened.device, opened.facts.usermode_class, None, Status.INVALID_OBJECT_PARENT),
        (opened.device, opened.facts.compute_class, None, Status.INVALID_OBJECT_PARENT),
        (opened.subdevice, 0xDEAD, None, Status.INVALID_CLASS),
        (opened.device, 0x9067, "NV_CTXSHARE_ALLOCATION_PARAMETERS", Status.INVALID_OBJECT_PARENT),
    )
    for parent, class_id, params, status in cases:
        with pytest.raises(StatusError) as error:
            opened.alloc(parent, class_id, params)
        assert refused(error) is status, hex(class_id)


def test_a_chip_has_only_its_own_classes() -> None:
    with RmProgram("tu102") as program:
        program.open_client()
        program.open_device()
        with pytest.raises(StatusError) as error:
            program.alloc(program.subdevice, 0xC661)
        assert refused(error) is Status.INVALID_CLASS


def test_sizes_and_pointers_of_parameters(opened: RmProgram) -> None:
    with pytest.raises(StatusError) as error:
        opened.alloc(opened.device, 0x90F1, "NV_VASPACE_ALLOCATION_PARAMETERS", params_size=48 + 4)
    assert refused(error) is Status.INVALID_ARGUMENT
    opened.alloc(opened.device, 0x90F1, "NV_VASPACE_ALLOCATION_PARAMETERS", params_size=0)
    with pytest.raises(StatusError) as error:
        opened.alloc(opened.device, 0x90F1)
    assert refused(error) is Status.INVALID_ARGUMENT, "required parameters are not there"
    block = opened.table.structs.NVOS64_PARAMETERS.new(
        hRoot=opened.client, hObjectParent=opened.device, hObjectNew=0x99, hClass=0x90F1,
        pAllocParms=0x1000,
    )  # fmt: skip
    opened.node.ioctl(opened.ctl, opened.table.request("NV_ESC_RM_ALLOC"), block.raw)
    assert block.status == Status.INVALID_POINTER, "an address that is not mapped"


def test_freeing_a_parent_frees_what_is_below(opened: RmProgram) -> None:
    opened.open_space()
    opened.open_channel()
    count = len(opened.machine.live_objects())
    opened.free(opened.group)
    left = opened.machine.live_objects()
    assert len(left) == count - 5  # group, share, channel, compute, copy
    assert not any(found.class_id == opened.facts.gpfifo_class for found in left)
    opened.free(opened.client)
    assert opened.machine.live_objects() == []


def test_a_program_that_ends_leaves_nothing() -> None:
    with RmProgram() as program:
        program.bring_up()
        program.video_memory(8 << 20)
        assert program.machine.live_bytes() > 8 << 20
        program.node.close()
        assert program.machine.live_objects() == []
        assert program.machine.live_bytes() == 0
        assert program.machine.gpu.new_channel_number(program.machine.gpu.runlists[0]) == 0


def test_clients_belong_to_their_program(opened: RmProgram) -> None:
    other = attach("gh100", chip=opened.machine).node
    ctl = other.open("/dev/nvidiactl")
    block = opened.table.structs.NVOS00_PARAMETERS.new(
        hRoot=opened.client, hObjectOld=opened.device
    )
    other.ioctl(ctl, opened.table.request("NV_ESC_RM_FREE"), block.raw)
    assert block.status == Status.INVALID_CLIENT
    other.close()


# -- memory --------------------------------------------------------------------------------------


def test_memory_runs_out(opened: RmProgram) -> None:
    usable = opened.machine.gpu.memory.usable
    whole = opened.video_memory(usable // (2 << 20) * (2 << 20), page=3)
    with pytest.raises(StatusError) as error:
        opened.video_memory(2 << 20, page=3)
    assert refused(error) is Status.NO_MEMORY
    opened.free(whole)
    opened.video_memory(2 << 20, page=3)


def test_freed_memory_is_scrubbed(opened: RmProgram) -> None:
    memory = opened.video_memory(1 << 20)
    mapped = opened.cpu_map(memory, 1 << 20)
    assert mapped.view is not None
    mapped.view[:8] = b"secret!!"
    mapped.close()
    opened.free(memory)
    mapped = opened.cpu_map(opened.video_memory(1 << 20), 1 << 20)
    assert mapped.view is not None
    assert bytes(mapped.view[:8]) == bytes(8)


def test_a_mapping_keeps_memory_alive(opened: RmProgram) -> None:
    before = opened.machine.live_bytes()
    memory = opened.system_memory(1 << 20)
    mapped = opened.cpu_map(memory, 1 << 20, system=True)
    opened.free(memory)
    assert mapped.view is not None
    mapped.view[0] = 7
    mapped.write32(4, 0x12345678)
    assert mapped.read32(4) == 0x12345678
    assert opened.machine.live_bytes() == before + (1 << 20)
    mapped.close()
    mapped.close()
    assert opened.machine.live_bytes() == before
    with pytest.raises(BadArgument):
        mapped.read32(0)


def test_a_file_maps_what_was_prepared_on_it(opened: RmProgram) -> None:
    file = opened.node.open("/dev/nvidia0")
    with pytest.raises(OSError, match="must follow RM_MAP_MEMORY") as error:
        opened.node.map(file, 4096)
    assert error.value.errno == errno.EINVAL
    memory = opened.video_memory(1 << 20)

    def prepare(handle: int, **values: int) -> int:
        block = opened.table.structs.nv_ioctl_nvos33_parameters_with_fd.new(fd=handle)
        params = block.params
        params.hClient, params.hDevice, params.hMemory = opened.client, opened.device, memory
        params.length = 1 << 20
        for name, value in values.items():
            params[name] = value
        opened.node.ioctl(opened.ctl, opened.table.request("NV_ESC_RM_MAP_MEMORY"), block.raw)
        return int(params.status)

    assert prepare(opened.ctl) == Status.INVALID_ARGUMENT, "video memory goes with nvidiaN"
    assert prepare(file, length=2 << 20) == Status.INVALID_LIMIT
    assert prepare(file, offset=100) == Status.INVALID_ARGUMENT
    assert prepare(file) == Status.OK
    assert prepare(file) == Status.STATE_IN_USE
    with pytest.raises(OSError, match="RM_MAP_MEMORY prepared") as error:
        opened.node.map(file, 4096)
    assert error.value.errno == errno.ENXIO
    with pytest.raises(OSError, match="offset must be 0"):
        opened.node.map(file, 1 << 20, 4096)
    opened.node.map(file, 1 << 20).close()
    opened.node.map(file, 1 << 20).close()


def test_memory_of_the_program_itself(opened: RmProgram) -> None:
    opened.open_space()
    pages = mmap(-1, 8192)
    address = address_of(memoryview(pages))
    block = opened.table.structs.nv_ioctl_nvos02_parameters_with_fd.new(fd=-1)
    params = block.params
    params.hRoot, params.hObjectParent, params.hObjectNew = opened.client, opened.device, 0x333
    params.hClass, params.flags = 0x71, 1 << 4
    for where, limit, status in (
        (address, 8191, Status.OK),
        (address + 8, 4095, Status.INVALID_ADDRESS),
        (0x1000, 4095, Status.INVALID_POINTER),
        (address, 100, Status.INVALID_ARGUMENT),
    ):
        params.pMemory, params.limit = where, limit
        opened.node.ioctl(
            opened.gpu_file, opened.table.request("NV_ESC_RM_ALLOC_MEMORY"), block.raw
        )
        assert params.status == status
        params.hObjectNew += 1
    base = opened.gpu_map(0x333, 8192)
    space = opened.machine.clients[opened.client].objects[opened.space]
    assert isinstance(space, VaSpace)
    found = space.space.translate(base + 4096, FaultAccess.READ, Client.COPY)
    assert isinstance(found, Translation)
    assert found.host == address + 4096


# -- controls ------------------------------------------------------------------------------------


def test_controls_know_their_objects_and_sizes(opened: RmProgram) -> None:
    name = "NV2080_CTRL_CMD_GPU_GET_GID_INFO"
    with pytest.raises(StatusError) as error:
        opened.control(opened.device, name)
    assert refused(error) is Status.NOT_SUPPORTED
    with pytest.raises(StatusError) as error:
        opened.control(opened.subdevice, name, params_size=264)
    assert refused(error) is Status.INVALID_PARAM_STRUCT
    with pytest.raises(StatusError) as error:
        opened.control(0x4242, name)
    assert refused(error) is Status.INVALID_OBJECT_HANDLE
    with pytest.raises(StatusError) as error:
        opened.control(opened.subdevice, "NV2080_CTRL_CMD_GPU_GET_PIDS")
    assert refused(error) is Status.NOT_SUPPORTED
    assert opened.machine.asked["NV2080_CTRL_CMD_GPU_GET_PIDS"] == 1


def test_class_list(opened: RmProgram) -> None:
    found = opened.control(opened.device, "NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2")
    classes = set(found.classList[: found.numClasses])
    facts = opened.facts
    own = {facts.usermode_class, facts.gpfifo_class, facts.compute_class, facts.copy_class}
    assert own <= classes
    assert 0xC6C0 not in classes


def test_sensors(opened: RmProgram) -> None:
    constants = opened.table.constants
    params = opened.table.structs.NV2080_CTRL_FB_GET_INFO_V2_PARAMS.new(fbInfoListSize=2)
    params.fbInfoList[0].index = constants.NV2080_CTRL_FB_INFO_INDEX_TOTAL_RAM_SIZE
    params.fbInfoList[1].index = constants.NV2080_CTRL_FB_INFO_INDEX_HEAP_FREE
    opened.call(
        opened.ctl, "NV_ESC_RM_CONTROL", hClient=opened.client, hObject=opened.subdevice,
        cmd=constants.NV2080_CTRL_CMD_FB_GET_INFO_V2, params=address_of(params.raw),
        paramsSize=len(params),
    )  # fmt: skip
    assert params.fbInfoList[0].data == 256 << 10
    free = params.fbInfoList[1].data
    opened.video_memory(2 << 20)
    opened.call(
        opened.ctl, "NV_ESC_RM_CONTROL", hClient=opened.client, hObject=opened.subdevice,
        cmd=constants.NV2080_CTRL_CMD_FB_GET_INFO_V2, params=address_of(params.raw),
        paramsSize=len(params),
    )  # fmt: skip
    assert params.fbInfoList[1].data == free - 2048
    sample = opened.control(
        opened.subdevice, "NV2080_CTRL_CMD_PERF_GET_GPUMON_PERFMON_UTIL_SAMPLES_V2"
    )
    assert 0 <= sample.samples[0].gr.util <= 10_000
    ecc = opened.control(opened.subdevice, "NV2080_CTRL_CMD_GPU_QUERY_ECC_STATUS")
    assert ecc.uncorrectableError == 0


# -- all chips and branches ----------------------------------------------------------------------


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_branch_brings_every_chip_up(chip: str, driver: str) -> None:
    if chip == "gb202" and driver < "570":
        with pytest.raises(BadArgument, match="does not support gb202"):
            RmProgram(chip, driver)
        return
    with RmProgram(chip, driver) as program:
        program.bring_up()
        program.release(program.work_address + 0x4000, 0x1234_5678_9ABC)
        program.submit()
        program.wait(0x4000, 0x1234_5678_9ABC)
        assert program.machine.violations == []
        assert program.machine.refused == []
        major = int(driver.split(".")[0])
        size = program.table.structs.NV_CHANNEL_ALLOC_PARAMS.size
        assert size == (360 if major < 570 else 368 if major < 610 else 376)
        assert program.table.structs.UVM_FREE_PARAMS.size == (16 if major >= 595 else 24)


def test_another_branchs_block_is_refused() -> None:
    """NVOS46 has 56 bytes up to 570 and 64 from 580 on."""
    with RmProgram(driver="580.142") as program:
        program.open_client()
        older = abi.select("570.144")
        with pytest.raises(OSError, match="64 bytes in this branch"):
            program.node.ioctl(
                program.ctl, older.request("NV_ESC_RM_MAP_MEMORY_DMA"), bytearray(56)
            )


def test_machines_that_cannot_be() -> None:
    cases: list[dict[str, Any]] = [{"memory": 1 << 20}, {"gpus": 0}, {"gpus": 9}, {"driver": "5x"}]
    for options in cases:
        with pytest.raises(BadArgument):
            attach("gh100", **options)
    with pytest.raises(BadArgument, match="virtual chip must be one of"):
        attach("gk110")


def test_one_of_two_gpus() -> None:
    with RmProgram(gpus=2) as program:
        program.open_client()
        with pytest.raises(BadArgument, match="index must be below 2"):
            attach("gh100", chip=program.machine, index=2)
        program.open_device(1)
        assert program.uuid == program.machine.gpus[1].uuid
        assert program.uuid != program.machine.gpus[0].uuid


def test_a_machine_is_plugged_in_again() -> None:
    with RmProgram() as program:
        program.machine.gpu.memory.words[0] = 42
        again = attach("gh100", chip=program.machine)
        assert again.chip is program.machine
        again.node.close()
        with pytest.raises(BadArgument, match="tu102"):
            attach("tu102", chip=program.machine)
