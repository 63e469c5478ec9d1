"""A virtual enclosure: the bridge chip, its firmware, the card in its slot, and the cable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from ugpu.hcq.errors import BadArgument, DeviceBusy, DeviceLost
from ugpu.hcq.state.clock import Work
from ugpu.hcq.transport.endpoint import Endpoint
from ugpu.usbgpu.link.usb import Speed, UsbIdentity
from ugpu.virtual.usb.custom import CustomFirmware, Setup
from ugpu.virtual.usb.descriptors import get_descriptor
from ugpu.virtual.usb.device import VirtualUsb
from ugpu.virtual.usb.hardware import Hardware, HardwareOptions
from ugpu.virtual.usb.meter import Meter, VirtualClock
from ugpu.virtual.usb.uas import UasFirmware

_PACKET_0, _PACKET_0_HIGH_SPEED = 512, 64


@dataclass(frozen=True)
class Pull:
    """When the cable is pulled: at which transfer, and after how many of its bytes.

    transfer: 0 for the next one. After 0 bytes the transfer has no effect. A control transfer cut
    after more bytes takes effect, but its answer is lost.
    """

    transfer: int
    bytes: int = 0


@dataclass(frozen=True)
class EnclosureOptions:
    """An enclosure as built. firmware: contents of its flash. port: where it is plugged in.

    autosuspend: the host lets the link sleep, and after a reset of the port the SRAM engine no
    longer moves data (commaai/agnos-kernel-sdm845 132). powered: slot power at start; None: decided
    by the firmware. keeps_power: the card stays powered while the cable is unplugged.
    """

    firmware: Literal["custom", "uas"] = "custom"
    speed: Speed = Speed.SUPER_PLUS
    serial: str = "0badcafe"
    port: str = "2-1"
    identity: tuple[int, int, int, str, str] | None = None
    autosuspend: bool = False
    powered: bool | None = None
    keeps_power: bool = False
    hardware: HardwareOptions = field(default_factory=HardwareOptions)


class Enclosure:
    """An enclosure, plugged in from the start.

    `open` returns the host's side; `unplug` and `plug` model the user. card: owned by the caller.
    meter: traffic over the cable. objections: accesses that no driver should make; tests require it
    to stay empty.
    """

    def __init__(self, card: Endpoint | None, options: EnclosureOptions | None = None) -> None:
        self.options = options or EnclosureOptions()
        if self.options.firmware not in ("custom", "uas"):
            raise BadArgument(f"firmware must be custom or uas, got {self.options.firmware!r}")
        self.card = card
        self.lock = threading.RLock()
        self.clock = VirtualClock()
        self.meter = Meter(self.clock, self.options.hardware.costs, busy=self._card_works)
        self.pulls: list[Pull] = []
        self._address = 1
        self._device: VirtualUsb | None = None
        self._plugged = True
        self._degraded = False
        self.speed = self.options.speed
        self.hardware = Hardware(card, self.speed, self.options.hardware, self.clock)
        self.hardware.move = self.meter.move
        self._start()

    def _card_works(self) -> bool:
        return self.card is not None and self.card.clock.work() is Work.ENGINES

    # ---- the box ------------------------------------------------------------------------------

    def _start(self) -> None:
        """Let the firmware boot."""
        kind = CustomFirmware if self.options.firmware == "custom" else UasFirmware
        self.hardware.memory.window = kind.window
        self.firmware: CustomFirmware | UasFirmware = kind(self.hardware)
        powered = self.options.powered
        if (kind.powers_slot if powered is None else powered) and not self.hardware.fabric.powered:
            self.hardware.power(True)
            self.clock.advance(self.options.hardware.train_s)

    @property
    def objections(self) -> list[str]:
        """Return the texts in the order of their first occurrence."""
        return self.hardware.objections

    @property
    def alternates(self) -> tuple[tuple[int, ...], ...]:
        """Return the bulk endpoints of each alternate setting at the current speed."""
        if self.hardware.super_speed:
            return self.firmware.alternates
        return self.firmware.alternates_high_speed

    @property
    def streams(self) -> int:
        """Return the number of streams of the setting that has them."""
        return self.firmware.streams if self.hardware.super_speed else 0

    @property
    def control_packet(self) -> int:
        """Return the bytes of a full packet of endpoint 0."""
        return _PACKET_0 if self.hardware.super_speed else _PACKET_0_HIGH_SPEED

    @property
    def identity(self) -> UsbIdentity:
        """Return the identity that a host reads from the descriptors."""
        vendor, product, release, maker, name = self.options.identity or self.firmware.identity
        return UsbIdentity(
            vendor, product, release, maker, name, self.options.serial, self.speed,
            self.options.port, self._address,
        )  # fmt: skip

    # ---- the cable ----------------------------------------------------------------------------

    def open(self, *, at_close: Callable[[], None] = lambda: None) -> VirtualUsb:
        """Open it as a host does. DeviceLost while it is unplugged, DeviceBusy while it is open.

        at_close: called once after the host has closed it.
        """
        with self.lock:
            if not self._plugged:
                raise DeviceLost(f"no device is plugged into {self.options.port}")
            if self._device is not None:
                raise DeviceBusy(f"the USB device at {self.options.port} is already open")
            self._device = VirtualUsb(self, self.identity, at_close)
            return self._device

    def released(self, device: VirtualUsb) -> None:
        """Note that the host has closed it."""
        if self._device is device:
            self._device = None

    @property
    def plugged(self) -> bool:
        return self._plugged

    def unplug(self) -> None:
        """Pull the cable."""
        with self.lock:
            if not self._plugged:
                return
            self._plugged = False
            self.pulls.clear()
            device, self._device = self._device, None
            if not self.options.keeps_power:
                self.hardware.power(False)
            if device is not None:
                device.leave()

    def plug(self, speed: Speed | None = None) -> None:
        """Plug the cable in, possibly another cable: the bridge chip restarts."""
        with self.lock:
            if self._plugged:
                raise BadArgument("the enclosure is already plugged in")
            self._plugged = True
            self._address += 1
            self._degraded = False
            self.speed = speed or self.options.speed
            self.hardware.speed = self.speed
            if not self.options.keeps_power:
                self.hardware.memory.reset()
            self.hardware.sram.reset()
            self._start()

    def pull_at(self, transfer: int, after: int = 0) -> None:
        """Schedule a pull of the cable at the transfer that comes `transfer` transfers from now."""
        self.pulls.append(Pull(transfer, after))

    def next_cut(self) -> int | None:
        """Count a transfer; return after how many of its bytes the cable is pulled, None if it
        stays."""
        if not self.pulls:
            return None
        first = self.pulls[0]
        if first.transfer == 0:
            self.pulls.pop(0)
            return first.bytes
        self.pulls[0] = replace(first, transfer=first.transfer - 1)
        return None

    def reset_port(self) -> None:
        """Reset the USB port: the firmware keeps running, its endpoints are set up again."""
        self._degraded = self._degraded or self.options.autosuspend

    # ---- called by the host's side, with the lock held ---------------------------------------

    def control(self, setup: Setup, data: bytes) -> bytes | None:
        """Serve a control request; see CustomFirmware.control."""
        descriptor = get_descriptor(self, setup)
        if descriptor is not None:
            return descriptor[: setup.length]
        return self.firmware.control(setup, data)

    def put(self, endpoint: int, stream: int, data: memoryview) -> int:
        """Accept bulk data from the host."""
        if self._degraded and self.hardware.sram.remaining:
            return 0
        return self.firmware.put(endpoint, stream, data)

    def take(self, endpoint: int, stream: int, room: int) -> bytes:
        """Return bulk data for the host."""
        if self._degraded and self.hardware.sram.remaining:
            return b""
        return self.firmware.take(endpoint, stream, room)

    @property
    def awaits_card(self) -> bool:
        """Return whether an action of the card may complete a pending transfer."""
        return self.firmware.awaits_card and not self._degraded

    def close(self) -> None:
        """Detach the memory from the card; idempotent. The caller keeps owning the card."""
        with self.lock:
            if self._device is not None:
                self._device.close()
            self.hardware.close()
