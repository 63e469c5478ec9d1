"""What programs use of their driver, besides its interface to the kernel driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ugpu.qcom.kernel_driver.holder import Holder

if TYPE_CHECKING:
    from ugpu.qcom.chips.facts import ChipFacts
    from ugpu.qcom.packets.encode import Encoder


class ChipHolder(Holder):
    """A holder with its chip."""

    facts: ChipFacts
    encoder: Encoder
