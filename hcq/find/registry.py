"""Map device names to drivers, lazily: only the modules that a name needs are imported.

auto             UGPU_DEVICE if set, else the first real device that is bound to vfio-pci, or has a
                 node of a stock kernel driver that this user may open, or is behind a USB bridge
                 whose node this user may open, else cpu
cpu              host threads
virtual:<chip>   a register-level model of a chip, driven by the real driver
virtual:<chip>+usb   the same behind a virtual USB3 bridge with the open firmware
virtual:<chip>+usb-stock   with the vendor's firmware, as patched for graphics cards
virtual:<chip>+gsp   an NVIDIA card at register level, behind PCI (hcq.find.catalogue.VARIANTS)
virtual:<chip>+msm   the same above another kernel driver (hcq.find.catalogue.KERNEL_DRIVERS)
virtual:<chip>?<fault>   with a planted fault (hcq.find.planting), as in virtual:<chip>?smu_silent
null:<chip>      no hardware: compiles, plans memory and counts for a chip or a processor (ad102,
                 gfx1100, sm_90, a740), and runs nothing (hcq.null)
pci:<address>    bare metal
thunderbolt:<id> the card in the enclosure with that unique id, wherever it is plugged in
nvrm:<n>         an NVIDIA GPU through the stock kernel driver, /dev/nvidia<n>
kgsl:<n>         an Adreno GPU through Qualcomm's kernel driver, /dev/kgsl-3d<n>
msm:<n>          an Adreno GPU through the upstream kernel driver, /dev/dri/renderD<128 + n>
usb:<which>      a card behind a USB bridge: the bridge's serial number, port (2-1.4) or index
vfio-user:<path> the device of a server on a UNIX socket (`ugpu serve`)
ugpud:<pattern>  a device that a ugpud lends, such as ugpud:pci:0000:03:00.0 (hcq.remote.lease)
recording:<path> a recording of a device, made by `open(name, record=path)`
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ugpu.hcq.device import debugging
from ugpu.hcq.device.recovery import FAULT_POLICIES
from ugpu.hcq.errors import BadArgument, DeviceLost, DeviceNotFound, NotSupported
from ugpu.hcq.find import listing, planting
from ugpu.hcq.find.catalogue import (
    BRIDGES,
    ENDPOINTS,
    KERNEL_DRIVERS,
    MODELS,
    PLANNED,
    STEPPED,
    VARIANTS,
    driver_of,
    load,
    over_usb,
    pci_drivers,
    planned_chips,
    vendor_of,
    virtual_chips,
)
from ugpu.hcq.find.node_drivers import NODE_DRIVERS
from ugpu.hcq.near import meant
from ugpu.hcq.state import trace
from ugpu.hcq.state.checks import option_types, path_like, seconds
from ugpu.hcq.state.config import config
from ugpu.hcq.transport.node import NodeAttachment

if TYPE_CHECKING:
    from ugpu.hcq.device.device import Device
    from ugpu.hcq.transport.base import PciIdentity, Transport
    from ugpu.hcq.transport.endpoint import Endpoint

log = logging.getLogger(__name__)
_NO_VENDOR = 0xFFFF  # what a bus reads where nothing answers
_recorded = itertools.count(1)
# Options of `pci:` names that belong to the transport (hcq.transport.attach), not the driver.
PCI_OPTIONS = frozenset(("via", "bind", "no_iommu", "narrow_link"))
RECORD_OPTIONS = ("record", "record_states")
# Names of devices that offer no telemetry to other processes: there is nothing to measure.
UNOBSERVED = ("cpu", "recording:", "null:")
MISSING = ("kfd", "tcp")


@dataclass(frozen=True)
class Attachment:
    """A connection to a chip, passed to a driver, which then owns it.

    Attributes:
        transport: to the chip.
        firmware: images by file name, used instead of those on this machine.
        chip: the model behind a virtual transport, for inspecting it or plugging it in again; None
            for hardware.
        on_image: called with name and bytes of each image that the driver reads.
    """

    transport: Transport
    firmware: Mapping[str, bytes] | None = None
    chip: object = None
    on_image: Callable[[str, bytes], object] | None = None


def attach_virtual(chip: str, /, **options: object) -> Attachment | NodeAttachment:
    """Attach to a model of a chip; options are the model's. DeviceNotFound for an unknown name.

    chip: its name, and behind a plus sign the variant of the model, if it is not the usual one.
    """
    chip, _, variant = chip.partition("+")
    attach = functools.partial(_attach_of(chip, variant), chip)
    attachment: Attachment | NodeAttachment = attach(**options)
    if not isinstance(attachment, Attachment | NodeAttachment):
        raise TypeError(f"the model of {chip} returned {attachment!r}")
    return attachment


def _attach_of(
    chip: str, variant: str = ""
) -> Callable[..., Any]:  # a model's entry point; its caller checks
    vendor = vendor_of(chip)
    if vendor is None:
        have = [f"virtual:{other}" for other in sorted(virtual_chips())]
        hint = meant(f"virtual:{chip}", have)
        raise DeviceNotFound(f"no virtual chip {chip!r}; {hint}there are: {', '.join(have)}")
    if variant:
        if variant not in VARIANTS.get(vendor, ()):
            raise DeviceNotFound(f"the model of {chip} has no variant {variant!r}")
        return load(VARIANTS[vendor][variant])
    return load(f"{MODELS[vendor]}.gpu:attach")


def open(name: str = "auto", **options: object) -> Device:
    """Open a device by name; the caller closes it.

    Options are the driver's, and for virtual chips also the model's (`chip=` plugs in a chip again
    that stayed powered). For `pci:` names, `bind=True` takes the device from its kernel driver and
    gives it back at close, `via="sysfs"` works without VFIO, `no_iommu=True` accepts a device whose
    DMA no IOMMU confines, and `narrow_link=True` accepts a PCIe link with fewer lanes than both its
    ends have (see hcq.transport.attach).

    Every driver takes `on_stage`: called with the name of each step of bring-up and the seconds it
    took. `on_fault="recover"` resets the device automatically when it fails: the error is raised
    once in the threads that lost work (hcq.device.recovery), and the device continues. `wait_s`:
    seconds to wait for a device that is not present, or not free, yet (hcq.transport.pci.hotplug).
    `record=PATH`, for devices behind a PCI transport, writes all accesses of the driver to a file
    when the device is closed, including the firmware images that it read. `record_states=True` adds
    the states of its units, queues and waves after each stage of bring-up (NotSupported if the
    driver does not expose registers). DeviceNotFound for an unknown name, BadArgument for an
    unknown option.
    """
    if not isinstance(name, str):
        raise BadArgument(f"name must be a str, got {name!r}")
    wait_s = seconds("wait_s", options.pop("wait_s", 0.0))
    if wait_s:
        if name == "auto":
            raise BadArgument("wait_s requires the name of a device, got 'auto'")
        keep_trying = load("ugpu.hcq.transport.pci.hotplug:keep_trying")
        return _device(keep_trying(lambda: open(name, **options), wait_s))
    if name == "auto":
        return open(_chosen(), **options)
    _start_tracing()
    on_fault = options.pop("on_fault", "raise")
    if on_fault not in FAULT_POLICIES:
        raise BadArgument(f"on_fault must be 'raise' or 'recover', got {on_fault!r}")
    debugging.check(name, steppable=_steppable)
    with trace.step("open", device=name):
        device = _open_named(name, options)
    try:
        debugging.opened(device)
        device.on_fault = str(on_fault)
        device.limit_s = config().wait_limit_s
        folder = config().observe_folder
        if folder is not None and not name.startswith(UNOBSERVED):
            core = device.driver.core
            core.observer = load("ugpu.hcq.device.observe:offer")(core, folder)
    except BaseException:
        device.close()
        raise
    return device


def _chosen() -> str:
    """Return the name that "auto" stands for: UGPU_DEVICE, a real device that is ready, or cpu."""
    named = config().device
    name = named if named not in ("", "auto") else next(iter(listing.ready()), "")
    if name:
        return name
    present = [device.name for device in listing.pci_devices(listing.SYSFS_PCI)]
    if present:
        log.warning(
            "opening cpu: %s is present but not ready to be opened; `ugpu doctor` shows why",
            " and ".join(present),
        )
    return "cpu"


def _steppable(name: str) -> bool:
    """Return whether a debugger can halt kernels; True for unknown chips, which raise another
    error."""
    kind, _, rest = planting.split(name)[0].partition(":")
    return kind == "virtual" and vendor_of(rest.partition("+")[0]) in (None, *STEPPED)


def _open_named(name: str, options: dict[str, object]) -> Device:
    kind, _, rest = name.partition(":")
    if name == "cpu":
        make = load("ugpu.hcq.cpu.device:open_device")
        _check_options(name, make, options, given=1)
        return _device(make(name, **options))
    if kind == "virtual":
        return _open_virtual(name, options)
    if kind == "null":
        return _open_null(name, rest, options)
    if kind == "pci":
        return _open_pci(name, rest, options)
    if kind == "thunderbolt":
        address = load("ugpu.usbgpu.thunderbolt.enclosures:address_of")(rest, pci_drivers().keys())
        return _open_pci(name, address, options)
    if kind == "vfio-user":
        connect = load("ugpu.hcq.transport.vfio_user.client:VfioUserTransport")
        return _open_attached(name, Attachment(connect(rest)), options)
    if kind == "usb":
        attach_usb = load("ugpu.usbgpu.attach:attach")
        return _open_attached(name, Attachment(attach_usb(rest, _behind_bridge)), options)
    if kind == "ugpud":
        lease = load("ugpu.hcq.remote.lease:open_device")
        _check_options(name, lease, options, given=2)
        return _device(lease(name, rest, **options))
    if kind == "recording":
        return _open_recording(name, Path(rest), options)
    if kind in NODE_DRIVERS:
        if not rest.isdecimal():
            raise DeviceNotFound(f"expected a number after {kind}: as in {kind}:0, got {name!r}")
        attach = load(NODE_DRIVERS[kind].attach)
        return _open_node(name, attach(int(rest)), options)
    if kind in MISSING:
        raise NotSupported(f"{name}: devices of kind {kind!r} are not implemented")
    have = [entry.name for entry in listing.list_devices()]
    chips = [f"virtual:{chip}" for chip in virtual_chips()]
    hint = meant(name, have) or meant(f"virtual:{name}", chips)
    if name in planned_chips() and f"virtual:{name}" not in chips:
        hint = f"did you mean null:{name}, which plans work without a device? "
    raise DeviceNotFound(f"no device {name!r}; {hint}there are: {', '.join(have)}")


def _record_path() -> Path | None:
    """Return where UGPU_RECORD puts the next device's recording: one file each, FILE, FILE.2,
    FILE.3."""
    path = config().record_file
    if path is None:
        return None
    count = next(_recorded)
    return path if count == 1 else path.with_name(f"{path.name}.{count}")


@functools.cache
def _start_tracing() -> None:
    """Write the events of the event bus to the file of UGPU_TRACE, once per process."""
    path = config().trace_file
    if path is not None:
        trace.subscribe(trace.JsonLines(path))


def _open_null(name: str, rest: str, options: dict[str, object]) -> Device:
    chips = planned_chips()
    vendor, chip = chips.get(rest) or chips.get(rest.removesuffix("a")) or ("", "")
    if not vendor:
        have = [f"null:{chip}" for chip in sorted(chips)]
        hint = meant(name, have)
        raise DeviceNotFound(f"no chip {rest!r}; {hint}there are: {', '.join(have)}")
    make = load("ugpu.hcq.null.device:open_device")
    _check_options(name, make, options, given=2)
    return _device(make(name, load(PLANNED[vendor])(chip), **options))


def _open_virtual(name: str, options: dict[str, object]) -> Device:
    bare, query = planting.split(name)
    chip, plus, bus = bare.partition(":")[2].partition("+")
    vendor = vendor_of(chip) or ""
    if planting.MARK in name:
        planting.check(bare, query)
    attachment: Attachment | NodeAttachment
    if bus in VARIANTS.get(vendor, ()):
        attachment = _attach_model(chip, options, bus)
    elif bus in KERNEL_DRIVERS.get(vendor, ()):
        options["kernel_driver"] = bus
        attachment = _attach_model(chip, options)
    elif plus:
        attachment = _attach_over(name, chip, bus, options)
    else:
        attachment = _attach_model(chip, options)
    try:
        if query:
            planting.plant_in(vendor, attachment.chip, query)
    except BaseException:
        if isinstance(attachment, NodeAttachment):
            attachment.node.close()
        else:
            attachment.transport.close()
        raise
    if isinstance(attachment, NodeAttachment):
        device = _open_node(name, attachment, options)
    else:
        device = _open_attached(name, attachment, options)
    planting.opened(device, vendor, attachment.chip)
    return device


def _attach_model(
    chip: str, options: dict[str, object], variant: str = ""
) -> Attachment | NodeAttachment:
    """Attach to a model of a chip, with those of the options that are the model's."""
    attach = _attach_of(chip, variant)
    for_model = set(list(inspect.signature(attach).parameters)[1:]) & set(options)
    option_types(attach, options)
    name = f"{chip}+{variant}" if variant else chip
    return attach_virtual(name, **{key: options.pop(key) for key in for_model})


def _attach_over(name: str, chip: str, bus: str, options: dict[str, object]) -> Attachment:
    """Put a model of a chip into a virtual enclosure, or open an existing one again."""
    vendor = vendor_of(chip)
    if bus not in BRIDGES or vendor not in ENDPOINTS:
        have = [f"virtual:{other}+{way}" for other in over_usb() for way in BRIDGES]
        others = (*KERNEL_DRIVERS.get(vendor or "", ()), *VARIANTS.get(vendor or "", ()))
        ways = [f"virtual:{chip}+{way}" for way in others]
        hint = meant(name, [*have, *ways])
        raise DeviceNotFound(f"no virtual device {name!r}; {hint}there are: {', '.join(have)}")
    make, plug_in = load(f"{MODELS[vendor]}.gpu:endpoint"), load("ugpu.virtual.usb.attach:plug_in")
    enclosure = options.pop("enclosure", None)
    for_model = set(list(inspect.signature(make).parameters)[1:]) & set(options)
    option_types(make, options)
    model = {key: options.pop(key) for key in for_model}
    old: Endpoint | None = getattr(enclosure, "card", None)  # of an Enclosure, not of its options
    if old is not None and model:
        raise BadArgument(f"a card in an enclosure does not accept other options: {sorted(model)}")
    card: Endpoint = make(chip, **model) if old is None else old
    try:
        usb, clock = plug_in(card if old is None else None, enclosure, BRIDGES[bus])
    except BaseException:
        if old is None:
            card.close()
        raise
    try:
        bridge = load("ugpu.usbgpu.bridge.firmwares:open_bridge")(usb, sleep=clock.sleep)
        transport = load("ugpu.usbgpu.bridge.transport:UsbTransport")(
            bridge, name, accept=_behind_bridge, clock=clock
        )
    except BaseException:
        usb.close()
        raise
    return Attachment(transport, card.firmware, card.model)


def _open_node(name: str, attachment: NodeAttachment, options: Mapping[str, object]) -> Device:
    """Pass a node to the driver above it; close the node if that fails."""
    try:
        make = load(NODE_DRIVERS[attachment.driver].entry)
        _check_options(name, make, options, given=2)
        return _device(make(name, attachment, **options))
    except BaseException:
        attachment.node.close()
        raise


def _open_recording(name: str, path: Path, options: Mapping[str, object]) -> Device:
    """Run the driver of a recorded device on its recording."""
    try:
        recording = load("ugpu.hcq.transport.recorded.format:Recording.load")(
            path.read_text("ascii")
        )
    except OSError as error:
        raise DeviceNotFound(f"cannot open {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadArgument(f"{path} is not a recording") from error
    identity = recording.identity
    driver = driver_of(identity)
    replay = load("ugpu.hcq.transport.recorded.replay:ReplayTransport")
    transport = replay(recording, name, by_clock=driver.by_clock if driver else ())
    return _open_attached(name, Attachment(transport, recording.firmware or None), options)


def _open_attached(name: str, attachment: Attachment, options: Mapping[str, object]) -> Device:
    """Pass an attachment to the driver for its PCI id; close it if that fails."""
    options = dict(options)
    opening: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    try:
        record = options.pop("record", None)
        path = _record_path() if record is None else Path(path_like("record", record))
        states = options.pop("record_states", None)
        if states and path is None:
            raise BadArgument("record_states requires record or UGPU_RECORD")
        if path is not None:
            make_recorder = load("ugpu.hcq.transport.recorded.recorder:RecordingTransport")
            recorder = make_recorder(attachment.transport, path, time.monotonic)
            attachment = replace(attachment, transport=recorder, on_image=recorder.image)
            if config().record_states if states is None else states:
                recorder.observer = load("ugpu.hcq.find.offline:observer")(recorder)
            opening = recorder.opening()
        identity = attachment.transport.identity
        driver = driver_of(identity)
        if driver is None and identity.vendor == _NO_VENDOR:
            raise DeviceLost(
                f"{name} does not answer on the bus: its PCI id reads {identity}",
                remedy="check cable, slot and supply, then rescan the bus",
            )
        if driver is None:
            raise DeviceNotFound(f"{name}: no driver supports PCI id {identity}")
        make = load(driver.entry)
        _check_options(name, make, options, given=2)
        with opening:
            try:
                return _device(make(name, attachment, **options))
            except BaseException:
                attachment.transport.close()  # here, so that a recording contains the reason
                raise
    except BaseException:
        attachment.transport.close()
        raise


def _behind_bridge(identity: PciIdentity) -> None:
    """Reject a card that no driver supports behind a bridge."""
    driver = driver_of(identity)
    if driver is None:
        raise DeviceNotFound(f"the card behind the bridge is {identity}, which is not supported")
    if driver.needs_host_memory:
        raise NotSupported(
            f"the card behind the bridge is {identity} ({driver.description}): its driver "
            "requires host memory that the card can access, which a USB bridge does not "
            "provide"
        )


def _open_pci(name: str, address: str, options: dict[str, object]) -> Device:
    """Open a supported function; others are rejected before anything is unbound or opened."""
    full, identity = load("ugpu.hcq.transport.attach:identify")(address)
    driver = driver_of(identity)
    if driver is None:
        have = ", ".join(entry.name for entry in listing.pci_devices(listing.SYSFS_PCI)) or "none"
        raise DeviceNotFound(
            f"{name} is {identity}, which is not supported; supported devices on this "
            f"machine: {have}",
            present=True,
        )
    make = load(driver.entry)
    for_transport = {key: options.pop(key) for key in PCI_OPTIONS & set(options)}
    driver_options = {key: value for key, value in options.items() if key not in RECORD_OPTIONS}
    _check_options(name, make, driver_options, given=2, also=PCI_OPTIONS)
    attach_pci = load("ugpu.hcq.transport.attach:attach_pci")
    transport = attach_pci(
        full, reach_bits=driver.reach_bits, least_bars=dict(driver.least_bars), **for_transport
    )
    own = name if name.startswith("thunderbolt:") else f"pci:{full}"
    return _open_attached(own, Attachment(transport), options)


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
    names = sorted({parameter.name for parameter in parameters} | also)
    unknown = sorted(set(options) - set(names))
    if unknown:
        raise BadArgument(f"{name} has no option {', '.join(unknown)}; it has: {', '.join(names)}")


def _device(opened: Any) -> Device:  # Any: it comes from a lazily imported function
    device: Device = opened
    return device
