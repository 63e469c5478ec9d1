"""Registers of the runlists from Ampere on that UVM uses: what is known of a channel, a doorbell.

The GSP's firmware uses the rest by itself. Source: open-gpu-doc manuals/ampere/ga100/
dev_runlist.ref.txt; open-gpu-kernel-modules 550.163.01 kernel-open/nvidia-uvm uvm_ampere_host.c
(uvm_hal_ampere_host_clear_faulted_channel_register).
"""

from __future__ import annotations

from functools import partial

from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.rpc.controls import CHANNEL_RAM, RUNLISTS
from ugpu.virtual.nvidia.host.runlist import Runlist
from ugpu.virtual.nvidia.host.state import ENGINE_FAULTED, PBDMA_FAULTED

_RAM_SIZE = 0x2000
_CHANNEL_CONFIG, _DOORBELL = 0x4, 0x90  # NV_RUNLIST_CHANNEL_CONFIG, NV_RUNLIST_INTERNAL_DOORBELL
_CHANNELS_LOG2 = 11
_ENABLE, _PENDING = 1 << 1, 1 << 8
_CLEAR = 1 << 0  # WRITE_CONTROL: ones clear bits


def wire(card: Card) -> None:
    """Define the registers of all runlists."""
    for runlist in card.gpu.runlists:
        space, number = card.registers, runlist.number
        ram = CHANNEL_RAM + _RAM_SIZE * number
        space.word(RUNLISTS + 0x1000 * number + _CHANNEL_CONFIG, ram | _CHANNELS_LOG2)
        space.word(RUNLISTS + 0x1000 * number + _DOORBELL, 0, partial(_ring, card, runlist))
        space.range(ram, _RAM_SIZE, partial(_read, card, runlist), partial(_write, card, runlist))


def _ring(card: Card, runlist: Runlist, value: int) -> None:
    channel = card.gpu.channel_of(runlist, value)
    if channel is None:
        card.violation(f"runlist {runlist.number}: doorbell of channel {value:#x}")
    else:
        runlist.ring(channel)


def _read(card: Card, runlist: Runlist, at: int) -> int:
    channel = card.gpu.channel_of(runlist, at // 4)
    if channel is None:
        return 0
    return _ENABLE * channel.enabled | _PENDING * channel.pending | channel.faulted


def _write(card: Card, runlist: Runlist, at: int, value: int) -> None:
    channel = card.gpu.channel_of(runlist, at // 4)
    known = value in (_CLEAR | PBDMA_FAULTED, _CLEAR | ENGINE_FAULTED)
    if not known or channel is None or not channel.faulted & value:
        card.violation(f"NV_CHRAM_CHANNEL({at // 4}) of runlist {runlist.number} = {value:#x}")
    else:
        channel.faulted = 0
