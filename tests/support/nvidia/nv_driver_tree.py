"""A file tree that looks like a machine with NVIDIA's stock driver loaded."""

from __future__ import annotations

from pathlib import Path

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder)"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Sun May 12 19:39:15 UTC 2024"
INFORMATION = """\
Model: \t\t NVIDIA H200
IRQ:   \t\t 283
GPU UUID: \t GPU-01234567-89ab-cdef-0123-456789abcdef
Video BIOS: \t 96.00.bc.00.01
Bus Type: \t PCIe
DMA Size: \t 52 bits
DMA Mask: \t 0xfffffffffffff
Bus Location: \t {address}
Device Minor: \t {minor}
GPU Firmware: \t {firmware}
GPU Excluded:\t {excluded}
"""


class NvMachine:
    """Makes /proc/driver/nvidia, /sys/module/nvidia and the nodes below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def _write(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")

    def add_driver(
        self, version: str = "580.142", text: str = OPEN, *, module: str | None = None
    ) -> None:
        said = text.format(version) + "\nGCC version:  gcc version 12.2.0\n"
        self._write("proc/driver/nvidia/version", said)
        self._write("sys/module/nvidia/version", f"{module or version}\n")
        self._write("dev/nvidiactl", "")
        self._write("dev/nvidia-uvm", "")
        self._write("dev/nvidia-uvm-tools", "")
        self._write("run/nvidia-persistenced/socket", "")

    def add_gpu(
        self, minor: int = 0, address: str = "0000:0a:00.0", *, excluded: str = "No"
    ) -> None:
        folder = f"proc/driver/nvidia/gpus/{address}"
        text = INFORMATION.format(
            address=address, minor=minor, firmware="580.142", excluded=excluded
        )
        self._write(f"{folder}/information", text)
        self._write(f"{folder}/power", "Runtime D3 status:          Disabled by default\n")
        self._write(f"dev/nvidia{minor}", "")

    def add_mig(self, minor: int, gpu: int, compute: int | None, cap: int, *, node: bool) -> None:
        place = f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu}"
        place += "" if compute is None else f"/ci{compute}"
        text = f"DeviceFileMinor: {cap}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        self._write(f"{place}/access", text)
        if node:
            self._write(f"dev/nvidia-caps/nvidia-cap{cap}", "")

    def add_pci(self, address: str = "0000:0a:00.0", driver: str | None = "nvidia") -> None:
        folder = f"sys/bus/pci/devices/{address}"
        self._write(f"{folder}/vendor", "0x10de\n")
        self._write(f"{folder}/device", "0x2335\n")
        self._write(f"{folder}/class", "0x030200\n")
        self._write(f"{folder}/resource", "0x0 0x0 0x0\n" * 13)
        if driver:
            place = self.root / "sys/bus/pci/drivers" / driver
            place.mkdir(parents=True, exist_ok=True)
            (self.root / folder / "driver").symlink_to(place)
