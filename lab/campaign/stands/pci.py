"""PCI transports on made-up kernels as stands: VFIO by groups and by iommufd, and sysfs.

Every system call goes through `strike`, by a label that names the call and what it is for; a
planned one fails. There is no GPU behind these: work is memory for DMA, windows, configuration
space and interrupts.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.campaign.stands.stand import Stand
from tests.support.pci import fake_vfio
from tests.support.pci.fake_vfio import VfioMachine
from tests.support.pci.sysfs_tree import GPU, SysfsTree
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.transport.base import ResetKind
from ugpu.hcq.transport.pci.sysfs import SysfsTransport
from ugpu.hcq.transport.vfio.transport import VfioTransport

_IOCTLS = {
    fake_vfio.BIND: "VFIO_DEVICE_BIND_IOMMUFD", fake_vfio.ATTACH: "VFIO_DEVICE_ATTACH_IOMMUFD_PT",
    fake_vfio.IOAS_ALLOC: "IOMMU_IOAS_ALLOC", fake_vfio.IOVA_RANGES: "IOMMU_IOAS_IOVA_RANGES",
    fake_vfio.IOAS_MAP: "IOMMU_IOAS_MAP", fake_vfio.IOAS_UNMAP: "IOMMU_IOAS_UNMAP",
    fake_vfio.API: "VFIO_GET_API_VERSION", fake_vfio.CHECK: "VFIO_CHECK_EXTENSION",
    fake_vfio.SET_IOMMU: "VFIO_SET_IOMMU", fake_vfio.GROUP_STATUS: "VFIO_GROUP_GET_STATUS",
    fake_vfio.SET_CONTAINER: "VFIO_GROUP_SET_CONTAINER",
    fake_vfio.GET_FD: "VFIO_GROUP_GET_DEVICE_FD", fake_vfio.DEVICE_INFO: "VFIO_DEVICE_GET_INFO",
    fake_vfio.REGION_INFO: "VFIO_DEVICE_GET_REGION_INFO",
    fake_vfio.IRQ_INFO: "VFIO_DEVICE_GET_IRQ_INFO", fake_vfio.SET_IRQS: "VFIO_DEVICE_SET_IRQS",
    fake_vfio.RESET: "VFIO_DEVICE_RESET", fake_vfio.HOT_INFO: "VFIO_DEVICE_GET_PCI_HOT_RESET_INFO",
    fake_vfio.HOT_RESET: "VFIO_DEVICE_PCI_HOT_RESET", fake_vfio.IOMMU_INFO: "VFIO_IOMMU_GET_INFO",
    fake_vfio.MAP: "VFIO_IOMMU_MAP_DMA", fake_vfio.UNMAP: "VFIO_IOMMU_UNMAP_DMA",
}  # fmt: skip


class Calls:
    """System calls of a machine, counted by label. plan: the label that fails, with what, at which
    of its occurrences from now."""

    root: Path

    def __init__(self, root: Path) -> None:
        self.seen: Counter[str] = Counter()
        self.plan: tuple[str, BaseException, int] | None = None
        self.hit = False
        super().__init__(root)  # type: ignore[call-arg]

    def fail_at(self, label: str, error: BaseException, occurrence: int = 0) -> None:
        self.plan, self.hit = (label, error, occurrence), False

    def strike(self, label: str) -> None:
        self.seen[label] += 1
        if self.plan is None or self.plan[0] not in (label, "*"):
            return
        if self.plan[2]:
            self.plan = (label, self.plan[1], self.plan[2] - 1)
            return
        error, self.plan, self.hit = self.plan[1], None, True
        raise error

    def _named(self, path: Path) -> str:
        name = str(path.relative_to(self.root)) if path.is_relative_to(self.root) else path.name
        return f".../{path.name}" if name.startswith("sys/") else name

    def open(self, path: Path, flags: int = os.O_RDWR) -> int:
        self.strike(f"open {self._named(path)}")
        return super().open(path, flags)  # type: ignore[misc,no-any-return]

    def ioctl(self, descriptor: int, request: int, argument: Any) -> int:
        self.strike(f"ioctl {_IOCTLS.get(request, hex(request))}")
        return super().ioctl(descriptor, request, argument)  # type: ignore[misc,no-any-return]

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self.strike("pread")
        return super().pread(descriptor, size, offset)  # type: ignore[misc,no-any-return]

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        self.strike("pwrite")
        return super().pwrite(descriptor, data, offset)  # type: ignore[misc,no-any-return]

    def map(self, descriptor: int, size: int, offset: int) -> mmap.mmap:
        self.strike("mmap of a BAR")
        return super().map(descriptor, size, offset)  # type: ignore[misc,no-any-return]

    def anonymous(self, size: int, *, huge: bool = False) -> mmap.mmap:
        self.strike("mmap of huge pages" if huge else "mmap of memory")
        return super().anonymous(size, huge=huge)  # type: ignore[misc,no-any-return]

    def lock_memory(self, address: int, size: int) -> None:
        self.strike("mlock")
        super().lock_memory(address, size)  # type: ignore[misc]

    def eventfd(self) -> int:
        self.strike("eventfd")
        return super().eventfd()  # type: ignore[misc,no-any-return]

    def poll(self, descriptors: Any, limit_s: float) -> list[int]:
        self.strike("poll")
        return super().poll(descriptors, limit_s)  # type: ignore[misc,no-any-return]

    def write_text(self, path: Path, text: str) -> None:
        self.strike(f"write {self._named(path)}")
        super().write_text(path, text)  # type: ignore[misc]


class _Vfio(Calls, VfioMachine):
    pass


class _Sysfs(Calls, SysfsTree):
    pass


class PciStand(Stand):
    """One transport. `machine` is the made-up kernel."""

    stages = ("dma", "window", "config", "interrupts", "reset", "close")
    bar = 0

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._folder = tempfile.TemporaryDirectory()
        self.machine: Any = self.build(Path(self._folder.name))
        self.transport: Any = None
        self.witness: Any = None

    def build(self, root: Path) -> Any:
        made = _Vfio(root)
        made.load("vfio-pci")
        made.add(GPU, driver="vfio-pci", bars={0: 1 << 20, 2: 1 << 16, 5: 1 << 16})
        return made

    def connect(self) -> Any:
        return VfioTransport(GPU, system=self.machine)

    def open(self, stage: str = "", plant: Callable[[], object] | None = None) -> None:
        if plant is not None:
            plant()
        self.transport = self.connect()

    def prepare(self) -> None:
        self.witness = self.transport.allocate_dma(8192)
        self.witness.view[:] = bytes(range(256)) * 32
        self.window = self.transport.window(self.bar)
        self.window.write32(64, 0x1234_5678)

    def do(self, stage: str, plant: Callable[[], object]) -> None:
        plant()
        getattr(self, f"do_{stage}")()

    def do_dma(self) -> None:
        memory = self.transport.allocate_dma(1 << 20)
        try:
            memory.view[:16] = bytes(16)
        finally:
            memory.close()

    def do_window(self) -> None:
        window = self.transport.window(2 if self.bar == 0 and 2 in self.bars() else self.bar)
        window.write32(8, 7)
        assert window.read32(8) == 7

    def bars(self) -> tuple[int, ...]:
        return (0, 2, 5)

    def do_config(self) -> None:
        command = self.transport.config_read(4, 2)
        self.transport.config_write(4, command, 2)
        assert self.transport.present()

    def do_interrupts(self) -> None:
        interrupts = self.transport.interrupts
        if interrupts is not None:
            interrupts.enable(1)
            interrupts.wait(0.0)

    def do_reset(self) -> None:
        self.transport.reset(ResetKind.FUNCTION)

    def do_close(self) -> None:
        self.transport.close()

    def limit(self, *, short: bool) -> None:
        """Nothing waits here."""

    def reset(self) -> None:
        self.do_reset()

    def work(self) -> None:
        self.do_dma()
        self.do_window()
        self.do_config()

    def intact(self) -> str:
        same = bytes(self.witness.view) == bytes(range(256)) * 32
        held = self.window.read32(64) == 0x1234_5678
        return "" if same and held else "memory for DMA or of a BAR has changed"

    def close(self) -> None:
        if self.transport is not None:
            with contextlib.suppress(UgpuError):
                self.transport.close()

    def stop(self) -> None:
        self.machine.free()
        self._folder.cleanup()

    def left(self) -> str:
        held = self.machine.open_files
        return f"{len(held)} descriptors of VFIO" if held else ""


class IommufdStand(PciStand):
    def build(self, root: Path) -> Any:
        made = super().build(root)
        made.offer_iommufd(GPU)
        return made

    def connect(self) -> Any:
        return VfioTransport(GPU, system=self.machine, iommufd=True)


class SysfsStand(PciStand):
    def build(self, root: Path) -> Any:
        return _Sysfs(root)

    def connect(self) -> Any:
        return SysfsTransport(GPU, system=self.machine)

    def bars(self) -> tuple[int, ...]:
        return (0, 5)

    def stop(self) -> None:
        self._folder.cleanup()

    def left(self) -> str:
        return ""


def os_error(code: int) -> OSError:
    """As the kernel raises it."""
    return OSError(code, os.strerror(code))
