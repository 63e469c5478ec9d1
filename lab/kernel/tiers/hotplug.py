"""Tier "hotplug": the virtual Navi31 behind hot-plug ports.

It arrives, leaves in order and without a word, comes back in another slot, sleeps with its port,
and is ejected with its audio function.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from lab.kernel.lab import CACHE, Lab, Run, guest_tests, socket_path
from lab.kernel.served import judged
from lab.kernel.tiers.navi31 import ALLOWED, VRAM, served, write_firmware

PORTS = 2
TOO_LARGE = 64 << 30  # of VRAM: QEMU's machine has 32 GiB of addresses for 64-bit BARs
TESTS = ("hotplug_arrival", "hotplug_doctor", "hotplug_rungs", "hotplug_removal")


def run(lab: Lab) -> list[Run]:
    """One boot with empty ports. Servers stand ready with two cards, and one whose VRAM fits
    nowhere: the guest asks for a card's command line and plugs it in by itself."""
    write_firmware(CACHE / "firmware")
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket_path(f"card{index}")) for index in range(3)]
        sizes = (VRAM, VRAM, TOO_LARGE)
        chips = [
            stack.enter_context(served(socket, size, vram=size))
            for socket, size in zip(sockets, sizes, strict=True)
        ]

        def card(index: int, port: int) -> dict[str, Any]:  # Any: JSON, for QEMU's device_add
            return {
                "driver": "vfio-user-pci", "id": f"gpu{index}", "bus": f"port{port}",
                "addr": "0.0", "rombar": 0, "multifunction": True,
                "socket": {"type": "unix", "path": str(sockets[index])},
            }  # fmt: skip

        devices: list[str] = []
        for port in range(PORTS):
            options = f"id=port{port},chassis={port + 1},slot={port + 1},x-speed=5"
            # Room for a card that is plugged in later: its VRAM, and its audio's registers.
            options += ",pref64-reserve=4G,mem-reserve=32M"
            devices += ["-device", f"pcie-root-port,{options}"]
        done = lab.boot(
            "hotplug",
            tests=guest_tests(*TESTS),
            devices=devices,
            modules=("vfio_pci", "vfio_iommu_type1", "snd_hda_intel"),
            handlers={
                "card": card,
                "unplug_card": lambda index: chips[index].unplug(),
            },
            limit_s=300,
        )
        return [judged(done, [text for chip in chips for text in chip.violations], ALLOWED)]
