"""RPCs that are calls of the resource manager: objects and controls, with parameters in line.

Source: open-gpu-kernel-modules 570.144 g_rpc-structures.h, rpc.c; sizes are the same in 535.113.01.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ugpu.virtual.nvidia.gsp.rpc.interface import Function
from ugpu.virtual.nvidia.gsp.rpc.queue import usable
from ugpu.virtual.nvidia.rm.alloc import create, rule_of
from ugpu.virtual.nvidia.rm.controls.control import POINTERS, find
from ugpu.virtual.nvidia.rm.duplicates import Source
from ugpu.virtual.nvidia.rm.duplicates import duplicate as share
from ugpu.virtual.nvidia.rm.objects import Client, Place
from ugpu.virtual.nvidia.status import RmError, Status, require

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.rpc.server import GspServer

_ALLOC, _CONTROL, _FREE = struct.Struct("<7I4x"), struct.Struct("<6I"), struct.Struct("<4I")
_DUPLICATE = struct.Struct("<7I")
_REGISTRY = struct.Struct("<I")  # bytes in all
_MEMORY = struct.Struct("<40xI12x")  # rpc_alloc_memory_v13_01: pageCount
#: NV01_EVENT_KERNEL_CALLBACK_EX, NV40_I2C, GP100_UVM_SW, UVM_CHANNEL_RETAINER, FERMI_TWOD_A,
#: KEPLER_INLINE_TO_MEMORY_B: classes beside those of the ioctl interface
_FURTHER = (0x7E, 0x402C, 0xC076, 0xC574, 0x902D, 0xA140)
_MOST_NAMES = 256
_NO_PARAMETERS = "NV2080_CTRL_CE_GET_FAULT_METHOD_BUFFER_SIZE_PARAMS"  # stands for an empty block


def unpack(layout: str, body: bytes) -> tuple[Any, ...]:
    """Unpack a payload's start; RmError if it is too short."""
    enough = len(body) >= struct.calcsize(layout)
    require(enough, Status.INVALID_ARGUMENT, f"a payload of {len(body)} bytes")
    return struct.unpack_from(layout, body)


# Words at the start of calls; how these read as text; which word states a size, in which unit.
_FORMS: dict[int, tuple[struct.Struct, str, int, int]] = {
    Function.GSP_RM_ALLOC: (_ALLOC, "alloc {3:#x} {0:#x}/{2:#x} of {1:#x}, {5:#x} bytes", 5, 1),
    Function.GSP_RM_CONTROL: (_CONTROL, "control {2:#x} {0:#x}/{1:#x}, {4:#x} bytes", 4, 1),
    Function.DUP_OBJECT: (_DUPLICATE, "duplicate {0:#x}/{2:#x} of {1:#x}, of {3:#x}/{4:#x}", 0, 0),
    Function.FREE: (_FREE, "free {0:#x}/{2:#x}", 0, 0),
    Function.ALLOC_MEMORY: (_MEMORY, "", 0, 8),
    Function.SET_REGISTRY: (_REGISTRY, "", 0, 1),
}


def _form(function: int, body: bytes) -> tuple[struct.Struct, str, int, int]:
    form, none = _FORMS.get(function), (_REGISTRY, "", 0, 0)
    return form if form is not None and len(body) >= form[0].size else none


def expected_size(function: int, body: bytes) -> int:
    """Return the bytes of a whole message, as its start says; 0 if it does not."""
    layout, _, place, unit = _form(function, body)
    head = 0 if layout is _REGISTRY else layout.size
    return head + unit * int(layout.unpack_from(body)[place]) if unit else 0


def describe(function: int, body: bytes) -> str:
    """Return a call as text, for histories."""
    layout, text, _, _ = _form(function, body)
    if not text:
        return f"function {function}, {len(body):#x} bytes"
    return text.format(*layout.unpack_from(body))


def registry(body: bytes) -> dict[str, int]:
    """Read SET_REGISTRY: numbers by name. Raises QueueError."""
    usable(len(body) >= 8, "SET_REGISTRY without its header")
    size, count = struct.unpack_from("<II", body)
    fits = count <= _MOST_NAMES and 8 + 16 * count <= size <= len(body)
    usable(fits, f"SET_REGISTRY: {count} entries in {size} bytes of {len(body)}")
    found = {}
    for index in range(count):
        at, kind, data, _ = struct.unpack_from("<IBxxxII", body, 8 + 16 * index)
        end = body.find(b"\0", at)
        inside = 8 + 16 * count <= at < size and end >= 0
        usable(inside, f"SET_REGISTRY: the name of entry {index} at {at:#x}")
        if kind == 1:
            found[body[at:end].decode("latin-1")] = data
    return found


def allocate(server: GspServer, body: bytes) -> bytes:
    """GSP_RM_ALLOC."""
    client, parent, handle, number, _, size, _ = unpack(_ALLOC.format, body)

    work = partial(_create, server, (client, parent, handle, number))
    return _answered(server, Function.GSP_RM_ALLOC, body, (_ALLOC.size, size, 16), work)


def _answered(
    server: GspServer,
    function: Function,
    body: bytes,
    places: tuple[int, int, int],
    work: Callable[[memoryview], None],
) -> bytes:
    """Have `work` done with the parameters, and enter its status. places: of the parameters, their
    size, of the status."""
    raw, status, (start, size, at) = bytearray(body), Status.OK, places
    try:
        text = f"{len(body)} bytes for {size} parameters"
        require(len(body) >= start + size, Status.INVALID_PARAM_STRUCT, text)
        work(memoryview(raw)[start : start + size])
    except RmError as error:
        status = error.status
        server.machine.refused.append(f"{describe(function, body)}: {error}")
    struct.pack_into("<I", raw, at, int(status))
    return bytes(raw)


def _create(server: GspServer, words: tuple[int, ...], given: memoryview) -> None:
    client_handle, parent, handle, number = words
    machine, size = server.machine, len(given)
    if number == 0:
        expected = machine.abi.structs["NV0000_ALLOC_PARAMETERS"].size
        text = f"a root has {expected:#x} bytes, got {size:#x}"
        require(size == expected, Status.INVALID_PARAM_STRUCT, text)
        new = client_handle not in machine.clients
        require(new, Status.INSERT_DUPLICATE_NAME, f"client {client_handle:#x} exists")
        machine.clients[client_handle] = Client(machine, client_handle, server, 0)
        return
    client = client_of(server, client_handle)
    rule = rule_of(machine, number)
    params = None
    if size:
        layout = machine.abi.structs.get(rule.struct) if rule.struct is not None else None
        known = layout is not None or rule.struct is None
        require(known, Status.NOT_SUPPORTED, f"{rule.name}: no open header has {rule.struct}")
        expected = layout.size if layout is not None else 0
        text = f"{rule.name} must have {expected:#x} bytes in this version, got {size:#x}"
        require(size == expected, Status.INVALID_PARAM_STRUCT, text)
        params = layout.view(given) if layout is not None else None
    else:
        require(rule.how != "REQUIRED", Status.INVALID_ARGUMENT, f"{rule.struct} is required")
    further = (*_FURTHER, server.board.boot.graphics_class)
    create(Place(client, parent, handle), rule, params, server.builders, further)


def control(server: GspServer, body: bytes) -> bytes:
    """GSP_RM_CONTROL."""
    client, handle, number, _, size, _ = unpack(_CONTROL.format, body)

    work = partial(_perform, server, (client, handle, number))
    return _answered(server, Function.GSP_RM_CONTROL, body, (_CONTROL.size, size, 12), work)


def _perform(server: GspServer, words: tuple[int, int, int], params: memoryview) -> None:
    client, handle, number = words
    call = find(client_of(server, client), handle, number, len(params), server.own_controls)
    plain = call.name not in POINTERS
    require(plain, Status.NOT_SUPPORTED, f"{call.name} has pointers of the CPU")
    layout = call.layout or server.machine.abi.structs[_NO_PARAMETERS]
    call.handler(call.target, layout.view(params) if call.layout is not None else layout.new())


def duplicate(server: GspServer, body: bytes) -> bytes:
    """DUP_OBJECT: another handle to an object."""
    number, parent, handle, source_client, shown, flags, _ = unpack(_DUPLICATE.format, body)
    source = Source(client_of(server, source_client), shown, flags)
    client = client_of(server, number)
    share(Place(client, parent, handle), source)
    raw = bytearray(body)
    struct.pack_into("<I", raw, _DUPLICATE.size - 4, 0)
    return bytes(raw)


def free(server: GspServer, body: bytes) -> bytes:
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


def page_directory(server: GspServer, body: bytes, *, command: int, at: int) -> bytes:
    """SET_PAGE_DIRECTORY, UNSET_PAGE_DIRECTORY: the control of the same name, as a function; `at`:
    where its parameters are."""
    client, device = unpack("<2I", body)
    _perform(server, (client, device, command), memoryview(bytearray(body[at:])))
    return body


set_page_directory = partial(page_directory, command=0x00801813, at=0x10)
unset_page_directory = partial(page_directory, command=0x00801814, at=8)


def client_of(server: GspServer, handle: int) -> Client:
    """Return a client of the CPU. Raises RmError."""
    client = server.machine.clients.get(handle)
    if client is None or client.owner is not server:
        raise RmError(Status.INVALID_CLIENT, f"no client {handle:#x}")
    return client
