"""Guest tests: a function asleep in D3, and one whose slot has lost its power.

The function is QEMU's e1000e: it has the power management capability and a slot of its own, whose
port lets software switch the slot's power (PCI Express Base Specification, Slot Control).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.kernel.guest.edu.edu_msix import card
from lab.kernel.guest.host import within
from ugpu.hcq.errors import DeviceAsleep, LinkDown
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.pci import config as pci_config
from ugpu.hcq.transport.pci.binding import Binding, plan
from ugpu.hcq.transport.pci.config import ConfigFile
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.sysfs import SysfsTransport, rescan
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.transport import VfioTransport
from ugpu.hcq.uapi import constants

STATUS = 0x08  # a register that is not zero (Intel 82574 datasheet, 10.2.2.2)
LIMIT_S = 20


def function() -> PciFunction:
    return PciFunction.find(System(), card())


@contextmanager
def config(of: PciFunction) -> Iterator[ConfigFile]:
    """The hardware's own configuration space, past all that the kernel believes of it."""
    with (of.folder / "config").open("r+b", buffering=0) as file:
        yield ConfigFile(of.system, file.fileno())


def sleep(space: ConfigFile) -> None:
    """Write D3hot into the power management capability, as a firmware or a tool might."""
    regs = constants("pci_regs")
    place = pci_config.capability(space.read, regs.PCI_CAP_ID_PM)
    assert place is not None
    control = space.read(place + regs.PCI_PM_CTRL, 2)
    space.write(place + regs.PCI_PM_CTRL, control | regs.PCI_PM_CTRL_STATE_MASK, 2)
    assert pci_config.power_state(space.read) == 3


def test_what_vfio_put_to_sleep_wakes_when_it_is_opened() -> None:
    with Binding.bind(function()), config(function()) as space:
        assert function().power_state == "D3hot" and pci_config.power_state(space.read) == 3
        with VfioTransport(card()) as transport:
            assert pci_config.power_state(transport.config_read) == 0
            assert transport.window(0).read32(STATUS)


def test_d3_is_named_and_the_remedy_helps() -> None:
    SysfsTransport(card()).close()  # enabled now, for the kernel: it does not look again
    with config(function()) as space:
        sleep(space)
    with pytest.raises(DeviceAsleep, match="D3hot") as caught:
        SysfsTransport(card())
    remedy = caught.value.facts["remedy"]
    assert isinstance(remedy, str) and card() in remedy
    subprocess.run(["sh", "-c", remedy.replace("sudo ", "")], check=True, capture_output=True)
    with SysfsTransport(card()) as transport:
        assert transport.window(0).read32(STATUS)


def test_a_function_put_to_sleep_in_use_is_whole_when_opened_again() -> None:
    with Binding.bind(function()):
        with VfioTransport(card()) as transport, config(function()) as space:
            assert transport.window(0).read32(STATUS)
            regs = constants("pci_regs")
            place = pci_config.capability(transport.config_read, regs.PCI_CAP_ID_PM)
            assert place is not None
            transport.config_write(place + regs.PCI_PM_CTRL, regs.PCI_PM_CTRL_STATE_MASK, 2)
            assert pci_config.power_state(space.read) == 3, "VFIO passes it on"
        with VfioTransport(card()) as transport:
            assert pci_config.power_state(transport.config_read) == 0
            assert transport.window(0).read32(STATUS)


@contextmanager
def slot_without_power(port: PciFunction) -> Iterator[None]:
    """Behind the kernel's back; its hot-plug driver would take the function off the bus first."""
    regs = constants("pci_regs")
    with config(port) as space:
        place = pci_config.capability(space.read, regs.PCI_CAP_ID_EXP)
        assert place is not None
        control = space.read(place + regs.PCI_EXP_SLTCTL, 2)
        space.write(place + regs.PCI_EXP_SLTCTL, control | regs.PCI_EXP_SLTCTL_PCC, 2)
        try:
            yield
        finally:
            space.write(place + regs.PCI_EXP_SLTCTL, control & ~regs.PCI_EXP_SLTCTL_PCC, 2)


def test_a_link_that_is_down_is_named_before_anything_is_bound() -> None:
    lost = function()
    port = lost.parent
    assert port is not None
    with slot_without_power(port):
        for attempt in (lambda: plan(lost), lambda: SysfsTransport(lost.address)):
            with pytest.raises(LinkDown, match="link of") as caught:
                attempt()
            assert "power" in str(caught.value.facts["remedy"])
        assert lost.driver is None and lost.override is None
    found_again(lost)


def found_again(lost: PciFunction) -> None:
    """Power took its addresses away; the kernel gives it new ones when it finds it again."""
    (lost.folder / "remove").write_text("1")
    rescan(System())
    Clock().wait_until(
        lambda: lost.folder.is_dir(),
        unit="PCI bus", waiting_for="the function with power again", limit_s=within(LIMIT_S),
    )  # fmt: skip
    with SysfsTransport(lost.address) as transport:
        assert transport.window(0).read32(STATUS)


def test_a_link_that_goes_down_in_use_is_seen() -> None:
    """The slot has its power back before VFIO closes the function: the kernel resets it then, and
    waits for minutes for one that does not answer (Linux drivers/pci/pci.c, pci_dev_wait)."""
    lost = function()
    port = lost.parent
    assert port is not None
    with Binding.bind(lost), VfioTransport(lost.address) as transport:
        assert transport.present()
        with slot_without_power(port):
            assert not transport.present()
            assert transport.config_read(8) == 0xFFFF_FFFF, "VFIO keeps the first words only"
            with pytest.raises(LinkDown):
                VfioTransport(lost.address)
    found_again(lost)
