"""Several holders of one GPU in one process: what each reaches, and whose work a failure ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.nv.rm.test_nv_sandbox import Sandbox
from tests.support.nvidia import ptx_kernels
from tests.support.nvidia.nv_machine import left_behind, opened, powered, tenant, work
from tests.support.service.daemon import Running, scaled, settings_text
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import NotSupported, PageFault, UgpuError
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.node import NodeAttachment
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind
from ugpu.nv.device.device import NvDevice, open_device
from ugpu.tools.service.daemon.config import parse
from ugpu.virtual.nvidia.faults import Fault
from ugpu.virtual.nvidia.gpu import attach
from ugpu.virtual.nvidia.machine import VirtualMachine
from ugpu.virtual.nvidia.uvm.ioctls import UvmFile

SECRET = 0x5EC2E75
FAR = 256 << 20
PEEK = """
.visible .entry peek(.param .u64 out, .param .u64 place)
{ .reg .b64 %a, %b; .reg .b32 %r;
  ld.param.u64 %a, [out]; ld.param.u64 %b, [place];
  ld.global.u32 %r, [%b]; st.global.u32 [%a], %r; ret; }
"""


@contextmanager
def shared(count: int = 2) -> Iterator[tuple[VirtualMachine, NvDevice, list[Device]]]:
    """A GPU with tenants."""
    with ExitStack() as stack:
        machine = stack.enter_context(powered())
        device = stack.enter_context(opened(machine))
        tenants = [stack.enter_context(tenant(device, f"tenant {n}")) for n in range(count)]
        yield machine, device, tenants


def peek(device: Device, address: int) -> int:
    """What a kernel of the device reads at an address."""
    program = device.load(ptx_kernels.text(PEEK, device.target.cpu))
    with device.alloc(64) as out:
        with device.queue() as queue:
            queue.launch(program["peek"], grid=(1,), block=(1,), args=(out, np.uint64(address)))
        device.synchronize()
        return int(out.numpy(np.uint32)[0])


def test_a_tenant_reaches_no_memory_of_another() -> None:
    with shared() as (_, device, (one, other)):
        secret = one.alloc(FAR)[FAR - 4096 :]  # beyond all that the other has
        secret.fill(SECRET)
        address = int(secret.address)
        assert peek(one, address) == SECRET
        with pytest.raises(PageFault, match="peek") as caught:
            peek(other, address)
        assert caught.value.facts["address"] // 4096 == address // 4096
        assert one.failure is None and device.failure is None
        assert (secret.numpy(np.uint32) == SECRET).all()
        other.reset()
        work(one)
        work(other)
        work(device)


def flags(machine: VirtualMachine) -> list[int]:
    """Of UVM_INITIALIZE, of all programs."""
    calls = [file.calls for node in machine.nodes for file in node.files.values()]
    return sorted(
        space.flags for space in calls if isinstance(space, UvmFile) and space.is_initialized
    )


def test_a_tenants_address_space_belongs_to_no_process() -> None:
    """Else kernels reach the process's own memory on systems with HMM or ATS."""
    with shared(1) as (machine, _, _):
        assert flags(machine) == [0, 2]


def test_the_only_holder_can_be_isolated_too(tmp_path: Path) -> None:
    with powered() as machine, opened(machine, isolated=True) as device:
        assert flags(machine) == [2]
        work(device)
        device.reset("block")
        work(device)
    text = settings_text(tmp_path, ["virtual:tu102"], inside=True)
    text += "options = { isolated = true }\n"
    made = Running(parse(text))
    try:
        owned = made.daemon.owned[0].device
        assert isinstance(owned, NvDevice)
        assert len(owned.driver.session.space.files) == 1, "none ties it to the process"
        with made.lease() as gpu:
            assert scaled(gpu)
    finally:
        made.close()


def test_the_same_address_is_other_memory() -> None:
    with shared() as (_, _, (one, other)):
        mine, theirs = one.alloc(4 << 20), other.alloc(4 << 20)
        assert mine.address == theirs.address
        mine.fill(1)
        theirs.fill(2)
        assert (mine.numpy(np.uint32) == 1).all() and (theirs.numpy(np.uint32) == 2).all()
        assert peek(one, int(mine.address)) == 1 and peek(other, int(mine.address)) == 2


def test_a_copy_that_faults_ends_the_offenders_queue_alone() -> None:
    with shared() as (_, _, (one, other)):
        secret, near = one.alloc(FAR)[FAR - 4096 :], other.alloc(4096)
        secret.fill(SECRET)
        forged = Buffer(other.driver.core, secret.address, 4096, Placement.DEVICE)
        queue = other.queue(QueueKind.COPY).copy(near, forged)
        with pytest.raises(PageFault) as caught:
            queue.timeline.wait(queue.submit())
        assert caught.value.facts["access"] == "read"
        assert (secret.numpy(np.uint32) == SECRET).all()
        work(one)
        other.reset()
        work(other)


def test_what_cannot_have_a_second_holder_says_why() -> None:
    with powered() as machine:
        node = Sandbox(attach(machine.facts.name, chip=machine).node, machine.options.driver)
        with hcq.open("cpu") as cpu, open_device("nv", NodeAttachment(node, "nvrm")) as device:
            for each, why in ((cpu, "reach all of that process's memory"), (device, "second time")):
                assert why in each.driver.sole_holder()
                with pytest.raises(NotSupported, match=why):
                    each.driver.open_tenant("second")
            assert len(machine.nodes) == 1


def test_a_tenant_that_cannot_be_opened_leaves_nothing() -> None:
    with powered() as machine, opened(machine) as device:
        held = left_behind(machine)
        for fault in (Fault.NO_UVM, Fault.OPEN_DENIED, Fault.UVM_REFUSED, Fault.MAPPING_REFUSED):
            machine.inject(fault)
            with pytest.raises(UgpuError):
                device.driver.open_tenant("refused")
            assert left_behind(machine) == held
        work(device)


def test_tenants_close_in_any_order_and_leave_nothing() -> None:
    with powered() as machine:
        with opened(machine) as device:
            one, other = tenant(device, "one"), tenant(device, "other")
            work(one)
            one.close()
            work(other)
            work(device)
        work(other)
        other.close()
        assert set(left_behind(machine).values()) == {0}
