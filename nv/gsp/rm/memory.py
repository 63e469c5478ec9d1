"""Memory of a card without a kernel driver: VRAM and host memory in our own page tables."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.errors import BadArgument, DeviceLost, NotSupported, OutOfMemory, UgpuError
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.node import ViewMapping
from ugpu.nv.gsp.chip.vram import FbVram
from ugpu.nv.rm.memory import Memory, MemoryOwner
from ugpu.nv.rm.session import Region

if TYPE_CHECKING:
    from ugpu.nv.gsp.rm.session import GspSession

log = logging.getLogger(__name__)


class VramMapping:
    """Video memory through BAR 1, by words: a NodeMapping without a view."""

    address = 0
    view: memoryview | None = None

    def __init__(self, vram: FbVram, start: int, size: int) -> None:
        self._vram = vram
        self._start = start
        self.size = size

    def _place(self, offset: int) -> int:
        if offset % 4 or not 0 <= offset < self.size:
            raise BadArgument("the access must be a word inside the memory", offset=offset)
        return self._start + offset

    def read32(self, offset: int) -> int:
        """Read a word."""
        return self._vram.window.read32(self._place(offset))

    def write32(self, offset: int, value: int) -> None:
        """Write a word."""
        self._vram.window.write32(self._place(offset), value)

    def close(self) -> None:
        """Do nothing: the window stays."""


class GspMemoryOwner(MemoryOwner, Protocol):
    """A GPU of a card without a kernel driver."""

    @property
    def session(self) -> GspSession: ...


@dataclass(eq=False)
class GspMemory(Memory):
    """See Memory. part: of the session's address space."""

    gpu: GspMemoryOwner
    part: Mapping | None = None

    @property
    def physical(self) -> int:
        """Where it begins in VRAM, or on the bus; for memory in one piece."""
        assert self.part is not None
        if self.part.dma is not None:
            return int(self.part.dma.segments[0].address)
        return self.part.pieces[0][0]

    def write(self, data: bytes) -> None:
        """Write video memory from its start on, as the host reaches it; whole words."""
        assert self.part is not None
        vram, done = self.gpu.session.card.chip.vram, 0
        for start, size in self.part.pieces:
            piece = data[done : done + size]
            vram.write(start, piece + bytes(-len(piece) % 4))
            done += len(piece)

    def protect(self, size: int) -> None:
        session = self.gpu.session
        assert self.part is not None
        with session.card.lock:
            session.space.protect(self.part, size)
            session.space.flush()

    def close(self) -> None:
        if self.closed:
            return
        session, part = self.gpu.session, self.part
        if self.mapping is not None:
            self.mapping.close()
        if part is not None:
            with session.card.lock:
                session.space.unmap(part)
                try:
                    session.space.flush()
                except DeviceLost:
                    session.space.stale = False  # nothing reads the tables any more
                except UgpuError as error:
                    log.warning("memory stays allocated, as it could not be unmapped: %s", error)
                    self.closed = True
                    return
                session.space.release(part)
        self.gpu.memories.pop(self, None)
        self.closed = True


def allocate_in_card(
    gpu: GspMemoryOwner,
    size: int,
    placement: Placement,
    region: Region,
    *,
    reachable: bool | None = None,
    words: bool = False,
) -> GspMemory:
    """See nv.rm.memory.allocate. words: video memory that the host accesses by words."""
    if reachable and placement is Placement.DEVICE:
        raise NotSupported("video memory is not mapped into this process without a kernel driver")
    session = gpu.session
    memory = GspMemory(gpu, 0, 0, 0, region, placement)
    try:
        with session.card.lock:
            with session.space.within(region):
                memory.part = session.space.allocate(size, placement)
            part = memory.part
            memory.address, memory.size = int(part.address), part.size
            session.space.flush()
        if placement is Placement.HOST:
            view = part.view
            if not isinstance(view, memoryview):
                raise NotSupported("host memory behind a bridge is not mapped into this process")
            memory.mapping = ViewMapping(view)
        elif words:
            memory.mapping = _mapped_words(session, part)
        gpu.memories[memory] = None
        return memory
    except BaseException:
        with contextlib.suppress(UgpuError):
            memory.close()
        raise


def _mapped_words(session: GspSession, part: Mapping) -> VramMapping:
    vram = session.card.chip.vram
    (start, size), *more = part.pieces
    if more or start + size > vram.visible:
        raise OutOfMemory("no video memory that BAR 1 reaches is left", size=part.size)
    return VramMapping(vram, start, size)
