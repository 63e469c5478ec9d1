"""Places of images for the PSP, where a host access to VRAM or a register is a message."""

from __future__ import annotations

from collections.abc import Iterable

from ugpu.am.units.psp.commands import PRIVATE_SIZE
from ugpu.hcq.bare.space import AddressSpace, Mapping
from ugpu.hcq.bare.vram import PAGE
from ugpu.hcq.errors import FirmwareRejected
from ugpu.hcq.transport.bulk import StagedMemory

ROOM = PRIVATE_SIZE - PAGE  # bytes of a shelf


class OutsideStage:
    """A transport's StagedMemory as the PSP sees it. mapping: in VMID 0 too, 1 MiB aligned.

    Linux has the PSP's buffer in host memory (amdgpu_psp.c, psp_sw_init). On boards behind a USB
    bridge, tinygrad has it in the bridge's SRAM (runtime/support/am/ip.py): the PSP does not read
    beyond an image.
    """

    def __init__(self, staged: StagedMemory, mapping: Mapping) -> None:
        self.mapping = mapping
        self.address = int(mapping.address)
        self._staged = staged

    def put(self, image: bytes, *, alone: bool = False) -> None:
        """Store an image. alone: only zeros follow it. FirmwareRejected if it is too large."""
        size = self._staged.size
        if len(image) > size:
            raise FirmwareRejected(
                "the image is larger than the memory for the PSP", size=len(image), limit=size
            )
        self._staged.fill(image.ljust(size, b"\0") if alone else image)


class Shelf:
    """The bootloader's images side by side in the PSP's private buffer: one write transfers them
    all. Each is mapped in VMID 0 at its own address, because the bootloader takes multiples of 1
    MiB.

    Linux has the buffer in pages that the tables of VMID 0 make contiguous (amdgpu_psp.c,
    psp_sw_init: in the GTT domain).
    """

    def __init__(self, memory: AddressSpace, start: int, count: int) -> None:
        """start: of the private buffer in VRAM. count: maximum number of images."""
        self._memory = memory
        self._start = start
        self._count = count
        self._addresses = memory.reserve(count, PRIVATE_SIZE, start)
        self._places: dict[bytes, int] = {}
        self.content = b""

    def arrange(self, images: Iterable[bytes]) -> None:
        """Find places for images while there is room. ORDER: before the tables are written."""
        for image in images:
            self._add(image)

    def _add(self, image: bytes) -> None:
        size = -(-len(image) // PAGE) * PAGE
        at, number = len(self.content), len(self._places)
        if not image or image in self._places or number == self._count:
            return
        if at + size > ROOM:
            return
        address = self._memory.place(self._addresses, number * PRIVATE_SIZE, self._start + at, size)
        self._places[image] = int(address)
        self.content += image.ljust(size, b"\0")

    def address(self, image: bytes) -> int | None:
        """Return the address at which the PSP finds an image; None for one without a place."""
        return self._places.get(image)
