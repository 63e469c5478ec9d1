"""A virtual machine with NVIDIA GPUs, devices of our driver on it, and work that must come out
right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.nv.device.device import NvDevice
from ugpu.virtual.nvidia.gpu import build_machine
from ugpu.virtual.nvidia.machine import VirtualMachine
from ugpu.virtual.nvidia.options import MachineOptions

COUNT = 256
LIMIT_S = 60.0  # a bound on real threads; work beside a kernel that hangs has half a core


@contextmanager
def powered(chip: str = "gh100", options: MachineOptions | None = None) -> Iterator[VirtualMachine]:
    """A machine of its own; switched off at the end."""
    machine = build_machine(chip, options or MachineOptions())
    try:
        yield machine
    finally:
        machine.close()


def opened(machine: VirtualMachine, **options: object) -> NvDevice:
    """Our driver on the machine's first GPU, as a new program would open it."""
    device = hcq.open(f"virtual:{machine.facts.name}", chip=machine, **options)
    assert isinstance(device, NvDevice)
    device.limit_s = LIMIT_S
    return device


def tenant(device: NvDevice, name: str) -> Device:
    """The GPU once more, for another holder."""
    made = Device(device.driver.open_tenant(name))
    made.limit_s = LIMIT_S
    return made


def preemptible(device: NvDevice) -> NvDevice:
    """Ask for preemption at any instruction on the compute queue, as CUDA does. Our driver does
    not: boards need a trap handler for it (docs/tasks.md, nv-preemption). Returns the device."""
    gpu, group = device.driver.gpu, device.driver.compute_queue.group
    assert group is not None
    number = gpu.client.constants
    gpu.client.ask(
        gpu.subdevice, "NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE", hChannel=group.handle,
        flags=number.NV2080_CTRL_GR_SET_CTXSW_PREEMPTION_MODE_FLAGS_CILP_SET,
        cilpPreemptMode=number.NV2080_CTRL_SET_CTXSW_PREEMPTION_MODE_COMPUTE_CILP,
    )  # fmt: skip
    return device


def work(device: Device) -> None:
    """Load, upload, launch, download: all parts of the driver; the answer is checked."""
    values = np.arange(COUNT, dtype=np.uint32)
    with (
        device.load(contract_object(device.target)) as program,
        device.alloc(4 * COUNT) as source,
        device.alloc(4 * COUNT) as result,
    ):
        source.copy_from(values)
        arguments = (result, source, np.uint32(COUNT), np.uint32(3))
        with device.queue() as queue:
            queue.launch(program["scale"], grid=(COUNT // 64,), block=(64,), args=arguments)
        device.synchronize()
        assert (result.numpy(np.uint32) == 3 * values).all()


@contextmanager
def hanging(device: NvDevice) -> Iterator[Buffer]:
    """A real kernel that loops until a word in memory changes; the word."""
    with (
        device.load(contract_object(device.target)) as program,
        device.alloc(64, placement=Placement.HOST) as flag,
    ):
        flag.fill(0)
        with device.queue() as queue:
            queue.launch(program["spin"], grid=(4,), block=(64,), args=(flag,))
        yield flag


def left_behind(machine: VirtualMachine) -> dict[str, int]:
    """What programs that have gone still hold of the machine: nothing, if all is well."""
    return {
        "clients": len(machine.clients),
        "nodes": len(machine.nodes),
        "mappings": len(machine.mappings),
        "system memory": machine.system_used,
    }
