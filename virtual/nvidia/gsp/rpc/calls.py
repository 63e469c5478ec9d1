"""RPCs that are calls of the resource manager: objects and controls, with parameters in line.

Source: open-gpu-kernel-modules 570.144 g_rpc-structures.h, rpc.c; sizes are the same in 535.113.01.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from ugpu.virtual.nvidia.files import Program
from ugpu.virtual.nvidia.gsp.facts import BootFacts
from ugpu.virtual.nvidia.gsp.rpc.interface import Function
from ugpu.virtual.nvidia.gsp.rpc.queue import QueueError
from ugpu.virtual.nvidia.machine import VirtualMachine
from ugpu.virtual.nvidia.rm.alloc import create, rule_of
from ugpu.virtual.nvidia.rm.controls.control import POINTERS, find
from ugpu.virtual.nvidia.rm.duplicates import Source
from ugpu.virtual.nvidia.rm.duplicates import duplicate as share
from ugpu.virtual.nvidia.rm.objects import Builder, Client, Place
from ugpu.virtual.nvidia.status import RmError, Status

_ALLOC, _CONTROL, _FREE = struct.Struct("<7I4x"), struct.Struct("<6I"), struct.Struct("<4I")
_DUPLICATE = struct.Struct("<7I")
_MEMORY = struct.Struct("<40xI12x")  # rpc_alloc_memory_v13_01: pageCount
#: NV01_EVENT_KERNEL_CALLBACK_EX, NV40_I2C, GP100_UVM_SW, UVM_CHANNEL_RETAINER, FERMI_TWOD_A,
#: KEPLER_INLINE_TO_MEMORY_B: classes beside those of the ioctl interface
_FURTHER = (0x7E, 0x402C, 0xC076, 0xC574, 0x902D, 0xA140)
_MOST_NAMES = 256
_NO_PARAMETERS = "NV2080_CTRL_CE_GET_FAULT_METHOD_BUFFER_SIZE_PARAMS"  # stands for an empty block


class Board(Protocol):
    """The card."""

    boot: BootFacts


class Server(Program, Protocol):
    """The RPC server."""

    @property
    def board(self) -> Board: ...

    machine: VirtualMachine

    @property
    def builders(self) -> dict[str, Builder]: ...
    @property
    def own_controls(self) -> dict[str, Any]: ...
    def refused(self, text: str) -> None: ...


def unpack(layout: str, body: bytes) -> tuple[Any, ...]:
    """Unpack a payload's start; RmError if it is too short."""
    if len(body) < struct.calcsize(layout):
        raise RmError(Status.INVALID_ARGUMENT, f"a payload of {len(body)} bytes")
    return struct.unpack_from(layout, body)


def expected_size(function: int, body: bytes) -> int:
    """Return the bytes of a whole message, as its start says; 0 if it does not."""
    if function == Function.GSP_RM_ALLOC and len(body) >= _ALLOC.size:
        return _ALLOC.size + int(_ALLOC.unpack_from(body)[5])
    if function == Function.GSP_RM_CONTROL and len(body) >= _CONTROL.size:
        return _CONTROL.size + int(_CONTROL.unpack_from(body)[4])
    if function == Function.ALLOC_MEMORY and len(body) >= _MEMORY.size:
        return _MEMORY.size + 8 * int(_MEMORY.unpack_from(body)[0])
    if function == Function.SET_REGISTRY and len(body) >= 4:
        return int.from_bytes(body[:4], "little")
    return 0


def describe(function: int, body: bytes) -> str:
    """Return a call as text, for histories."""
    if function == Function.GSP_RM_ALLOC and len(body) >= _ALLOC.size:
        client, parent, handle, number, _, size, _ = _ALLOC.unpack_from(body)
        return f"alloc {number:#x} {client:#x}/{handle:#x} of {parent:#x}, {size:#x} bytes"
    if function == Function.GSP_RM_CONTROL and len(body) >= _CONTROL.size:
        client, handle, number, _, size, _ = _CONTROL.unpack_from(body)
        return f"control {number:#x} {client:#x}/{handle:#x}, {size:#x} bytes"
    if function == Function.DUP_OBJECT and len(body) >= _DUPLICATE.size:
        client, parent, handle, source, shown, *_ = _DUPLICATE.unpack_from(body)
        return f"duplicate {client:#x}/{handle:#x} of {parent:#x}, of {source:#x}/{shown:#x}"
    if function == Function.FREE and len(body) >= _FREE.size:
        client, _, handle, _ = _FREE.unpack_from(body)
        return f"free {client:#x}/{handle:#x}"
    return f"function {function}, {len(body):#x} bytes"


def registry(body: bytes) -> dict[str, int]:
    """Read SET_REGISTRY: numbers by name. Raises QueueError."""
    if len(body) < 8:
        raise QueueError("SET_REGISTRY without its header")
    size, count = struct.unpack_from("<II", body)
    if size > len(body) or count > _MOST_NAMES or 8 + 16 * count > size:
        raise QueueError(f"SET_REGISTRY: {count} entries in {size} bytes of {len(body)}")
    found = {}
    for index in range(count):
        at, kind, data, _ = struct.unpack_from("<IBxxxII", body, 8 + 16 * index)
        end = body.find(b"\0", at)
        if not 8 + 16 * count <= at < size or end < 0:
            raise QueueError(f"SET_REGISTRY: the name of entry {index} at {at:#x}")
        if kind == 1:
            found[body[at:end].decode("latin-1")] = data
    return found


def allocate(server: Server, body: bytes) -> bytes:
    """GSP_RM_ALLOC."""
    client, parent, handle, number, _, size, _ = unpack(_ALLOC.format, body)

    def work(params: memoryview) -> None:
        _create(server, params, (client, parent, handle, number))

    return _answered(server, Function.GSP_RM_ALLOC, body, (_ALLOC.size, size, 16), work)


def _answered(
    server: Server,
    function: Function,
    body: bytes,
    places: tuple[int, int, int],
    work: Callable[[memoryview], None],
) -> bytes:
    """Have `work` done with the parameters, and enter its status. places: of the parameters, their
    size, of the status."""
    raw, status, (start, size, at) = bytearray(body), Status.OK, places
    try:
        if len(body) < start + size:
            raise RmError(Status.INVALID_PARAM_STRUCT, f"{len(body)} bytes for {size} parameters")
        work(memoryview(raw)[start : start + size])
    except RmError as error:
        status = error.status
        server.refused(f"{describe(function, body)}: {error}")
    struct.pack_into("<I", raw, at, int(status))
    return bytes(raw)


def _create(server: Server, given: memoryview, words: tuple[int, ...]) -> None:
    client_handle, parent, handle, number = words
    machine, size = server.machine, len(given)
    if number == 0:
        expected = machine.abi.structs["NV0000_ALLOC_PARAMETERS"].size
        if size != expected:
            raise RmError(
                Status.INVALID_PARAM_STRUCT, f"a root has {expected:#x} bytes, got {size:#x}"
            )
        if client_handle in machine.clients:
            raise RmError(Status.INSERT_DUPLICATE_NAME, f"client {client_handle:#x} exists")
        machine.clients[client_handle] = Client(machine, client_handle, server, 0)
        return
    client = client_of(server, client_handle)
    rule = rule_of(machine, number)
    params = None
    if size:
        if rule.struct is not None and rule.struct not in machine.abi.structs:
            raise RmError(Status.NOT_SUPPORTED, f"{rule.name}: no open header has {rule.struct}")
        layout = machine.abi.structs[rule.struct] if rule.struct is not None else None
        if layout is None or size != layout.size:
            expected = layout.size if layout is not None else 0
            raise RmError(
                Status.INVALID_PARAM_STRUCT,
                f"{rule.name} must have {expected:#x} bytes in this version, got {size:#x}",
            )
        params = layout.view(given)
    elif rule.how == "REQUIRED":
        raise RmError(Status.INVALID_ARGUMENT, f"{rule.struct} is required")
    further = (*_FURTHER, server.board.boot.graphics_class)
    create(Place(client, parent, handle), rule, params, server.builders, further)


def control(server: Server, body: bytes) -> bytes:
    """GSP_RM_CONTROL."""
    client, handle, number, _, size, _ = unpack(_CONTROL.format, body)

    def work(params: memoryview) -> None:
        _perform(server, (client, handle, number), params)

    return _answered(server, Function.GSP_RM_CONTROL, body, (_CONTROL.size, size, 12), work)


def _perform(server: Server, words: tuple[int, int, int], params: memoryview) -> None:
    client, handle, number = words
    call = find(client_of(server, client), handle, number, len(params), server.own_controls)
    if call.name in POINTERS:
        raise RmError(Status.NOT_SUPPORTED, f"{call.name} has pointers of the CPU")
    layout = call.layout or server.machine.abi.structs[_NO_PARAMETERS]
    call.handler(call.target, layout.view(params) if call.layout is not None else layout.new())


def duplicate(server: Server, body: bytes) -> bytes:
    """DUP_OBJECT: another handle to an object."""
    number, parent, handle, source_client, shown, flags, _ = unpack(_DUPLICATE.format, body)
    source = Source(client_of(server, source_client), shown, flags)
    client = client_of(server, number)
    share(Place(client, parent, handle), source)
    raw = bytearray(body)
    struct.pack_into("<I", raw, _DUPLICATE.size - 4, 0)
    return bytes(raw)


def free(server: Server, body: bytes) -> bytes:
    """FREE: an object and all below it, or a client by its own handle."""
    root, _, handle, _ = unpack(_FREE.format, body)
    raw = bytearray(body)
    client = client_of(server, root)
    found = client.objects.get(handle)
    if found is None:
        raise RmError(Status.OBJECT_NOT_FOUND, f"no object {handle:#x} to free")
    client.free(found)
    if found is client:
        del server.machine.clients[client.handle]
    struct.pack_into("<I", raw, 12, 0)
    return bytes(raw)


def page_directory(server: Server, body: bytes, *, command: int, at: int) -> bytes:
    """SET_PAGE_DIRECTORY, UNSET_PAGE_DIRECTORY: the control of the same name, as a function; `at`:
    where its parameters are."""
    client, device = unpack("<2I", body)
    _perform(server, (client, device, command), memoryview(bytearray(body[at:])))
    return body


set_page_directory = partial(page_directory, command=0x00801813, at=0x10)
unset_page_directory = partial(page_directory, command=0x00801814, at=8)


def client_of(server: Server, handle: int) -> Client:
    """Return a client of the CPU. Raises RmError."""
    client = server.machine.clients.get(handle)
    if client is None or client.owner is not server:
        raise RmError(Status.INVALID_CLIENT, f"no client {handle:#x}")
    return client
