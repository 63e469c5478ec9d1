"""Images for the PSP in memory outside the chip, where VRAM is written dword by dword."""

from __future__ import annotations

from am.memory import Mapping
from hcq.errors import FirmwareRejected
from hcq.transport.bulk import StagedMemory


class OutsideStage:
    """A transport's StagedMemory as the PSP sees it. mapping: in VMID 0 too, 1 MiB aligned.

    Linux has the PSP's buffer in host memory (amdgpu_psp.c, psp_sw_init), tinygrad on boards behind
    a USB bridge in its SRAM (runtime/support/am/ip.py): the PSP reads no further than an image.
    """

    def __init__(self, staged: StagedMemory, mapping: Mapping) -> None:
        self.address = int(mapping.address)
        self._staged = staged

    def put(self, image: bytes, *, alone: bool = False) -> None:
        """Put an image there. alone: nothing but zeros behind it. FirmwareRejected if too large."""
        size = self._staged.size
        if len(image) > size:
            raise FirmwareRejected(
                "the image is larger than the memory for the PSP", size=len(image), limit=size
            )
        self._staged.fill(image.ljust(size, b"\0") if alone else image)
