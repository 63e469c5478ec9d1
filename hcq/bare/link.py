"""The PCI Express link of the card: kept out of its low-power states while ugpu drives the card.

Registers read as ones while a link comes out of L1, which looks like a card that was unplugged
(tinygrad 0.14 clears the same bits for that reason; seen behind retimers). Source: PCI Express Base
Specification 5.0, 5.4.1.3 (the component at the lower end requests L1, so its bits are enough) and
7.5.3.7 (Link Control).
"""

from __future__ import annotations

import logging

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.transport.base import Transport
from ugpu.hcq.transport.pci.config import capability
from ugpu.hcq.uapi import constants

log = logging.getLogger(__name__)


class Link:
    """Link Control of one function. The caller owns `transport`."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._found: int | None = None  # ASPM control as we found it

    def _control(self) -> int | None:
        """Return the offset of Link Control in configuration space."""
        regs = constants("pci_regs")
        place = self.transport.traits.capabilities.get(regs.PCI_CAP_ID_EXP)
        if place is None:
            place = capability(self.transport.config_read, regs.PCI_CAP_ID_EXP)
        return None if place is None else place + regs.PCI_EXP_LNKCTL

    def keep_awake(self) -> None:
        """Switch ASPM off at the card's end; repeat after each reset of configuration space."""
        at, mask = self._control(), constants("pci_regs").PCI_EXP_LNKCTL_ASPMC
        if at is None:
            return
        control = self.transport.config_read(at, 2)
        if self._found is None:
            self._found = control & mask
        if not control & mask or control == 0xFFFF:
            return
        self.transport.config_write(at, control & ~mask, 2)
        if self.transport.config_read(at, 2) & mask:
            log.info(
                "%s: the link keeps its low-power states (ASPM); if reads give all ones, write 0 "
                "to the device's link/l1_aspm in sysfs, or boot with pcie_aspm=off",
                self.transport.name,
            )

    def restore(self) -> None:
        """Restore ASPM as it was found. Never raises errors of the link or the card."""
        found, self._found = self._found, None
        if not found:
            return
        try:
            at = self._control()
            if at is not None:
                control = self.transport.config_read(at, 2)
                mask = constants("pci_regs").PCI_EXP_LNKCTL_ASPMC
                self.transport.config_write(at, control & ~mask | found, 2)
        except UgpuError as error:
            log.debug("%s: link control could not be restored: %s", self.transport.name, error)
