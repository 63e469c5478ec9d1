"""Replies of UVM's device files to a call: its handler, its block, its status.

Source: open-gpu-kernel-modules 580.142 kernel-open/nvidia-uvm/uvm_api.h, UVM_ROUTE_CMD_STACK.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.node.refusal import refused
from ugpu.virtual.nvidia.state import MachineState
from ugpu.virtual.nvidia.status import RmError, Status


class Calls:
    """The calls of an open file.

    handlers: by the call's name; calls that the driver's branch lacks are left out.
    title: name of the node for the record of unknown calls.
    """

    def __init__(
        self, machine: MachineState, title: str, handlers: Mapping[str, Callable[[Struct], None]]
    ) -> None:
        self._machine = machine
        self._title = title
        ioctls = machine.abi.ioctls
        self._handlers = {
            ioctls[name].number: (ioctls[name].struct, handler)
            for name, handler in handlers.items()
            if name in ioctls
        }

    def answer(self, request: int, argument: bytearray | memoryview) -> None:
        """Handle one call. Its status goes into the block, a refusal into the machine's list.

        Raises OSError: EINVAL for an unknown call, EFAULT for a block that is too small.
        """
        found = self._handlers.get(request)
        if found is None:
            self._machine.asked[f"{self._title} {request:#x}"] += 1
            raise refused(errno.EINVAL, f"{self._title} {request:#x}")
        name, handler = found
        layout = self._machine.abi.structs[name]
        if len(argument) < layout.size:
            raise refused(errno.EFAULT, f"{name}, {layout.size} bytes")
        block = layout.view(argument)
        status = Status.OK
        try:
            handler(block)
        except RmError as error:
            status = error.status
            self._machine.refused.append(f"{name}: {error}")
        block.rmStatus = int(status)
