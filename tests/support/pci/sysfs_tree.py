"""A machine of real files for the sysfs transport: `resourceN` that are mapped, `config` that is
read and written. What only a kernel can do is made up: physical addresses, and locking memory.
"""

from __future__ import annotations

import struct
from pathlib import Path

from tests.support.pci.pci_machine import PciMachine
from ugpu.hcq.transport.pci import physical
from ugpu.hcq.transport.system import System

GPU = "0000:03:00.0"
_FRAME_BITS = 55


class SysfsTree(System):
    """One function without a driver and without an IOMMU. A page's frame is its virtual page
    number, so that what is contiguous in the process is contiguous on the bus."""

    privileged = True

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        maker = PciMachine(root)  # makes the files; its reactions are not used
        function = maker.add(GPU, group=None, bars={0: 1 << 20, 5: 4096})
        folder = maker.folder(GPU)
        function.config[0x04] = 2  # as if enabled: nothing acts on writes here
        (folder / "config").write_bytes(bytes(function.config))
        for index, size in function.bars.items():
            with (folder / f"resource{index}").open("wb") as file:
                file.truncate(size)
        self.folder = folder
        compaction = root / physical.COMPACTION
        compaction.parent.mkdir(parents=True, exist_ok=True)
        compaction.write_text("0\n")
        pagemap = root / physical.PAGEMAP
        pagemap.parent.mkdir(parents=True)
        pagemap.touch()

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        if Path(f"/proc/self/fd/{descriptor}").resolve().name != "pagemap":
            return super().pread(descriptor, size, offset)
        first = offset // 8
        return b"".join(
            struct.pack("<Q", 1 << 63 | page & (1 << _FRAME_BITS) - 1)
            for page in range(first, first + size // 8)
        )

    def lock_memory(self, address: int, size: int) -> None:
        """Taken as done: the limit of locked memory is this machine's, not the test's."""

    def lose(self) -> None:
        """The card falls off the bus: all reads give ones."""
        for name in ("config", "resource0", "resource5"):
            path = self.folder / name
            with path.open("r+b") as file:
                file.write(b"\xff" * path.stat().st_size)
