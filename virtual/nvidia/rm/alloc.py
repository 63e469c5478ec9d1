"""RM_ALLOC, RM_ALLOC_MEMORY and RM_FREE: the rules that every class shares.

Source: open-gpu-kernel-modules 580.142 src/nvidia/src/kernel/rmapi/alloc_free.c
(serverAllocResourceUnderLock), resource_list.h (classes, parents, parameters), src/nvidia/src/
libraries/resserv/src/rs_client.c. Stricter than the resource manager in one respect: a parameter
size that is given but wrong is refused, where the resource manager uses its own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType

from ugpu.hcq.registers.layout import Struct
from ugpu.nv.abi import ClassRule
from ugpu.virtual.nvidia.faults import Fault, Xid
from ugpu.virtual.nvidia.files import OpenFile, Program
from ugpu.virtual.nvidia.rm.classes import builders, classes_of
from ugpu.virtual.nvidia.rm.memory import OsDescriptorMemory, SystemMemory
from ugpu.virtual.nvidia.rm.objects import (
    Allocation,
    Builder,
    Client,
    DriverState,
    Place,
    RmObject,
)
from ugpu.virtual.nvidia.rm.resources import Device, gpu_of
from ugpu.virtual.nvidia.status import RmError, Status, require
from ugpu.virtual.nvidia.userspace import copy_in, copy_out

_ROOTS = (0x0, 0x1, 0x41)  # NV01_ROOT, NV01_ROOT_NON_PRIV, NV01_ROOT_CLIENT
_SYSTEM, _OS_DESCRIPTOR = 0x3E, 0x71
_NONE: Mapping[str, Builder] = MappingProxyType({})


def allocate(machine: DriverState, program: Program, file: OpenFile, block: Struct) -> None:
    """RM_ALLOC: create an object, and write back its handle and parameters."""
    if block.hClass in _ROOTS:
        block.hObjectNew = _new_client(machine, program, file, block.hObjectNew)
        if block.pAllocParms:
            copy_out(block.pAllocParms, block.hObjectNew.to_bytes(4, "little"))
        return
    client = machine.clients.get(block.hRoot)
    if client is None or client.owner is not program:
        raise RmError(Status.INVALID_CLIENT, f"no client {block.hRoot:#x}")
    rule = rule_of(machine, block.hClass)
    client.find(block.hObjectParent)
    params = _parameters(machine, block, rule.struct if rule.how != "NONE" else None, rule.how)
    place = Place(client, block.hObjectParent, block.hObjectNew)
    block.hObjectNew = create(place, rule, params).handle
    if params is not None:
        copy_out(block.pAllocParms, params.raw)


def rule_of(machine: DriverState, class_id: int) -> ClassRule:
    """Return the rule of a class. Raises RmError INVALID_CLASS if the branch has none."""
    rule = machine.abi.classes.get(class_id)
    if rule is None:
        raise RmError(Status.INVALID_CLASS, f"class {class_id:#x}")
    return rule


def create(
    place: Place,
    rule: ClassRule,
    params: Struct | None,
    own: Mapping[str, Builder] = _NONE,
    further: Container[int] = (),
) -> RmObject:
    """Create an object from parameters that have been read. Raises RmError.

    own: builders instead of those of the ioctl interface, by the resource manager's own class.
    further: classes that the chip has beside those of the ioctl interface.
    """
    client = place.client
    machine = client.machine
    parent = client.find(place.parent)
    handle = client.new_handle(place.handle)
    if "ANY_PARENT" not in rule.parents and parent.internal not in rule.parents:
        raise RmError(
            Status.INVALID_OBJECT_PARENT,
            f"parent of {rule.name} must be {', '.join(rule.parents)}, got {parent!r}",
        )
    _check_gpu(parent)
    gpu = gpu_of(parent)
    if gpu is not None and rule.number not in classes_of(gpu.facts) and rule.number not in further:
        raise RmError(Status.INVALID_CLASS, f"{gpu.facts.name} has no {rule.name}")
    build = own.get(rule.internal) or builders().get(rule.internal)
    if build is None:
        machine.asked[f"class {rule.name}"] += 1
        raise RmError(Status.NOT_SUPPORTED, f"{rule.name} is not modelled")
    made = build(Allocation(machine, client, parent, handle, rule.number, params))
    client.add(made)
    return made


def allocate_memory(client: Client, block: Struct, file_handle: int) -> None:
    """RM_ALLOC_MEMORY: allocate system memory, or register the program's own."""
    parent = client.find(block.hObjectParent)
    require(isinstance(parent, Device), Status.INVALID_OBJECT_PARENT, repr(parent))
    _check_gpu(parent)
    handle = client.new_handle(block.hObjectNew)
    request = Allocation(client.machine, client, parent, handle, block.hClass, None)
    if block.hClass == _OS_DESCRIPTOR:
        made: RmObject = OsDescriptorMemory(
            request, block.pMemory, block.limit + 1, read_only=bool(block.flags >> 22 & 1)
        )
    elif block.hClass == _SYSTEM:
        made = SystemMemory.of_size(request, block.limit + 1)
    else:
        raise RmError(
            Status.INVALID_CLASS, f"RM_ALLOC_MEMORY of class {block.hClass:#x} is not modelled"
        )
    client.add(made)
    block.hObjectNew = handle
    if isinstance(made, SystemMemory):
        mapping = block.flags >> 30 & 3
        if block.flags >> 16 & 3 != 1 and mapping == 0:
            file = client.owner.files.get(file_handle)
            if file is None or not file.is_control:
                client.free(made)
                raise RmError(Status.INVALID_ARGUMENT, f"{file_handle} is not an open nvidiactl")
            made.prepare_mapping(file, 0, block.limit + 1)
        block.pMemory = made.backing.host


def free_object(client: Client, block: Struct) -> None:
    """RM_FREE: free an object and all below it, or a client by its own handle."""
    found = client.objects.get(block.hObjectOld)
    if found is None:
        raise RmError(Status.OBJECT_NOT_FOUND, f"no object {block.hObjectOld:#x} to free")
    machine = client.machine
    client.free(found)
    if found is client:
        del machine.clients[client.handle]


def _new_client(machine: DriverState, program: Program, file: OpenFile, asked: int) -> int:
    if asked in machine.clients:
        raise RmError(Status.INSERT_DUPLICATE_NAME, f"client {asked:#x} exists")
    handle = asked or machine.new_client_handle()
    machine.clients[handle] = Client(machine, handle, program, file.handle)
    return handle


def _parameters(machine: DriverState, block: Struct, name: str | None, how: str) -> Struct | None:
    if name is None:
        return None
    if name == "NvHandle":  # roots only
        return None
    if not block.pAllocParms:
        require(how == "OPTIONAL", Status.INVALID_ARGUMENT, f"{name} is required")
        return None
    layout = machine.abi.structs[name]
    if block.paramsSize not in (0, layout.size):
        raise RmError(
            Status.INVALID_ARGUMENT,
            f"{name} must have {layout.size} bytes in this branch, got {block.paramsSize}",
        )
    params: Struct = layout.view(copy_in(block.pAllocParms, layout.size))
    return params


def _check_gpu(parent: RmObject) -> None:
    """Raise if the GPU is lost or must be reset: its objects cannot be created."""
    gpu = gpu_of(parent)
    if gpu is None:
        return
    require(not gpu.lost, Status.GPU_IS_LOST)
    require(not gpu.reset_required, Status.RESET_REQUIRED)
    if gpu.machine.faults.take(Fault.FIRMWARE_TIMEOUT, gpu.index):
        gpu.report(Xid.GSP_TIMEOUT, "Timeout after 6s of waiting for RPC response from GPU GSP")
        raise RmError(Status.TIMEOUT, "planted")
