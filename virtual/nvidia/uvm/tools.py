"""/dev/nvidia-uvm-tools: event queues of UVM address spaces. The model has fatal faults only.

Source: open-gpu-kernel-modules 580.142 kernel-open/nvidia-uvm/uvm_tools.c. Statuses and their order
are those of create_event_tracker and map_user_pages.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping

from ugpu.hcq.registers.layout import Struct
from ugpu.nv.abi.events import (
    ACCESSES,
    CONTROL_FORMAT,
    CONTROL_SIZE,
    ENTRY_SIZE,
    EVENT_TYPES,
    FATAL_FAULT,
    FATAL_FAULT_FORMAT,
    QUEUE_VERSION,
)
from ugpu.virtual.nvidia.files import OpenFile
from ugpu.virtual.nvidia.memory.faults import FaultAccess, FaultType, MmuFault
from ugpu.virtual.nvidia.memory.physical import PAGE
from ugpu.virtual.nvidia.state import MachineState
from ugpu.virtual.nvidia.status import RmError, Status, require
from ugpu.virtual.nvidia.userspace import copy_in, copy_out
from ugpu.virtual.nvidia.uvm.calls import Calls
from ugpu.virtual.nvidia.uvm.ioctls import UvmFile

_VALID_EVENTS = (1 << EVENT_TYPES) - 2
_MOST_ENTRIES = (1 << 32) - 1
_MOST_PINNED = 64 << 20  # of one queue: more than our programs request
_INVALID_FAULT_TYPE = 3  # UvmEventFatalReasonInvalidFaultType
_INVALID_ADDRESS = 1  # UvmEventFatalReasonInvalidAddress
_ACCESSES = {
    FaultAccess.READ: "read",
    FaultAccess.WRITE: "write",
    FaultAccess.ATOMIC_STRONG: "atomic",
    FaultAccess.ATOMIC_WEAK: "atomic",
    FaultAccess.PREFETCH: "prefetch",
}
# UvmEventFaultType by the model's fault type
_TYPES = {
    FaultType.PDE: 1,
    FaultType.PTE: 2,
    FaultType.RO_VIOLATION: 3,
    FaultType.PDE_SIZE: 5,
    FaultType.VA_LIMIT_VIOLATION: 6,
    FaultType.UNBOUND_INST_BLOCK: 7,
    FaultType.PRIV_VIOLATION: 8,
    FaultType.PITCH_MASK_VIOLATION: 9,
    FaultType.WORK_CREATION: 10,
    FaultType.UNSUPPORTED_APERTURE: 11,
    FaultType.COMPRESSION_FAILURE: 12,
    FaultType.UNSUPPORTED_KIND: 13,
    FaultType.REGION_VIOLATION: 14,
    FaultType.POISONED: 15,
}


class ToolsFile:
    """One open file, at first without a queue. files: of its program."""

    def __init__(self, machine: MachineState, files: Mapping[int, OpenFile]) -> None:
        self._machine = machine
        self._files = files
        self._watched: UvmFile | None = None
        self._entries = 0
        self._queue = self._control = 0
        self.wanted = 0
        self._calls = Calls(machine, "UVM tools", {
            "UVM_TOOLS_INIT_EVENT_TRACKER": self._start,
            "UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS": self._enable,
            "UVM_TOOLS_EVENT_QUEUE_DISABLE_EVENTS": self._disable,
        })  # fmt: skip

    def ioctl(self, request: int, argument: bytearray | memoryview) -> None:
        """Execute one call; its status is written to the block."""
        self._calls.answer(request, argument)

    def _start(self, block: Struct) -> None:
        if "requestedVersion" in block.layout.fields:
            version = block.requestedVersion
            require(version == QUEUE_VERSION, Status.INVALID_ARGUMENT, f"version {version}")
            block.grantedVersion = version
        file = self._files.get(block.uvmFd)
        uvm = file.calls if file is not None else None
        if not isinstance(uvm, UvmFile):
            raise RmError(Status.INSUFFICIENT_PERMISSIONS, f"no UVM file {block.uvmFd}")
        require(uvm.is_initialized, Status.ILLEGAL_ACTION, "UVM_INITIALIZE comes first")
        count = block.queueBufferSize
        require(count, Status.NOT_SUPPORTED, "counters are not modelled")
        power = 2 <= count <= _MOST_ENTRIES and count & count - 1 == 0
        require(power, Status.INVALID_ARGUMENT, f"{count} entries")
        for address, size in (
            (block.queueBuffer, count * ENTRY_SIZE), (block.controlBuffer, CONTROL_SIZE),
        ):  # fmt: skip
            require(address and address % PAGE == 0, Status.INVALID_ADDRESS, f"{address:#x}")
            require(size <= _MOST_PINNED, Status.NO_MEMORY, f"{size} bytes")
            try:
                copy_in(address, -(-size // PAGE) * PAGE)
            except RmError as error:
                raise RmError(Status.INVALID_ARGUMENT, str(error)) from error
        require(self._watched is None, Status.INVALID_ARGUMENT, "the file has a queue already")
        self._watched, self._entries = uvm, count
        self._queue, self._control = block.queueBuffer, block.controlBuffer
        uvm.watchers.append(self)

    def _enable(self, block: Struct) -> None:
        self._check(block)
        self.wanted |= block.eventTypeFlags

    def _disable(self, block: Struct) -> None:
        require(self._watched is not None, Status.INVALID_ARGUMENT, "no queue")
        self.wanted &= ~block.eventTypeFlags

    def _check(self, block: Struct) -> None:
        require(self._watched is not None, Status.INVALID_ARGUMENT, "no queue")
        stray = block.eventTypeFlags & ~_VALID_EVENTS
        require(not stray, Status.INVALID_ARGUMENT, f"event types {stray:#x}")

    def fatal_fault(self, gpu: int, fault: MmuFault) -> None:
        """Queue a fault that ends a channel of the address space; a full queue drops it.

        The real driver pins the pages. Here they may be gone; then the fault is not reported.
        """
        if not self.wanted >> FATAL_FAULT & 1:
            return
        try:
            self._enqueue(gpu, fault)
        except RmError as error:
            self._machine.refused.append(f"an event queue: {error}")

    def _enqueue(self, gpu: int, fault: MmuFault) -> None:
        mask = self._entries - 1
        head = struct.calcsize(CONTROL_FORMAT)
        _, get, _, put = struct.unpack(CONTROL_FORMAT, copy_in(self._control, head))
        get, put = get & mask, put & mask
        if get - put & mask == 1:
            at = self._control + head + 8 * FATAL_FAULT
            dropped = int.from_bytes(copy_in(at, 8), "little") + 1
            copy_out(at, dropped.to_bytes(8, "little"))
            return
        invalid = fault.kind in (FaultType.PDE, FaultType.PTE, FaultType.RO_VIOLATION)
        entry = struct.pack(
            FATAL_FAULT_FORMAT, FATAL_FAULT, _TYPES.get(fault.kind, 0),
            ACCESSES.index(_ACCESSES[fault.access]), gpu + 1,
            _INVALID_ADDRESS if invalid else _INVALID_FAULT_TYPE,
            fault.page, time.monotonic_ns(),
        )  # fmt: skip
        copy_out(self._queue + put * ENTRY_SIZE, entry.ljust(ENTRY_SIZE, b"\0"))
        put = put + 1 & mask
        copy_out(self._control + 8, struct.pack("<2I", put, put))

    def close(self) -> None:
        """Close the file."""
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.watchers.remove(self)
            watched.leave()
