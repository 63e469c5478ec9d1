"""VRAM that the firmware keeps for itself: the PSP reports it, and the driver's heap keeps off it.

Source: Linux 6.18 amdgpu_psp.c (psp_update_fw_reservation) and psp_gfx_if.h. From a version of the
secure OS on there are two reservations, as offset in VRAM and size; the first one ends at the end
of VRAM. Linux ignores both, with a warning, where it does not.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence

from ugpu.am.boot.units import Units
from ugpu.am.units.psp.commands import RESERVATION, Command, query_reservations
from ugpu.am.units.psp.images import FirmwareSet
from ugpu.hcq.bare.vram import PAGE
from ugpu.hcq.errors import BadArgument, OutOfMemory

log = logging.getLogger(__name__)

# In Carveout.reservations: both parts, for a process that attaches; behind a mark.
_NOTE = struct.Struct("<Q4Q")
_MARK = 0x7367_6573_6572_7567


def queries(units: Units, firmware: FirmwareSet) -> Sequence[Command]:
    """Return the commands whose answers `take` needs; none where the secure OS lacks them."""
    facts = units.chip.facts
    version = firmware.boot_versions.get(facts.generation.secure_os_type, 0)
    supported = facts.reservations_since and version >= facts.reservations_since
    return query_reservations() if supported else ()


def take(units: Units, answers: Sequence[bytes]) -> None:
    """Keep the heap off what the answers to `queries` report, and leave a note of it for a process
    that attaches later. OutOfMemory if memory in use lies there."""
    if not units.chip.facts.reservations_since:
        return
    parts = []
    for answer in answers:
        high, low, size = RESERVATION.unpack(answer)
        parts.append((high << 32 | low, size))
    _keep_off(units, parts)
    numbers = [number for part in parts for number in part]
    units.programs.put(units.carveout.reservations, _NOTE.pack(_MARK, *numbers or (0,) * 4))


def noted(units: Units) -> bool:
    """Return whether an earlier process left its note, where there is one to leave."""
    if not units.chip.facts.reservations_since:
        return True
    return units.chip.vram.read(units.carveout.reservations, 8) == _MARK.to_bytes(8, "little")


def take_again(units: Units) -> None:
    """Keep the heap off what an earlier process found."""
    if units.chip.facts.reservations_since:
        note = units.chip.vram.read(units.carveout.reservations, _NOTE.size)
        _, first, first_size, second, second_size = _NOTE.unpack(note)
        _keep_off(units, [(first, first_size), (second, second_size)])


def _keep_off(units: Units, parts: Sequence[tuple[int, int]]) -> None:
    end = units.carveout.size
    if not any(size for _, size in parts):
        return
    if sum(parts[0]) != end or any(sum(part) > end for part in parts[1:]):
        log.warning(
            "ignoring the firmware's reservation: expected it at the end of VRAM (%#x), found %s",
            end,
            ", ".join(f"{size:#x} bytes at {start:#x}" for start, size in parts),
        )
        return
    for start, size in parts:
        if size:
            _reserve(units, start, start + size)


def _reserve(units: Units, start: int, end: int) -> None:
    """Take VRAM [start, end) out of the heap, once."""
    place, heap = units.carveout, units.memory.heap
    if start < place.heap:
        raise OutOfMemory(
            "the firmware reserves VRAM at the driver's fixed places", start=start, end=end
        )
    start, end = start // PAGE * PAGE, min(-(-end // PAGE) * PAGE, heap.base + heap.size)
    if start >= end or (start, end) in units.reserved:
        return
    try:
        heap.reserve(start, end - start)
    except BadArgument as error:
        raise OutOfMemory(
            "the firmware reserves VRAM that is in use", start=start, end=end
        ) from error
    units.reserved.add((start, end))
