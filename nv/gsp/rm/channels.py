"""Memory of a channel that only the resource manager uses, and its parameters.

Without a kernel driver the GSP is told physical addresses: of the instance block, which it fills,
of RAMFC in it, of USERD, and of the buffer for methods that a copy engine could not run. Sources:
Linux 7.3 nouveau rm/r570/fifo.c; open-gpu-kernel-modules 570.144 alloc_channel.h, kernel_channel.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ugpu.hcq.registers.layout import Struct
from ugpu.hcq.transport.base import Transport
from ugpu.nv.gsp.layout.memory import Pages
from ugpu.nv.gsp.rm.client import GspClient
from ugpu.nv.gsp.rm.space import CardMemory

_PAGE = 4096
_RAMFC_SIZE = 0x200
USERD_SIZE = 0x200
_HOST, _VIDEO = 1, 2  # addressSpace: ADDR_SYSMEM, ADDR_FBMEM
_CACHED = 1
# NV_KERNELCHANNEL_ALLOC_INTERNALFLAGS: bits 1:0 privilege (0 user, 1 administrator), 3:2 and 5:4
# where errors are written (1: nowhere, they come as events). Source: kernel_channel.h.
_NO_NOTIFIERS = 1 << 2 | 1 << 4
_ADMINISTRATOR = 1
_PRIVILEGED, _FIXED_PAGE = 1 << 5, 1 << 21  # in flags: NVOS04_FLAGS_*
_INDEX_SHIFT, _PAGE_SHIFT, _PER_PAGE = 8, 12, 8
_MOST_METHOD_BUFFER = 1 << 20


class ChannelCard(CardMemory, Protocol):
    """What channels use of a card (nv.gsp.rm.card)."""

    transport: Transport


@dataclass
class ChannelMemoryParts:
    """instance: in VRAM. methods: host memory."""

    card: ChannelCard
    instance: int
    methods: Pages

    def close(self) -> None:
        """Free the memory; the channel is gone."""
        self.card.heap.free(self.instance, self)
        self.methods.close()


def method_buffer_size(client: GspClient, subdevice: int) -> int:
    """Return the size of a channel's method buffer."""
    found = client.ask(subdevice, "NV2080_CTRL_CMD_CE_GET_FAULT_METHOD_BUFFER_SIZE")
    return min(max(int(found.size), _PAGE), _MOST_METHOD_BUFFER)


def take_parts(card: ChannelCard, methods: int) -> ChannelMemoryParts:
    """Allocate the memory of a channel. methods: bytes of its method buffer."""
    pages = Pages(card.transport, methods, bits=card.chip.boot.bus_bits, contiguous=True)
    parts = ChannelMemoryParts(card, 0, pages)
    try:
        parts.instance = card.heap.allocate(_PAGE, _PAGE, parts)
        card.chip.vram.write(parts.instance, bytes(_PAGE))
    except BaseException:
        pages.close()
        raise
    return parts


def describe(block: Any, parts: ChannelMemoryParts, userd: int) -> None:
    """Enter the memory of a channel into its parameters. userd: offset in VRAM."""
    _place(block.instanceMem, parts.instance, _PAGE, _VIDEO)
    _place(block.ramfcMem, parts.instance, _RAMFC_SIZE, _VIDEO)
    _place(block.userdMem, userd, USERD_SIZE, _VIDEO)
    _place(block.mthdbufMem, parts.methods.address, parts.methods.size, _HOST)


def _place(memory: Any, base: int, size: int, space: int) -> None:
    memory.base, memory.size, memory.addressSpace = base, size, space
    memory.cacheAttrib = _CACHED if space == _VIDEO else 0


def user_parameters(client: GspClient) -> Struct:
    """Return parameters of a channel for work: the resource manager chooses its number."""
    block: Struct = client.structs.NV_CHANNEL_ALLOC_PARAMS.new(internalFlags=_NO_NOTIFIERS)
    return block


def own_parameters(client: GspClient, number: int) -> Struct:
    """Return parameters of a channel of the driver's own, with a channel number."""
    flags = _PRIVILEGED | _FIXED_PAGE
    flags |= number % _PER_PAGE << _INDEX_SHIFT | number // _PER_PAGE << _PAGE_SHIFT
    block: Struct = client.structs.NV_CHANNEL_ALLOC_PARAMS.new(
        flags=flags, internalFlags=_NO_NOTIFIERS | _ADMINISTRATOR
    )
    return block
