"""MIG: a GPU that an administrator divided. Instances are recognised and entered, never changed.

Sources: open-gpu-kernel-modules 580.142 class/clc637.h, clc638.h, ctrl2080gpu.h
(NV2080_CTRL_GPU_INFO_INDEX_GPU_SMC_MODE); NVIDIA Multi-Instance GPU User Guide r580, "Device Nodes
and Capabilities".
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ugpu.hcq.errors import BadArgument, DeviceNotFound, UgpuError
from ugpu.nv.rm.client import open_file, os_error

if TYPE_CHECKING:
    from ugpu.nv.rm.session import NodeObjects

_GPU_INSTANCES, _COMPUTE_INSTANCES = 15, 8  # identifiers that the guide's profiles use
_NAME = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True)
class Instance:
    """Part of a GPU: GPU instance and compute instance, and the handles of the subscriptions to
    them."""

    gpu_instance: int
    compute_instance: int
    partition: int
    execution: int


def is_divided(gpu: NodeObjects) -> bool:
    """Return whether MIG is enabled."""
    client = gpu.client
    number = client.constants
    block = client.structs.NV2080_CTRL_GPU_GET_INFO_V2_PARAMS.new(gpuInfoListSize=1)
    block.gpuInfoList[0].index = number.NV2080_CTRL_GPU_INFO_INDEX_GPU_SMC_MODE
    client.control(gpu.subdevice, "NV2080_CTRL_CMD_GPU_GET_INFO_V2", block)
    enabled = number.NV2080_CTRL_GPU_INFO_GPU_SMC_MODE_ENABLED
    return bool(block.gpuInfoList[0].data == enabled)


def instances(gpu: NodeObjects) -> list[str]:
    """Names of the existing instances, such as "3/0", as `mig=` takes them."""
    found = []
    for outer in range(_GPU_INSTANCES):
        folder = f"/proc/driver/nvidia/capabilities/gpu{gpu.index}/mig/gi{outer}"
        if _capability(gpu, f"{folder}/access") is None:
            continue
        for inner in range(_COMPUTE_INSTANCES):
            if _capability(gpu, f"{folder}/ci{inner}/access") is not None:
                found.append(f"{outer}/{inner}")
    return found


def enter_instance(gpu: NodeObjects, name: str | None) -> Instance | None:
    """Subscribe to the instance `name`; None on an undivided GPU.

    BadArgument when a divided GPU is opened without naming an instance, or the other way round;
    DeviceNotFound for an instance that does not exist, AccessDenied for one without permission.
    """
    if not is_divided(gpu):
        if name is not None:
            raise BadArgument(f"MIG is off: open {gpu.path} without mig=")
        return None
    have = ", ".join(instances(gpu)) or "none, make some with nvidia-smi mig -cgi"
    if name is None:
        raise BadArgument(f"MIG is on: pass mig= with an instance; {gpu.path} has: {have}")
    match = _NAME.fullmatch(name)
    if match is None:
        raise BadArgument("mig must name an instance, as in mig='3/0'", mig=name)
    outer, inner = int(match[1]), int(match[2])
    folder = f"/proc/driver/nvidia/capabilities/gpu{gpu.index}/mig/gi{outer}"
    client = gpu.client
    files: list[int] = []
    try:
        for path in (f"{folder}/access", f"{folder}/ci{inner}/access"):
            minor = _capability(gpu, path)
            if minor is None:
                raise DeviceNotFound(f"{gpu.path} has no instance {name}; available: {have}")
            files.append(open_file(client.node, f"/dev/nvidia-caps/nvidia-cap{minor}"))
        partition = client.allocate(
            gpu.subdevice,
            "AMPERE_SMC_PARTITION_REF",
            client.structs.NVC637_ALLOCATION_PARAMETERS.new(capDescriptor=files[0], swizzId=outer),
        )
        execution = client.allocate(
            partition,
            "AMPERE_SMC_EXEC_PARTITION_REF",
            client.structs.NVC638_ALLOCATION_PARAMETERS.new(
                capDescriptor=files[1], execPartitionId=inner
            ),
        )
    finally:
        for file in files:  # the subscriptions keep the access that the files proved
            with contextlib.suppress(UgpuError):
                client.node.release(file)
    return Instance(outer, inner, partition, execution)


def _capability(gpu: NodeObjects, path: str) -> int | None:
    """The minor number of a capability's node, or None if there is no such capability."""
    try:
        text = gpu.client.node.read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise os_error(error, f"read {path}") from error
    match = re.search(r"DeviceFileMinor:\s*(\d+)", text)
    return int(match[1]) if match is not None else None
