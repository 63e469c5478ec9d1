"""GET_GSP_STATIC_INFO: what the GSP tells once: regions of memory, directories, handles, shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ugpu.virtual.nvidia.chip import ENGINE_COPY0, ENGINE_GR0
from ugpu.virtual.nvidia.gsp.falcon.wpr import WprMeta
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.text_files import NAMES

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.rpc.server import GspServer

# Client, device, subdevice of the GSP's own. The CPU's internal clients begin at 0xc1e00000, in the
# same name space (RS_CLIENT_INTERNAL_HANDLE_BASE). UNSURE: the client; the others are gpu.h's.
INTERNAL = (0xC200_0001, 0xABCD_0080, 0xABCD_2080)
_GID_BINARY = 2  # NV2080_CTRL_GPU_GET_GID_INFO_PARAMS
# Of the bits of compressed memory, which no program of the model has. UNSURE: boards' sizes.
STORE = 1 << 20
FAULTS = (CardFault.STATIC_CUT, CardFault.STATIC_OUTSIDE, CardFault.STATIC_NONE)


def fill(server: GspServer, fault: CardFault | None = None) -> bytes:
    """Return the structure. fault: one of FAULTS that is planted in it."""
    gpu, meta, (bar1, bar2) = server.gpu, server.meta, server.directories
    block: Any = server.interface.structs.GspStaticConfigInfo.new(
        fb_length=gpu.memory.size, bar1PdeBase=bar1, bar2PdeBase=bar2
    )
    _enter_regions(block.fbRegionInfoParams, store(meta), gpu.memory.size, fault)
    block.hInternalClient, block.hInternalDevice, block.hInternalSubdevice = INTERNAL
    gid, name = block.gidInfo, NAMES[gpu.facts.name].encode()
    gid.flags, gid.length = _GID_BINARY, len(gpu.uuid)
    gid.data[: len(gpu.uuid)] = gpu.uuid
    block.gpuNameString[: len(name)] = name
    engines = 1 << ENGINE_GR0 | ((1 << gpu.options.copy_engines) - 1) << ENGINE_COPY0
    block.engineCaps[:2] = engines & 0xFFFF_FFFF, engines >> 32
    fields = block.layout.fields
    if "gpcInfo" in fields:  # later versions have controls for it
        block.gpcInfo.gpcMask = (1 << gpu.gpcs) - 1
        for gpc in range(gpu.gpcs):
            block.tpcInfo[gpc].gpcId = gpc
            block.tpcInfo[gpc].tpcMask = (1 << gpu.tpcs_per_gpc) - 1
    if "fwWprLayoutOffset" in fields:
        block.fwWprLayoutOffset.nonWprHeapOffset = meta.nonWprHeapOffset
        block.fwWprLayoutOffset.frtsOffset = meta.frtsOffset
    return bytes(block.raw[: len(block.raw) // 2] if fault is CardFault.STATIC_CUT else block.raw)


def store(meta: WprMeta) -> int:
    """Return where the firmware keeps the bits of compressed memory: below its own heap."""
    return int(meta.nonWprHeapOffset) - STORE


def _enter_regions(params: Any, used: int, size: int, fault: CardFault | None) -> None:
    """Describe video memory: usable below `used`, reserved from there on."""
    rows = [(0, used, 0), (used, size, 1)]
    if fault is CardFault.STATIC_NONE:
        rows = rows[1:]
    elif fault is CardFault.STATIC_OUTSIDE:
        rows = [(size, 2 * size, 0)]
    params.numFBRegions = len(rows)
    for index, (base, end, reserved) in enumerate(rows):
        region = params.fbRegion[index]
        region.base, region.limit, region.reserved = base, end - 1, reserved
        region.supportCompressed = region.supportISO = 1 - reserved
