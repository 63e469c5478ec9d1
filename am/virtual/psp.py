"""The security processor: not yet more than its ready bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from am.virtual.block import Block

if TYPE_CHECKING:
    from am.virtual.chip import Chip


class Psp(Block):
    """MP0."""

    def __init__(self, chip: Chip) -> None:
        super().__init__(chip, "mp")

    def ifwi_done(self) -> None:
        """Show that the boot loader waits."""
        self.set("MP0_SMN_C2PMSG_33", 0x8000_0000)
        self.set("MP0_SMN_C2PMSG_35", 0x8000_0000)
