"""The carve-out of VRAM that the GSP's firmware takes, from the end of VRAM downwards.

Sources: open-gpu-kernel-modules 570.144 kernel_gsp_tu102.c kgspCalculateFbLayout, gsp_fw_heap.h;
Linux 7.3 nouveau nvkm/subdev/gsp/tu102.c, nova-core fb.rs. The values are not chosen by us: booter
and firmware refuse others without saying why (docs/nv-bringup.md), so they equal nouveau's.
"""

from __future__ import annotations

from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.nv.abi.firmware import FirmwareAbi

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
FRTS_SIZE = MIB
NON_WPR_HEAP_SIZE = MIB
_WPR_ALIGN = 128 * KIB
_META_SIZE = 0x100
_LEAST_VRAM = 256 * MIB
_VGA_SIZE = 128 * KIB  # where FMC chooses the places


def heap_size(abi: FirmwareAbi, vram: int, *, libos: int, fsp: bool) -> int:
    """Return the size of the firmware's heap for a card with `vram` bytes. libos: 2 or 3, the
    firmware's operating system. Source: gsp_fw_heap.h of the firmware's release."""
    number, kind = abi.constants, f"LIBOS{libos}"
    own = kind if libos == 2 else f"{kind}_BAREMETAL"
    system = f"GSP_FW_HEAP_PARAM_OS_SIZE_{own}"
    if system not in number:  # release 535 has one for both
        system = f"GSP_FW_HEAP_PARAM_OS_SIZE_{kind}"
    size = (
        number[system]
        + number[f"GSP_FW_HEAP_PARAM_BASE_RM_SIZE_{'GH100' if fsp else 'TU10X'}"]
        + number.GSP_FW_HEAP_PARAM_CLIENT_ALLOC_SIZE
        + _up(number.GSP_FW_HEAP_PARAM_SIZE_PER_GB_FB * -(-vram // GIB), MIB)
    )
    least, most = (
        number[f"GSP_FW_HEAP_SIZE_OVERRIDE_{own}_{limit}_MB"] * MIB for limit in ("MIN", "MAX")
    )
    return min(max(size, least), most)


def vga_workspace(vram: int, base: int | None) -> int:
    """Return where the VGA workspace begins. base: as the display's register states it; None if
    there is no display, or the register holds none."""
    if base is None:
        return vram - MIB
    return vram - 128 * KIB if base < vram - MIB else base


def carve_out(
    vram: int,
    top: int,
    *,
    boot_size: int,
    image_size: int,
    heap: int,
    frts_size: int = FRTS_SIZE,
) -> dict[str, int]:
    """Return the fields of GspFwWprMeta that say where booter places the firmware, each below the
    one after it. top: where the VGA workspace, or memory that is locked, begins. heap: bytes.

    NotSupported if VRAM is too small for it.
    """
    if not 0 < top <= vram:
        raise BadArgument("the carve-out must end in VRAM", top=top, vram=vram)
    wpr_end = _down(top, _WPR_ALIGN)
    frts = wpr_end - frts_size
    boot = _down(frts - boot_size, 4 * KIB)
    image = _down(boot - image_size, 64 * KIB)
    start = _down(image - heap, MIB)
    wpr_start = _down(start - _META_SIZE, MIB)
    non_wpr = wpr_start - NON_WPR_HEAP_SIZE
    if vram < _LEAST_VRAM or non_wpr < vram // 8:
        raise NotSupported(
            "the card has too little memory for the GSP's firmware", vram=vram, need=vram - non_wpr
        )
    return {
        "gspFwRsvdStart": non_wpr,
        "nonWprHeapOffset": non_wpr,
        "nonWprHeapSize": NON_WPR_HEAP_SIZE,
        "gspFwWprStart": wpr_start,
        "gspFwHeapOffset": start,
        "gspFwHeapSize": _down(image - start, MIB),
        "gspFwOffset": image,
        "bootBinOffset": boot,
        "frtsOffset": frts,
        "frtsSize": frts_size,
        "gspFwWprEnd": wpr_end,
        "vgaWorkspaceOffset": top,
        "vgaWorkspaceSize": vram - top,
        "fbSize": vram,
    }


def sized(heap: int, non_wpr: int, pmu_reserved: int) -> dict[str, int]:
    """Return the fields of GspFwWprMeta where FMC chooses the places: sizes alone."""
    return {
        "gspFwHeapSize": heap,
        "nonWprHeapSize": non_wpr,
        "pmuReservedSize": pmu_reserved,
        "frtsSize": FRTS_SIZE,
        "vgaWorkspaceSize": _VGA_SIZE,
    }


def _down(value: int, granule: int) -> int:
    return value // granule * granule


def _up(value: int, granule: int) -> int:
    return -(-value // granule) * granule
