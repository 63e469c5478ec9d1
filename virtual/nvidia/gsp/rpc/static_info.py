"""GET_GSP_STATIC_INFO: what the GSP tells once: regions of memory, directories, handles, shape."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ugpu.virtual.nvidia.chip import ENGINE_COPY0, ENGINE_GR0, VirtualGpu
from ugpu.virtual.nvidia.gsp.falcon.wpr import WprMeta
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.gsp.rpc.interface import Interface
from ugpu.virtual.nvidia.text_files import NAMES

_GID, _GID_BINARY = 0x18, 2  # NV2080_CTRL_GPU_GET_GID_INFO_PARAMS
_REGION = struct.Struct("<QQQIBBB16s")
FAULTS = (CardFault.STATIC_CUT, CardFault.STATIC_OUTSIDE, CardFault.STATIC_NONE)


@dataclass(frozen=True)
class Directories:
    """Page directories of the apertures, which the GSP's resource manager made."""

    bar1: int
    bar2: int


def fill(
    interface: Interface,
    gpu: VirtualGpu,
    meta: WprMeta,
    made: Directories,
    handles: tuple[int, ...],
    fault: CardFault | None = None,
) -> bytes:
    """Return the structure. handles: of the internal client, device and subdevice. fault: one of
    FAULTS that is planted in it."""
    static = interface.static
    raw = bytearray(static.size)
    regions: tuple[tuple[int | bytes, ...], ...] = (
        (0, meta.other_heap - 1, 0, 0, 1, 1, 0, b""),
        (meta.other_heap, gpu.memory.size - 1, 1, 0, 0, 0, 0, b""),
    )
    if fault is CardFault.STATIC_NONE:
        regions = regions[1:]
    elif fault is CardFault.STATIC_OUTSIDE:
        regions = ((gpu.memory.size, 2 * gpu.memory.size - 1, *regions[0][2:]),)
    struct.pack_into("<I", raw, static.regions, len(regions))
    for index, region in enumerate(regions):
        _REGION.pack_into(raw, static.regions + 8 + 0x30 * index, *region)
    struct.pack_into("<QQ", raw, static.bar1_directory, made.bar1, made.bar2)
    struct.pack_into("<3I", raw, static.handles, *handles)
    struct.pack_into("<III16s", raw, _GID, 0, _GID_BINARY, len(gpu.uuid), gpu.uuid)
    engines = 1 << ENGINE_GR0 | ((1 << gpu.options.copy_engines) - 1) << ENGINE_COPY0
    struct.pack_into("<Q", raw, static.engines, engines)
    struct.pack_into("<Q", raw, static.memory, gpu.memory.size)
    struct.pack_into("64s", raw, static.name, NAMES[gpu.facts.name].encode())
    if static.gpc_mask is not None and static.tpc_masks is not None:
        struct.pack_into("<I", raw, static.gpc_mask, (1 << gpu.gpcs) - 1)
        for gpc in range(gpu.gpcs):
            tpcs = (1 << gpu.tpcs_per_gpc) - 1
            struct.pack_into("<II", raw, static.tpc_masks + 8 * gpc, gpc, tpcs)
    if static.layout is not None:
        struct.pack_into("<QQ", raw, static.layout, meta.other_heap, meta.frts)
    return bytes(raw[: static.size // 2] if fault is CardFault.STATIC_CUT else raw)
