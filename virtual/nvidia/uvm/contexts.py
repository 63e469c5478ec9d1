"""Address ranges where UVM maps the context buffers of graphics channels.

Source: open-gpu-kernel-modules 580.142 kernel-open/nvidia-uvm/uvm_user_channel.c (find_va_range:
the channels of a group share the buffers of its context, other channels share none;
create_va_range: a buffer that is already mapped gets one more user, another is placed in the first
free part of the range given by the registration; destroy_va_ranges: the last channel unmaps it).
"""

from __future__ import annotations

from ugpu.virtual.nvidia.rm.channels import ChannelObject, Group
from ugpu.virtual.nvidia.rm.contexts import ALIGN, BUFFERS
from ugpu.virtual.nvidia.status import RmError
from ugpu.virtual.nvidia.uvm.ranges import ExternalRanges, Range


class ContextBuffers:
    """The context buffers that a UVM file has mapped."""

    def __init__(self, ranges: ExternalRanges) -> None:
        self._ranges = ranges
        self._shared: dict[tuple[Group, str], Range] = {}
        self._users: dict[Range, int] = {}
        self._held: dict[ChannelObject, list[Range]] = {}

    def map(self, channel: ChannelObject, base: int, length: int) -> None:
        """Reserve ranges for a channel's buffers. Raises INVALID_ADDRESS if one does not fit."""
        held = self._held[channel] = []
        try:
            for buffer in BUFFERS:
                group = channel.group
                found = self._shared.get((group, buffer.name)) if group is not None else None
                if found is None:
                    found = self._ranges.place(base, base + length, buffer.size, ALIGN)
                    self._users[found] = 0
                    if group is not None:
                        self._shared[group, buffer.name] = found
                self._users[found] += 1
                held.append(found)
        except RmError:
            self.unmap(channel)
            raise

    def unmap(self, channel: ChannelObject) -> None:
        """Drop the buffers of a channel that has unregistered; the last user frees a buffer."""
        for found in self._held.pop(channel, ()):
            self._users[found] -= 1
            if not self._users[found]:
                del self._users[found]
                self._shared = {key: one for key, one in self._shared.items() if one is not found}
                self._ranges.drop(found)
