"""Guest tests: the rungs outside of the chip on a real kernel, each followed by a boot of the card;
and a suspend of the host while the card is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.kernel.guest.amd import navi31
from lab.kernel.guest.edu import slots
from lab.kernel.guest.host import Host
from lab.kernel.guest.vfio_card import suspended
from ugpu.hcq.errors import DeviceBusy, DeviceLost, NotSupported
from ugpu.hcq.state.ladder import Rung, climb
from ugpu.hcq.transport.pci.binding import Binding
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.rungs import BusReset, ColdCycle, RemoveRescan
from ugpu.hcq.transport.vfio.transport import VfioTransport

Note = Callable[[str, object], None]


@pytest.fixture
def card() -> Iterator[PciFunction]:
    host = Host()
    function = slots.plugged(host, 1, 1)
    binding = Binding.bind_alone(function)
    yield function
    binding.restore()
    slots.pull(host, 1)
    host.close()


def boots(card: PciFunction) -> None:
    with navi31.open_card(f"pci:{card.address}") as device:
        assert device.info()["start"] == "cold"
        navi31.check_copies(device)


@pytest.mark.parametrize("kind", [BusReset, RemoveRescan], ids=lambda kind: kind.__name__)
def test_a_rung_and_a_boot_after_it(
    card: PciFunction, kind: Callable[[PciFunction], Rung], record_property: Note
) -> None:
    boots(card)
    done = climb(kind(card))
    record_property(f"{done.rung} (ms)", f"{done.seconds * 1e3:.0f}")
    record_property(f"{done.rung}: proof", done.proof)
    assert card.driver == "vfio-pci"
    boots(card)


def test_a_rung_is_refused_while_the_card_is_open(card: PciFunction) -> None:
    with VfioTransport(card.address, reach_bits=44):
        for kind in (BusReset, ColdCycle, RemoveRescan):
            with pytest.raises(DeviceBusy, match="pid"):
                climb(kind(card))


def test_a_power_cycle_or_why_not(card: PciFunction, record_property: Note) -> None:
    """QEMU's platform has no power resources for its ports, and the kernel says so."""
    with pytest.raises((NotSupported, DeviceLost)) as caught:
        climb(ColdCycle(card))
    record_property("D3cold", str(caught.value))
    assert isinstance(caught.value, NotSupported)
    port = card.parent
    assert port is not None and port.power_state == "D0"
    assert Path(port.folder / "power/control").read_text().strip() == "on"
    boots(card)


def test_a_host_that_is_suspended_meanwhile(card: PciFunction, record_property: Note) -> None:
    with navi31.open_card(f"pci:{card.address}") as device:
        with suspended():
            navi31.check_copies(device)
        with pytest.raises(DeviceLost) as caught:
            navi31.check_copies(device)
            device.synchronize()
        record_property("after a suspend", str(caught.value))
        assert "the host was suspended" in str(caught.value)
    boots(card)
