"""Address spaces whose tables the CPU writes: a device's own, and the one that devices of the CPU's
internal clients share.

Source: open-gpu-kernel-modules 550.163.01 gpu_vaspace.c (gvaspaceReserveSplitVaSpace), nvos.h
(NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE).
"""

from __future__ import annotations

from ugpu.virtual.nvidia.rm.objects import Allocation, RmObject
from ugpu.virtual.nvidia.rm.resources import Device, VaSpace
from ugpu.virtual.nvidia.status import RmError, Status

_OF_DEVICE = 3  # NV_VASPACE_ALLOCATION_INDEX_GPU_DEVICE
_VASPACE_CLASS = 0x90F1  # FERMI_VASPACE_A


class DeviceSpace(VaSpace):
    """The device's own address space. The object is a handle to it: freeing it frees nothing."""

    def __init__(self, request: Allocation) -> None:
        RmObject.__init__(self, request)
        device = self.ancestor(Device)
        if not isinstance(device, Device):
            raise RmError(Status.INVALID_OBJECT_PARENT, f"no device above {request.parent!r}")
        self.gpu = device.gpu
        self.flags, self.base, self.size = 0, 0, 1 << device.gpu.form.address_bits
        self.external, self.registered, self.users = True, False, 1
        self.space = device.default_space()

    def drop(self) -> None:
        """Keep the tables: they are the device's."""


def build(request: Allocation) -> RmObject:
    """Create an address space, or a handle to the device's own."""
    if request.params is not None and request.params.index == _OF_DEVICE:
        return DeviceSpace(request)
    return VaSpace(request)


def space_of(device: Device) -> VaSpace:
    """Return the address space for an object that names none: the only one that was made for the
    device, or else the device's own."""
    for child in device.children.values():
        if isinstance(child, VaSpace):
            return child
    return own_space(device)


def own_space(device: Device) -> VaSpace:
    """Return the device's own address space."""
    client = device.client
    return DeviceSpace(Allocation(device.machine, client, device, 0, _VASPACE_CLASS, None))
