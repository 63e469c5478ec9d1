"""Inside the guest: plug the virtual card into one of the hot-plug ports, and pull it out."""

from __future__ import annotations

from lab.kernel.guest.amd.navi31 import PCI_ID
from lab.kernel.guest.host import Host, within
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.system import System

LIMIT_S = 30
AUDIO = {"driver": "intel-hda", "addr": "0.1"}


def cards() -> list[str]:
    """Addresses of the cards on the bus."""
    found = []
    for function in sorted(System().path("/sys/bus/pci/devices").iterdir()):
        try:
            ids = tuple((function / key).read_text().strip() for key in ("vendor", "device"))
        except OSError:
            continue  # it departs just now
        if ids == PCI_ID:
            found.append(function.name)
    return found


def plug(host: Host, index: int, port: int, *, audio: bool = False) -> None:
    """Ask QEMU for a card; it is on the bus some time later. Its function 0 comes last: that is
    what the port waits for."""
    card = host.ask("card", index=index, port=port)
    if audio:
        host.monitor("device_add", **AUDIO, id=f"audio{index}", bus=f"port{port}")
    host.monitor("device_add", **card)


def plugged(host: Host, index: int, port: int, *, audio: bool = False) -> PciFunction:
    """The card, once it is on the bus."""
    plug(host, index, port, audio=audio)
    wait_for(lambda: bool(cards()), "the card")
    return PciFunction.find(System(), cards()[0])


def pull(host: Host, index: int) -> None:
    """Press the slot's button and wait until the card is gone, from the bus and from the slot."""
    host.monitor("device_del", id=f"gpu{index}")
    gone()
    # The kernel cuts the slot's power after that, which is when QEMU takes the card out.
    wait_for(lambda: not _held(host, f"gpu{index}"), "the slot's power to be cut")


def _held(host: Host, name: str) -> bool:
    """Whether QEMU still has a device of this name."""
    return any(one["name"] == name for one in host.monitor("qom-list", path="/machine/peripheral"))


def gone() -> None:
    wait_for(lambda: not cards(), "the card's removal")


def wait_for(probe: object, what: str) -> None:
    assert callable(probe)
    Clock().wait_until(probe, unit="PCI slot", waiting_for=what, limit_s=within(LIMIT_S))
