"""Memory of a channel that only the resource manager uses, and its parameters.

Without a kernel driver the GSP is told physical addresses: of the instance block, which it fills,
of RAMFC in it, of USERD, and of the buffer for methods that a copy engine could not run. Sources:
Linux 7.3 nouveau rm/r570/fifo.c; open-gpu-kernel-modules 570.144 alloc_channel.h, kernel_channel.h.
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.hcq.registers.layout import Struct
from ugpu.nv.gsp.layout.memory import Pages
from ugpu.nv.gsp.rm.client import GspClient
from ugpu.nv.gsp.rm.contexts import ChannelContext
from ugpu.nv.gsp.rm.space import CardMemory
from ugpu.nv.rm.memory import Memory

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


@dataclass(eq=False)
class ChannelMemory:
    """What a channel uses until it is gone. instance: in VRAM. methods: host memory. context:
    buffers of the graphics engine. notifier: once the channel is registered. number: on its
    `runlist`, once it can run."""

    card: CardMemory
    instance: int
    methods: Pages
    runlist: int = 0
    context: ChannelContext | None = None
    notifier: Memory | None = None
    number: int | None = None

    def close(self) -> None:
        """Free the memory; the channel is gone."""
        if self.context is not None:
            self.context.close()
        self.card.heap.free(self.instance, self)
        self.methods.close()

    def block(self, client: GspClient, userd: int, own: int | None = None, **fields: int) -> Struct:
        """Return the parameters of the channel. userd: offset in VRAM. own: number of a channel of
        the driver's own; the resource manager chooses the number of a channel for work."""
        flags, internal = 0, _NO_NOTIFIERS
        if own is not None:
            flags = _PRIVILEGED | _FIXED_PAGE
            flags |= own % _PER_PAGE << _INDEX_SHIFT | own // _PER_PAGE << _PAGE_SHIFT
            internal |= _ADMINISTRATOR
        block: Struct = client.structs.NV_CHANNEL_ALLOC_PARAMS.new(
            flags=flags, internalFlags=internal, **fields
        )
        for name, base, size, space in (
            ("instance", self.instance, _PAGE, _VIDEO), ("userd", userd, USERD_SIZE, _VIDEO),
            ("ramfc", self.instance, _RAMFC_SIZE, _VIDEO),
            ("mthdbuf", self.methods.address, self.methods.size, _HOST),
        ):  # fmt: skip
            memory = block[f"{name}Mem"]
            memory.base, memory.size, memory.addressSpace = base, size, space
            memory.cacheAttrib = _CACHED if space == _VIDEO else 0
        return block


def method_buffer_size(client: GspClient) -> int:
    """Return the size of a channel's method buffer."""
    found = client.ask_gpu("NV2080_CTRL_CMD_CE_GET_FAULT_METHOD_BUFFER_SIZE")
    return min(max(int(found.size), _PAGE), _MOST_METHOD_BUFFER)


def take_memory(card: CardMemory, methods: int) -> ChannelMemory:
    """Allocate the memory of a channel. methods: bytes of its method buffer."""
    pages = Pages(card.transport, methods, bits=card.chip.boot.bus_bits, contiguous=True)
    memory = ChannelMemory(card, 0, pages)
    try:
        memory.instance = card.heap.allocate(_PAGE, _PAGE, memory)
        card.chip.vram.write(memory.instance, bytes(_PAGE))
    except BaseException:
        pages.close()
        raise
    return memory
