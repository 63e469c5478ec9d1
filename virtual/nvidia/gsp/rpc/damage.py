"""Planted faults of the GSP's messages: what is wrong in the next element, or in its index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ugpu.virtual.nvidia.gsp.faults import CardFault


@dataclass(frozen=True)
class Damage:
    """What one element states wrongly. checksum, signature: bits that are flipped; number, count,
    function: what is added; length: stated instead. continues: as a continuation record."""

    checksum: int = 0
    signature: int = 0
    number: int = 0
    count: int = 0
    function: int = 0
    length: int | None = None
    continues: bool = False


NONE = Damage()
DAMAGES: Mapping[CardFault, Damage] = {
    CardFault.REPLY_CHECKSUM: Damage(checksum=1),
    CardFault.REPLY_NUMBER: Damage(number=-1),
    CardFault.REPLY_AHEAD: Damage(number=5),
    CardFault.REPLY_SIGNATURE: Damage(signature=1 << 31),
    CardFault.REPLY_LENGTH: Damage(length=16),
    CardFault.REPLY_PAGES: Damage(count=1),
    CardFault.REPLY_OTHER: Damage(function=1),
    CardFault.CONTINUATION_ALONE: Damage(continues=True),
}
