"""A card behind a USB bridge as a transport. See hcq.transport.base.Transport.

The traits list its features and limits: memory that bulk data passes through, and a little that
host and card both see; no DMA memory, no interrupts. Everything else must be placed in the card's
own memory.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from ugpu.hcq.errors import (
    BadArgument,
    DeviceLost,
    DeviceNotFound,
    LinkDown,
    LinkError,
    NotSupported,
    OutOfMemory,
    TransportError,
    UnitTimeout,
)
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.transport.base import DmaMemory, PciIdentity, ResetKind, Traits
from ugpu.hcq.transport.life import TransportLife, close_all
from ugpu.hcq.transport.pci import config as pci_config
from ugpu.hcq.uapi import constants
from ugpu.usbgpu.bridge import tree
from ugpu.usbgpu.bridge.ina231 import Supply, read_power
from ugpu.usbgpu.bridge.interface import LINK_UP, LTSSM, Ability, Bridge
from ugpu.usbgpu.bridge.sram import Sram
from ugpu.usbgpu.bridge.staging import Staging
from ugpu.usbgpu.bridge.window import BridgeWindow, Combiner

log = logging.getLogger(__name__)

SUPPLY_REMEDY = "switch the supply of the enclosure on"
SEAT_REMEDY = "seat the card and its power cables"
# Lowest voltage that a card may get: 12 V less 8 percent. Source: PCI Express CEM 5.0, table 4-1.
LEAST_SUPPLY_V = 11.04
# TIMEOUT: the firmware gives up after 2 s; retraining a link takes less.
_LINK_LIMIT_S = 3.0
_POWER_OFF_S = 1.0  # for the card's supplies to discharge, our choice
# Linux drivers/pci/pci.c: pci_reset_secondary_bus holds for 2 ms; 100 ms pass before the first
# request (PCI Express Base Specification 5.0, 6.6.1).
_RESET_HOLD_S, _RESET_QUIET_S = 2e-3, 0.1
_RESET_LIMIT_S = 1.0


class UsbTransport(TransportLife):
    """One card behind one bridge. Takes ownership of `bridge`. Closing leaves the card powered, so
    that it can be taken over warm; a failed opening leaves its power unchanged."""

    def __init__(
        self,
        bridge: Bridge,
        name: str,
        *,
        accept: Callable[[PciIdentity], object] = lambda identity: None,
        clock: Clock | None = None,
    ) -> None:
        """Power the card up, find it and assign its addresses. clock: default is real time.

        accept: raises for a card that is not wanted. LinkDown without a link, DeviceNotFound
        without a GPU, LinkDegraded for a link of one lane.
        """
        super().__init__(name)
        slots = Ability.SLOTS in bridge.abilities
        self._sram: Sram | Staging = Sram(bridge) if slots else Staging(bridge)
        self._switches = Ability.POWER in bridge.abilities
        self.traits = Traits(
            host_memory=False,
            bulk=self._sram if isinstance(self._sram, Sram) else None,
            staged=self._sram if isinstance(self._sram, Staging) else None,
            resets=frozenset({ResetKind.BUS, *([ResetKind.POWER] if self._switches else [])}),
            register_messages=True,
        )
        self.bridge = bridge
        self.clock = clock or Clock()
        self._supply = Supply(bridge, self.clock)
        self._gone = False
        self._windows: dict[int, BridgeWindow] = {}
        # Known contents of two-byte registers of configuration space, by offset, since the card
        # was found: nothing changes them before the first request to its memory space.
        self._found: dict[int, int] = {}
        self._combiner = Combiner(bridge, self._check_memory)
        self.at_end(bridge.close)
        self.at_end(self._close_windows)
        try:
            bridge.usb.on_departure(self._departed)
            was_up = self.link_up()
            try:
                if not was_up:
                    self._power_up()
                self.card = tree.find_card(bridge, sleep=self.clock.sleep)
                self.traits = replace(self.traits, capabilities=self.card.capabilities)
                accept(self.card.identity)
                self._link = tree.check_link(self.card)
                tree.configure(self.card)
                self._found = tree.settled(self.card)
            except BaseException:
                if not was_up and self._switches:
                    with contextlib.suppress(LinkError):
                        bridge.power(False)
                raise
            self.at_end(self._silence)
            self.identity: PciIdentity = self.card.identity
        except BaseException:
            self.close()
            raise
        self.opened()

    # ---- link --------------------------------------------------------------------------------

    def link_up(self) -> bool:
        """Return whether the card's link is up (L0)."""
        return self.bridge.read_xdata(LTSSM, 1)[0] == LINK_UP

    def _power_up(self) -> None:
        """Bring up the link, which must be down."""
        if self._switches:
            self.bridge.power(True)
        try:
            self.clock.wait_until(
                self.link_up,
                unit="bridge",
                waiting_for="PCI Express link",
                limit_s=_LINK_LIMIT_S,
            )
        except UnitTimeout as error:
            raise self._no_link() from error

    def _no_link(self) -> LinkDown:
        """Return the error for a link that does not come up, with the cause if the enclosure's
        power sensor shows it. The slot is powered meanwhile: the sensor may be behind the slot's
        switch."""
        facts: dict[str, object] = {"ltssm": self.bridge.read_xdata(LTSSM, 1)[0]}
        again = "" if self._switches else ", then plug the enclosure in again"
        try:
            volts = read_power(self.bridge).volts
        # The enclosure has no sensor or no supply, or its pins are not ours.
        except (DeviceNotFound, NotSupported, TransportError):
            text, remedy = (
                "no PCI Express link behind the bridge",
                f"{SUPPLY_REMEDY}, {SEAT_REMEDY}",
            )
        else:
            facts["supply_volts"] = round(volts, 2)
            if volts < LEAST_SUPPLY_V:
                text = f"expected 12 V from the supply, found {volts:.1f} V"
                remedy = SUPPLY_REMEDY
            else:
                text = "no card answers in the slot, though the supply is on"
                remedy = SEAT_REMEDY
        return LinkDown(f"{self.name}: {text}", **facts, remedy=f"{remedy}{again}")

    def _departed(self) -> None:
        self.absence = "it was unplugged"
        self._gone = True

    def _check(self) -> None:
        self.check_open()
        if self._gone:
            raise DeviceLost(f"{self.name} was unplugged")

    def _check_memory(self) -> None:
        self._check()
        if self._found:
            self._found = {}

    def facts(self) -> dict[str, object]:
        """Return facts about bridge and links, as they were when the transport was opened."""
        usb, (lanes, generation) = self.bridge.usb.identity, self._link
        return {
            "bridge_firmware": self.bridge.firmware,
            "bridge_serial": usb.serial,
            "usb_port": usb.port,
            "usb_link_mbit_s": int(usb.speed),
            "pcie_lanes": lanes,
            "pcie_generation": generation,
        }

    def sensors(self) -> Sequence[Sensor]:
        """Return the sensors of the enclosure's supply, if it has any."""
        self._check()
        return self._supply.sensors()

    # ---- configuration space -----------------------------------------------------------------

    def config_read(self, offset: int, width: int = 4) -> int:
        """Read 1, 2 or 4 bytes: two transfers; none for bytes that were read when the card was
        found and cannot have changed."""
        pci_config.check_access(offset, width)
        self._check()
        if width == 2 and offset in self._found:
            return self._found[offset]
        self._combiner.flush()
        return self.card.function.read(offset, width)

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        """Write 1, 2 or 4 bytes: two transfers; one for the command register, whose effect the next
        request shows."""
        pci_config.check_access(offset, width)
        if not 0 <= value < 1 << 8 * width:
            raise BadArgument("the value does not fit the width", value=value, width=width)
        self._check()
        self._combiner.flush()
        for place in range(offset & ~1, offset + width, 2):
            self._found.pop(place, None)
        function = self.card.function
        if (offset, width) == (constants("pci_regs").PCI_COMMAND, 2):
            function.post(offset, value, width)
        else:
            function.write(offset, value, width)

    def present(self) -> bool:
        """Return whether bridge and card answer."""
        if self.closed or self._gone:
            return False
        try:
            return self.config_read(0, 2) != 0xFFFF
        except LinkError:
            return False

    # ---- windows, memory ---------------------------------------------------------------------

    def window(self, index: int) -> BridgeWindow:
        """Open BAR `index`."""
        with self.lock:
            self._check()
            if index not in self.card.bars:
                raise BadArgument(f"{self.name} has no BAR {index}", index=index)
            if index not in self._windows:
                address, size = self.card.bars[index]
                self._windows[index] = BridgeWindow(self._combiner, index, address, size)
            return self._windows[index]

    def batch(self) -> contextlib.AbstractContextManager[None]:
        """Combine register writes to ascending addresses. See Transport.batch."""
        self._check()
        return self._combiner.batch()

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        """Raise OutOfMemory: no whole page of the bridge is visible to host and card."""
        if size <= 0:
            raise BadArgument("the size of DMA memory must be positive", size=size)
        with self.lock:
            self._check()
            raise OutOfMemory("the bridge has no DMA memory", size=size, free=0)

    @property
    def interrupts(self) -> None:
        """Return None: the bridge does not forward interrupts; the driver polls."""
        self.check_open()

    # ---- reset -------------------------------------------------------------------------------

    def reset(self, kind: ResetKind) -> None:
        """Reset the card from the port above it, or by its supply. Configuration space is restored
        afterwards."""
        self._check()
        self._found = {}
        self._combiner.flush()
        if kind is ResetKind.BUS:
            saved = pci_config.SavedConfig(self.card.function.read)
            self._pulse()
            self._await_card()
            saved.restore(self.card.function.write)
        elif kind is ResetKind.POWER and self._switches:
            saved = pci_config.SavedConfig(self.card.function.read)
            self.bridge.power(False)
            self.clock.sleep(_POWER_OFF_S)
            self._power_up()
            tree.configure(tree.find_card(self.bridge, sleep=self.clock.sleep))
            saved.restore(self.card.function.write)
        else:
            raise NotSupported(f"there is no {kind.value} reset of a card behind this bridge")
        if not pci_config.answers(self.card.function.read):
            raise DeviceLost(f"{self.name} does not respond after a {kind.value} reset")

    def _pulse(self) -> None:
        """Hold the bus below the port in reset, and release it whatever happens in between."""
        regs = constants("pci_regs")
        port = self.card.port
        control = port.read(regs.PCI_BRIDGE_CONTROL, 2)
        try:
            port.write(regs.PCI_BRIDGE_CONTROL, control | regs.PCI_BRIDGE_CTL_BUS_RESET, 2)
            self.clock.sleep(_RESET_HOLD_S)
        finally:
            port.write(regs.PCI_BRIDGE_CONTROL, control, 2)
        self.clock.sleep(_RESET_QUIET_S)

    def _await_card(self) -> None:
        with contextlib.suppress(UnitTimeout):  # reset() reports that it does not answer
            self.clock.wait_until(
                lambda: pci_config.answers(self.card.function.read),
                unit=self.name,
                waiting_for="vendor id after a bus reset",
                limit_s=_RESET_LIMIT_S,
            )

    # ---- life --------------------------------------------------------------------------------

    def _silence(self) -> None:
        """ORDER: stop all DMA of the card before the SRAM is reused."""
        regs = constants("pci_regs")
        if self._gone:
            return
        try:
            command = self.card.function.read(regs.PCI_COMMAND, 2)
            if command != 0xFFFF:
                quiet = command & ~regs.PCI_COMMAND_MASTER
                self.card.function.write(regs.PCI_COMMAND, quiet, 2)
        except LinkError as error:
            log.warning("%s: while closing: %s", self.name, error)

    def _close_windows(self) -> None:
        close_all(self._windows.values())
