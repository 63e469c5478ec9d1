"""Event queues of UVM address spaces: what may be watched, and what is told of faults."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.nvidia.rm_program import RmProgram
from ugpu.nv.abi.events import CONTROL_SIZE
from ugpu.virtual.nvidia.memory.faults import Client, FaultAccess, FaultType, MmuFault
from ugpu.virtual.nvidia.node import VirtualNode
from ugpu.virtual.nvidia.options import DRIVERS
from ugpu.virtual.nvidia.status import Status
from ugpu.virtual.nvidia.uvm.ioctls import UvmFile

PAGE = 4096
FATAL = 1 << 6


class Watch:
    """A tools file of a program, and two pages for its queue."""

    def __init__(self, program: RmProgram) -> None:
        self.program = program
        self.file = program.node.open("/dev/nvidia-uvm-tools")
        self.pages = mmap.mmap(-1, 2 * PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.pages))

    def call(self, name: str, **values: Any) -> Status:
        layout = self.program.table.structs[self.program.table.ioctls[name].struct]
        known = {key: value for key, value in values.items() if key in layout.fields}
        return Status(self.program.call(self.file, name, **known).rmStatus)

    def start(self, **changes: int) -> Status:
        values = {
            "queueBuffer": self.address, "queueBufferSize": 4,
            "controlBuffer": self.address + PAGE, "uvmFd": self.program.uvm, "requestedVersion": 1,
        }  # fmt: skip
        return self.call("UVM_TOOLS_INIT_EVENT_TRACKER", **(values | changes))

    def enable(self, events: int = FATAL) -> Status:
        return self.call("UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS", eventTypeFlags=events)

    def disable(self, events: int = FATAL) -> Status:
        return self.call("UVM_TOOLS_EVENT_QUEUE_DISABLE_EVENTS", eventTypeFlags=events)

    @property
    def control(self) -> tuple[int, int, int, int]:
        """get_ahead, get_behind, put_ahead, put_behind."""
        found: tuple[int, int, int, int] = struct.unpack_from("<4I", self.pages, PAGE)
        return found

    def entry(self, number: int) -> tuple[int, ...]:
        """Event, fault, access, processor, reason and address of an entry (uvm_types.h)."""
        return struct.unpack_from("<5B3xQ", self.pages, 64 * number)

    def dropped(self) -> int:
        return int(struct.unpack_from("<Q", self.pages, PAGE + 16 + 8 * 6)[0])


@pytest.fixture
def program() -> Iterator[RmProgram]:
    with RmProgram() as made:
        made.bring_up()
        yield made


def uvm_of(program: RmProgram) -> UvmFile:
    """The program's address space, from inside the model."""
    assert isinstance(program.node, VirtualNode)
    space = program.node.files[program.uvm].calls
    assert isinstance(space, UvmFile)
    return space


def fault(program: RmProgram, source: int, target: int) -> None:
    """A copy that faults."""
    program.method(4, 0x400, source >> 32, source & 0xFFFF_FFFF, target >> 32,
                   target & 0xFFFF_FFFF, 0, 0, 64, 1)  # fmt: skip
    program.method(4, 0x300, 2 | 3 << 7)
    program.submit()
    program.wait_error()
    assert program.machine.gpu.wait_idle()


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("writes", [False, True])
def test_a_fault_of_a_copy_engine(driver: str, writes: bool) -> None:
    with RmProgram(driver=driver) as program:
        program.bring_up()
        watch = Watch(program)
        assert watch.start() is watch.enable() is Status.OK
        assert watch.control == (0, 0, 0, 0)
        good = program.work_address
        pair = (good, 0x66_0000_0123) if writes else (0x66_0000_0123, good)
        fault(program, *pair)
        assert watch.control == (0, 0, 1, 1)
        # FatalFault 6, InvalidPde 1, Read 1 or Write 2, the first GPU 1, InvalidAddress 1; a page
        assert watch.entry(0) == (6, 1, 2 if writes else 1, 1, 1, 0x66_0000_0000)
        assert int.from_bytes(watch.pages[16:24], "little") > 0, "the clock of the CPU"


def test_what_may_be_watched(program: RmProgram) -> None:
    watch = Watch(program)
    assert watch.enable() is Status.INVALID_ARGUMENT, "no queue yet"
    assert watch.disable() is Status.INVALID_ARGUMENT
    other = program.node.open("/dev/nvidia-uvm")
    for changes, status in (
        ({"uvmFd": 9999}, Status.INSUFFICIENT_PERMISSIONS),
        ({"uvmFd": program.ctl}, Status.INSUFFICIENT_PERMISSIONS),
        ({"uvmFd": other}, Status.ILLEGAL_ACTION),
        ({"queueBufferSize": 3}, Status.INVALID_ARGUMENT),
        ({"queueBufferSize": 1}, Status.INVALID_ARGUMENT),
        ({"queueBufferSize": 1 << 33}, Status.INVALID_ARGUMENT),
        ({"queueBuffer": watch.address + 64}, Status.INVALID_ADDRESS),
        ({"controlBuffer": 0}, Status.INVALID_ADDRESS),
        ({"queueBuffer": 0x1000}, Status.INVALID_ARGUMENT),
        ({"queueBufferSize": 1 << 24}, Status.NO_MEMORY),
    ):
        assert watch.start(**changes) is status, changes
    assert watch.start() is Status.OK
    assert watch.start() is Status.INVALID_ARGUMENT, "one queue a file"
    for events in (1, 1 << 15, 1 << 63):
        assert watch.enable(events) is Status.INVALID_ARGUMENT
    with pytest.raises(OSError, match="Invalid argument"):
        program.node.ioctl(watch.file, 0x7777, bytearray(64))
    with pytest.raises(OSError, match="managed memory"):
        program.node.map(watch.file, PAGE)
    assert CONTROL_SIZE == 16 + 8 * 64


def test_the_version_is_asked_for_in_one_branch() -> None:
    with RmProgram(driver="550.163.01") as program:
        program.bring_up()
        assert Watch(program).start(requestedVersion=0) is Status.INVALID_ARGUMENT
        assert Watch(program).start(requestedVersion=2) is Status.INVALID_ARGUMENT


def test_events_that_nobody_wants_and_queues_that_are_full(program: RmProgram) -> None:
    watch, silent = Watch(program), Watch(program)
    assert watch.start() is silent.start() is Status.OK
    assert watch.enable() is silent.enable() is silent.disable() is Status.OK
    uvm = uvm_of(program)
    assert len(uvm.watchers) == 2
    for number in range(5):
        kind = FaultType.POISONED if number == 2 else FaultType.PTE
        uvm.record(
            program.machine.gpu, MmuFault(kind, FaultAccess.ATOMIC_WEAK, number << 12, Client.SM)
        )
    assert silent.control == (0, 0, 0, 0)
    assert watch.control == (0, 0, 3, 3), "one entry stays free"
    assert watch.dropped() == 2
    assert watch.entry(2) == (6, 15, 3, 1, 3, 2 << 12), "Poison, Atomic, InvalidFaultType"
    struct.pack_into("<2I", watch.pages, PAGE, 3, 3)  # all were read
    uvm.record(program.machine.gpu, MmuFault(FaultType.PTE, FaultAccess.READ, 0x9000, Client.SM))
    assert watch.control == (3, 3, 0, 0)
    assert watch.entry(3)[5] == 0x9000


def test_pages_that_are_gone_harm_nobody(program: RmProgram) -> None:
    watch = Watch(program)
    assert watch.start() is watch.enable() is Status.OK
    uvm_of(program).watchers[0]._control = 0x1000  # where nothing is
    fault(program, 0x66_0000_0000, program.work_address)
    assert any("event queue" in text for text in program.machine.refused)
    assert program.machine.gpu.runlists[0].error is None


def test_a_queue_keeps_its_address_space_alive(program: RmProgram) -> None:
    watch = Watch(program)
    assert watch.start() is Status.OK
    uvm = uvm_of(program)
    program.node.release(program.uvm)
    assert uvm.gpus, "the file is closed, and watched"
    program.node.release(watch.file)
    assert not uvm.gpus
