"""Tier "usb": the virtual enclosure in a port of the guest's USB controller.

QEMU's xHCI and usb-redir; the guest has a real xhci_hcd and a real libusb. The enclosure with the
virtual Navi31 in it runs in this process. The cable is in the guest tests' hands, by handlers.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from lab.kernel.lab import CACHE, Case, Lab, Run, guest_tests, socket_path
from lab.kernel.machine import LabUnavailable
from lab.kernel.tiers.navi31 import VRAM, write_firmware
from lab.kernel.usbredir import Port, serve
from tests.support.pci import descriptors
from ugpu.usbgpu.link.usb import Speed
from ugpu.virtual.amd.gpu import endpoint
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions

# A driver whose cable is gone leaves engines behind that its card, without power, no longer has.
ALLOWED = ("the IOMMU refuses",)
LIMIT_S, LONG_LIMIT_S = 240, 1500
PULLS, MANY_PULLS = 40, 200  # of the cable; one takes 2 s
# While the driver boots a card and works, with --long; boot, work and close need so many transfers.
DRIVER_PULLS, WHOLE = 60, 750
AFTER = (0, 0, 1, 1024, 100_000)  # bytes of a bulk transfer that arrive before the cable goes
SEED = 12


def run(lab: Lab) -> list[Run]:
    """One boot, with the custom firmware. The cable is changed for one of high speed in between."""
    prepare()
    limit_s = LONG_LIMIT_S if lab.long else LIMIT_S
    tests = ["usb_bridge", "usb_driver", "usb_pulls", *(["usb_driver_pulls"] if lab.long else [])]
    chance = random.Random(SEED)
    pulls = [(chance.randrange(WHOLE), chance.choice(AFTER)) for _ in range(DRIVER_PULLS)]
    return [boot(lab, "usb", tests, limit_s=limit_s, driver_pulls=pulls)]


def prepare() -> None:
    """Find the packages, write the card's firmware; LabUnavailable without the packages."""
    for package in ("usb1", "libusb_package"):
        if importlib.util.find_spec(package) is None:
            raise LabUnavailable(f"the package {package} is missing (extra dev)")
    write_firmware(CACHE / "firmware")


class Hand:
    """What the guest has done to the cable and the card."""

    def __init__(self, box: Enclosure, ports: list[Port]) -> None:
        self._box, self._ports = box, ports

    def pull(self) -> None:
        self._box.unplug()

    def pull_at(self, transfer: int, after: int = 0) -> None:
        """Pull the cable so many transfers from now, in the midst of the last one."""
        self._box.pull_at(transfer, after)

    def plug(self, high_speed: bool = False) -> None:
        """Plug it in; a cable that was to be pulled and was not is pulled first."""
        self._box.unplug()
        self._box.plug(Speed.HIGH if high_speed else None)
        self._ports[0].plug()

    def plugged(self) -> bool:
        return self._box.plugged

    def halt(self, endpoint: int) -> None:
        """Have an endpoint answer with STALL until it is cleared or the port is reset."""
        self._ports[0].halt(endpoint)

    def count(self) -> dict[str, int]:
        """Transfers since the enclosure was made, by kind."""
        return {kind: count.transfers for kind, count in self._box.meter.counts.items()}

    def objections(self) -> list[str]:
        return list(self._box.objections)


def boot(
    lab: Lab,
    name: str,
    tests: list[str],
    firmware: Literal["custom", "uas"] = "custom",
    modules: tuple[str, ...] = ("xhci_pci",),
    limit_s: float = LIMIT_S,
    driver_pulls: Sequence[tuple[int, int]] = (),
) -> Run:
    """One boot of the guest. driver_pulls: of the cable while the driver works: at which transfer,
    and after how many of its bytes."""
    card = endpoint("navi31", options=ChipOptions(vram=VRAM))
    box = Enclosure(card, EnclosureOptions(firmware))
    try:
        with socket_path(name) as path, serve(path, box) as ports:
            hand = Hand(box, ports)
            devices = (
                *("-device", "qemu-xhci,id=usb0"),
                *("-chardev", f"socket,id=cable,path={path}"),
                *("-device", "usb-redir,id=bridge,chardev=cable,bus=usb0.0"),
            )
            done = lab.boot(
                name,
                tests=guest_tests(*tests),
                devices=devices,
                modules=modules,
                handlers={
                    "pull": hand.pull,
                    "pull_at": hand.pull_at,
                    "plug": hand.plug,
                    "plugged": hand.plugged,
                    "driver_pulls": lambda: list(driver_pulls),
                    "count": hand.count,
                    "halt": hand.halt,
                    "objections": hand.objections,
                    "pulls": lambda: MANY_PULLS if lab.long else PULLS,
                    "descriptors": descriptors.settled,
                    "leaked": descriptors.leaked,
                },
                limit_s=limit_s,
            )
        if done.lack:
            return done
        wrong = [*box.objections]
        wrong += [
            text for text in card.chip.violations if not any(word in text for word in ALLOWED)
        ]
        verdict = "failed" if wrong else "passed"
        case = Case("enclosure.nothing_objected_to", verdict, 0.0, "\n".join(wrong))
        return replace(done, cases=[*done.cases, case])
    finally:
        box.close()
        card.close()
