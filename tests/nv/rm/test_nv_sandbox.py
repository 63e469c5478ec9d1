"""A sandbox before the driver lets only some calls through: what it stops must not be needed.

The lists are those of google/gvisor, pkg/sentry/devices/nvproxy/version.go, at its first driver
version, as far as our driver asks for them: controls and classes for computing. What is not on them
is answered with EINVAL.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.nvidia.nv_machine import work
from ugpu.hcq.errors import DeviceHang, DriverRefused, PageFault
from ugpu.hcq.transport.node import Node, NodeMapping
from ugpu.nv import abi
from ugpu.nv.device.device import NvDevice, open_device
from ugpu.virtual.nvidia.faults import Fault
from ugpu.virtual.nvidia.gpu import attach
from ugpu.virtual.nvidia.machine import VirtualMachine

CONTROLS = """
NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2 NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2
NV2080_CTRL_CMD_BUS_GET_INFO_V2 NV2080_CTRL_CMD_CE_GET_CAPS_V2 NV2080_CTRL_CMD_FB_GET_INFO_V2
NV2080_CTRL_CMD_GPU_GET_ENGINES_V2 NV2080_CTRL_CMD_GPU_GET_GID_INFO
NV2080_CTRL_CMD_GPU_GET_INFO_V2 NV2080_CTRL_CMD_GPU_GET_NAME_STRING NV2080_CTRL_CMD_GR_GET_INFO
NV2080_CTRL_CMD_NVLINK_GET_NVLINK_STATUS NV2080_CTRL_CMD_PERF_BOOST
NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES NVA06C_CTRL_CMD_GPFIFO_SCHEDULE
NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN
"""
CLASSES = """
NV01_ROOT_CLIENT NV01_DEVICE_0 NV20_SUBDEVICE_0 HOPPER_USERMODE_A FERMI_VASPACE_A
NV01_MEMORY_SYSTEM NV01_MEMORY_LOCAL_USER KEPLER_CHANNEL_GROUP_A FERMI_CONTEXT_SHARE_A
HOPPER_CHANNEL_GPFIFO_A HOPPER_COMPUTE_A HOPPER_DMA_COPY_A GT200_DEBUGGER RM_USER_SHARED_DATA
"""
UVM = """
UVM_INITIALIZE UVM_MM_INITIALIZE UVM_REGISTER_GPU UVM_UNREGISTER_GPU UVM_REGISTER_GPU_VASPACE
UVM_UNREGISTER_GPU_VASPACE UVM_REGISTER_CHANNEL UVM_UNREGISTER_CHANNEL UVM_CREATE_EXTERNAL_RANGE
UVM_MAP_EXTERNAL_ALLOCATION UVM_FREE UVM_PAGEABLE_MEM_ACCESS
"""
ESCAPES = """
NV_ESC_CARD_INFO NV_ESC_CHECK_VERSION_STR NV_ESC_REGISTER_FD NV_ESC_RM_FREE NV_ESC_RM_CONTROL
NV_ESC_RM_ALLOC NV_ESC_RM_MAP_MEMORY NV_ESC_RM_UNMAP_MEMORY
"""


class Sandbox:
    """A node that lets through what is listed; see hcq.transport.node.Node."""

    def __init__(self, node: Node, version: str) -> None:
        self.name = node.name
        self.clock = node.clock
        self.node = node
        self.table = abi.select(version)
        self.stopped: set[str] = set()

    def open(self, path: str) -> int:
        return self.node.open(path)

    def ioctl(self, handle: int, request: int, argument: bytearray | memoryview) -> None:
        found = self.table.ioctl_of(request)
        name = found.name if found is not None else f"{request:#x}"
        if name == "NV_ESC_RM_CONTROL":
            block = self.table.structs.NVOS54_PARAMETERS.view(argument)
            self._need(self.table.control_name(block.cmd) or hex(block.cmd), CONTROLS)
        elif name == "NV_ESC_RM_ALLOC":
            block = self.table.structs.NVOS64_PARAMETERS.view(argument)
            self._need(self.table.classes[block.hClass].name, CLASSES)
        else:
            self._need(name, ESCAPES + UVM)
        self.node.ioctl(handle, request, argument)

    def _need(self, name: str, listed: str) -> None:
        if name not in listed.split():
            self.stopped.add(name)
            raise OSError(errno.EINVAL, "Invalid argument")

    def map(self, handle: int, size: int, offset: int = 0) -> NodeMapping:
        return self.node.map(handle, size, offset)

    def release(self, handle: int) -> None:
        self.node.release(handle)

    def read_text(self, path: str) -> str:
        raise FileNotFoundError(path)

    def close(self) -> None:
        self.node.close()


@pytest.fixture
def boxed() -> Iterator[tuple[NvDevice, Sandbox, VirtualMachine]]:
    attachment = attach("gh100")
    node = Sandbox(attachment.node, "580.142")
    assert isinstance(attachment.chip, VirtualMachine)
    with open_device("nvrm:0", replace(attachment, node=node)) as device:
        device.limit_s = 20.0
        yield device, node, attachment.chip


def test_all_that_is_needed_gets_through(
    boxed: tuple[NvDevice, Sandbox, VirtualMachine],
) -> None:
    device, node, _ = boxed
    work(device)
    assert device.target.compute_units == 132
    assert "NV2080_CTRL_CMD_GR_GET_INFO_V2" in node.stopped  # and the older one was taken
    sensors = {(sensor.name, sensor.label) for sensor in device.sensors()}
    assert ("clock_hertz", "gfx") in sensors
    assert ("memory_used_bytes", "") in sensors
    assert device.info()["chip"]


def test_faults_are_named_with_fewer_facts(
    boxed: tuple[NvDevice, Sandbox, VirtualMachine],
) -> None:
    device, node, machine = boxed
    assert "UVM_TOOLS_INIT_EVENT_TRACKER" in node.stopped
    assert not device.driver.session.events.works
    machine.inject(Fault.UNMAPPED)
    with pytest.raises(PageFault, match="does not say where") as caught:
        work(device)
    assert caught.value.facts["kernel"] == "scale"
    device.reset()
    machine.inject(Fault.HANG)
    device.limit_s = 0.2
    with pytest.raises(DeviceHang):
        work(device)
    device.limit_s = 20.0
    device.reset()
    work(device)


def test_what_is_stopped_is_named(boxed: tuple[NvDevice, Sandbox, VirtualMachine]) -> None:
    device, _, _ = boxed
    client = device.driver.gpu.client
    with pytest.raises(DriverRefused, match="PERF_GET_CURRENT_PSTATE with EINVAL") as told:
        client.ask(device.driver.gpu.subdevice, "NV2080_CTRL_CMD_PERF_GET_CURRENT_PSTATE")
    assert told.value.facts["status"] == "EINVAL"
    with pytest.raises(DriverRefused, match="allocate NV01_MEMORY_VIRTUAL"):
        client.allocate(device.driver.gpu.device, "NV01_MEMORY_VIRTUAL")
