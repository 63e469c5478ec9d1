"""Interface of the security processor's firmware, and the firmware that a generation needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ugpu.am.chips.facts import ChipFacts


@dataclass(frozen=True)
class LoaderStep:
    """A command of the boot loader. kinds: images that it accepts."""

    command: int
    kinds: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True)
class FirmwareInterface:
    """What the boot loader, the secure OS and the autoload accept.

    loader: steps in their required order. types: kind of image by psp_gfx_fw_type. needed: kinds
    without which the autoload never completes. again: kinds that a driver loads again after a reset
    of the graphics core. secure_os_version: of C2PMSG_58 and 81; 0: the
    first of a chip that reports reservations. files: builds a chip's files,
    keyed by their linux-firmware names. own_region: IFWI has set up the trusted memory region, in
    the reserved part of VRAM, so that SETUP_TMR is not needed and firmware loads in any order.
    """

    loader: tuple[LoaderStep, ...]
    types: Mapping[int, str]
    needed: frozenset[str]
    again: frozenset[str]
    secure_os_version: int
    files: Callable[[ChipFacts], dict[str, bytes]]
    own_region: bool = False
