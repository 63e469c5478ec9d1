"""Places of images and commands for the PSP; `PrivateBuffer` is the usual one.

Which one a card has is decided where its units are made (am.boot.reach).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ugpu.am.chip.chip import Chip
from ugpu.am.regs import structs
from ugpu.am.units.memory import Carveout
from ugpu.am.units.nbio import Nbio
from ugpu.am.units.psp.commands import COMMAND_SIZE, PRIVATE_SIZE, Command
from ugpu.hcq.bare.space import AddressSpace, Mapping
from ugpu.hcq.bare.vram import PAGE
from ugpu.hcq.errors import FirmwareRejected
from ugpu.hcq.transport.bulk import StagedMemory

RING_SIZE = 0x1000  # bytes; 64 frames, as the kernel's
FRAME_SIZE = 64
ROOM = PRIVATE_SIZE - PAGE  # bytes of a shelf


class PrivateBuffer:
    """Images in a buffer in VRAM: the bootloader's at its start, those of commands at its end, in
    front of the commands and the ring. The bootloader reads beyond an image.

    takes_many: the ring gets several commands at once, and their answers stay in VRAM.
    """

    takes_many = False
    _at_first = PRIVATE_SIZE  # bytes to zero when the content is not known: all, as in Linux

    def __init__(self, chip: Chip, nbio: Nbio, carveout: Carveout) -> None:
        self.chip = chip
        self.nbio = nbio
        self.carveout = carveout
        self._used = self._at_first  # bytes of the buffer that may not be zero

    def forget(self) -> None:
        """Forget what the memory contains: a reset may have changed it."""
        self._used = self._at_first

    def arrange(self, images: Iterable[bytes]) -> None:
        """Find places for images that are known in advance, if that is useful here."""

    def fill(self) -> None:
        """Write the images that have such places."""

    def put(self, image: bytes) -> int:
        """Put an image where the bootloader reads it; return its address. The leftovers of a longer
        image become zero. At first, they may be those of a process that died."""
        if len(image) > PRIVATE_SIZE:
            raise FirmwareRejected(
                "the image is larger than the PSP's buffer", size=len(image), limit=PRIVATE_SIZE
            )
        size, whole = -(-len(image) // 4) * 4, self._used
        self._used = PRIVATE_SIZE  # until the write has ended
        self.chip.vram.write(self.carveout.psp_private, image.ljust(max(size, whole), b"\0"))
        self._used = size
        self.nbio.post_hdp()
        return self.carveout.mc(self.carveout.psp_private)

    def clear_ring(self) -> None:
        """Zero what the PSP and the host read of a new ring before it is written."""
        self.chip.vram.write(self.carveout.psp_command, bytes(COMMAND_SIZE + RING_SIZE))
        self.nbio.post_hdp()

    def places(self, group: Sequence[Command]) -> list[tuple[int, int]]:
        """Return the address of each command's image, and the command's place in VRAM."""
        at = self.carveout.psp_ring - sum(command.size for command in group)
        places = []
        for command in group:
            image, at = at, at + command.size
            places.append((self.carveout.mc(image), at - COMMAND_SIZE))
        return places

    def send(self, group: Sequence[Command], buffers: Sequence[bytes], frames: bytes) -> None:
        """Write images, commands (`buffers`) and the ring up to its last frame. One write includes
        the fence, which may hold the same number from an earlier ring, and the ring from its start:
        the PSP has taken the earlier frames."""
        content = b"".join(
            command.image.ljust(command.size - COMMAND_SIZE, b"\0")
            + buffer.ljust(COMMAND_SIZE, b"\0")
            for command, buffer in zip(group, buffers, strict=True)
        )
        self.chip.vram.write(self.carveout.psp_ring - len(content), content + frames)
        self.nbio.post_hdp()


class Shelf(PrivateBuffer):
    """The bootloader's images side by side in the private buffer: one write transfers them all.
    Each is mapped in VMID 0 at its own address, because the bootloader takes multiples of 1 MiB.

    Linux has the buffer in pages that the tables of VMID 0 make contiguous (amdgpu_psp.c,
    psp_sw_init: in the GTT domain). Leftovers in the buffer are not zeroed at first, which would
    take 0.3 s here; tinygrad 0.14 zeroes none on any board.
    """

    takes_many = True
    _at_first = 0

    def __init__(
        self, chip: Chip, nbio: Nbio, carveout: Carveout, memory: AddressSpace, count: int
    ) -> None:
        """count: maximum number of images."""
        super().__init__(chip, nbio, carveout)
        self._memory = memory
        self._count = count
        self._addresses = memory.reserve(count, PRIVATE_SIZE, carveout.psp_private)
        self._places: dict[bytes, int] = {}
        self._filled = False  # the content is in VRAM and not overwritten
        self.content = b""

    def arrange(self, images: Iterable[bytes]) -> None:
        """See PrivateBuffer: while there is room. ORDER: before the tables are written."""
        for image in images:
            self._add(image)

    def _add(self, image: bytes) -> None:
        size = -(-len(image) // PAGE) * PAGE
        at, number = len(self.content), len(self._places)
        if not image or image in self._places or number == self._count:
            return
        if at + size > ROOM:
            return
        start = self.carveout.psp_private
        address = self._memory.place(self._addresses, number * PRIVATE_SIZE, start + at, size)
        self._places[image] = int(address)
        self.content += image.ljust(size, b"\0")

    def address(self, image: bytes) -> int | None:
        """Return the address at which the PSP finds an image; None for one without a place."""
        return self._places.get(image)

    def forget(self) -> None:
        """See PrivateBuffer."""
        super().forget()
        self._filled = False

    def fill(self) -> None:
        """See PrivateBuffer."""
        self._used = PRIVATE_SIZE  # until the write has ended
        self.chip.vram.write(self.carveout.psp_private, self.content)
        self.nbio.post_hdp()
        self._used, self._filled = len(self.content), True

    def put(self, image: bytes) -> int:
        """See PrivateBuffer."""
        place = self.address(image) if self._filled else None
        if place is None:
            self._filled = False
            place = super().put(image)
        return place

    def clear_ring(self) -> None:
        """See PrivateBuffer: the first command's write covers all that is read."""


class OutsideStage(PrivateBuffer):
    """A transport's StagedMemory as the PSP sees it; as little as possible is written to VRAM.
    mapping: of the memory, in VMID 0 too, 1 MiB aligned.

    Linux has the PSP's buffer in host memory (amdgpu_psp.c, psp_sw_init). On boards behind a USB
    bridge, tinygrad has it in the bridge's SRAM (runtime/support/am/ip.py): the PSP does not read
    beyond an image.
    """

    def __init__(
        self, chip: Chip, nbio: Nbio, carveout: Carveout, staged: StagedMemory, mapping: Mapping
    ) -> None:
        super().__init__(chip, nbio, carveout)
        self.mapping = mapping
        self._staged = staged
        self._filled = COMMAND_SIZE  # bytes of the command buffer that may not be zero

    def forget(self) -> None:
        """See PrivateBuffer."""
        self._filled = COMMAND_SIZE

    def put(self, image: bytes) -> int:
        """See PrivateBuffer. FirmwareRejected if it is too large."""
        self._fill(image.ljust(self._staged.size, b"\0"))
        return int(self.mapping.address)

    def _fill(self, image: bytes) -> None:
        size = self._staged.size
        if len(image) > size:
            raise FirmwareRejected(
                "the image is larger than the memory for the PSP", size=len(image), limit=size
            )
        self._staged.fill(image)

    def clear_ring(self) -> None:
        """See PrivateBuffer: the fence, which is read before the PSP has written it."""
        size = structs("psp_gfx_if").psp_gfx_cmd_resp.size
        self.chip.vram.write(self.carveout.psp_command + size, bytes(4))
        self.nbio.post_hdp()
        self._filled = size

    def places(self, group: Sequence[Command]) -> list[tuple[int, int]]:
        """See PrivateBuffer. There is one command at a time."""
        return [(int(self.mapping.address), self.carveout.psp_command)]

    def send(self, group: Sequence[Command], buffers: Sequence[bytes], frames: bytes) -> None:
        """See PrivateBuffer. The last frame is new."""
        (command,), (buffer,) = group, buffers
        if command.image:
            self._fill(command.image)
        content = buffer.rstrip(b"\0")
        size = -(-len(content) // 4) * 4
        filled, self._filled = self._filled, COMMAND_SIZE  # until the writes have ended
        self.chip.vram.write(self.carveout.psp_command, content.ljust(max(size, filled), b"\0"))
        self._filled = size
        at = self.carveout.psp_ring + len(frames) - FRAME_SIZE
        self.chip.vram.write(at, frames[-FRAME_SIZE:])
        self.nbio.post_hdp()
