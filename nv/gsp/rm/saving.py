"""What a suspended card goes on from, in host memory: the driver's video memory, and what the
firmware saves of its own. Its objects stay.

The firmware saves its memory outside of the protected region (FBSR) while it unloads; booter saves
the region, where FSP boots the chip the firmware itself. GspFwSRMeta says where. Sources: Linux 7.3
nouveau rm/r570/fbsr.c, rm/r535/gsp.c (r535_gsp_fini); open-gpu-kernel-modules 570.144
kernel_gsp_tu102.c (kgspPrepareSuspendResumeData), gsp_fw_sr_meta.h.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple, Protocol

from ugpu.hcq.errors import NotSupported, UgpuError
from ugpu.nv.gsp.boot.boot import Firmware
from ugpu.nv.gsp.layout.memory import PAGE, Pages
from ugpu.nv.gsp.rm.client import GspClient
from ugpu.nv.gsp.rm.space import CardMemory

_PREPARE = "NV2080_CTRL_CMD_INTERNAL_FBSR_INIT"
_PARAMETERS = "NV2080_CTRL_INTERNAL_FBSR_INIT_PARAMS"
_SCHEDULE = "NV2080_CTRL_CMD_INTERNAL_FIFO_TOGGLE_ACTIVE_CHANNEL_SCHEDULING"
_PIECE = 1 << 16


class Card(CardMemory, Protocol):
    """What is saved of a card."""

    firmware: Firmware


class Saved(NamedTuple):
    """content: of the driver's part of VRAM, by address. pages: of the firmware; GspFwSRMeta, the
    region's tables and content, its other memory."""

    content: list[tuple[int, bytes]]
    pages: tuple[Pages, ...]


def require_release(client: GspClient) -> None:
    """Raise NotSupported for a release whose firmware is asked otherwise."""
    if "sysmemAddrOfSuspendResumeData" not in client.structs[_PARAMETERS].fields:
        raise NotSupported("the firmware of release 570 or newer can be suspended")


def save(card: Card, client: GspClient) -> Saved:
    """Save the driver's memory, and prepare the firmware to save its own. The card goes on if this
    fails; no channel has work."""
    vram, memory = card.chip.vram, card.firmware.start.memory
    pages: list[Pages] = []
    try:
        schedule(client, on=False)  # ORDER: first, since a context that is put aside is written
        content = [
            (at, vram.read(at, min(_PIECE, start + size - at)))
            for start, size in card.heap.ranges()
            for at in range(start, start + size, _PIECE)
        ]
        pages += _place(card)
        _prepare(client, pages)
    except BaseException:
        with contextlib.suppress(UgpuError):
            schedule(client, on=True)
        memory.close(pages)
        raise
    return Saved(content, tuple(pages))


def _place(card: Card) -> list[Pages]:
    """Allocate the memory that the firmware saves itself in, with its tables and description."""
    start, static = card.firmware.start, card.firmware.static
    assert static.saved_at is not None
    places, abi = start.places, card.firmware.calls.abi
    heap, frts = places["nonWprHeapSize"], places["frtsSize"]
    size = static.saved_at[1] + frts - static.saved_at[0] - heap
    region = start.memory.take_listed(size)
    block = abi.structs.GspFwSRMeta.new(
        magic=abi.constants.GSP_FW_SR_META_MAGIC,
        revision=abi.constants.GSP_FW_SR_META_REVISION,
        sysmemAddrOfSuspendResumeData=region.address,
        sizeOfSuspendResumeData=size,
    )
    metadata = start.memory.take(PAGE, bytes(block.raw))
    other = card.chip.memory_size - static.regions[-1][1] - size
    return [metadata, region, start.memory.take(other, contiguous=False)]


def _prepare(client: GspClient, pages: list[Pages]) -> None:
    listed = client.list_memory(pages[2].pages)
    try:
        client.ask_gpu(
            _PREPARE, hClient=client.root, hSysMem=listed, bEnteringGcoffState=1,
            sysmemAddrOfSuspendResumeData=pages[0].address,
        )  # fmt: skip
    finally:
        client.free(client.device, listed)


def schedule(client: GspClient, *, on: bool) -> None:
    """Let the channels of the card run, or not."""
    client.ask_gpu(_SCHEDULE, bDisableActiveChannels=int(not on))


def restore(card: Card, saved: Saved) -> None:
    """Write the driver's memory back, after the firmware has gone on."""
    for at, content in saved.content:
        card.chip.vram.write(at, content)
    card.firmware.start.memory.close(saved.pages)
