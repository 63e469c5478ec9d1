"""A USB bridge's memory, by bus address.

Behind a bridge, copies go through this memory and timelines lie in it; see hcq.transport.bulk.
"""

from __future__ import annotations

from ugpu.am.units.psp.stage import OutsideStage
from ugpu.am.work.base import CardHolder
from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.bare.vram import PAGE
from ugpu.hcq.copies.bulk_transfer import BulkTransfer
from ugpu.hcq.copies.staged_transfer import StagedTransfer
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.bulk import BulkMemory, StagedMemory
from ugpu.hcq.transport.view import RemoteView
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.timeline import SIZE

_LOOKED_AT = 4  # bytes of a timeline that are read


class OutsideMemory:
    """Outside memory used by one device."""

    def __init__(self, driver: CardHolder) -> None:
        self._driver = driver
        self._signals = 0  # bytes for timelines that are in use
        self._mapped: dict[tuple[int, int], Mapping] = {}  # by bus address and size

    def transfer(self, bulk: BulkMemory) -> BulkTransfer:
        """Map the memory that copies go through, permanently; return the object that copies."""
        memory = self._at(bulk.address, bulk.size)
        fence, release = self._at(bulk.fence, 8), self._at(bulk.release, 4)
        return BulkTransfer(
            self._driver.core, bulk, memory, fence, release, self._at(bulk.start, 4)
        )

    def staged(self, staged: StagedMemory) -> StagedTransfer:
        """Return the object that copies through the memory that the PSP has read images from."""
        stage = self._driver.units.psp.stage
        assert isinstance(stage, OutsideStage)
        address, size = stage.mapping.address, staged.size
        memory = Buffer(self._driver.core, address, size, Placement.HOST, handle=stage.mapping)
        return StagedTransfer(self._driver.core, staged, memory)

    def timeline(self, control: Mapping, start: int) -> Buffer:
        """Return memory for a queue's timeline: at `start` of its control page, or where the host
        reads it with one transfer."""
        traits = self._driver.transport.traits
        bulk = traits.bulk or traits.staged
        if bulk is None:
            return self._driver.wrap(control)[start : start + SIZE]
        place, self._signals = self._signals, self._signals + SIZE
        zero = self._driver.units.programs.collects  # one has just zeroed it, see Units.unclean

        def read(offset: int, size: int) -> bytes:
            return bulk.read_signals(place + offset, size)

        def write(offset: int, data: bytes | bytearray | memoryview) -> None:
            nonlocal zero
            known, zero = zero, False
            if known and not any(bytes(data)):
                return
            # Each byte is a transfer, so only the value's low dword is written: neither the host
            # nor a waiting queue reads more of it (Timeline.value; wait_memory of both kinds of
            # queue).
            bulk.write_signals(place + offset, bytes(data)[: max(0, _LOOKED_AT - offset)])

        memory = self._at(bulk.signals + place, SIZE)
        view = RemoteView(read, write, SIZE)
        return Buffer(self._driver.core, memory.address, SIZE, Placement.HOST, view)

    def _at(self, address: int, size: int) -> Buffer:
        """Return memory outside the chip, by its bus address. Whole pages are mapped, once."""
        start = address % PAGE
        pages = address - start, -(-(start + size) // PAGE) * PAGE
        mapping = self._mapped.get(pages)
        if mapping is None:
            mapping = self._driver.memory.allocate(pages[1], Placement.HOST, bus=pages[0])
            self._mapped[pages] = mapping
        whole = Buffer(self._driver.core, mapping.address, pages[1], Placement.HOST, handle=mapping)
        return whole[start : start + size]
