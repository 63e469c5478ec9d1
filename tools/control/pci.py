"""`ugpu bind | unbind | eject`: bind a PCI device to VFIO, give it back, remove it from the bus."""

from __future__ import annotations

from collections.abc import Callable

from ugpu.hcq.errors import DeviceBusy, DeviceNotFound
from ugpu.hcq.find.catalogue import pci_drivers
from ugpu.hcq.transport.pci.binding import Binding, give_back, plan, probe, release
from ugpu.hcq.transport.pci.checks import check_bars, check_link, check_power, check_siblings
from ugpu.hcq.transport.pci.eject import eject, members, steps
from ugpu.hcq.transport.pci.function import PciFunction, holders
from ugpu.hcq.transport.pci.preflight import check_links, check_ports
from ugpu.hcq.transport.system import System
from ugpu.tools.base import display
from ugpu.tools.base.console import Output

VERBS = {
    "bind": "bind a device and its IOMMU group to vfio-pci",
    "unbind": "return a device and its IOMMU group to the kernel's drivers",
    "eject": "remove a device from the bus, so that it can be unplugged",
}


def run(
    verb: str, name: str, out: Output, *, dry_run: bool = False, system: System | None = None
) -> int:
    """Run one verb on a supported device; everything is checked first."""
    function = ours(name, system if system is not None else System())
    if verb == "bind":
        identity = function.identity()
        chip = pci_drivers()[identity.vendor, identity.device].chip
        if chip is not None and not chip.proven:
            out.say(f"note: no board with {chip.title} has run the driver yet")
        lost = display.warning(function)
        if lost:
            out.say(f"note: {lost}; {display.REMEDY}", "yellow")
    lines, act = PLANS[verb](function, dry_run)
    for line in lines or [f"{function.address}: nothing to do"]:
        out.say(("would do: " if dry_run and lines else "") + line)
    after = {}
    if not dry_run:
        act()
        after = {
            member.address: member.driver for member in function.card() if member.folder.is_dir()
        }
        for address, driver in after.items():
            out.say(f"{address}: now held by {driver or 'no driver'}")
    out.result({"verb": verb, "device": name, "dry_run": dry_run, "steps": lines, "drivers": after})
    return 0


def ours(name: str, system: System) -> PciFunction:
    """Return the function of a `pci:` name; DeviceNotFound unless ugpu supports it."""
    function = PciFunction.find(system, name.removeprefix("pci:"))
    identity = function.identity()
    if (identity.vendor, identity.device) not in pci_drivers():
        raise DeviceNotFound(
            f"{function.address} is {identity}, which ugpu does not support; it was not changed",
            driver=function.driver or "none",
        )
    return function


def _bind(function: PciFunction, dry_run: bool) -> tuple[list[str], Callable[[], object]]:
    planned = plan(function, rights=not dry_run)
    return [str(step) for step in planned], lambda: Binding.bind(function)


def _unbind(function: PciFunction, dry_run: bool) -> tuple[list[str], Callable[[], object]]:
    released = release(function, rights=not dry_run)

    def act() -> None:
        for step in released:
            give_back(step)
            probe(step.function)

    lines = [f"{step.function.address}: vfio-pci -> the kernel's choice" for step in released]
    return lines, act


def _eject(function: PciFunction, dry_run: bool) -> tuple[list[str], Callable[[], object]]:
    # Loads the client of a ugpud, which other verbs do not need.
    from ugpu.tools.control import leased

    addresses = [function.address, *(member.address for member in members(function))]
    leased.check_unleased(addresses, leased.sockets(), rights=not dry_run)
    return steps(function, rights=not dry_run), lambda: eject(function)


PLANS = {"bind": _bind, "unbind": _unbind, "eject": _eject}


# ---- checks for `ugpu doctor` ------------------------------------------------------------------


def _check_awake(function: PciFunction) -> None:
    check_power(function, runtime_managed=True)


def _check_bars(function: PciFunction) -> None:
    identity = function.identity()
    driver = pci_drivers()[identity.vendor, identity.device]
    sizes = {bar.index: bar.size for bar in function.bars()}
    # The doctor reports a BAR without an address itself; this check finds one that is too small.
    check_bars(function, {bar: size for bar, size in driver.least_bars if sizes.get(bar)})


def _check_unused(function: PciFunction) -> None:
    users = holders(function.system, function.device_nodes())
    if users:
        raise DeviceBusy(
            f"in use by {', '.join(users)}",
            holder=", ".join(users),
            remedy="end those processes (for a display server, switch to a text console)",
        )


def _check_group(function: PciFunction) -> None:
    if function.driver == "vfio-pci":
        check_siblings(function)


CHECKS: tuple[Callable[[PciFunction], None], ...] = (
    check_link,
    check_links,
    check_ports,
    _check_awake,
    _check_bars,
    _check_group,
    _check_unused,
)
