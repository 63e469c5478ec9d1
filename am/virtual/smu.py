"""The system management unit: not there yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from am.virtual.block import Block

if TYPE_CHECKING:
    from am.virtual.chip import Chip


class Smu(Block):
    """MP1."""

    def __init__(self, chip: Chip) -> None:
        super().__init__(chip, "mp")
