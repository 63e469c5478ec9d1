"""Suspend of the GSP's resource manager: what it saves of its own memory (FBSR), and its objects,
which stay until it resumes.

Sources: open-gpu-kernel-modules 570.144 ctrl2080internal.h, ctrl2080fifo.h, ctrl0080fb.h,
g_rpc-structures.h, mem_mgr_pwr_mgmt.c (the store of compression bits is saved too where the CPU has
made room for it), dynamic-power.c (it must where the chip loses its power as a whole); Linux 7.3
nouveau rm/r570/fbsr.c, rm/r535/fbsr.c.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.gsp.rpc import calls, static_info
from ugpu.virtual.nvidia.gsp.rpc.controls import server_of
from ugpu.virtual.nvidia.rm.channels import ChannelObject
from ugpu.virtual.nvidia.rm.objects import Allocation, RmObject
from ugpu.virtual.nvidia.rm.resources import Device, Subdevice
from ugpu.virtual.nvidia.status import Status, require

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.rpc.server import GspServer

_ALLOC = struct.Struct("<7I4xQI4xHH4x")  # rpc_alloc_memory_v13_01, up to its pages
_LIST_SYSTEM = 0x81  # NV01_MEMORY_LIST_SYSTEM
_PAGE = 4096
_VIDEO_MEMORY, _ONE_TO_ONE = 2, 1  # NV0080_CTRL_CMD_FB_GET_COMPBIT_STORE_INFO_*
LEVEL = 3  # NV2080_CTRL_GPU_SET_POWER_STATE_GPU_LEVEL_3


class MemoryList(RmObject):
    """Pages of the host that the CPU describes to the firmware. pages: their addresses."""

    internal = "Memory"

    def __init__(self, request: Allocation, pages: tuple[int, ...]) -> None:
        super().__init__(request)
        self.pages = pages


def allocate_memory(server: GspServer, body: bytes) -> bytes:
    """ALLOC_MEMORY of a list of pages."""
    words = calls.unpack(_ALLOC.format, body)
    client, device, handle, kind = words[:4]
    size, count, _, listed = words[7:]
    owner = calls.client_of(server, client)
    require(kind == _LIST_SYSTEM, Status.NOT_SUPPORTED, f"memory of class {kind:#x}")
    fits = count == listed == -(-size // _PAGE) and len(body) >= _ALLOC.size + 8 * count
    require(fits and handle, Status.INVALID_ARGUMENT, f"{count} pages of {size} bytes")
    pages = tuple(page * _PAGE for page in struct.unpack_from(f"<{count}Q", body, _ALLOC.size))
    for page in pages:
        reached = server.board.bus_address(page, _PAGE) is not None
        require(reached, Status.INVALID_ADDRESS, f"a page at {page:#x}")
    request = Allocation(server.machine, owner, owner.find(device), handle, kind, None)
    owner.add(MemoryList(request, pages))
    return body


def _prepare(sub: Subdevice, params: Struct) -> None:
    server = server_of(sub)
    planted = server.board.faults.take(CardFault.FBSR_FAILS)
    require(not planted, Status.INVALID_STATE, "planted")
    known = "sysmemAddrOfSuspendResumeData" in params.layout.fields
    require(known, Status.NOT_SUPPORTED, "suspending is modelled for release 570")
    memory = calls.client_of(server, params.hClient).find(params.hSysMem)
    need = server.meta.nonWprHeapSize + server.meta.vgaWorkspaceSize
    need += static_info.STORE if params.bEnteringGcoffState else 0
    enough = isinstance(memory, MemoryList) and len(memory.pages) * _PAGE >= need
    require(enough, Status.INVALID_ARGUMENT, f"{need:#x} bytes are needed, got {memory!r}")
    assert isinstance(memory, MemoryList)
    server.saved, server.sleep_at = memory.pages, params.sysmemAddrOfSuspendResumeData


def _schedule(sub: Subdevice, params: Struct) -> None:
    for channel in _channels(server_of(sub)):
        enabled = channel.group.scheduled if channel.group is not None else True
        channel.channel.enabled = enabled and not params.bDisableActiveChannels


def _store(device: Device, params: Struct) -> None:
    params.Size, params.Address = static_info.STORE, static_info.store(server_of(device).meta)
    params.AddressSpace, params.comptaglineAllocationPolicy = _VIDEO_MEMORY, _ONE_TO_ONE


# By the header's name. Any: see rm.controls.control.Handler.
HANDLERS: Mapping[str, Any] = {
    "NV0080_CTRL_CMD_FB_GET_COMPBIT_STORE_INFO": _store,
    "NV2080_CTRL_CMD_INTERNAL_FBSR_INIT": _prepare,
    "NV2080_CTRL_CMD_INTERNAL_FIFO_TOGGLE_ACTIVE_CHANNEL_SCHEDULING": _schedule,
}


def _channels(server: GspServer) -> list[ChannelObject]:
    clients = [each for each in server.machine.clients.values() if each.owner is server]
    objects = [each for client in clients for each in client.objects.values()]
    return [each for each in objects if isinstance(each, ChannelObject)]


def begin(server: GspServer, level: int) -> None:
    """Save the firmware's memory outside of the write-protected region; it ends after this."""
    require(level == LEVEL, Status.INVALID_ARGUMENT, f"newLevel {level:#x}")
    require(server.saved, Status.INVALID_STATE, "FBSR_INIT did not come before")
    if any(channel.channel.enabled for channel in _channels(server)):
        server.board.violation("the GSP was suspended with channels scheduled")
    for page, memory in _own_pages(server):
        server.board.bus_write(page, bytes(memory))
    server.asleep = True


def wake(server: GspServer) -> None:
    """Take the firmware's memory back."""
    for page, memory in _own_pages(server):
        memory[:] = server.board.bus_read(page, _PAGE) or bytes(_PAGE)
    server.board.make_apertures(server.meta.nonWprHeapOffset, fresh=False)
    server.saved, server.asleep = (), False


def _own_pages(server: GspServer) -> list[tuple[int, memoryview]]:
    heap, size = server.meta.nonWprHeapOffset, server.meta.nonWprHeapSize
    store = static_info.store(server.meta)
    places = (*range(heap, heap + size, _PAGE), *range(store, heap, _PAGE))
    return [
        (page, server.board.falcon_memory(place, _PAGE))
        for place, page in zip(places, server.saved, strict=False)
    ]
