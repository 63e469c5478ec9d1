"""Device names to drivers, lazily: only what a name needs is imported.

auto             UGPU_DEVICE if set, the first real device in vfio-pci's hands or with a node of a
                 stock kernel driver that this user may open, or behind a USB bridge whose node this
                 user may open, else cpu
cpu              host threads
virtual:<chip>   a register-level model of a chip, with the real driver on it
virtual:<chip>+usb   the same behind a virtual USB3 bridge
virtual:<chip>+msm   the same above another kernel driver (KERNEL_DRIVERS)
pci:<address>    bare metal
thunderbolt:<id> the card in the enclosure with that unique id, wherever it is plugged in
nvrm:<n>         an NVIDIA GPU through the stock kernel driver, /dev/nvidia<n>
kgsl:<n>         an Adreno GPU through Qualcomm's kernel driver, /dev/kgsl-3d<n>
msm:<n>          an Adreno GPU through the upstream kernel driver, /dev/dri/renderD<128 + n>
usb:<which>      a card behind a USB bridge: the bridge's serial number, port (2-1.4) or index
vfio-user:<path> what a server on a UNIX socket offers (`ugpu serve`)
ugpud:<pattern>  a device that a ugpud lends, such as ugpud:pci:0000:03:00.0 (hcq.remote.lease)
recording:<path> what was recorded of a device by `open(name, record=path)`
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hcq import trace
from hcq.checks import option_types, path_like, seconds
from hcq.config import config
from hcq.errors import BadArgument, DeviceNotFound, NotSupported
from hcq.node_drivers import NODE_DRIVERS, nodes_of
from hcq.recovery import FAULT_POLICIES
from hcq.transport.node import NodeAttachment

if TYPE_CHECKING:
    from hcq.device import Device
    from hcq.transport.base import PciIdentity, Transport
    from hcq.transport.endpoint import Endpoint

SYSFS_PCI = Path("/sys/bus/pci/devices")
SYSFS_USB = Path("/sys/bus/usb/devices")
NODES = Path("/dev")

#: "module:function", called with a device and source, gives a Program
COMPILER = "compiler.front.source:compile_source"
# Packages that drive chips. Of each, `<package>.chips` tells what there is: `pci_drivers()`, a
# PciDriver for each PCI id, `virtual_names()`, the chips with a model, and `summary(chip)`;
# `<package>.virtual.gpu:attach(chip, ...)` attaches to one; its keywords are the model's.
VENDORS = ("am", "nv", "qcom")
# Of these, `<package>.virtual.gpu:endpoint(chip, ...)` gives a card to put behind a virtual bus.
ENDPOINTS = ("am",)
# Of these, `attach` takes `kernel_driver`: models of several kernel drivers, the usual one first.
KERNEL_DRIVERS = {"qcom": ("kgsl", "msm")}


class ChipSummary(NamedTuple):
    """A chip for people. title: its name; products: boards that have it; isa: processor as LLVM or
    PTX names it; proven: which board ran our driver, and in which report; "" where none has."""

    title: str
    products: tuple[str, ...]
    isa: str
    proven: str = ""

    @property
    def facts(self) -> dict[str, object]:
        """For a DeviceEntry."""
        products = ", ".join(self.products)
        return {"products": products, "isa": self.isa, "proven_on_silicon": self.proven or "no"}


class PciDriver(NamedTuple):
    """A driver for a PCI function. `entry`: "module:function", called with name, attachment and the
    driver's options. reach_bits: width of the bus addresses that the chip emits; least_bars: bytes
    that each BAR must have for the driver to work, as (BAR, bytes). by_clock: (BAR, offset) of
    registers that the driver uses by the clock (hcq.transport.replay). names: "module:function",
    called with a recording, gives the names of its registers (am.names). chip: what it is. window:
    "module", with what hcq.window asks for; "" where a driver cannot look without booting.
    needs_host_memory: see hcq.transport.base.Traits.host_memory.
    """

    description: str
    entry: str
    reach_bits: int = 47
    least_bars: tuple[tuple[int, int], ...] = ()
    by_clock: tuple[tuple[int, int], ...] = ()
    names: str = ""
    chip: ChipSummary | None = None
    window: str = ""
    needs_host_memory: bool = True


def virtual_chips() -> dict[str, str]:
    """Chips that have a model, with the package that they belong to; the chips' folders tell."""
    return {chip: vendor for vendor in VENDORS for chip in _load(f"{vendor}.chips:virtual_names")()}


def pci_drivers() -> dict[tuple[int, int], PciDriver]:
    """How to drive each (vendor, device) that there is a chip's folder for."""
    drivers: dict[tuple[int, int], PciDriver] = {}
    for vendor in VENDORS:
        drivers |= _load(f"{vendor}.chips:pci_drivers")()
    return drivers


def attach_virtual(chip: str, /, **options: object) -> Attachment | NodeAttachment:
    """Attach to a model of a chip; options are the model's. DeviceNotFound for an unknown name."""
    attach = functools.partial(_attach_of(chip), chip)
    made: Attachment | NodeAttachment = attach(**options)
    if not isinstance(made, Attachment | NodeAttachment):
        raise TypeError(f"the model of {chip} returned {made!r}")
    return made


def _attach_of(chip: str) -> Callable[..., Any]:  # a model's entry point; its caller checks
    vendor = virtual_chips().get(chip)
    if vendor is None:
        have = ", ".join(f"virtual:{known}" for known in sorted(virtual_chips()))
        raise DeviceNotFound(f"no virtual chip {chip!r}; there are: {have}")
    return _load(f"{vendor}.virtual.gpu:attach")


_recorded = itertools.count(1)
# Options of `pci:` names that are the transport's (hcq.transport.attach), not the driver's.
PCI_OPTIONS = frozenset(("via", "bind", "no_iommu", "narrow_link"))
# Names of devices that offer no telemetry to other processes: there is nothing to measure.
UNOBSERVED = ("cpu", "recording:")
PLANNED = ("kfd", "tcp")


@dataclass(frozen=True)
class Attachment:
    """A connection to a chip, passed to a driver, which then owns it.

    firmware: images by file name, in place of those on this machine. chip: the model behind a
    virtual transport, for those who want to look inside or plug it in again; None for hardware.
    on_image: called with name and bytes of each image that the driver reads.
    """

    transport: Transport
    firmware: Mapping[str, bytes] | None = None
    chip: object = None
    on_image: Callable[[str, bytes], object] | None = None


@dataclass(frozen=True)
class DeviceEntry:
    """A device that `open` would find. facts: what is known without touching it."""

    name: str
    description: str
    facts: dict[str, object] = field(default_factory=dict)


def open(name: str = "auto", **options: object) -> Device:
    """Open a device by name; the caller closes it.

    Options are the driver's, and for virtual chips also the model's (`chip=` plugs in a chip again
    that stayed powered). For `pci:` names `bind=True` takes the device from its kernel driver and
    gives it back at close, `via="sysfs"` does without VFIO, and `no_iommu=True` accepts a device
    whose DMA nothing confines, and `narrow_link=True` a PCIe link with fewer lanes than both its
    ends have (see hcq.transport.attach). Every driver takes `on_stage`: called
    with the name of each step of coming up and the seconds it took.
    `on_fault="recover"` resets the device by itself when it fails: the error is raised once to
    those whose work was lost (hcq.recovery), and the device goes on. `wait_s` waits so long for a
    device that is not there, or not free, yet (hcq.transport.hotplug). `record=PATH`, for what is
    behind a PCI transport, writes all that the driver did to the device into a file when it is
    closed, the firmware images that it read included. DeviceNotFound for an unknown name,
    BadArgument for an unknown option.
    """
    if not isinstance(name, str):
        raise BadArgument(f"name must be a str, got {name!r}")
    wait_s = seconds("wait_s", options.pop("wait_s", 0.0))
    if wait_s:
        if name == "auto":
            raise BadArgument("wait_s requires the name of a device, got 'auto'")
        keep_trying = _load("hcq.transport.hotplug:keep_trying")
        return _device(keep_trying(lambda: open(name, **options), wait_s))
    if name == "auto":
        ready = [e.name for e in _pci_devices(SYSFS_PCI) if e.facts["driver"] == "vfio-pci"]
        ready += [e.name for e in _node_devices(NODES) if e.facts["usable"]]
        usb = [e for e in _usb_devices() if e.facts["usable"] and e.facts["accessible"]]
        ready += [e.name for e in usb]
        found = config().device or next(iter(ready), "cpu")
        return open(found if found != "auto" else "cpu", **options)
    _start_tracing()
    on_fault = options.pop("on_fault", "raise")
    if on_fault not in FAULT_POLICIES:
        raise BadArgument(f"on_fault must be 'raise' or 'recover', got {on_fault!r}")
    with trace.step("open", device=name):
        device = _open_named(name, options)
    device.on_fault = str(on_fault)
    device.limit_s = config().wait_limit_s
    folder = config().observe_folder
    if folder is not None and not name.startswith(UNOBSERVED):
        core = device.driver.core
        core.observer = _load("hcq.observe:offer")(core, folder)
    return device


def _open_named(name: str, options: dict[str, object]) -> Device:
    kind, _, rest = name.partition(":")
    if name == "cpu":
        make = _load("hcq.cpu.device:open_device")
        _check_options(name, make, options, given=1)
        return _device(make(name, **options))
    if kind == "virtual":
        return _open_virtual(name, rest, options)
    if kind == "pci":
        return _open_pci(name, rest, options)
    if kind == "thunderbolt":
        address = _load("usbgpu.thunderbolt:address_of")(rest, pci_drivers().keys())
        return _open_pci(name, address, options)
    if kind == "vfio-user":
        connect = _load("hcq.transport.vfio_user.client:VfioUserTransport")
        return _open_attached(name, Attachment(connect(rest)), options)
    if kind == "usb":
        attach_usb = _load("usbgpu.attach:attach")
        return _open_attached(name, Attachment(attach_usb(rest, _behind_bridge)), options)
    if kind == "ugpud":
        lease = _load("hcq.remote.lease:open_device")
        _check_options(name, lease, options, given=2)
        return _device(lease(name, rest, **options))
    if kind == "recording":
        return _open_recording(name, Path(rest), options)
    if kind in NODE_DRIVERS:
        if not rest.isdecimal():
            raise DeviceNotFound(f"expected a number after {kind}: as in {kind}:0, got {name!r}")
        attach = _load(NODE_DRIVERS[kind].attach)
        return _open_node(name, attach(int(rest)), options)
    if kind in PLANNED:
        raise NotSupported(f"{name}: devices of kind {kind!r} are not built yet")
    have = ", ".join(entry.name for entry in list_devices())
    raise DeviceNotFound(f"no device {name!r}; there are: {have}")


def _record_path() -> Path | None:
    """Where UGPU_RECORD wants the next device's recording: one file each, FILE, FILE.2, FILE.3."""
    path = config().record_file
    if path is None:
        return None
    count = next(_recorded)
    return path if count == 1 else path.with_name(f"{path.name}.{count}")


@functools.cache
def _start_tracing() -> None:
    """Send the event bus to the file of UGPU_TRACE, once per process."""
    path = config().trace_file
    if path is not None:
        trace.subscribe(trace.JsonLines(path))


def list_devices(sysfs: Path = SYSFS_PCI) -> list[DeviceEntry]:
    """List the devices that `open` accepts, real ones first. Touches no hardware."""
    virtual = []
    for chip, vendor in sorted(virtual_chips().items()):
        summary: ChipSummary = _load(f"{vendor}.chips:summary")(chip)
        virtual.append(DeviceEntry(f"virtual:{chip}", f"model of {summary.title}", summary.facts))
    cpu = DeviceEntry("cpu", "host threads")
    return [*_pci_devices(sysfs), *_usb_devices(), *_node_devices(NODES), cpu, *virtual]


def _open_virtual(name: str, chip: str, options: dict[str, object]) -> Device:
    chip, plus, bus = chip.partition("+")
    if bus in KERNEL_DRIVERS.get(virtual_chips().get(chip, ""), ()):
        options["kernel_driver"] = bus
    elif plus:
        return _open_attached(name, _attach_over(name, chip, bus, options), options)
    attach = _attach_of(chip)
    for_model = set(list(inspect.signature(attach).parameters)[1:]) & set(options)
    option_types(attach, options)
    attachment = attach_virtual(chip, **{key: options.pop(key) for key in for_model})
    if isinstance(attachment, NodeAttachment):
        return _open_node(name, attachment, options)
    return _open_attached(name, attachment, options)


def _attach_over(name: str, chip: str, bus: str, options: dict[str, object]) -> Attachment:
    """Put a model of a chip into a virtual enclosure, or open one that exists again."""
    vendor = virtual_chips().get(chip)
    if bus != "usb" or vendor not in ENDPOINTS:
        have = ", ".join(f"virtual:{known}+usb" for known in _over_usb())
        raise DeviceNotFound(f"no virtual device {name!r}; there are: {have}")
    make, plug_in = _load(f"{vendor}.virtual.gpu:endpoint"), _load("usbgpu.virtual.attach:plug_in")
    enclosure = options.pop("enclosure", None)
    for_model = set(list(inspect.signature(make).parameters)[1:]) & set(options)
    option_types(make, options)
    model = {key: options.pop(key) for key in for_model}
    old: Endpoint | None = getattr(enclosure, "card", None)  # of an Enclosure, not of its options
    if old is not None and model:
        raise BadArgument(f"a card in an enclosure cannot be given other options: {sorted(model)}")
    card: Endpoint = make(chip, **model) if old is None else old
    try:
        usb, clock = plug_in(card if old is None else None, enclosure)
    except BaseException:
        if old is None:
            card.close()
        raise
    try:
        bridge = _load("usbgpu.asm24:CustomBridge")(usb, sleep=clock.sleep)
        transport = _load("usbgpu.transport:UsbTransport")(bridge, name, clock=clock)
    except BaseException:
        usb.close()
        raise
    return Attachment(transport, card.firmware, card.model)


def _over_usb() -> list[str]:
    """Chips whose model can be put into a virtual enclosure."""
    return [chip for chip, vendor in sorted(virtual_chips().items()) if vendor in ENDPOINTS]


def _open_node(name: str, attachment: NodeAttachment, options: Mapping[str, object]) -> Device:
    """Hand a node to the driver above it; the node is closed when that fails."""
    try:
        make = _load(NODE_DRIVERS[attachment.driver].entry)
        _check_options(name, make, options, given=2)
        return _device(make(name, attachment, **options))
    except BaseException:
        attachment.node.close()
        raise


def _open_recording(name: str, path: Path, options: Mapping[str, object]) -> Device:
    """Run the driver of a recorded device on its recording."""
    try:
        recording = _load("hcq.transport.recording:Recording.load")(path.read_text("ascii"))
    except OSError as error:
        raise DeviceNotFound(f"cannot open {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadArgument(f"{path} is not a recording") from error
    identity = recording.identity
    known = pci_drivers().get((identity.vendor, identity.device))
    replay = _load("hcq.transport.replay:ReplayTransport")
    transport = replay(recording, name, by_clock=known.by_clock if known else ())
    return _open_attached(name, Attachment(transport, recording.firmware or None), options)


def _open_attached(name: str, attachment: Attachment, options: Mapping[str, object]) -> Device:
    """Hand an attachment to the driver that knows its PCI id; it is closed when that fails."""
    options = dict(options)
    opening: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    try:
        wanted = options.pop("record", None)
        path = _record_path() if wanted is None else Path(path_like("record", wanted))
        if path is not None:
            make_recorder = _load("hcq.transport.record:RecordingTransport")
            recorder = make_recorder(attachment.transport, path, time.monotonic)
            attachment = replace(attachment, transport=recorder, on_image=recorder.image)
            opening = recorder.opening()
        identity = attachment.transport.identity
        known = pci_drivers().get((identity.vendor, identity.device))
        if known is None:
            raise DeviceNotFound(f"{name}: no driver supports PCI id {identity}")
        make = _load(known.entry)
        _check_options(name, make, options, given=2)
        with opening:
            try:
                return _device(make(name, attachment, **options))
            except BaseException:
                attachment.transport.close()  # here, where a recording still learns why
                raise
    except BaseException:
        attachment.transport.close()
        raise


def _behind_bridge(identity: PciIdentity) -> None:
    """Refuse a card that no driver drives behind a bridge."""
    known = pci_drivers().get((identity.vendor, identity.device))
    if known is None:
        raise DeviceNotFound(f"the card behind the bridge is {identity}, which no driver supports")
    if known.needs_host_memory:
        raise NotSupported(
            f"the card behind the bridge is {identity} ({known.description}): its driver needs "
            "host memory that the card reaches, which a USB bridge does not offer"
        )


def _open_pci(name: str, address: str, options: dict[str, object]) -> Device:
    """Open a function that a driver of ours knows; refused before anything is unbound or opened."""
    full, identity = _load("hcq.transport.attach:identify")(address)
    known = pci_drivers().get((identity.vendor, identity.device))
    if known is None:
        have = ", ".join(entry.name for entry in _pci_devices(SYSFS_PCI)) or "none"
        raise DeviceNotFound(
            f"{name} is {identity}, which no driver supports; supported devices here: {have}",
            present=True,
        )
    make = _load(known.entry)
    for_transport = {key: options.pop(key) for key in PCI_OPTIONS & set(options)}
    driver_options = {key: value for key, value in options.items() if key != "record"}
    _check_options(name, make, driver_options, given=2, also=PCI_OPTIONS)
    attach_pci = _load("hcq.transport.attach:attach_pci")
    transport = attach_pci(
        full, reach_bits=known.reach_bits, least_bars=dict(known.least_bars), **for_transport
    )
    own = name if name.startswith("thunderbolt:") else f"pci:{full}"
    return _open_attached(own, Attachment(transport), options)


def _pci_devices(sysfs: Path) -> list[DeviceEntry]:
    if not sysfs.is_dir():
        return []
    entries = []
    drivers = pci_drivers()
    for function in sorted(sysfs.iterdir()):
        try:
            identity = tuple(int((function / key).read_text(), 16) for key in ("vendor", "device"))
        except (OSError, ValueError):
            continue  # vanished while we looked, or not a PCI function
        if identity not in drivers:
            continue
        driver, group = function / "driver", function / "iommu_group"
        facts: dict[str, object] = {
            "pci_id": f"{identity[0]:04x}:{identity[1]:04x}",
            "driver": driver.resolve().name if driver.exists() else None,
            "iommu_group": group.resolve().name if group.exists() else None,
        }
        known = drivers[identity]
        if known.chip is not None:
            facts |= known.chip.facts
        entries.append(DeviceEntry(f"pci:{function.name}", known.description, facts))
    return entries


def _usb_devices() -> list[DeviceEntry]:
    """Bridges; which card is behind one shows only when it is opened."""
    if not SYSFS_USB.is_dir():
        return []
    listed = _load("usbgpu.found:listed")
    return [DeviceEntry(name, "USB bridge", facts) for name, facts in listed(SYSFS_USB)]


def _node_devices(folder: Path) -> list[DeviceEntry]:
    """Devices that have a node of a stock kernel driver; usable: this user may open it."""
    entries = []
    for kind, driver in NODE_DRIVERS.items():
        for number, path in nodes_of(driver, folder, _load):
            facts: dict[str, object] = {
                "node": str(path),
                "usable": os.access(path, os.R_OK | os.W_OK),
            }
            entries.append(DeviceEntry(f"{kind}:{number}", driver.description, facts))
    return entries


def compiler() -> Callable[..., Any]:
    """The compiler's entry for source of a user's own (`Device.compile`)."""
    return _load(COMPILER)


def _load(path: str) -> Callable[..., Any]:  # a driver's entry point; _device checks its result
    module, _, function = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    entry: Callable[..., Any] = found
    return entry


def _check_options(
    name: str,
    entry: Callable[..., Any],
    options: Mapping[str, object],
    *,
    given: int,
    also: frozenset[str] = frozenset(),
) -> None:
    """Raise BadArgument for options that `entry` does not take after its first `given`
    arguments. also: further options of that name, to be listed with them."""
    option_types(entry, options)
    parameters = list(inspect.signature(entry).parameters.values())[given:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = sorted({parameter.name for parameter in parameters} | also)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise BadArgument(f"{name} has no option {', '.join(unknown)}; it has: {', '.join(known)}")


def _device(made: Any) -> Device:  # Any: it comes from a lazily imported function
    device: Device = made
    return device
