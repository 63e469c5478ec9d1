"""Inspect a device in its present state, by its registers alone: without boot, reset or set-up.

A driver that supports this names a module in its `PciDriver.window`, which has

    open_window(attachment)     a context manager of the chip; its RegisterBlock attributes are the
                                blocks, and it closes the attachment's transport
    banks(recording)            registers of a recorded chip that select the meaning of others
    open_recorded(transport)    as open_window, for a recording at one moment
    observer(transport)         a function that reads all that `look` shows, while a chip boots
    usual_blocks(chip)          the blocks of a chip by name, without a chip: names and places
    dangers()                   effects that writes may have, as (pattern of names, text)
    CHANGED_BY_READING          patterns of registers that reading changes
    named_states(attachment)    "states"; for a chip that cannot be inspected, one with the reason
    look(chip, part)            "states", "queues", "waves" or "registers", as bundles have them
    diagnose(chip)              which rung of the ladder (hcq.state.ladder) can help, and why
    walk(chip, address, vmid, hub)      the page table entries that lead to a virtual address
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, cast

from ugpu.hcq.errors import DeviceNotFound, NotSupported
from ugpu.hcq.find.catalogue import PciDriver, pci_drivers, vendor_of, virtual_chips
from ugpu.hcq.find.registry import Attachment, attach_virtual
from ugpu.hcq.near import meant
from ugpu.hcq.registers.fields import RegisterBlock
from ugpu.hcq.state.ladder import Diagnosis
from ugpu.hcq.transport.attach import attach_pci, identify
from ugpu.hcq.transport.base import PciIdentity, Transport
from ugpu.hcq.transport.recorded.format import Recording
from ugpu.hcq.transport.recorded.state import Banks, RecordedTransport
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport


class WindowModule(Protocol):
    """The interface of the module named by `PciDriver.window`."""

    CHANGED_BY_READING: tuple[str, ...]

    def open_window(self, attachment: Attachment) -> AbstractContextManager[object]: ...
    def banks(self, recording: Recording) -> Banks: ...
    def open_recorded(self, transport: RecordedTransport) -> AbstractContextManager[object]: ...
    def observer(self, transport: Transport) -> Callable[[], None]: ...
    def usual_blocks(self, chip: str) -> Mapping[str, RegisterBlock]: ...
    def dangers(self) -> tuple[tuple[str, str], ...]: ...
    def named_states(self, attachment: Attachment) -> list[dict[str, object]]: ...
    def look(self, chip: object, part: str) -> object: ...
    def diagnose(self, chip: object) -> Diagnosis: ...
    def walk(self, chip: object, address: int, vmid: int | None, hub: str) -> dict[str, object]: ...


def blocks_of(chip: object) -> dict[str, RegisterBlock]:
    """Return the register blocks among the attributes of a driver's chip, by name; {} for None."""
    attributes = vars(chip).items() if chip is not None else ()
    return {name: block for name, block in attributes if isinstance(block, RegisterBlock)}


@contextmanager
def open_window(name: str) -> Iterator[object]:
    """Open the chip of `pci:ADDRESS`, `vfio-user:PATH` or `virtual:CHIP` in its present state; see
    `blocks_of`.

    A virtual chip is a new one, at power-on. Raises DeviceNotFound for another kind of name and
    NotSupported if the device's driver needs to boot it.
    """
    attachment, module = _reached(name)
    with module.open_window(attachment) as chip:
        yield chip


def named_states(name: str) -> list[dict[str, object]]:
    """Return the named states of a device's firmware and units without booting it. For a device
    that `open_window` cannot inspect, return one state with the reason."""
    attachment, module = _reached(name)
    return module.named_states(attachment)


def recorded_transport(
    recording: Recording,
    title: str,
    *,
    at: int | None = None,
    stage: str = "",
    name_of: Callable[[int, int], str] | None = None,
) -> tuple[RecordedTransport, WindowModule]:
    """Return the state of a recorded device at one moment, and its driver's window; the caller
    closes the transport. at, stage: see hcq.transport.recorded.state.entries_until. DeviceNotFound,
    NotSupported if no driver can inspect such a device."""
    module = module_of(_driver(title, recording.identity))
    transport = RecordedTransport(
        recording, title, at=at, stage=stage, banks=module.banks(recording), name_of=name_of
    )
    return transport, module


def banks_of(recording: Recording) -> Banks:
    """Return the registers of a recorded chip that select the meaning of others; none if no driver
    can inspect such a device."""
    identity = recording.identity
    driver = pci_drivers().get((identity.vendor, identity.device))
    return module_of(driver).banks(recording) if driver is not None and driver.window else Banks()


def observer(transport: Transport) -> Callable[[], None]:
    """Return a function that reads the states of a device while its driver boots it, for a
    recording. DeviceNotFound, NotSupported if no driver can inspect such a device."""
    return module_of(_driver(transport.name, transport.identity)).observer(transport)


def module_of(driver: PciDriver) -> WindowModule:
    """Return the module of a driver's window; NotSupported if there is none."""
    if not driver.window:
        raise NotSupported(f"{driver.description}: the driver does not expose registers")
    return cast(WindowModule, importlib.import_module(driver.window))


def module_of_chip(chip: str) -> WindowModule:
    """Return the module for a chip by its name, as in `virtual:<chip>`; DeviceNotFound,
    NotSupported."""
    vendor = vendor_of(chip)
    if vendor is None:
        chips = sorted(virtual_chips())
        hint = meant(chip, chips)
        raise DeviceNotFound(f"no chip {chip!r}; {hint}there are: {', '.join(chips)}")
    for driver in pci_drivers().values():
        if driver.entry.split(".")[1] == vendor:
            return module_of(driver)
    raise NotSupported(f"{chip}: its driver does not expose registers")


def _reached(name: str) -> tuple[Attachment, WindowModule]:
    """Attach to a device and find its window; the caller closes the transport."""
    attachment, driver = _attach(name)
    try:
        return attachment, module_of(driver)
    except BaseException:
        attachment.transport.close()
        raise


def _attach(name: str) -> tuple[Attachment, PciDriver]:
    kind, _, rest = name.partition(":")
    if kind == "pci":
        address, identity = identify(rest)
        driver = _driver(name, identity)
        transport = attach_pci(address, reach_bits=driver.reach_bits)
        return Attachment(transport), driver
    if kind == "vfio-user":
        attachment = Attachment(VfioUserTransport(rest))
    elif kind == "virtual":
        model = attach_virtual(rest)
        if not isinstance(model, Attachment):
            model.node.close()
            raise NotSupported(
                f"{name} has no register window: its registers belong to a kernel driver"
            )
        attachment = model
    else:
        raise DeviceNotFound(f"expected pci:ADDRESS, vfio-user:PATH or virtual:CHIP, got {name!r}")
    try:
        return attachment, _driver(name, attachment.transport.identity)
    except BaseException:
        attachment.transport.close()
        raise


def _driver(name: str, identity: PciIdentity) -> PciDriver:
    driver = pci_drivers().get((identity.vendor, identity.device))
    if driver is None:
        raise DeviceNotFound(f"{name}: no driver supports PCI id {identity}")
    return driver
