"""Every transport on a stand of its own, for the contract suite: how to open one, how to make its
device fall off the bus, and how to have the device write memory and then interrupt.
"""

from __future__ import annotations

import contextlib
import ctypes
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from tests.support.amd.am_navi31 import build_chip
from tests.support.pci.fake_vfio import MSI, MSIX, VfioMachine
from tests.support.pci.pcifunction import PlainFunction
from tests.support.pci.sysfs_tree import GPU, SysfsTree
from tests.support.pci.vfio_user_device import ADDRESS, COMMAND, SIZE, VECTOR, MemoryDevice
from tests.support.pci.vfio_user_served import served
from ugpu.hcq.errors import OutOfMemory
from ugpu.hcq.transport.base import DmaMemory, Traits, Transport
from ugpu.hcq.transport.pci.sysfs import SysfsTransport
from ugpu.hcq.transport.recorded.accesses import TracingTransport
from ugpu.hcq.transport.recorded.format import Recording
from ugpu.hcq.transport.recorded.recorder import RecordingTransport, record
from ugpu.hcq.transport.recorded.replay import ReplayTransport
from ugpu.hcq.transport.vfio.transport import VfioTransport
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport
from ugpu.usbgpu.bridge.firmwares import open_bridge
from ugpu.usbgpu.bridge.transport import UsbTransport
from ugpu.usbgpu.link.usb import Speed
from ugpu.virtual.amd.bus.pci import VirtualTransport
from ugpu.virtual.amd.bus.served import ServedChip
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.gpu import endpoint
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.usb.attach import plug_in
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions

Deliver = Callable[[Transport, DmaMemory, bytes, int], None]
Rule = Callable[["Subject"], None]


@dataclass
class Subject:
    """A transport on its stand. lose: its device falls off the bus. deliver(transport, memory,
    data, vector): the device writes `data` to the start of `memory` and then interrupts; None for a
    device that cannot."""

    transport: Transport
    lose: Callable[[], None]
    deliver: Deliver | None = None

    def needs(self, trait: str) -> None:
        """Skip the rule on a transport that says of itself that it cannot keep it."""
        assert trait in Traits.__dataclass_fields__
        if not getattr(self.transport.traits, trait):
            pytest.skip(f"{type(self.transport).__name__} declares no {trait}")


def much(transport: Transport) -> int:
    """Bytes of DMA memory that are many for a transport."""
    return 4 << 20 if transport.traits.host_memory else transport.traits.dma_bytes


def allocated(transport: Transport, size: int) -> list[DmaMemory]:
    """DMA memory of a size; none of a transport that says of itself that it has none."""
    if transport.traits.host_memory or transport.traits.dma_bytes:
        return [transport.allocate_dma(size)]
    with pytest.raises(OutOfMemory):
        transport.allocate_dma(size)
    return []


class Stand:
    """One transport. `hold` runs a rule of the contract on it."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[Subject]]) -> None:
        self.open = make
        self.name = make.__name__

    def hold(self, rule: Rule) -> None:
        with self.open() as subject:
            rule(subject)


class ReplayStand(Stand):
    """A rule is first kept by a device that is recorded, and then by the recording alone."""

    def hold(self, rule: Rule) -> None:
        with self.open() as subject:
            recorder, recording = record(subject.transport)
            with recorder:
                rule(Subject(recorder, subject.lose, subject.deliver))
        with ReplayTransport(Recording.load(recording.save())) as replay:
            rule(Subject(replay, lambda: None, subject.deliver))
            replay.finish()


def rule(body: Rule) -> Callable[[Stand], None]:
    """A test that holds every transport to `body`."""

    @pytest.mark.parametrize("stand", STANDS, ids=lambda stand: stand.name)
    def test(stand: Stand) -> None:
        stand.hold(body)

    test.__doc__ = body.__doc__
    return test


# ---- in process --------------------------------------------------------------------------------


@contextmanager
def plain() -> Iterator[Subject]:
    function = PlainFunction()
    with function:
        yield Subject(function, lambda: setattr(function, "lost", True))


@contextmanager
def virtual() -> Iterator[Subject]:
    chip = build_chip(ChipOptions(vram=256 << 20))

    def deliver(transport: Transport, memory: DmaMemory, data: bytes, vector: int) -> None:
        chip.dma_write(memory.segments[0].address, data)
        chip.signal_msi()

    with VirtualTransport(chip, owns_chip=True) as transport:
        _enable(transport)
        yield Subject(transport, chip.unplug, deliver)


def _enable(transport: Transport) -> None:
    """Memory space and bus master, as a driver sets them."""
    transport.config_write(4, transport.config_read(4, 2) | 6, 2)


# ---- behind a USB bridge -----------------------------------------------------------------------


@contextmanager
def _over_usb(
    lost: Callable[[Chip, Enclosure], None],
    *,
    speed: Speed = Speed.SUPER_PLUS,
    firmware: Literal["custom", "uas"] = "custom",
) -> Iterator[Subject]:
    """The virtual Navi31 in a virtual enclosure."""
    card = endpoint("navi31", options=ChipOptions(vram=256 << 20))
    box = Enclosure(card, EnclosureOptions(firmware, speed=speed))
    usb, clock = plug_in(None, box, firmware)
    bridge = open_bridge(usb, sleep=clock.sleep)
    try:
        with UsbTransport(bridge, "virtual:navi31+usb", clock=clock) as transport:
            _enable(transport)
            yield Subject(transport, lambda: lost(card.chip, box))
    finally:
        box.close()
        card.chip.close()


@contextmanager
def usb() -> Iterator[Subject]:
    """Here the cable is pulled."""
    with _over_usb(lambda _, box: box.unplug()) as subject:
        yield subject


@contextmanager
def usb_high_speed() -> Iterator[Subject]:
    with _over_usb(lambda _, box: box.unplug(), speed=Speed.HIGH) as subject:
        yield subject


@contextmanager
def usb_card() -> Iterator[Subject]:
    """Here the card falls off its link."""
    with _over_usb(lambda chip, _: chip.unplug()) as subject:
        yield subject


@contextmanager
def usb_stock() -> Iterator[Subject]:
    """The cable is pulled, of a bridge with the vendor's firmware."""
    with _over_usb(lambda _, box: box.unplug(), firmware="uas") as subject:
        yield subject


@contextmanager
def usb_stock_card() -> Iterator[Subject]:
    with _over_usb(lambda chip, _: chip.unplug(), firmware="uas") as subject:
        yield subject


# ---- wrapped -----------------------------------------------------------------------------------


def traced(inner: Callable[[], contextlib.AbstractContextManager[Subject]]) -> Stand:
    @contextmanager
    def make() -> Iterator[Subject]:
        with (
            inner() as subject,
            TracingTransport(subject.transport, lambda access: None) as transport,
        ):
            yield Subject(transport, subject.lose, subject.deliver)

    make.__name__ = f"traced_{inner.__name__}"
    return Stand(make)


def recorded(inner: Callable[[], contextlib.AbstractContextManager[Subject]]) -> Stand:
    @contextmanager
    def make() -> Iterator[Subject]:
        with inner() as subject, RecordingTransport(subject.transport) as transport:
            yield Subject(transport, subject.lose, subject.deliver)

    make.__name__ = f"recorded_{inner.__name__}"
    return Stand(make)


def replayed(inner: Callable[[], contextlib.AbstractContextManager[Subject]]) -> Stand:
    stand = ReplayStand(inner)
    stand.name = f"replayed_{inner.__name__}"
    return stand


# ---- VFIO --------------------------------------------------------------------------------------


@contextmanager
def _machine() -> Iterator[VfioMachine]:
    """A made-up kernel with one card in vfio-pci's hands."""
    with tempfile.TemporaryDirectory() as folder:
        made = VfioMachine(Path(folder))
        made.load("vfio-pci")
        made.add(GPU, driver="vfio-pci", bars={0: 1 << 20, 2: 1 << 16, 5: 1 << 16})
        try:
            yield made
        finally:
            made.free()


@contextmanager
def _on_machine(made: VfioMachine, *, iommufd: bool | None = None) -> Iterator[Subject]:
    def lose() -> None:
        function = made.functions[GPU]
        function.config[:] = b"\xff" * len(function.config)
        for index, size in function.bars.items():
            made.bar_memory(function, index, size)[:] = b"\xff" * size

    def deliver(transport: Transport, memory: DmaMemory, data: bytes, vector: int) -> None:
        bus = memory.segments[0].address
        maps = [container.maps for container in made.containers()]
        maps += [space for one in made.iommufds() for space in one.spaces.values()]
        (host,) = (mapped[bus][0] for mapped in maps if bus in mapped)
        ctypes.memmove(host, data, len(data))
        index = MSIX if MSIX in made.vectors else MSI
        with open(made.vectors[index][vector], "wb", buffering=0, closefd=False) as event:
            event.write((1).to_bytes(8, "little"))

    with VfioTransport(GPU, system=made, iommufd=iommufd) as transport:
        yield Subject(transport, lose, deliver)


@contextmanager
def vfio() -> Iterator[Subject]:
    with _machine() as made, _on_machine(made) as subject:
        yield subject


@contextmanager
def vfio_msix() -> Iterator[Subject]:
    with _machine() as made:
        made.irqs[MSIX] = 4
        with _on_machine(made) as subject:
            yield subject


@contextmanager
def vfio_by_file() -> Iterator[Subject]:
    with _machine() as made:
        made.mappable = False
        with _on_machine(made) as subject:
            yield subject


@contextmanager
def iommufd() -> Iterator[Subject]:
    with _machine() as made:
        made.offer_iommufd(GPU)
        with _on_machine(made, iommufd=True) as subject:
            yield subject


# ---- sysfs -------------------------------------------------------------------------------------


@contextmanager
def sysfs() -> Iterator[Subject]:
    with tempfile.TemporaryDirectory() as folder:
        tree = SysfsTree(Path(folder))
        with SysfsTransport(GPU, system=tree) as transport:
            yield Subject(transport, tree.lose)


# ---- vfio-user ---------------------------------------------------------------------------------


def by_dma_engine(transport: Transport, memory: DmaMemory, data: bytes, vector: int) -> None:
    """What tests.support.pci.vfio_user_device has its registers for."""
    registers = transport.window(5)
    transport.window(0).write(0, data)
    registers.write64(ADDRESS, memory.segments[0].address)
    registers.write32(SIZE, len(data))
    registers.write32(VECTOR, vector)
    registers.write32(COMMAND, 2)


@contextmanager
def _served_device(device: MemoryDevice) -> Iterator[Subject]:
    with served(device) as server, VfioUserTransport(str(server.path)) as transport:
        yield Subject(transport, lambda: setattr(device.function, "lost", True), by_dma_engine)


@contextmanager
def vfio_user() -> Iterator[Subject]:
    with _served_device(MemoryDevice()) as subject:
        yield subject


@contextmanager
def vfio_user_gone() -> Iterator[Subject]:
    """Here it is the server that goes."""
    with served(MemoryDevice()) as server, VfioUserTransport(str(server.path)) as transport:
        yield Subject(transport, server.stop, by_dma_engine)


@contextmanager
def vfio_user_vectors() -> Iterator[Subject]:
    """More vectors than a message of the protocol carries descriptors."""
    with _served_device(MemoryDevice(vectors=20)) as subject:
        yield subject


@contextmanager
def vfio_user_navi31(map_vram: bool = False) -> Iterator[Subject]:
    """The virtual Navi31 behind a server; each access is a message, VRAM where it is not mapped."""
    chip: Chip = build_chip(ChipOptions(vram=256 << 20, shared_vram=map_vram))
    model = ServedChip(chip, map_vram=map_vram)

    def deliver(transport: Transport, memory: DmaMemory, data: bytes, vector: int) -> None:
        chip.dma_write(memory.segments[0].address, data)
        chip.signal_msi()

    with served(model) as server, VfioUserTransport(str(server.path)) as transport:
        _enable(transport)
        transport.present()  # an answer: the server has done what was posted
        yield Subject(transport, chip.unplug, deliver)
    chip.close()


@contextmanager
def vfio_user_mapped() -> Iterator[Subject]:
    with vfio_user_navi31(map_vram=True) as subject:
        yield subject


STANDS = [
    *map(Stand, (plain, virtual, vfio, vfio_msix, vfio_by_file, iommufd, sysfs)),
    *map(Stand, (usb, usb_high_speed, usb_card, usb_stock, usb_stock_card)),
    *map(Stand, (vfio_user, vfio_user_gone, vfio_user_vectors, vfio_user_navi31, vfio_user_mapped)),
    traced(plain), traced(virtual), traced(vfio_user), recorded(sysfs), recorded(vfio_user),
    replayed(plain), replayed(sysfs), replayed(vfio_user),
]  # fmt: skip
