"""Step "static-info": what the firmware says of the card, which does not change."""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.hcq.errors import FirmwareError
from ugpu.nv.gsp.rpc.calls import REPLY_LIMIT_S, Calls, require_size

_MOST_REGIONS = 16


@dataclass(frozen=True)
class StaticInfo:
    """What the driver uses of GspStaticConfigInfo.

    name: of the product. uuid: 16 bytes, or none. regions: begin and end of VRAM that the driver
    may use. saved_at: where the heap outside of the protected region, and FRTS, are in VRAM; None
    where the release does not say.
    """

    name: str
    uuid: bytes
    regions: tuple[tuple[int, int], ...]
    saved_at: tuple[int, int] | None


def read_static(calls: Calls, vram: int, limit_s: float = REPLY_LIMIT_S) -> StaticInfo:
    """Ask for GspStaticConfigInfo; FirmwareError if it describes no memory in VRAM. limit_s: for
    the answer."""
    abi = calls.abi
    layout = abi.structs.GspStaticConfigInfo
    function = abi.constants.NV_VGPU_MSG_FUNCTION_GET_GSP_STATIC_INFO
    reply = calls.call(function, bytes(layout.size), limit_s=limit_s)
    require_size(reply, layout.size, "description of the card")
    info = layout.view(reply[: layout.size])
    regions = info.fbRegionInfoParams
    count = min(int(regions.numFBRegions), _MOST_REGIONS)
    usable = []
    for number in range(count):
        region = regions.fbRegion[number]
        if region.reserved or region.bProtected:
            continue
        begin, end = int(region.base), int(region.limit) + 1
        if not begin < end <= vram:
            raise FirmwareError(
                "the GSP describes memory outside of VRAM", begin=begin, end=end, vram=vram
            )
        usable.append((begin, end))
    if not usable:
        raise FirmwareError("the GSP describes no memory that a driver may use", regions=count)
    saved_at, gid = None, info.gidInfo
    if "fwWprLayoutOffset" in layout.fields:
        places = info.fwWprLayoutOffset
        saved_at = int(places.nonWprHeapOffset), int(places.frtsOffset)
    text = bytes(info.gpuNameString).split(b"\0")[0].decode("ascii", "replace")
    return StaticInfo(
        name=text,
        uuid=bytes(gid.data)[:16] if int(gid.length) >= 16 else b"",
        regions=tuple(sorted(usable)),
        saved_at=saved_at,
    )
