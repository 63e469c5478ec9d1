"""Planted faults that show at once: what is damaged on a card, see gsp.faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ugpu.virtual.nvidia.gsp.falcon.wpr import MIB
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.gsp.firmware import vbios

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

_ONES = 0xFFFF_FFFF
_GV100 = 0x140 << 20 | 0xA1 << 12


Strike = Callable[["Card"], object]


def _leave_wpr2(board: Card, *, active: bool = False, stuck: bool = False) -> None:
    board.wpr.set(board.memory_size - 128 * MIB, board.memory_size - MIB)
    board.gsp.active, board.keeps_wpr2 = active, stuck


def _set(name: str, value: int, board: Card) -> None:
    setattr(board, name, value)


def _stall_fsp(board: Card) -> None:
    if board.fsp is not None:
        board.fsp.stall()


def _stick(values: Mapping[int, int], board: Card) -> None:
    board.registers.stuck.update(values)


def _spoil(change: Callable[[bytes], bytes], board: Card) -> None:
    board.rom = change(board.rom)


AT_ONCE: dict[CardFault, Strike] = {
    CardFault.REGISTERS_DARK: partial(_set, "dark", True),
    CardFault.OTHER_CHIP: partial(_stick, {0xA00: _GV100}),
    CardFault.GUEST: partial(_stick, {0x4: 1 << 16}),
    CardFault.FALLS_OFF: lambda board: board.unplug(),
    CardFault.WPR2_LEFT: _leave_wpr2,
    CardFault.GSP_LEFT: partial(_leave_wpr2, active=True),
    CardFault.WPR2_STUCK: partial(_leave_wpr2, stuck=True),
    CardFault.PROGRESS_LOCKED: partial(_stick, {0x118128: 0}),
    CardFault.VBIOS_ZEROS: partial(_spoil, vbios.filled(0x00)),
    CardFault.VBIOS_ONES: partial(_spoil, vbios.filled(0xFF)),
    CardFault.VBIOS_WITHOUT_PCIR: partial(_spoil, vbios.changed(vbios.PCIR_AT, b"PCIX")),
    CardFault.VBIOS_WITHOUT_BIT: partial(_spoil, vbios.without_bit),
    CardFault.VBIOS_WITHOUT_TOKEN: partial(_spoil, vbios.changed(vbios.TOKEN_AT, b"\x32")),
    CardFault.VBIOS_WITHOUT_SECURE: partial(_spoil, vbios.changed(vbios.TYPE_AT, b"\x03")),
    CardFault.VBIOS_WITHOUT_FWSEC: partial(_spoil, vbios.changed(vbios.KIND_AT, b"\x01")),
    CardFault.VBIOS_DESCRIPTOR: partial(_spoil, vbios.changed(vbios.VERSION_AT, b"\x07")),
    CardFault.VBIOS_MAPPER: partial(_spoil, vbios.without_mapper),
    CardFault.VBIOS_SIGNATURE: partial(_spoil, vbios.with_other_code),
    CardFault.FUSES_NEWER: partial(_set, "burnt", 7),
    CardFault.MEMORY_UNKNOWN: partial(_set, "shown_memory", 0),
    CardFault.MEMORY_ONES: partial(_stick, {0x1183A4: _ONES, 0x100CE0: _ONES}),
    CardFault.MEMORY_SMALL: partial(_set, "shown_memory", 128 * MIB),
    CardFault.FSP_BUSY: _stall_fsp,
    CardFault.FLUSH_NEVER: partial(_stick, {0x70000: 1}),
    CardFault.INVALIDATE_NEVER: partial(_stick, {0xB830B0: 1 << 31}),
}
