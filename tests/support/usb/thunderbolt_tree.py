"""Sysfs trees of hosts with Thunderbolt and USB4, with enclosures and cards behind them.

Topologies as public bug reports show them (`lspci -tv`, `boltctl list`): the controller on the
processor's die with root ports of its own (Intel since Ice Lake: 00:0d.2 and 00:07.x), and the
controller on a chip of its own, a function of the switch whose other ports tunnel (Titan Ridge).
Built by hand from Linux Documentation/ABI/testing/sysfs-bus-thunderbolt and sysfs-bus-pci.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.support.pci.pci_machine import PciMachine

RAZER = ("Razer", "Core X", "9c030000-0080-7708-23a0-6b0c8a022125")
SONNET = (
    "Sonnet Technologies, Inc",
    "eGFX Breakaway Box 750",
    "c4010000-0070-740e-0362-9a1e8c928101",
)
GEN1, GEN3, GEN4 = "2.5 GT/s PCIe", "8.0 GT/s PCIe", "16.0 GT/s PCIe"
NAVI31, NAVI31_SWITCH = (0x1002, 0x744C), (0x1002, 0x1478)
BRIDGE = 0x060400


@dataclass
class ThunderboltTree:
    """A machine whose functions are given from the root: "a/b/c" is c below b below a."""

    machine: PciMachine
    places: dict[str, str] = field(default_factory=dict)

    def add(
        self, address: str, below: str | None = None, *, ids: tuple[int, int] = (0x8086, 0x15EF),
        kind: int = BRIDGE, link: tuple[str, int] | None = None,
        most: tuple[str, int] | None = None, **attributes: str,
    ) -> str:  # fmt: skip
        """A function; link and most: speed and width that it has and can have."""
        parent = None
        if below is not None:
            parent = str(Path(self.places[below]) / below) if self.places[below] else below
        self.places[address] = parent or ""
        bars = None if ids == NAVI31 else {0: 256 << 20}
        self.machine.add(address, ids=ids, kind=kind, parent=parent, bars=bars)
        folder = self.machine.folder(address)
        for names, state in (("current_link", link), ("max_link", most or link)):
            if state is not None:
                (folder / f"{names}_speed").write_text(f"{state[0]}\n")
                (folder / f"{names}_width").write_text(f"{state[1]}\n")
        for name, text in attributes.items():
            (folder / name).write_text(f"{text}\n")
        return address

    def write(self, address: str, name: str, text: str) -> None:
        path = self.machine.folder(address) / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n")

    def domain(
        self, host: str, number: int = 0, *, security: str = "user", protection: str | None = "1"
    ) -> None:
        """The connection manager of a host controller."""
        folder = self.machine.folder(host).resolve() / f"domain{number}"
        folder.mkdir()
        (folder / "security").write_text(f"{security}\n")
        if protection is not None:
            (folder / "iommu_dma_protection").write_text(f"{protection}\n")
        bus = self.machine.root / "sys/bus/thunderbolt/devices"
        bus.mkdir(parents=True, exist_ok=True)
        (bus / folder.name).symlink_to(folder)
        self._router(f"{number}-0", folder, ("INTEL", "host", "host-id"), {"authorized": "1"})

    def enclosure(
        self, router: str = "0-1", who: tuple[str, str, str] = RAZER, *, authorized: str = "1",
        generation: str = "3", speed: str = "20.0 Gb/s", lanes: str = "2",
    ) -> None:  # fmt: skip
        """Plug an enclosure in."""
        domain = self.machine.root / f"sys/bus/thunderbolt/devices/domain{router[0]}"
        attributes = {"authorized": authorized, "generation": generation, "nvm_version": "33.1"}
        for way in ("rx", "tx"):
            attributes |= {f"{way}_speed": speed, f"{way}_lanes": lanes}
        self._router(router, domain.resolve(), who, attributes)

    def _router(
        self, name: str, domain: Path, who: tuple[str, str, str], attributes: dict[str, str]
    ) -> None:
        folder = domain / name
        folder.mkdir()
        texts = {"vendor_name": who[0], "device_name": who[1], "unique_id": who[2], **attributes}
        for key, text in texts.items():
            (folder / key).write_text(f"{text}\n")
        (self.machine.root / "sys/bus/thunderbolt/devices" / name).symlink_to(folder)

    # ---- whole hosts -------------------------------------------------------------------------

    def host_on_die(self, sockets: int = 2, **domain: str) -> list[str]:
        """A processor whose root ports tunnel; the ports."""
        host = self.add("0000:00:0d.2", ids=(0x8086, 0x9A1B), kind=0x0C0340)
        ports = []
        for index in range(sockets):
            port = self.add(f"0000:00:07.{index}", link=(GEN1, 4))
            link = self.machine.folder(host).resolve() / f"consumer:pci:{port}"
            link.symlink_to(self.machine.folder(port).resolve())
            ports.append(port)
        self.domain(host, **domain)
        return ports

    def host_on_chip(self, **domain: str) -> list[str]:
        """A controller on a chip of its own behind a real link of four lanes; its ports."""
        root = self.add("0000:00:1c.0", link=(GEN3, 4))
        self.add("0000:03:00.0", root, link=(GEN3, 4), removable="removable")
        self.add("0000:04:00.0", "0000:03:00.0", link=(GEN1, 4), removable="removable")
        host = self.add("0000:05:00.0", "0000:04:00.0", ids=(0x8086, 0x15EB), kind=0x088000)
        ports = [
            self.add(f"0000:04:0{n}.0", "0000:03:00.0", link=(GEN1, 4), removable="removable")
            for n in (1, 4)
        ]
        self.domain(host, **domain)
        return ports

    def card_behind(self, port: str, bus: int = 0x20, *, width: int = 4) -> str:
        """An enclosure's switch, the card's own switch, and the card with its audio: the GPU."""
        own = {"removable": "removable"}
        self.add(f"0000:{bus:02x}:00.0", port, link=(GEN1, 4), **own)
        down = self.add(
            f"0000:{bus + 1:02x}:01.0", f"0000:{bus:02x}:00.0",
            link=(GEN3, width), most=(GEN3, 4), **own,
        )  # fmt: skip
        up = self.add(
            f"0000:{bus + 2:02x}:00.0", down, ids=NAVI31_SWITCH,
            link=(GEN3, width), most=(GEN4, 16), **own,
        )  # fmt: skip
        inner = self.add(
            f"0000:{bus + 3:02x}:00.0", up, ids=(0x1002, 0x1479), link=(GEN4, 16), **own
        )
        gpu = self.add(
            f"0000:{bus + 4:02x}:00.0", inner, ids=NAVI31, kind=0x030000, link=(GEN4, 16), **own
        )
        self.add(
            f"0000:{bus + 4:02x}:00.1", inner, ids=(0x1002, 0xAB30), kind=0x040300,
            link=(GEN4, 16), **own,
        )  # fmt: skip
        return gpu
