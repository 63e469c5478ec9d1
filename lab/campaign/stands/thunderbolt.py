"""A card in a Thunderbolt enclosure as a stand, opened by the enclosure's name: a made-up host, its
enclosure, the tunnel, the card's own switch, and the made-up kernel's VFIO."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lab.campaign.stands.pci import PciStand, _Vfio
from tests.support.pci import fake_vfio
from tests.support.usb.thunderbolt_tree import NAVI31, RAZER, ThunderboltTree
from tests.support.waiting import until
from ugpu.am.chips.gfx11 import FACTS
from ugpu.hcq.errors import DeviceLost
from ugpu.hcq.transport.attach import attach_pci
from ugpu.hcq.transport.life import absence_of
from ugpu.usbgpu.thunderbolt import enclosures as thunderbolt

GPU, AUDIO = "0000:24:00.0", "0000:24:00.1"
PORT, SOCKET, SWITCH = "0000:00:07.0", "0000:21:01.0", "0000:22:00.0"
ID = RAZER[2]


class ThunderboltStand(PciStand):
    """`tree` is the host. A card that is plugged in anew is another function of the made-up
    kernel, so that the cure of what tears the tunnel down is a new host."""

    tree: ThunderboltTree

    def build(self, root: Path) -> Any:
        machine = _Vfio(root)
        self.tree = ThunderboltTree(machine)
        (port, _) = self.tree.host_on_die()
        self.tree.enclosure()
        assert port == PORT and self.tree.card_behind(port) == GPU
        for driver in ("vfio-pci", "snd_hda_intel"):
            machine.load(driver)
        self.bind(machine, "vfio-pci", GPU)
        return machine

    @staticmethod
    def bind(machine: Any, driver: str, address: str) -> None:
        machine.write_text(machine.root / f"sys/bus/pci/drivers/{driver}/bind", address)

    def connect(self) -> Any:
        """As hcq.find.registry opens `thunderbolt:<id>`, below the driver."""
        address = thunderbolt.address_of(ID, {NAVI31}, self.machine)
        return attach_pci(address, least_bars=dict(FACTS.least_bars), system=self.machine)

    def do_config(self) -> None:
        """A driver looks whether its card is there; see AmDriver._absent."""
        if not self.transport.present():
            raise DeviceLost("the card does not answer", **absence_of(self.transport))
        super().do_config()

    def router(self, name: str, text: str) -> None:
        """Change an attribute of the enclosure."""
        folder = self.machine.root / "sys/bus/thunderbolt/devices/0-1"
        (folder / name).write_text(f"{text}\n")

    def unplug(self) -> None:
        """Pull the cable: the router goes, the functions go, what is mapped reads as ones."""
        bus = self.machine.root / "sys/bus/thunderbolt/devices"
        (bus / "0-1").unlink()
        self.drop()

    def drop(self) -> None:
        """Lose the tunnel alone: the enclosure's functions leave the bus."""
        for address in [one for one in self.machine.functions if int(one[5:7], 16) >= 0x20]:
            self.machine.functions[address].config[:] = b"\xff" * 4096
            link = self.machine.folder(address)
            if link.is_symlink():
                link.unlink()

    def ask_back(self) -> None:
        """Write to the port's `power` or `remove`: vfio-pci asks the program for the card."""
        os.eventfd_write(self.machine.eventfds[fake_vfio.REQUEST], 1)
        until(lambda: not self.transport.present(), "the request to arrive")
