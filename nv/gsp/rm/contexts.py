"""Graphics contexts: the buffers that a channel of the graphics engine needs, and the first one.

The first context is the pattern of all others ("golden"): it is made once on a card, on a channel
of its own, and its shared buffers stay. Sources: Linux 7.3 nouveau rm/r535/gr.c; open-gpu-kernel-
modules 570.144 kernel_graphics.c (kgraphicsCreateGoldenImageChannel), ctrl2080gpu.h.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.errors import FirmwareError, UgpuError
from ugpu.nv.gsp.rm.client import GspClient
from ugpu.nv.gsp.rm.space import CardMemory, GspSpace

_PAGE = 4096
_SUBCONTEXT_HEADERS = 64 * _PAGE  # behind the main buffer
_MOST_BUFFER = 1 << 30
_VIDEO_MEMORY = 4  # in physAttr: NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ENTRY_PHYS_ATTR
_PRIV_MAP, _OPEN_PRIV_MAP = "PRIV_ACCESS_MAP", "UNRESTRICTED_PRIV_ACCESS_MAP"


@dataclass(frozen=True)
class Kind:
    """A kind of buffer. sources: names of its size in the firmware's answer; the largest counts.
    shared: by all channels of the card. cleared: the driver clears it and states where it lies.
    read_only: for the engine."""

    name: str
    sources: tuple[str, ...]
    shared: bool
    cleared: bool
    read_only: bool = False


# The set on which nouveau and tinygrad agree; PAGEPOOL has two sizes in the firmware's answer, of
# which each of them takes another. UNSURE: which one is right; a board would tell.
KINDS = (
    Kind("MAIN", ("GRAPHICS",), shared=False, cleared=True),
    Kind("PATCH", ("GRAPHICS_PATCH",), shared=False, cleared=True),
    Kind("BUFFER_BUNDLE_CB", ("GRAPHICS_BUNDLE_CB",), shared=True, cleared=False),
    Kind("PAGEPOOL", ("GRAPHICS_PAGEPOOL", "GRAPHICS_PAGEPOOL_GLOBAL"), shared=True, cleared=False),
    Kind("ATTRIBUTE_CB", ("GRAPHICS_ATTRIBUTE_CB",), shared=True, cleared=False),
    Kind("RTV_CB_GLOBAL", ("GRAPHICS_RTV_CB_GLOBAL",), shared=True, cleared=False),
    Kind("FECS_EVENT", ("GRAPHICS_FECS_EVENT",), shared=True, cleared=True),
    Kind(_PRIV_MAP, ("GRAPHICS_PRIV_ACCESS_MAP",), shared=True, cleared=True, read_only=True),
    Kind(_OPEN_PRIV_MAP, ("GRAPHICS_PRIV_ACCESS_MAP",), shared=True, cleared=True, read_only=True),
)


class Contexts:
    """The graphics contexts of a card. shared: begin in VRAM of shared buffers, by kind."""

    def __init__(self, card: CardMemory) -> None:
        self.card = card
        self.sizes: dict[str, int] = {}
        self.shared: dict[str, int] = {}

    def read_sizes(self, client: GspClient) -> None:
        """Ask for the sizes of the buffers."""
        answer = client.ask_gpu("NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO")
        engine = answer.engineContextBuffersInfo[0].engine
        prefix = "NV0080_CTRL_FIFO_GET_ENGINE_CONTEXT_PROPERTIES_ENGINE_ID_"
        for kind in KINDS:
            size = max(int(engine[client.constants[prefix + name]].size) for name in kind.sources)
            size = -(-size // _PAGE) * _PAGE
            if not 0 <= size <= _MOST_BUFFER:
                raise FirmwareError("the GSP states an impossible size of a context", size=size)
            if kind.name == "MAIN":
                size += _SUBCONTEXT_HEADERS
            self.sizes[kind.name] = size

    def take(self, size: int, owner: object) -> int:
        """Take VRAM in one piece."""
        large = size >= 2 << 20
        return self.card.heap.allocate(size, 2 << 20 if large else _PAGE, owner)

    def clear(self, start: int, size: int) -> None:
        """Write zeros to VRAM."""
        step = 1 << 20
        for at in range(start, start + size, step):
            self.card.chip.vram.write(at, bytes(min(step, start + size - at)))


class ChannelContext:
    """The buffers of one channel in its client's address space. `close` gives them back."""

    def __init__(self, contexts: Contexts, space: GspSpace) -> None:
        self._contexts = contexts
        self._space = space
        self._mappings: list[Mapping] = []
        self._own: list[int] = []

    def promote(self, client: GspClient, channel: int, *, first: bool = False) -> None:
        """Allocate the channel's own buffers, map all, and tell the resource manager. first: this
        channel makes the card's first context, so that the shared buffers are allocated too."""
        number = client.constants
        block: Any = client.structs.NV2080_CTRL_GPU_PROMOTE_CTX_PARAMS.new(
            engineType=number.NV2080_ENGINE_TYPE_GRAPHICS,
            hClient=client.root,
            hChanClient=client.root,
            hObject=channel,
        )
        count = 0
        for kind in KINDS:
            if kind.name == _OPEN_PRIV_MAP and not first:
                continue
            if self._enter(block.promoteEntry[count], kind, number, first=first):
                count += 1
        block.entryCount = count
        self._space.flush()
        client.control(client.subdevice, "NV2080_CTRL_CMD_GPU_PROMOTE_CTX", block)

    def _enter(self, entry: Any, kind: Kind, number: Any, *, first: bool) -> bool:
        """Fill in one entry; return whether the chip has such a buffer."""
        contexts, size = self._contexts, self._contexts.sizes[kind.name]
        if not size:
            return False
        entry.bufferId = number[f"NV2080_CTRL_GPU_PROMOTE_CTX_BUFFER_ID_{kind.name}"]
        new = first or not kind.shared
        if new:
            owner: object = contexts if kind.shared else self
            start = contexts.take(size, owner)
            if kind.shared:
                contexts.shared[kind.name] = start
            else:
                self._own.append(start)
        else:
            start = contexts.shared[kind.name]
        if new and kind.cleared:
            contexts.clear(start, size)
            entry.gpuPhysAddr, entry.size = start, size
            entry.physAttr, entry.bInitialize = _VIDEO_MEMORY, 1
        if new and kind.name == _PRIV_MAP:
            entry.bNonmapped = 1
            return True
        page_format = self._space.format
        flags = page_format.code_flags if kind.read_only else page_format.data_flags
        align = 1 << (size - 1).bit_length() if kind.name == "ATTRIBUTE_CB" else _PAGE
        mapping = self._space.map_vram(start, size, flags, align)
        self._mappings.append(mapping)
        entry.gpuVirtAddr = int(mapping.address)
        return True

    def close(self) -> None:
        """Unmap and free; the channel is gone. Errors of the chip are not raised."""
        for mapping in self._mappings:
            self._space.unmap(mapping)
        with contextlib.suppress(UgpuError):
            self._space.flush()
        while self._mappings:
            self._space.release(self._mappings.pop())
        while self._own:
            self._contexts.card.heap.free(self._own.pop(), self)
