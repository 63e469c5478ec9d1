"""The way to an AMD card and its power: the bus, the IOMMU, the slot, the cable of a USB bridge."""

from __future__ import annotations

from typing import Any

from lab.campaign.kind import Kind, Layer, Recovery, nothing
from lab.campaign.kinds.firmware import NAVI, planned
from lab.campaign.stands.amd import BOOT
from ugpu.hcq.errors import ChipError, DeviceHang, DeviceLost, FirmwareSilent, OutOfMemory

_PCIE = "PCI Express 5.0, 2.3.2 and 7.5.1"
_USE = ("idle", "launch", "copy", "wait", "reset")
_NO_DMA = ("the IOMMU refuses", "bus mastering off", "IOMMU")
_COMMAND, _MEMORY, _MASTER = 4, 2, 4
_CABLE = "check cable"


def _unplug(stand: Any) -> None:
    stand.chip.unplug()


def _again(stand: Any) -> None:
    stand.chip.power_cycle()


def _without(bit: int) -> Any:
    def plant(stand: Any) -> None:
        with stand.chip.lock:
            command = stand.chip.config.read(_COMMAND, 2)
            stand.chip.config.write(_COMMAND, command & ~bit, 2)

    return plant


def _with(bit: int) -> Any:
    def cure(stand: Any) -> None:
        with stand.chip.lock:
            command = stand.chip.config.read(_COMMAND, 2)
            stand.chip.config.write(_COMMAND, command | bit, 2)

    return cure


def _one_read(stand: Any) -> None:
    stand.chip.faults.ones_at_access = stand.chip.accesses + 2


def _reset_slot(stand: Any) -> None:
    """As the kernel does it for another program."""
    with stand.chip.lock:
        saved = stand.chip.config.snapshot()
        stand.chip.bus_reset()
        stand.chip.config.restore(saved)


def _clear_slot(stand: Any) -> None:
    """A pulse of the port's reset bit, and no more."""
    with stand.chip.lock:
        stand.chip.bus_reset()


def _go_dark(stand: Any) -> None:
    with stand.chip.lock:
        stand.chip.mode1_reset()
        stand.chip.scheduler.cancel_all()


def _light_up(stand: Any) -> None:
    with stand.chip.lock:
        stand.chip._light()


def link(name: str, stages: tuple[str, ...], plant: Any, error: Any, **fields: Any) -> Kind:
    made: dict[str, Any] = {"layer": Layer.LINK, "devices": NAVI, "source": _PCIE}
    return Kind(name=name, stages=stages, plant=plant, error=error, **(made | fields))


def _pull(stand: Any) -> None:
    stand.box.pull_at(0)


def _plug(stand: Any) -> None:
    if stand.box.plugged:
        stand.box.unplug()
    stand.box.plug()


KINDS = [
    link("card drops off the bus while it boots", BOOT[:-1], _unplug, DeviceLost,
         planted="`chip.unplug()`", remedy=_CABLE, cure=_again, recovery=Recovery.REOPEN),
    link("card drops off the bus", (*_USE, "close"), _unplug, DeviceLost,
         planted="`chip.unplug()`", errors={"close": None}, remedy=_CABLE, cure=_again,
         recovery=Recovery.RESET, lost=True),
    link("memory decoding is switched off", ("idle", "launch", "copy", "wait", "close"),
         _without(_MEMORY), DeviceLost, planted="the command register", errors={"close": None},
         remedy=_CABLE, recovery=Recovery.RESET, lost=True, objections=_NO_DMA),
    link("bus mastering is switched off", ("launch", "copy"), _without(_MASTER), DeviceHang,
         planted="the command register", remedy="device.reset()", cure=_with(_MASTER),
         recovery=Recovery.RESET, objections=_NO_DMA),
    link("completion of one read times out",
         ("PSP bootloader", "IP firmware", "GFX", "idle", "launch", "copy", "reset", "close"),
         _one_read, None, planted="`FaultPlan(ones_at_access=...)`", recovery=Recovery.NONE),
    planned("IOMMU refuses the card's accesses", ("launch", "copy"), {"dma_refused": True},
            DeviceHang, layer=Layer.LINK, source="Linux iommu documentation",
            remedy="device.reset()", recovery=Recovery.RESET, objections=_NO_DMA),
    link("IOMMU has no addresses left", ("idle",),
         lambda s: setattr(s.chip.iommu, "_next", 1 << 40), OutOfMemory,
         planted="the IOMMU's addresses used up", layer=Layer.MEMORY,
         provoke=lambda s: s.allocate_host(), recovery=Recovery.GO_ON, source="Linux iommu/iova.c",
         cure=lambda s: setattr(s.chip.iommu, "_next", 1 << 20)),
    link("device memory is exhausted", ("idle",), nothing, OutOfMemory, planted="1 GiB of 256 MiB",
         layer=Layer.MEMORY, provoke=lambda s: s.device.alloc(1 << 30), recovery=Recovery.GO_ON,
         source="hcq.Device.alloc"),
    link("power fails and comes back while the card boots",
         ("PSP bootloader", "TMR", "RLC autoload", "GFX"), _again, DeviceLost,
         planted="`chip.power_cycle()`", layer=Layer.POWER, recovery=Recovery.REOPEN,
         source="PCI Express CEM 5.0, 2.2"),
    link("power fails and comes back", _USE, _again, DeviceLost, planted="`chip.power_cycle()`",
         layer=Layer.POWER, errors={"reset": None}, recovery=Recovery.RESET, lost=True,
         source="PCI Express CEM 5.0, 2.2"),
    link("another program resets the slot", ("launch", "copy"),
         _reset_slot, ChipError, planted="`chip.bus_reset()`, configuration space restored",
         remedy="device.reset()", objections=("before gc is up", "the aperture is closed"),
         recovery=Recovery.RESET, lost=True),
    link("another program resets the slot of an idle card", ("idle",),
         _reset_slot, FirmwareSilent, planted="`chip.bus_reset()`, configuration space restored",
         provoke=lambda s: s.read_sensors(), remedy="device.reset()",
         objections=("before gc is up", "the aperture is closed"),
         recovery=Recovery.RESET, lost=True),
    link("another program resets the slot and restores nothing", ("idle", "launch", "copy"),
         _clear_slot, DeviceLost, planted="`chip.bus_reset()`", state="link: no addresses",
         remedy="device.reset()", objections=_NO_DMA, recovery=Recovery.RESET, lost=True),
    link("another program resets the chip", ("launch", "copy", "idle"),
         _go_dark, DeviceLost, planted="`chip.mode1_reset()`, dark until it is noticed",
         cure=_light_up, layer=Layer.POWER, recovery=Recovery.RESET, lost=True,
         source="Linux smu_v13_0.c"),
    link("cable of the USB bridge is pulled", ("idle", "launch", "copy", "wait", "reset", "close"),
         _pull, DeviceLost, planted="`enclosure.pull_at(0)`", devices=("navi31+usb",),
         errors={"close": None}, cure=_plug, recovery=Recovery.REOPEN, objections=_NO_DMA,
         source="Universal Serial Bus 3.2, 10.16"),
    link("cable of the USB bridge is pulled while the card boots", BOOT[:-1], _pull, DeviceLost,
         planted="`enclosure.pull_at(0)`", devices=("navi31+usb",), cure=_plug,
         recovery=Recovery.REOPEN, objections=_NO_DMA, source="Universal Serial Bus 3.2, 10.16"),
    link("card behind the USB bridge drops off its link", ("idle", "launch", "copy", "wait"),
         _unplug, DeviceLost, planted="`chip.unplug()`", devices=("navi31+usb",),
         cure=_again, recovery=Recovery.REOPEN, objections=("which nothing decodes", *_NO_DMA)),
]  # fmt: skip
