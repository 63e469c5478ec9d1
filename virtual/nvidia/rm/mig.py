"""Instances of a divided GPU (MIG): access checks, and the rule that work needs an instance.

The resources of an instance are not modelled: each one has all SMs and engines of the chip. Source:
open-gpu-kernel-modules 580.142 src/nvidia/src/kernel/gpu/mig_mgr/gpu_instance_subscription.c,
compute_instance_subscription.c; kernel-open/nvidia/nv-caps.c for the capability files.
"""

from __future__ import annotations

from typing import cast

from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.rm.objects import Allocation, RmObject
from ugpu.virtual.nvidia.rm.resources import need_gpu
from ugpu.virtual.nvidia.status import RmError, Status, require

CAPABILITIES = "/dev/nvidia-caps/nvidia-cap"


def minor_of(gpu: int, instance: int, compute: int | None = None) -> int:
    """Return the minor number of an instance's capability file; 1 and 2 are for configuration."""
    return 3 + gpu * 135 + instance * 9 + (0 if compute is None else compute + 1)


def access_files(gpu: VirtualGpu) -> dict[str, int]:
    """Return the files of /proc that name capability files, with their minor numbers."""
    folder = f"/proc/driver/nvidia/capabilities/gpu{gpu.index}/mig"
    found = {}
    for instance, compute in gpu.options.mig or ():
        found[f"{folder}/gi{instance}/access"] = minor_of(gpu.index, instance)
        found[f"{folder}/gi{instance}/ci{compute}/access"] = minor_of(gpu.index, instance, compute)
    return found


def _need_capability(request: Allocation, minor: int) -> None:
    file = request.client.owner.files.get(request.block.capDescriptor)
    if file is None or file.path != f"{CAPABILITIES}{minor}":
        raise RmError(Status.INSUFFICIENT_PERMISSIONS, f"capDescriptor is not nvidia-cap{minor}")


class GpuInstance(RmObject):
    """AMPERE_SMC_PARTITION_REF: subscribes the client to one instance of the GPU."""

    internal = "GPUInstanceSubscription"

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        gpu = need_gpu(request.parent)
        number = request.block.swizzId
        require(gpu.options.mig is not None, Status.NOT_SUPPORTED, "the GPU is not divided")
        known = {instance for instance, _ in gpu.options.mig or ()}
        require(known, Status.NOT_SUPPORTED, "the GPU has no instances")
        require(number in known, Status.INVALID_ARGUMENT, f"no instance {number}")
        _need_capability(request, minor_of(gpu.index, number))
        if entered(request.parent) is not None:
            raise RmError(Status.STATE_IN_USE, "the subdevice is in an instance")
        self.number = number
        self.gpu = gpu


class ComputeInstance(RmObject):
    """AMPERE_SMC_EXEC_PARTITION_REF: subscribes it to one compute instance as well."""

    internal = "ComputeInstanceSubscription"

    def __init__(self, request: Allocation) -> None:
        super().__init__(request)
        above = cast(GpuInstance, request.parent)
        number = request.block.execPartitionId
        known = above.gpu.options.mig or ()
        require((above.number, number) in known, Status.INVALID_ARGUMENT, f"no instance {number}")
        _need_capability(request, minor_of(above.gpu.index, above.number, number))
        require(not above.children, Status.STATE_IN_USE, "in a compute instance already")
        self.number = number


def entered(subdevice: RmObject) -> GpuInstance | None:
    """Return the instance to which a subdevice is subscribed."""
    for child in subdevice.children.values():
        if isinstance(child, GpuInstance):
            return child
    return None


def need_instance(device: RmObject, gpu: VirtualGpu) -> None:
    """Raise unless the device has an instance: channels of a divided GPU require one."""
    if gpu.options.mig is None:
        return
    inside = any(entered(child) is not None for child in device.children.values())
    require(inside, Status.INVALID_STATE, "the GPU is divided (MIG), and no instance was entered")
