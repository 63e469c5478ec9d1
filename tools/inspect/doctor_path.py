"""`ugpu doctor` on the path to a card: Thunderbolt and USB4, ports, links, power, BAR windows,
lockdown. It reads sysfs. Each finding has the command that fixes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ugpu.hcq.find.catalogue import pci_drivers
from ugpu.hcq.transport.pci.function import PciFunction
from ugpu.hcq.transport.pci.path import hops, ports
from ugpu.hcq.transport.pci.sysfs import bar_sizes
from ugpu.hcq.transport.system import System
from ugpu.tools.base.finding import Finding
from ugpu.usbgpu.thunderbolt import enclosures as thunderbolt
from ugpu.usbgpu.thunderbolt.enclosures import Enclosure

LOCKDOWN = "sys/kernel/security/lockdown"
# The last byte shows whether Secure Boot is on (UEFI Specification, 3.3).
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
AUDIO = 0x0403  # class and subclass, PCI Code and ID Assignment
_HEADER_LINES = 7  # of `resource`: six BARs and the ROM; a bridge's windows follow
_MEMORY, _PREFETCHABLE = 0x200, 0x2000  # Linux include/linux/ioport.h
_LAST_BAR = 5
_KIND = {True: "", False: "32-bit "}  # of a bridge's windows
# With this many errors the cable or the slot is suspect; plugging in causes a few. Our choice.
_MANY_ERRORS = 100


def machine(system: System) -> Iterator[Finding]:
    """Yield findings that do not concern a visible card: enclosures, and the kernel's
    restrictions."""
    for enclosure in thunderbolt.enclosures(system):
        yield from _enclosure(system, enclosure)
    yield from lockdown(system)


def _enclosure(system: System, enclosure: Enclosure) -> Iterator[Finding]:
    check = f"thunderbolt:{enclosure.unique_id}"
    name = enclosure.name or "the enclosure"
    if enclosure.security in thunderbolt.NO_PCIE:
        yield Finding(
            check,
            "missing",
            f"security level {enclosure.security!r}: the firmware does not create a PCIe "
            f"tunnel to {name}",
            thunderbolt.NO_PCIE_REMEDY,
        )
    elif not enclosure.authorized:
        yield Finding(
            check,
            "missing",
            f"{name} is not authorised (security level {enclosure.security!r})",
            thunderbolt.authorise(system, enclosure),
        )
    elif not thunderbolt.functions_in(system, enclosure):
        yield Finding(
            check,
            "note",
            f"{name} is authorised, but no PCI function was found in it",
            "seat the card, switch the enclosure's power supply on, then: "
            "echo 1 | sudo tee /sys/bus/pci/rescan",
        )
    else:
        yield Finding(check, "ok", f"{name} is authorised: {enclosure.tunnel}")
    if enclosure.dma_protection is False:
        yield Finding(
            check,
            "note",
            "the firmware does not restrict the DMA of external devices (Kernel DMA Protection)",
            "enable Kernel DMA Protection, or VT-d or AMD-Vi at boot, in the firmware setup",
        )


def lockdown(system: System) -> Iterator[Finding]:
    """Yield restrictions of the kernel that apply even to root. Source: Linux man
    kernel_lockdown(7)."""
    mode = (system.read_text(LOCKDOWN) or "").partition("[")[2].partition("]")[0]
    if mode in ("", "none"):
        return
    cause = "by Secure Boot" if _secure_boot(system) else "by the kernel command line or a policy"
    yield Finding(
        "lockdown",
        "note",
        f"the kernel is locked down ({mode}) {cause}: via='sysfs' and no_iommu=True do not work, "
        "nor do unsigned kernel modules; VFIO works",
        "sudo mokutil --disable-validation && sudo reboot   # only if VFIO is not sufficient",
    )


def _secure_boot(system: System) -> bool:
    try:
        return system.path(SECURE_BOOT).read_bytes()[-1:] == b"\x01"
    except OSError:
        return False


def card(function: PciFunction) -> Iterator[Finding]:
    """Yield findings about the path to a supported card."""
    check = f"pci:{function.address}"
    way = thunderbolt.way_to(function)
    if way.rate:
        cost = f", {way.cost / 1e9:.1f} GB/s less than the card's own link" if way.cost else ""
        yield Finding(check, "ok", f"slowest link: {way.slowest}, {way.rate / 1e9:.1f} GB/s{cost}")
    yield from _generation(check, function)
    yield from _siblings(check, function)
    yield from _runtime_power(check, function)
    yield from _link_power(check, function)
    yield from _link_errors(check, function)
    yield from _windows(check, function)
    yield from _absent(check, function)


def _generation(check: str, function: PciFunction) -> Iterator[Finding]:
    for hop in hops(function):
        if not hop.tunnelled and 0 < hop.current.speed < hop.expected.speed:
            yield Finding(
                check,
                "note",
                f"the link {hop} could run at {hop.expected.speed:g} GT/s; cards slow it down "
                "while they are idle",
                "if it remains slow under load: reseat the card, use a shorter or better cable",
            )


def _siblings(check: str, function: PciFunction) -> Iterator[Finding]:
    """Find kernel drivers of the card's other functions. Such a driver suspends its function by its
    own rules, and the card's power with it."""
    if function.driver not in (None, "vfio-pci"):
        return  # the kernel's drivers own the whole card
    for member in function.card():
        if member.address == function.address or member.driver in (None, "vfio-pci", "pci-stub"):
            continue
        kind = "audio function" if member.identity().class_code >> 8 == AUDIO else "function"
        yield Finding(
            check,
            "missing",
            f"the card's {kind} {member.address} is bound to the kernel driver {member.driver}",
            f"echo {member.address} | sudo tee {_outside(member.folder)}/driver/unbind",
        )


def _runtime_power(check: str, function: PciFunction) -> Iterator[Finding]:
    asleep = [
        part
        for part in (*function.card(), *ports(function))
        if part.attribute("power/control") == "auto"
    ]
    if asleep:
        files = " ".join(f"{_outside(part.folder)}/power/control" for part in asleep)
        yield Finding(
            check,
            "note",
            "runtime power management may suspend these while no program has the card open, "
            f"and some cards do not wake up again: {', '.join(part.address for part in asleep)}",
            f"echo on | sudo tee {files}",
        )


def _link_power(check: str, function: PciFunction) -> Iterator[Finding]:
    files = [
        f"{_outside(hop.lower.folder)}/link/{name}"
        for hop in hops(function)
        for name in ("l1_aspm", "l0s_aspm")
        if hop.lower.attribute(f"link/{name}") == "1"
    ]
    if files:
        yield Finding(
            check,
            "note",
            "ASPM is on: repeated link power transitions may disconnect the card",
            f"echo 0 | sudo tee {' '.join(files)}",
        )


def _link_errors(check: str, function: PciFunction) -> Iterator[Finding]:
    """Find links with many corrected errors, as counted by AER
    (sysfs-bus-pci-devices-aer_stats)."""
    for part in (function, *ports(function)):
        lines = (part.attribute("aer_dev_correctable") or "").splitlines()
        rows = (line.rpartition(" ") for line in lines)
        counts = {name: int(text) for name, _, text in rows if text.isascii() and text.isdecimal()}
        if counts.pop("TOTAL_ERR_COR", 0) >= _MANY_ERRORS:
            shown = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
            yield Finding(
                check,
                "note",
                f"{part.address} has corrected many link errors since boot: {shown}",
                "replace the cable or riser; a link with many errors eventually fails",
            )


def _windows(check: str, function: PciFunction) -> Iterator[Finding]:
    """Find BARs that have no address or could be larger, and the bridge that lacks room for
    them."""
    for bar in function.bars():
        if not bar.memory or not bar.size:
            continue
        offered = max(bar_sizes(function, bar.index), default=bar.size)
        if bar.assigned and offered <= bar.size:
            continue
        needed = offered if bar.assigned else bar.size
        wide = _wide(function, bar.index)
        narrow = _narrowest(function, needed, wide)
        if narrow is not None:
            yield Finding(
                check,
                "note" if bar.assigned else "missing",
                f"BAR {bar.index} needs {_size(needed)}, and the bridge {narrow.address} has a "
                f"{_KIND[wide]}window of {_size(_window(narrow, wide))}",
                f"add {_reserve(function, needed, wide)} to the kernel command line and reboot",
            )
        elif bar.assigned:
            power = (needed >> 20).bit_length() - 1
            yield Finding(
                check,
                "note",
                f"BAR {bar.index} is {_size(bar.size)} and may be {_size(needed)}; "
                "unbind the card's driver first",
                f"echo {power} | sudo tee {_outside(function.folder)}/resource{bar.index}_resize",
            )


def _absent(check: str, function: PciFunction) -> Iterator[Finding]:
    """Find BARs that the kernel failed to place: it lists them as if they did not exist, without a
    size (Linux drivers/pci/setup-bus.c, reset_resource)."""
    identity = function.identity()
    driver = pci_drivers().get((identity.vendor, identity.device))
    sizes = {bar.index: bar.size for bar in function.bars()}
    above = ports(function)
    least_bars = driver.least_bars if driver is not None and above else ()
    absent = [(index, least) for index, least in least_bars if not sizes.get(index)]
    for index, least in absent:
        wide = _wide(function, index)
        bridge = _narrowest(function, least, wide) or above[0]
        window = max(_window(bridge, wide), 0)
        together = sum(size for other, size in absent if _wide(function, other) is wide)
        yield Finding(
            check,
            "missing",
            f"BAR {index} has no address: it does not fit in the {_KIND[wide]}window of "
            f"{_size(window)} of the bridge {bridge.address}",
            f"add {_reserve(function, max(together, 2 * window), wide)} to the kernel command line "
            "and reboot",
        )


def _reserve(function: PciFunction, size: int, wide: bool) -> str:
    """Return the kernel's option (Linux Documentation/admin-guide/kernel-parameters.txt, pci=):
    room for cards that are plugged in later, or else a new layout of the firmware's assignment."""
    if any(hop.tunnelled for hop in hops(function)):
        option = "hpmmioprefsize" if wide else "hpmmiosize"
        return f"pci=realloc,{option}={max(-(-size >> 20), 1)}M"
    return "pci=realloc"


def _wide(function: PciFunction, index: int) -> bool:
    """Return whether a BAR lies in the prefetchable windows of the bridges above it. Of a BAR that
    the kernel gave up it does not report the kind. The last one cannot be 64 bits wide, since such
    a BAR takes two places (PCI Local Bus Specification 3.0, 6.2.5.1); the others that a driver
    requires are those of VRAM and doorbells, which are prefetchable."""
    for line in (function.attribute("resource") or "").splitlines()[index : index + 1]:
        flags = int(line.split()[2], 16)
        if flags:
            return bool(flags & _PREFETCHABLE)
    return index != _LAST_BAR


def _narrowest(function: PciFunction, size: int, wide: bool) -> PciFunction | None:
    """Return the outermost port above the function whose window is too small. The ports below it
    cannot have a larger window."""
    for port in reversed(ports(function)):
        if 0 <= _window(port, wide) < size:
            return port
    return None


def _window(port: PciFunction, wide: bool) -> int:
    """Return the bytes of a bridge's memory window: wide: the prefetchable one, or else the other
    if there is none. -1 if the kernel does not report them."""
    sizes: dict[bool, int] = {}
    lines = (port.attribute("resource") or "").splitlines()[_HEADER_LINES:]
    for line in lines:
        try:
            start, end, flags = (int(word, 16) for word in line.split()[:3])
        except ValueError:
            return -1
        if flags & (_MEMORY | _PREFETCHABLE):
            sizes[bool(flags & _PREFETCHABLE)] = end - start + 1
    if not lines:
        return -1
    return sizes.get(wide, sizes.get(False, 0))


def _size(count: int) -> str:
    if count % (1 << 20):
        return f"{count >> 10} KiB"
    return f"{count >> 30} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"


def _outside(folder: Path) -> str:
    """Return a function's folder for use in a command."""
    return f"/sys/bus/pci/devices/{folder.name}"
