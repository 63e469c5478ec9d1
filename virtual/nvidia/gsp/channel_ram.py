"""Registers of the runlists from Ampere on that UVM uses: what is known of a channel, a doorbell.

The GSP's firmware uses the rest by itself. Source: open-gpu-doc manuals/ampere/ga100/
dev_runlist.ref.txt; open-gpu-kernel-modules 550.163.01 kernel-open/nvidia-uvm uvm_ampere_host.c
(uvm_hal_ampere_host_clear_faulted_channel_register).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.gsp.registers import RegisterSpace
from ugpu.virtual.nvidia.gsp.rpc.controls import CHANNEL_RAM, RUNLISTS
from ugpu.virtual.nvidia.host.runlist import Runlist
from ugpu.virtual.nvidia.host.state import ENGINE_FAULTED, PBDMA_FAULTED

_RAM_SIZE = 0x2000
_CHANNEL_CONFIG, _DOORBELL = 0x4, 0x90  # NV_RUNLIST_CHANNEL_CONFIG, NV_RUNLIST_INTERNAL_DOORBELL
_CHANNELS_LOG2 = 11
_ENABLE, _PENDING = 1 << 1, 1 << 8
_CLEAR = 1 << 0  # WRITE_CONTROL: ones clear bits


class Board(Protocol):
    """The card, as these registers use it."""

    gpu: VirtualGpu
    registers: RegisterSpace

    def violation(self, text: str) -> None: ...


def wire(board: Board) -> None:
    """Define the registers of all runlists."""
    for runlist in board.gpu.runlists:
        space, number = board.registers, runlist.number
        ram = CHANNEL_RAM + _RAM_SIZE * number
        space.word(RUNLISTS + 0x1000 * number + _CHANNEL_CONFIG, ram | _CHANNELS_LOG2)
        space.word(RUNLISTS + 0x1000 * number + _DOORBELL, 0, _doorbell(board, runlist))
        space.range(ram, _RAM_SIZE, _read(board, runlist), _write(board, runlist))


def _doorbell(board: Board, runlist: Runlist) -> Callable[[int], None]:
    def write(value: int) -> None:
        channel = board.gpu.channel_of(runlist, value)
        if channel is None:
            board.violation(f"runlist {runlist.number}: doorbell of channel {value:#x}")
        else:
            runlist.ring(channel)

    return write


def _read(board: Board, runlist: Runlist) -> Callable[[int], int]:
    def read(at: int) -> int:
        channel = board.gpu.channel_of(runlist, at // 4)
        if channel is None:
            return 0
        return _ENABLE * channel.enabled | _PENDING * channel.pending | channel.faulted

    return read


def _write(board: Board, runlist: Runlist) -> Callable[[int, int], None]:
    def write(at: int, value: int) -> None:
        channel = board.gpu.channel_of(runlist, at // 4)
        known = value in (_CLEAR | PBDMA_FAULTED, _CLEAR | ENGINE_FAULTED)
        if not known or channel is None or not channel.faulted & value:
            board.violation(f"NV_CHRAM_CHANNEL({at // 4}) of runlist {runlist.number} = {value:#x}")
        else:
            channel.faulted = 0

    return write
