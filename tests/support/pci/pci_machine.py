"""A made-up machine with PCI functions: a file tree for sysfs, and a kernel that acts on writes.

Written from the kernel's documentation (sysfs-bus-pci, vfio.h), apart from the code under test: it
refuses what Linux refuses, in particular calls in the wrong order. Failures are injected by
`fail[place] = errno`, where place is a path's end or an ioctl number.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from ugpu.hcq.transport.system import System

MEMORY_64 = 0x0014_220C  # flags in `resource`: memory, prefetchable, 64 bits
MEMORY_32 = 0x0004_0200


@dataclass
class Function:
    """One function as the made-up machine holds it."""

    address: str
    group: str | None
    config: bytearray = field(default_factory=lambda: bytearray(4096))
    bars: dict[int, int] = field(default_factory=dict)
    memory: dict[int, int] = field(default_factory=dict)  # BAR -> memfd
    resets: int = 0


class PciMachine(System):
    """The machine below `root`. `log` has every write to sysfs in order."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.functions: dict[str, Function] = {}
        self.fail: dict[str | int, int] = {}
        self.natural: dict[str, str] = {}  # the driver that probing finds without an override
        self.refuse_probe: set[str] = set()  # functions that vfio-pci does not take
        self.interrupt_at: str | None = None  # a write whose path ends so raises KeyboardInterrupt
        self._special: dict[int, tuple[Function, str]] = {}
        self.log: list[tuple[str, str]] = []
        for name in ("sys/bus/pci/devices", "sys/bus/pci/drivers", "dev/vfio", "proc"):
            (root / name).mkdir(parents=True)
        for name in ("sys/bus/pci/drivers_probe", "sys/bus/pci/rescan"):
            (root / name).touch()

    # ---- building ----------------------------------------------------------------------------

    def load(self, driver: str) -> None:
        folder = self.root / "sys/bus/pci/drivers" / driver
        folder.mkdir(exist_ok=True)
        for name in ("bind", "unbind"):
            (folder / name).touch()

    def add(
        self,
        address: str = "0000:03:00.0",
        ids: tuple[int, int] = (0x1002, 0x744C),
        kind: int = 0x030000,
        driver: str | None = None,
        group: str | None = "7",
        bars: dict[int, int] | None = None,
        parent: str | None = None,
    ) -> Function:
        """Plug in a function. bars: sizes by index."""
        sizes = {0: 256 << 20, 2: 2 << 20, 5: 1 << 20} if bars is None else bars
        base = self.root / "sys/devices/pci0000:00"
        folder = (base / parent if parent else base) / address
        folder.mkdir(parents=True)
        texts = {
            "vendor": f"{ids[0]:#06x}", "device": f"{ids[1]:#06x}", "class": f"{kind:#08x}",
            "revision": "0xc8", "subsystem_vendor": "0x1002", "subsystem_device": "0x0e3b",
            "driver_override": "(null)", "power_state": "D0", "enable": "0", "remove": "",
            "reset": "", "resource": self._resource(sizes), "config": "",
        }  # fmt: skip
        for name, text in texts.items():
            (folder / name).write_text(text + "\n" if text else "")
        for index in sizes:
            (folder / f"resource{index}").touch()
        # ORDER: a function is on the bus after it has its attributes (Linux bus_add_device).
        (self.root / "sys/bus/pci/devices" / address).symlink_to(folder)
        if group is not None:
            self._join(folder, address, group)
        made = Function(address, group, bars=sizes)
        struct.pack_into("<HHHHI", made.config, 0, *ids, 0, 0x10, kind << 8 | 0xC8)
        self._capabilities(made.config)
        if kind >> 16 == 0x06:  # a bridge, which the kernel has enabled: decoding and mastering
            made.config[0x04], made.config[0x0E] = 6, 1
        self.functions[address] = made
        if driver is not None:
            self.load(driver)
            self._attach(address, driver)
        return made

    def folder(self, address: str) -> Path:
        return self.root / "sys/bus/pci/devices" / address

    def driver(self, address: str) -> str | None:
        link = self.folder(address) / "driver"
        return link.resolve().name if link.is_symlink() else None

    def _resource(self, sizes: dict[int, int]) -> str:
        lines, start = [], 0x80_0000_0000
        for index in range(7):
            size = sizes.get(index, 0)
            flags = MEMORY_64 if index in (0, 2) else MEMORY_32
            end = start + size - 1
            lines.append(f"{start:#018x} {end:#018x} {flags:#018x}" if size else "0x0 0x0 0x0")
            start += 1 << 36
        return "\n".join(lines)

    def _join(self, folder: Path, address: str, group: str) -> None:
        members = self.root / "sys/kernel/iommu_groups" / group / "devices"
        members.mkdir(parents=True, exist_ok=True)
        (members.parent / "type").write_text("DMA\n")
        (members / address).symlink_to(folder)
        (folder / "iommu_group").symlink_to(members.parent)

    @staticmethod
    def _capabilities(config: bytearray) -> None:
        """Power management at 0x50, PCI Express at 0x64, MSI at 0xA0."""
        config[0x34] = 0x50
        config[0x50:0x52] = bytes((1, 0x64))
        config[0x64:0x66] = bytes((0x10, 0xA0))
        config[0xA0:0xA2] = bytes((5, 0))

    # ---- the kernel's reactions --------------------------------------------------------------

    def _attach(self, address: str, driver: str) -> None:
        folder = self.folder(address)
        (folder / "driver").symlink_to(self.root / "sys/bus/pci/drivers" / driver)
        group = self.functions[address].group
        if driver == "vfio-pci" and group is not None:
            (self.root / "dev/vfio" / group).touch()

    def _detach(self, address: str) -> None:
        (self.folder(address) / "driver").unlink()

    def _probe(self, address: str) -> None:
        text = (self.folder(address) / "driver_override").read_text().strip()
        driver = self.natural.get(address, "") if text in ("", "(null)") else text
        if driver and address not in self.refuse_probe:
            self._attach(address, driver)

    def write_text(self, path: Path, text: str) -> None:
        if self.interrupt_at is not None and str(path).endswith(self.interrupt_at):
            self.interrupt_at = None
            raise KeyboardInterrupt
        self.raise_if_told(str(path))
        self.log.append((str(path.relative_to(self.root)), text))
        word, name = text.strip(), path.name
        if name == "driver_override":
            path.write_text(text)
        elif name == "unbind":
            if self.driver(word) != path.parent.resolve().name:
                raise OSError(errno.ENODEV, "not bound to this driver")
            self._detach(word)
        elif name == "bind":
            if self.driver(word) is not None:
                raise OSError(errno.EBUSY, "bound already")
            self._attach(word, path.parent.name)
        elif name == "drivers_probe":
            if self.driver(word) is None:
                self._probe(word)
        elif name == "remove":
            (self.root / "sys/bus/pci/devices" / path.parent.name).unlink()
        elif name == "reset":
            self.functions[path.parent.name].resets += 1
        elif name == "enable":
            self.functions[path.parent.name].config[0x04] |= 2
        elif name != "rescan" and not name.endswith("_resize"):
            raise OSError(errno.EINVAL, f"no attribute {name}")

    def raise_if_told(self, place: str | int) -> None:
        for wanted, code in self.fail.items():
            same = place == wanted
            if same or (isinstance(place, str) and place.endswith(str(wanted))):
                raise OSError(code, os.strerror(code))

    # ---- files of sysfs that are no text -----------------------------------------------------

    def open(self, path: Path, flags: int = os.O_RDWR) -> int:
        self.raise_if_told(str(path))
        if path.name == "config" or path.name.startswith("resource"):
            return self._open_special(path)
        return super().open(path, flags)

    def _open_special(self, path: Path) -> int:
        function = self.functions[path.resolve().parent.name]
        descriptor = os.memfd_create(path.name)
        self._special = getattr(self, "_special", {})
        self._special[descriptor] = (function, path.name)
        return descriptor

    def special(self, descriptor: int) -> tuple[Function, str] | None:
        return self._special.get(descriptor)

    def close(self, descriptor: int) -> None:
        self._special.pop(descriptor, None)
        super().close(descriptor)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        found = self.special(descriptor)
        if found is None:
            return super().pread(descriptor, size, offset)
        if found[0].address not in self.functions:
            raise OSError(errno.ENODEV, "gone")
        return bytes(found[0].config[offset : offset + size])

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        found = self.special(descriptor)
        if found is None:
            return super().pwrite(descriptor, data, offset)
        if found[0].address not in self.functions:
            raise OSError(errno.ENODEV, "gone")
        found[0].config[offset : offset + len(data)] = data
        self.config_written(found[0], offset)
        return len(data)

    def config_written(self, function: Function, offset: int) -> None:
        """A bridge's control register: let go of the reset, and the functions below lose all."""

    def map(self, descriptor: int, size: int, offset: int) -> mmap.mmap:
        found = self.special(descriptor)
        if found is None:
            return super().map(descriptor, size, offset)
        function, name = found
        return self.bar_memory(function, int(name.removeprefix("resource")), size)

    @staticmethod
    def bar_memory(function: Function, index: int, size: int) -> mmap.mmap:
        if index not in function.memory:
            function.memory[index] = os.memfd_create(f"bar{index}")
            os.ftruncate(function.memory[index], size)
        return mmap.mmap(function.memory[index], size)

    def free(self) -> None:
        for function in self.functions.values():
            for descriptor in function.memory.values():
                os.close(descriptor)
