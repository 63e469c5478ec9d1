"""Addresses for the context buffers that UVM maps when a channel registers.

Source: open-gpu-kernel-modules 580.142 kernel-open/nvidia-uvm/uvm_user_channel.c: each buffer takes
the first free place of [base, base + length) (INVALID_ADDRESS if there is none). A buffer that
channels share stays in the range of the first of them until the last is gone. A range that was once
given to a channel is therefore not used for other memory while the GPU's address space exists.
Before Hopper the buffers must be below 40 bits of address (OUT_OF_RANGE; max_channel_va in
uvm_turing.c, uvm_ampere.c, uvm_ada.c), which Region.HOST is.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ugpu.hcq.errors import AccessDenied, DriverRefused, NotSupported
from ugpu.nv.rm.session import GpuObjects, Region

log = logging.getLogger(__name__)

_ALIGN = 2 << 20
_LEAST = 1 << 30  # addresses cost nothing
# If the driver does not report a size: ample for the contents of an SM, 256 KiB of registers and up
# to 228 KiB of shared memory (CUDA C++ Programming Guide 12.9, "Compute Capabilities").
_PER_SM = 1 << 20
_RESERVE = 4  # times what is needed: alignment, and buffers that another channel left in the range


@dataclass(frozen=True)
class ContextRange:
    """Addresses for one channel's registration. size: bytes."""

    base: int
    size: int


class ContextRanges:
    """The ranges of a GPU's address space. `close` gives the addresses back."""

    def __init__(self, gpu: GpuObjects) -> None:
        self._gpu = gpu
        self._all: list[ContextRange] = []
        self._unused: list[ContextRange] = []

    def take(self, channel: int) -> ContextRange:
        """Return a range for a channel that has its objects; `leave` ends the use.

        channel: its handle if it has a graphics context, else 0, for a channel without buffers.
        """
        size = max(_LEAST, _RESERVE * (self._needed(channel) if channel else 0))
        size = -(-size // _ALIGN) * _ALIGN
        for found in self._unused:
            if found.size >= size:
                self._unused.remove(found)
                return found
        made = ContextRange(self._gpu.session.reserve(Region.HOST, size, _ALIGN, self), size)
        self._all.append(made)
        return made

    def leave(self, found: ContextRange) -> None:
        """Take the range of an unregistered channel back; only other channels may reuse it."""
        self._unused.append(found)

    def _needed(self, channel: int) -> int:
        """Bytes of the channel's buffers, as reported by the driver or estimated."""
        gpu = self._gpu
        try:
            found = gpu.client.ask(
                gpu.subdevice, "NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE", hChannel=channel
            )
        except (DriverRefused, AccessDenied, NotSupported) as error:
            log.debug("%s: size of the context buffers: %s", gpu.path, error)
            return gpu.sm_count * _PER_SM
        return int(found.totalBufferSize)

    def close(self) -> None:
        """Give all addresses back, once the address space is gone; idempotent."""
        for found in self._all:  # after an interrupted close, some no longer belong to this object
            self._gpu.session.give_back(Region.HOST, found.base, self)
        self._all, self._unused = [], []
