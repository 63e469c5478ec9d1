"""CP_BLIT: fills and copies of linear memory by the 2D engine.

Source: Mesa 25.0.7 src/freedreno/registers/adreno/a6xx.xml; how a client fills and copies buffers,
src/freedreno/vulkan/tu_clear_blit.cc (r2d_src_buffer, r2d_dst_buffer, r2d_clear_value).
"""

from __future__ import annotations

from ugpu.virtual.adreno.cp.state import ProcessorState
from ugpu.virtual.adreno.faults import Cause, GpuFault

_USER = "CP_BLIT"
# Bytes per texel of the formats used to fill and copy buffers (a6xx_format).
_SIZES = {
    "FMT6_8_UNORM": 1, "FMT6_8_UINT": 1, "FMT6_16_UNORM": 2, "FMT6_16_UINT": 2, "FMT6_8_8_UNORM": 2,
    "FMT6_32_UINT": 4, "FMT6_32_FLOAT": 4, "FMT6_8_8_8_8_UNORM": 4, "FMT6_8_8_8_8_UINT": 4,
    "FMT6_32_32_UINT": 8, "FMT6_16_16_16_16_UINT": 8, "FMT6_32_32_32_32_UINT": 16,
    "FMT6_32_32_32_32_FLOAT": 16,
}  # fmt: skip


def blit(cp: ProcessorState, body: list[int], at: int) -> None:
    """Fill or copy a rectangle. Only CP_WAIT_FOR_IDLE orders it with dispatches."""
    state = cp.registers
    if cp.packets.CP_BLIT_0.decode(body[0]).OP != cp.codes.BLIT_OP_SCALE:
        raise cp.gap("CP_BLIT other than BLIT_OP_SCALE", at)
    control = state.get("RB_2D_BLIT_CNTL", _USER)
    if control != state.get("GRAS_2D_BLIT_CNTL", _USER):
        cp.machine.violate("RB_2D_BLIT_CNTL and GRAS_2D_BLIT_CNTL differ")
    if control.ROTATE:
        raise cp.gap("CP_BLIT that rotates", at)
    info = state.get("RB_2D_DST_INFO", _USER)
    if info.TILE_MODE or info.FLAGS or info.COLOR_SWAP:
        raise cp.gap("CP_BLIT to a tiled, compressed or swapped image", at)
    size = _size(cp, info.COLOR_FORMAT, at)
    top, bottom = (state.get(f"GRAS_2D_DST_{corner}", _USER) for corner in ("TL", "BR"))
    width, height = bottom.X - top.X + 1, bottom.Y - top.Y + 1
    target = state.pair("RB_2D_DST", _USER)
    if target & 0x3F:
        raise GpuFault(Cause.HANG, f"RB_2D_DST {target:#x} is not 64-byte aligned", at)
    pitch = int(state.get("RB_2D_DST_PITCH", _USER)) << 6
    if control.SOLID_COLOR:
        line = _colour(cp, size) * width
        rows = [line] * height
    else:
        rows = _source(cp, size, width, height, at)
    for number, row in enumerate(rows):
        place = target + (top.Y + number) * pitch + top.X * size
        cp.space.write(place, row, "2D engine")


def _size(cp: ProcessorState, number: int, at: int) -> int:
    for name, size in _SIZES.items():
        if cp.codes[name] == number:
            return size
    raise cp.gap(f"CP_BLIT of format {number:#x}", at)


def _colour(cp: ProcessorState, size: int) -> bytes:
    """Return the texel: components of 32 bits are used whole, smaller ones from each register's low
    bits."""
    values = [int(cp.registers.get(f"RB_2D_SRC_SOLID_C{n}", _USER)) for n in range(4)]
    if size >= 4:
        return b"".join(value.to_bytes(4, "little") for value in values)[:size]
    return (values[0] & (1 << 8 * size) - 1).to_bytes(size, "little")


def _source(cp: ProcessorState, size: int, width: int, height: int, at: int) -> list[bytes]:
    state = cp.registers
    info = state.get("SP_PS_2D_SRC_INFO", _USER)
    if info.TILE_MODE or info.FLAGS or info.COLOR_SWAP or info.FILTER:
        raise cp.gap("CP_BLIT from a tiled, compressed, swapped or filtered image", at)
    if _size(cp, info.COLOR_FORMAT, at) != size:
        raise cp.gap("CP_BLIT that converts formats", at)
    # Coordinates are fixed-point with 8 fractional bits.
    left, right, top, bottom = (
        int(state.get(f"GRAS_2D_SRC_{name}", _USER)) >> 8 & 0x3FFF
        for name in ("TL_X", "BR_X", "TL_Y", "BR_Y")
    )
    if right - left + 1 != width or bottom - top + 1 != height:
        raise cp.gap("CP_BLIT that scales", at)
    base = state.pair("SP_PS_2D_SRC", _USER)
    if base & 0x3F:
        raise GpuFault(Cause.HANG, f"SP_PS_2D_SRC {base:#x} is not 64-byte aligned", at)
    field = state.get("SP_PS_2D_SRC_PITCH", _USER)
    pitch = field.PITCH << 6
    return [
        cp.space.read(base + (top + row) * pitch + left * size, width * size, "2D engine")
        for row in range(height)
    ]
