"""The interrupt tree of Turing and later: leaves of 32 vectors below one top register, and MSI.

Work ends with a non-stall interrupt of its engine, and the GSP announces messages. A message of MSI
is sent when an enabled vector becomes pending; Turing to Ada send the next one only once it is
re-armed. Sources: Linux 7.3 nouveau subdev/vfn/{tu102,ga100}.c, subdev/pci/gp100.c (re-arming),
subdev/gsp/rm/r535/gsp.c (r535_gsp_intr); open-gpu-kernel-modules 570.144 dev_vm.h.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ugpu.hcq.transport.base import Interrupts
from ugpu.nv.gsp.chip.chip import GspChip

LEAVES, _VECTORS = 8, 32  # leaves, and vectors of each
_REARM = 0x704  # in the mirror of configuration space
_ALL = 0xFFFF_FFFF


class InterruptTree:
    """The vectors that the driver uses. Several threads may wait. messages: of the transport."""

    def __init__(self, chip: GspChip, messages: Interrupts) -> None:
        self.chip = chip
        self.messages = messages
        self._masks: dict[int, int] = {}
        self._gsp = (0, 0)  # leaf and bit of the GSP's vector

    def enable(self, vectors: Iterable[int], gsp: int) -> None:
        """Enable vectors, and the GSP's."""
        masks: defaultdict[int, int] = defaultdict(int)
        for vector in (*vectors, gsp):
            masks[vector // _VECTORS] |= 1 << vector % _VECTORS
        self._masks, self._gsp = dict(masks), (gsp // _VECTORS, 1 << gsp % _VECTORS)
        nv = self.chip.nv
        self.acknowledge()
        for leaf, mask in self._masks.items():
            self._write(int(nv.NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_EN_SET.index) + leaf, mask)
        nv.NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP_EN_SET.write(
            sum({1 << leaf // 2 for leaf in self._masks})
        )
        self._rearm()

    def disable(self) -> None:
        """Disable all vectors; idempotent."""
        nv, masks = self.chip.nv, self._masks
        self._masks = {}
        if masks:
            nv.NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_TOP_EN_CLEAR.write(_ALL)
        for leaf, mask in masks.items():
            self._write(int(nv.NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF_EN_CLEAR.index) + leaf, mask)

    def wait(self, limit_s: float) -> None:
        """Block until an interrupt has arrived, at most `limit_s`."""
        if self.messages.wait(limit_s):
            self.acknowledge()
            self._rearm()

    def acknowledge(self) -> None:
        """Clear what is pending. ORDER: the GSP's own flag first, which would set its vector."""
        leaf_of_gsp, bit = self._gsp
        first = int(self.chip.nv.NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_LEAF.index)
        for leaf, mask in self._masks.items():
            pending = self.chip.bus.read32(first + leaf) & mask
            if leaf == leaf_of_gsp and pending & bit:
                self.chip.gsp.IRQSCLR.write(SWGEN0=1)
            if pending:
                self._write(first + leaf, pending)

    def _rearm(self) -> None:
        if self.chip.boot.rearm:
            self._write((self.chip.boot.mirror + _REARM) // 4, 0)

    def _write(self, index: int, value: int) -> None:
        self.chip.bus.write32(index, value)
