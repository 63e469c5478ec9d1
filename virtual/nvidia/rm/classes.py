"""The classes of a GPU, and the builders for objects of the resource manager's own classes."""

from __future__ import annotations

from functools import cache

from ugpu.nv.chips.facts import ChipFacts
from ugpu.virtual.nvidia.rm.channels import (
    ChannelGroup,
    ChannelObject,
    ComputeObject,
    ContextShare,
    CopyObject,
    Debugger,
)
from ugpu.virtual.nvidia.rm.duplicates import ChannelRetainer
from ugpu.virtual.nvidia.rm.memory import (
    OsDescriptorMemory,
    SystemMemory,
    VideoMemory,
    VirtualRange,
)
from ugpu.virtual.nvidia.rm.mig import ComputeInstance, GpuInstance
from ugpu.virtual.nvidia.rm.objects import Allocation, Builder, RmObject
from ugpu.virtual.nvidia.rm.resources import Device, Event, Subdevice, UserMode, VaSpace
from ugpu.virtual.nvidia.rm.shared_data import UserSharedData

# Classes without an engine that every GPU has, and usermode and channel classes of older chips that
# newer ones keep (open-gpu-kernel-modules 580.142 src/nvidia/generated/g_gpu_class_list.c).
_COMMON = frozenset(
    (0x0005, 0x00DE, 0x003E, 0x0040, 0x0070, 0x0071, 0x0079, 0x0080, 0x2080, 0x50A0, 0x83DE, 0x9067,
     0x90F1, 0xA06C, 0xC637, 0xC638)
)  # fmt: skip
_OLDER = {
    "turing": (0xC361,),
    "ampere": (0xC361, 0xC461),
    "ada": (0xC361, 0xC461),
    "hopper": (0xC361, 0xC461),
    "blackwell": (0xC361, 0xC461, 0xC661),
}
#: GPFIFO classes, oldest first: a chip has its own and all older ones
_CHANNELS = (0xC36F, 0xC46F, 0xC56F, 0xC86F, 0xC96F, 0xCA6F)


@cache
def classes_of(facts: ChipFacts) -> frozenset[int]:
    """Return every class of which the chip can create objects."""
    own = (facts.usermode_class, facts.gpfifo_class, facts.compute_class, facts.copy_class)
    return _COMMON | frozenset(own) | frozenset(_OLDER[facts.family]) | channels_of(facts)


def channels_of(facts: ChipFacts) -> frozenset[int]:
    """Return the channel classes: those of older chips also work on newer ones."""
    return frozenset(_CHANNELS[: _CHANNELS.index(facts.gpfifo_class) + 1])


def _os_descriptor(request: Allocation) -> RmObject:
    params = request.block
    return OsDescriptorMemory(request, params.descriptor, params.limit + 1)


@cache
def builders() -> dict[str, Builder]:
    """Return builders by the resource manager's own class, as named in the table of classes."""
    made: tuple[type[RmObject], ...] = (
        Device, Subdevice, VaSpace, UserMode, Event, VideoMemory, SystemMemory, VirtualRange,
        GpuInstance, ComputeInstance, ChannelGroup, ContextShare, ChannelObject, ComputeObject,
        ChannelRetainer, CopyObject, Debugger, UserSharedData,
    )  # fmt: skip
    found: dict[str, Builder] = {kind.internal: kind for kind in made}
    found["OsDescMemory"] = _os_descriptor
    found["VirtualMemory"] = VirtualRange
    return found
