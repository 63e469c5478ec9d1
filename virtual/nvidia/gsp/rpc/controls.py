"""Controls that only the CPU's half of the resource manager makes: tables and internal calls.

Sources: open-gpu-kernel-modules 570.144 ctrl2080internal.h, ctrl2080fifo.h, ctrl2080gpu.h,
ctrl0080dma.h, ctrl90f1.h; which of them, and in what order: Linux 7.3.4 nouveau
nvkm/subdev/gsp/rm/{r535,r570}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ugpu.hcq.registers.layout import Struct
from ugpu.virtual.nvidia.chip import ENGINE_COPY0, ENGINE_GR0, VirtualGpu
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.gsp.rpc.spaces import own_space, space_of
from ugpu.virtual.nvidia.memory.fault_buffers import FAMILIES
from ugpu.virtual.nvidia.options import GRAPHICS_COPY_ENGINES
from ugpu.virtual.nvidia.rm.channels import ChannelObject, space_of_handle
from ugpu.virtual.nvidia.rm.contexts import BUFFERS
from ugpu.virtual.nvidia.rm.controls.control_gpu import gr_info
from ugpu.virtual.nvidia.rm.objects import RmObject
from ugpu.virtual.nvidia.rm.resources import Device, Subdevice, VaSpace, need_gpu
from ugpu.virtual.nvidia.status import RmError, Status, require

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.rpc.server import GspServer

NONE = 0xFFFF_FFFF
# As the GSP of a GA106 answers (recorded in github.com/reindertpelsma/kayfabe, GA106_INTR_TABLE).
# Turing's CPU half reads even leaves alone: these are. UNSURE: other chips' vectors.
GSP_VECTOR = 155
MEMORY_VECTORS = {"REPLAYABLE_FAULT": 64, "ACCESS_CNTR": 72, "NON_REPLAYABLE_FAULT": 131}
_NO_SUBTREE = 0xFF  # NV2080_INTR_INVALID_SUBTREE
# The subtree (64 vectors) of each NV2080_INTR_CATEGORY: default, engines, their notifications,
# runlists, their notifications, owned by UVM, shared with UVM (dev_vm_addendum.h of Turing, Ampere)
_SUBTREES = (_NO_SUBTREE, 3, 0, _NO_SUBTREE, _NO_SUBTREE, 1, 2)
NON_STALL_GR, NON_STALL_COPY = 8, 0  # copy engine n: vector n
_VIDEO = 1  # aperture of a directory
_SYSTEM_MEMORY, _VIDEO_MEMORY = 1, 2  # kinds of memory
_APERTURE = 3  # of PROMOTE_CTX's physAttr: 0 video memory
_DESCRIPTION_GR, _DESCRIPTION_CE = 0xD334DF, 0x793CEB  # ENG_GR, ENG_CE: class id << 8 | instance
COPY_TYPE = 0x13  # DEVICE_TYPE of dev_top.h; 0: graphics
RUNLISTS, CHANNEL_RAM = 0xC0_0000, 0xD0_0000  # 0x1000 bytes, and 0x2000 of 2048 channels, each
# index in engineContextBuffersInfo of a context buffer (NV0080_CTRL_FIFO_GET_ENGINE_CONTEXT_...)
_PLACES = {
    "MAIN": 0x00, "PATCH": 0x10, "BUFFER_BUNDLE_CB": 0x11, "PAGEPOOL": 0x12, "ATTRIBUTE_CB": 0x13,
    "RTV_CB_GLOBAL": 0x14, "PRIV_ACCESS_MAP": 0x18,
}  # fmt: skip
# PM; the page pool of one context, which Linux takes for the shared one; GFXP; FECS events
_FURTHER = {0x09: 0x10000, 0x0D: 4 << 20, 0x15: 0x10000, 0x16: 0x10000, 0x17: 0x10000}
_GR_INFO = "NV2080_CTRL_GR_INFO_INDEX_"
# names by buffer id of PROMOTE_CTX
_PROMOTED = (
    "MAIN", "PM", "PATCH", "BUFFER_BUNDLE_CB", "PAGEPOOL", "ATTRIBUTE_CB", "RTV_CB_GLOBAL",
    "GFXP_POOL", "GFXP_CTRL_BLK", "FECS_EVENT", "PRIV_ACCESS_MAP", "UNRESTRICTED_PRIV_ACCESS_MAP",
)  # fmt: skip
_TABLE_PAGE = 32  # entries of one FIFO_GET_DEVICE_INFO_TABLE


def server_of(target: RmObject) -> GspServer:
    """Return the firmware that an object belongs to."""
    return cast("GspServer", target.client.owner)


def fixed(**values: int) -> Callable[[Subdevice, Struct], None]:
    """Return a handler that answers the same at any time."""

    def answer(sub: Subdevice, params: Struct) -> None:
        for name, value in values.items():
            params[name] = value

    return answer


_NO_FALCONS = fixed(numConstructedFalcons=0)
# The shape of depth culling. UNSURE: the values; 3D drivers alone use them.
_ZCULL = fixed(
    widthAlignPixels=0x40, heightAlignPixels=0x40, pixelSquaresByAliquots=0x100,
    aliquotTotal=0x4000, zcullRegionByteMultiplier=0x20, zcullRegionHeaderSize=0xC0,
    zcullSubregionHeaderSize=0xC0, subregionCount=0x10, subregionWidthAlignPixels=0x40,
    subregionHeightAlignPixels=0x40,
)  # fmt: skip


def vector_of(engine_type: int) -> int:
    """Return the non-stall vector of an NV2080_ENGINE_TYPE."""
    return (
        NON_STALL_GR if engine_type == ENGINE_GR0 else NON_STALL_COPY + engine_type - ENGINE_COPY0
    )


def _kernel_table(sub: Subdevice, params: Struct) -> None:
    gpu, server = need_gpu(sub), server_of(sub)
    number = server.interface.constants
    rows = [(number.MC_ENGINE_IDX_GSP, GSP_VECTOR, NONE)]
    rows += [
        (number.MC_ENGINE_IDX_CE0 + at, NONE, NON_STALL_COPY + at)
        for at in range(gpu.options.copy_engines)
    ]
    rows.append((number.MC_ENGINE_IDX_GR0, NONE, NON_STALL_GR))
    rows += [(number[f"MC_ENGINE_IDX_{name}"], at, NONE) for name, at in MEMORY_VECTORS.items()]
    for category, subtree in enumerate(_SUBTREES):
        params.subtreeMap[category].subtreeStart = subtree
        params.subtreeMap[category].subtreeEnd = subtree
    params.tableLen = len(rows)
    for index, (engine, stall, non_stall) in enumerate(rows):
        entry = params.table[index]
        entry.engineIdx, entry.pmcIntrMask = engine, 0
        entry.vectorStall, entry.vectorNonStall = stall, non_stall
    if server.board.faults.take(CardFault.INTERRUPT_TABLE):
        params.table[0].engineIdx = 0


def runlist_engine(engine: int) -> int:
    """Return the number of an engine on its runlist."""
    copy = engine - ENGINE_COPY0
    return copy + 1 if 0 <= copy < GRAPHICS_COPY_ENGINES else 0


def engines_of(gpu: VirtualGpu) -> list[tuple[int, int, int]]:
    """Return type, number of its kind and runlist of each engine, the graphics engine first."""
    types = [ENGINE_GR0, *range(ENGINE_COPY0, ENGINE_COPY0 + gpu.options.copy_engines)]
    return [
        (engine, max(0, engine - ENGINE_COPY0), runlist.number)
        for engine in types
        if (runlist := gpu.runlist_of(engine)) is not None
    ]


def _device_info(sub: Subdevice, params: Struct) -> None:
    gpu = need_gpu(sub)
    rows, first = engines_of(gpu), params.baseIndex
    require(first % _TABLE_PAGE == 0, Status.INVALID_ARGUMENT, f"baseIndex {first}")
    shown = rows[first : first + _TABLE_PAGE]
    params.numEntries, params.bMore = len(shown), int(len(rows) > first + _TABLE_PAGE)
    _, graphics, first_copy, host = FAMILIES[gpu.facts.family]
    for index, (engine, copy, number) in enumerate(shown):
        copies = engine != ENGINE_GR0
        fault, name = (first_copy + copy, f"CE{copy}") if copies else (graphics, "GR0")
        description = _DESCRIPTION_CE << 8 | copy if copies else _DESCRIPTION_GR << 8
        entry = params.entries[index]
        data = (
            description, first + index, engine, number, fault, 0, 0, 0, 0,
            COPY_TYPE if copies else 0, copy, RUNLISTS + 0x1000 * number, 1,
            runlist_engine(engine), CHANNEL_RAM + 0x2000 * number, 0,
        )  # fmt: skip
        entry.engineData[: len(data)] = data
        entry.pbdmaIds[0], entry.pbdmaFaultIds[0], entry.numPbdmas = number, host + number, 1
        entry.engineName[: len(name)] = name.encode()


def _gpcs(sub: Subdevice, params: Struct) -> None:
    params.gpcMask = (1 << need_gpu(sub).gpcs) - 1


def _tpcs(sub: Subdevice, params: Struct) -> None:
    gpu = need_gpu(sub)
    require(params.gpcId < gpu.gpcs, Status.INVALID_ARGUMENT, f"GPC {params.gpcId}")
    params.tpcMask = (1 << gpu.tpcs_per_gpc) - 1


def _static_gr_info(sub: Subdevice, params: Struct) -> None:
    gpu = need_gpu(sub)
    constants = sub.machine.abi.constants
    info = params.engineInfo[0].infoList
    for index in range(len(info)):
        info[index].index = index
        for name in constants.names(index, prefix=_GR_INFO):
            info[index].data = gr_info(gpu, name.removeprefix(_GR_INFO)) or 0


def _buffer_sizes(target: RmObject) -> Mapping[str, int]:
    """Return the bytes of each context buffer, by name."""
    options = server_of(target).board.options
    maps = dict.fromkeys(("PRIV_ACCESS_MAP", "UNRESTRICTED_PRIV_ACCESS_MAP"), options.access_maps)
    return {buffer.name: buffer.size for buffer in BUFFERS} | {"MAIN": options.context, **maps}


def _context_buffers(sub: Subdevice, params: Struct) -> None:
    sizes = _buffer_sizes(sub)
    engine = params.engineContextBuffersInfo[0].engine
    wanted = {index: sizes[name] for name, index in _PLACES.items()} | _FURTHER
    for index, size in wanted.items():
        engine[index].size, engine[index].alignment = size, 0x1000


def _graphics_channel(sub: Subdevice, params: Struct) -> ChannelObject:
    """Return the channel of a request about the buffers of its context."""
    client = sub.machine.clients.get(params.hChanClient)
    if client is None:
        raise RmError(Status.INVALID_CLIENT, f"hChanClient {params.hChanClient:#x}")
    channel = client.find(params.hObject, Status.INVALID_OBJECT_HANDLE)
    if not isinstance(channel, ChannelObject):
        raise RmError(Status.INVALID_OBJECT, f"expected a channel, got {channel!r}")
    require(params.engineType == ENGINE_GR0, Status.NOT_SUPPORTED, "buffers of other engines")
    return channel


def _evict(sub: Subdevice, params: Struct) -> None:
    """Take a channel's context: its work would fault from now on."""
    channel = _graphics_channel(sub, params)
    require(channel.has_context, Status.INVALID_STATE, "the channel has no graphics context")
    channel.contexts_mapped = False


def _promote(sub: Subdevice, params: Struct) -> None:
    channel, sizes = _graphics_channel(sub, params), _buffer_sizes(sub)
    require(params.entryCount <= len(params.promoteEntry), Status.INVALID_ARGUMENT, "entryCount")
    reaches = server_of(channel).board.reaches
    for index in range(params.entryCount):
        entry = params.promoteEntry[index]
        known = entry.bufferId < len(_PROMOTED)
        require(known, Status.INVALID_ARGUMENT, f"no context buffer {entry.bufferId}")
        name = _PROMOTED[entry.bufferId]
        if entry.gpuPhysAddr or entry.size:
            least = sizes.get(name, 0)
            require(entry.size >= least, Status.INVALID_ARGUMENT, f"{name}: {entry.size} bytes")
            kind = _SYSTEM_MEMORY if entry.physAttr & _APERTURE else _VIDEO_MEMORY
            reached = reaches(kind, entry.gpuPhysAddr, entry.size)
            require(reached, Status.INVALID_ADDRESS, f"{name} at {entry.gpuPhysAddr:#x}")
        if name == "MAIN" and entry.gpuVirtAddr:
            channel.contexts_mapped = True
            for member in channel.group.channels if channel.group is not None else ():
                member.contexts_mapped = True


def _global_directories(sub: Subdevice, params: Struct) -> None:
    device = sub.ancestor(Device)
    assert isinstance(device, Device)
    _reserved_directories(own_space(device), params.PdeCopyParams)


def _reserved_directories(space: VaSpace, params: Struct) -> None:
    count = params.numLevelsToCopy
    require(0 < count <= len(params.levels), Status.INVALID_ARGUMENT, f"{count} levels")
    top = params.levels[0]
    require(top.aperture == _VIDEO, Status.NOT_SUPPORTED, f"a directory in aperture {top.aperture}")
    shift = space.gpu.form.levels[0].shift
    require(top.pageShift == shift, Status.INVALID_ARGUMENT, f"level 0 has pageShift {shift}")
    require(params.virtAddrHi > params.virtAddrLo, Status.INVALID_ARGUMENT, "virtAddrHi")
    _set(space, top.physAddress)


def _set_directory(device: Device, params: Struct) -> None:
    space = _space_of(device, params.hVASpace)
    aperture = params.flags & 3  # 0 video memory
    require(aperture == 0, Status.NOT_SUPPORTED, f"a directory in aperture {aperture}")
    least = 1 << space.gpu.form.levels[0].bits
    require(params.numEntries >= least, Status.INVALID_ARGUMENT, f"{params.numEntries} entries")
    _set(space, params.physAddress)


def _unset_directory(device: Device, params: Struct) -> None:
    space = _space_of(device, params.hVASpace)
    require(space.space.has_directory, Status.INVALID_STATE, "no directory is set")
    space.space.set_directory(None)


def _space_of(device: Device, handle: int) -> VaSpace:
    return space_of_handle(device, handle) if handle else space_of(device)


def _set(space: VaSpace, address: int) -> None:
    gpu: VirtualGpu = space.gpu
    require(address % 0x1000 == 0, Status.INVALID_ADDRESS, f"a directory at {address:#x}")
    require(address + 0x1000 <= gpu.memory.size, Status.INVALID_ADDRESS, f"{address:#x}")
    space.space.set_directory(address)


# By the header's name. Any: see rm.controls.control.Handler.
HANDLERS: Mapping[str, Any] = {
    "NV2080_CTRL_CMD_INTERNAL_INTR_GET_KERNEL_TABLE": _kernel_table,
    "NV2080_CTRL_CMD_FIFO_GET_DEVICE_INFO_TABLE": _device_info,
    "NV2080_CTRL_CMD_CE_GET_FAULT_METHOD_BUFFER_SIZE": fixed(size=0x5000),
    # Works around a defect of Turing that the model does not have (kgraphics_tu102.c).
    "NV2080_CTRL_CMD_INTERNAL_KGR_INIT_BUG4208224_WAR": fixed(),
    "NV2080_CTRL_CMD_INTERNAL_GET_CONSTRUCTED_FALCON_INFO": _NO_FALCONS,
    "NV2080_CTRL_CMD_GPU_GET_CONSTRUCTED_FALCON_INFO": _NO_FALCONS,
    "NV2080_CTRL_CMD_GPU_GET_FERMI_GPC_INFO": _gpcs,
    "NV2080_CTRL_CMD_GPU_GET_FERMI_TPC_INFO": _tpcs,
    "NV2080_CTRL_CMD_INTERNAL_MEMSYS_GET_STATIC_CONFIG": fixed(
        l2CacheSize=72 << 20, ltcCount=12, ltsPerLtcCount=4, bFbpaPresent=1
    ),
    "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_INFO": _static_gr_info,
    "NV2080_CTRL_CMD_INTERNAL_STATIC_KGR_GET_CONTEXT_BUFFERS_INFO": _context_buffers,
    "NV2080_CTRL_CMD_GPU_PROMOTE_CTX": _promote,
    "NV2080_CTRL_CMD_GPU_EVICT_CTX": _evict,
    "NV2080_CTRL_CMD_GR_GET_ZCULL_INFO": _ZCULL,
    "NV90F1_CTRL_CMD_VASPACE_COPY_SERVER_RESERVED_PDES": _reserved_directories,
    "NV2080_CTRL_CMD_INTERNAL_GMMU_COPY_RESERVED_SPLIT_GVASPACE_PDES_TO_SERVER": (
        _global_directories
    ),
    "NV0080_CTRL_CMD_DMA_SET_PAGE_DIRECTORY": _set_directory,
    "NV0080_CTRL_CMD_DMA_UNSET_PAGE_DIRECTORY": _unset_directory,
}
