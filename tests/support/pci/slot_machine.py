"""A made-up machine whose card sits behind its own switch in a hot-plug slot: what a bus reset, a
power cycle, removing and rescanning do to it, as Linux and the PCI Express specification say.
"""

from __future__ import annotations

import struct
from pathlib import Path

from tests.support.pci.pci_machine import Function, PciMachine
from tests.support.usb.thunderbolt_tree import ThunderboltTree
from ugpu.hcq.state.clock import Clock

PORT, SLOT, SWITCH, INNER = "0000:00:07.0", "0000:21:01.0", "0000:22:00.0", "0000:23:00.0"
GPU, AUDIO = "0000:24:00.0", "0000:24:00.1"
BELOW = (SWITCH, INNER, GPU, AUDIO)  # what the slot's port leads to, those nearer to it first


class SlotMachine(PciMachine, Clock):
    """`events` holds what happened to the card, in order. Also the clock: sleeping costs nothing.

    deepest: how far the platform lets the slot's port sleep. pending: reads of the device status
    for which the card has transactions pending. stays_dark: it never answers after a bus reset.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.events: list[str] = []
        self.deepest, self.pending, self.stays_dark = "D3cold", 0, False
        self.time = 0.0
        tree = ThunderboltTree(self)
        (port, _) = tree.host_on_die()
        assert tree.card_behind(port) == GPU and port == PORT
        self.load("vfio-pci")
        self.load("snd_hda_intel")
        self.load("amdgpu")
        (root / "sys/bus/pci/drivers_autoprobe").write_text("1\n")
        for index, address in enumerate((PORT, SLOT, *BELOW)):
            tree.write(address, "power/control", "on")
            tree.write(address, "d3cold_allowed", "1")
            tree.write(address, "rescan", "")
            config = self.functions[address].config
            struct.pack_into(
                "<6I", config, 0x10, *(0x8000_0000 + 0x100 * index + n for n in range(6))
            )
            struct.pack_into("<H", config, 0x04, 6)
        self.kept = {one: bytes(self.functions[one].config) for one in BELOW}
        self.gone: dict[str, Path] = {}

    # ---- the clock ---------------------------------------------------------------------------

    def now(self) -> float:
        self.time += 1e-5  # looking takes time, too
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    # ---- configuration space -----------------------------------------------------------------

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        found = self.special(descriptor)
        if found is not None and found[0].address in BELOW:
            if self.state(SLOT) != "D0" or (self.stays_dark and "reset" in self.events):
                return b"\xff" * size
            if offset == 0x64 + 0x0A and self.pending:  # device status of its PCIe capability
                self.pending -= 1
                return struct.pack("<H", 0x20)
        return super().pread(descriptor, size, offset)

    def config_written(self, function: Function, offset: int) -> None:
        if function.address == SLOT and offset == 0x3E and function.config[0x3E] & 0x40:
            self.events.append("reset")
            self._forget()

    def _forget(self) -> None:
        for address in BELOW:
            config = self.functions[address].config
            config[0x04:0x06] = bytes(2)
            config[0x10:0x34] = bytes(0x24)

    def whole(self) -> bool:
        """Whether configuration space is what it was at first, DMA set aside."""
        for address in BELOW:
            config = bytearray(self.functions[address].config)
            config[0x04] |= 4
            if config != self.kept[address]:
                return False
        return True

    # ---- attributes --------------------------------------------------------------------------

    def state(self, address: str) -> str:
        return (self.folder(address) / "power_state").read_text().strip()

    def _let_sleep(self) -> None:
        everybody = (SLOT, *BELOW)
        controls = [(self.folder(one) / "power/control").read_text().strip() for one in everybody]
        wanted = self.deepest if all(one == "auto" for one in controls) else "D0"
        if wanted != self.state(SLOT):
            self.events.append(wanted)
            if wanted == "D3cold":
                self._forget()
            elif self.events[-2:-1] == ["D3cold"]:
                for address in BELOW:  # the kernel restores what it saved
                    self.functions[address].config[:] = self.kept[address]
        (self.folder(SLOT) / "power_state").write_text(f"{wanted}\n")

    def write_text(self, path: Path, text: str) -> None:
        name, word = path.name, text.strip()
        if name == "control":
            self.raise_if_told(str(path))
            path.write_text(text)
            self._let_sleep()
        elif name == "reset_subordinate":
            self.events.append("kernel's reset")
        elif name == "drivers_autoprobe":
            self.events.append(f"autoprobe {word}")
            path.write_text(text)
        elif name == "remove":
            self.raise_if_told(str(path))
            self._remove(path.parent.name)
        elif name == "rescan":
            self.events.append("rescan")
            self._rescan()
        else:
            super().write_text(path, text)
            if name == "unbind":
                self.events.append(f"{word} unbound")

    def _remove(self, address: str) -> None:
        self.events.append(f"{address} removed")
        for one in [address, *BELOW[BELOW.index(address) + 1 :]]:
            below = str(self.folder(one).resolve()).startswith(str(self.folder(address).resolve()))
            if below and one not in self.gone:
                self.gone[one] = self.folder(one).resolve()
        for one in self.gone:
            link = self.folder(one)
            if link.is_symlink():
                if self.driver(one):
                    self._detach(one)
                link.unlink()
                hidden = self.gone[one] / "vendor"
                hidden.rename(hidden.with_name("vendor-gone"))

    def _rescan(self) -> None:
        probe = (self.root / "sys/bus/pci/drivers_autoprobe").read_text().strip() == "1"
        for one, folder in self.gone.items():
            self.folder(one).symlink_to(folder)
            (folder / "vendor-gone").rename(folder / "vendor")
            (folder / "driver_override").write_text("(null)\n")
            if probe and one in self.natural:
                self._attach(one, self.natural[one])
        self.gone.clear()

    def own(self, address: str, driver: str) -> None:
        """Bind a function."""
        PciMachine.write_text(self, self.root / f"sys/bus/pci/drivers/{driver}/bind", address)

    def open_by(self, address: str, name: str = "server") -> None:
        """A process has the function's VFIO group open."""
        fd = self.root / "proc/4242/fd"
        fd.mkdir(parents=True)
        (fd.parent / "comm").write_text(f"{name}\n")
        (fd / "3").symlink_to(f"/dev/vfio/{self.functions[address].group}")
