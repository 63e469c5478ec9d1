"""The driver's event queue of faults: what it gives out, drops and forgets."""

from __future__ import annotations

import pytest

from tests.support.nvidia.nv_machine import left_behind, opened, powered, work
from ugpu.virtual.nvidia.machine import VirtualMachine
from ugpu.virtual.nvidia.memory.faults import Client, FaultAccess, FaultType, MmuFault
from ugpu.virtual.nvidia.node import VirtualNode
from ugpu.virtual.nvidia.options import DRIVERS, MachineOptions
from ugpu.virtual.nvidia.uvm.ioctls import UvmFile


def watched(machine: VirtualMachine) -> UvmFile:
    """The address space that the only program on the machine watches."""
    (node,) = machine.nodes
    assert isinstance(node, VirtualNode)
    spaces = [file.calls for file in node.files.values() if isinstance(file.calls, UvmFile)]
    (space,) = [space for space in spaces if space.watchers]
    return space


@pytest.mark.parametrize("driver", DRIVERS)
def test_faults_are_given_out_once_and_forgotten_after_a_reset(driver: str) -> None:
    with powered(options=MachineOptions(driver=driver)) as machine:
        clean = left_behind(machine)
        with opened(machine, driver=driver) as device:
            events = device.driver.session.events
            assert events.works
            uvm = watched(machine)
            for number in range(70):  # more than the queue holds
                access = FaultAccess.WRITE if number % 2 else FaultAccess.READ
                fault = MmuFault(FaultType.PTE, access, (number << 12) + 8, Client.COPY)
                uvm.record(machine.gpu, fault)
            found = events.take((61 << 12) + 0xFFF)
            assert found is not None and (found.address, found.access) == (61 << 12, "write")
            assert events.take(61 << 12) is None, "each is given out once"
            assert events.take(69 << 12) is None, "the queue was full"
            newest = events.take(None)
            assert newest is not None and (newest.address, newest.access) == (62 << 12, "read")
            device.reset()
            assert events.take(None) is None
            uvm.record(machine.gpu, MmuFault(FaultType.PTE, access, 0x9000, Client.COPY))
            assert events.take(None) is not None, "there is room again"
            work(device)
        assert left_behind(machine) == clean


def test_a_second_device_of_a_session_has_the_same_queue() -> None:
    with powered("gh100", MachineOptions(gpus=2)) as machine:
        one = opened(machine)
        two = one.open_peer(1)
        assert two.driver.session.events is one.driver.session.events
        one.close()
        assert two.driver.session.events.works
        work(two)
        two.close()
        assert left_behind(machine)["nodes"] == 0
