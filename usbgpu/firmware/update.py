"""Write firmware into the bridge's flash, with a way back.

The configuration is in the first 256 bytes, followed by the boot ROM's image
(handmade/e4_flash.py). The other bytes of a block are rewritten unchanged. The image's first page
is programmed last: a part that lost power during a write then holds no image, and the boot ROM
waits for one on USB instead of starting half of it.

UNSURE: whether it does on an enclosure from a shop. Only boards with a strap for recovery (comma's)
have shown that entry in public. A valid image that hangs has no way back but a clip on the flash
part, so `write` requires the caller's word.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ugpu.hcq.errors import DeviceLost, FirmwareError, FirmwareInvalid, NotSupported, UgpuError
from ugpu.usbgpu.firmware.flash import BLOCK, PAGE, Flash
from ugpu.usbgpu.firmware.image import FirmwareImage, wrapped

log = logging.getLogger(__name__)

WORD = "--no-way-back"
WARNING = (
    "there may be no way back: no public source shows that the boot ROM of an enclosure from a "
    "shop takes firmware over USB, so firmware that does not start is repaired with a clip on the "
    "flash part only; with firmware for USB 3 alone an enclosure also loses its USB4 and "
    "Thunderbolt modes"
)
PLACE = 0x100  # of the image
_ATTEMPTS = 3
_FIRST_PAGE = slice(PLACE, PLACE + PAGE)
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """The changes of an update: contents of the first blocks of flash, before and after."""

    before: bytes
    after: bytes

    @property
    def blocks(self) -> list[int]:
        """Return the addresses of blocks that differ, the configuration's block last."""
        starts = range(0, len(self.before), BLOCK)
        return [at for at in reversed(starts) if self._part(at) != self._part(at, new=True)]

    def _part(self, start: int, *, new: bool = False) -> bytes:
        return (self.after if new else self.before)[start : start + BLOCK]


def make_plan(flash: Flash, image: FirmwareImage, configuration: bytes = b"") -> Plan:
    """Compute the changes of an update.

    configuration: the beginning of a backup, to replace the flash's own; required where an earlier
    write was interrupted before the flash held it again. NotSupported where the flash does not have
    the known layout: half of the configuration is blank, or the image's place contains neither an
    image nor blank bytes.
    """
    end = PLACE + len(image.data)
    size = -(-end // BLOCK) * BLOCK
    if size > flash.size:
        raise NotSupported(f"image needs {size} bytes of flash, the part has {flash.size}")
    before = flash.read(0, size)
    first = before[_FIRST_PAGE]
    if first.strip(b"\xff"):
        length = int.from_bytes(first[:4], "little")
        more = max(0, min(PLACE + length + 10, flash.size) - size)
        try:
            wrapped(before[PLACE:] + flash.read(size, more))
        except FirmwareInvalid as error:
            raise NotSupported(f"unknown layout of the flash at {PLACE:#x}: {error}") from error
    kept = configuration[:PLACE] or before[:PLACE]
    halves = (kept[: PLACE // 2], kept[PLACE // 2 :])
    if len(kept) != PLACE or not all(half.strip(b"\xff") for half in halves):
        raise NotSupported(
            f"expected {PLACE} bytes of configuration before the image, got a blank half",
            remedy="--configuration FILE, with the backup of the interrupted write",
        )
    return Plan(before, kept + image.data + before[end:])


def write(flash: Flash, plan: Plan, progress: Progress, *, no_way_back: bool) -> None:
    """Execute the plan and verify it by reading back. On failure the former contents are restored;
    FirmwareError reports which of the two the flash holds. DeviceLost: neither. no_way_back: the
    caller accepts that there may be none; NotSupported without that."""
    if not no_way_back:
        raise NotSupported(WARNING, remedy=f"{WORD}, if the enclosure may be lost")
    flash.unprotect()
    try:
        try:
            _put(flash, plan, progress)
        except DeviceLost:
            raise
        except BaseException as error:
            _fall_back(flash, plan, progress, error)
            raise
    finally:
        _protect(flash)


def _fall_back(flash: Flash, plan: Plan, progress: Progress, error: BaseException) -> None:
    progress("putting the former contents back")
    try:
        _put(flash, Plan(plan.after, plan.before), progress)
    except UgpuError as second:
        raise FirmwareError(
            f"the flash does not contain complete firmware: {error}; then {second}",
            remedy=(
                "keep the enclosure powered, since its firmware is still running, and flash again"
            ),
        ) from error
    if isinstance(error, UgpuError):
        raise FirmwareError(f"the previous firmware was restored: {error}") from error


def _protect(flash: Flash) -> None:
    try:
        flash.protect()
    except UgpuError as error:
        log.warning("flash protection could not be restored: %s", error)


def _put(flash: Flash, plan: Plan, progress: Progress) -> None:
    for start in plan.blocks:
        progress(f"writing block {start:#x}")
        _put_block(flash, start, plan.after[start : start + BLOCK])


def _put_block(flash: Flash, start: int, data: bytes) -> None:
    """ORDER: program the image's first page, which the boot ROM checks first, after verifying the
    rest."""
    rest = bytearray(data)
    if start == 0:
        rest[_FIRST_PAGE] = b"\xff" * PAGE
    wrong = None
    for _ in range(_ATTEMPTS):
        flash.erase(start)
        for at in range(0, BLOCK, PAGE):
            flash.program(start + at, bytes(rest[at : at + PAGE]))
        wrong = _difference(flash.read(start, BLOCK), rest)
        if wrong is None and start == 0:
            flash.program(PLACE, data[_FIRST_PAGE])
            wrong = _difference(flash.read(0, BLOCK), data)
        if wrong is None:
            return
    raise FirmwareError(f"flash block {start:#x}: {wrong}", address=start)


def _difference(content: bytes, expected: bytes | bytearray) -> str | None:
    for at, (want, got) in enumerate(zip(expected, content, strict=True)):
        if want != got:
            return f"expected {want:#04x} at {at:#x}, read back {got:#04x}"
    return None
