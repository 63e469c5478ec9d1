"""The generic boot loader of Turing: fetches a program by DMA, as a descriptor in DMEM says, and
jumps to it.

Source: Linux 6.12 drivers/gpu/drm/nouveau/nvkm/falcon/fw.c, nvkm/subdev/gsp/fwsec.c
(nvkm_gsp_fwsec_v2), include/nvfw/flcn.h (flcn_bl_dmem_desc_v2).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ugpu.virtual.nvidia.gsp.falcon.core import TRANSCFG, Block, Falcon, Port
from ugpu.virtual.nvidia.gsp.firmware import programs
from ugpu.virtual.nvidia.gsp.firmware.programs import BLOCK, Program

_DESCRIPTOR = struct.Struct("<32xIQIIIIIQIII")
_CONTEXT = 4  # the DMA context that the descriptor must name
_LARGEST = 0x10000


class Descriptor(NamedTuple):
    """flcn_bl_dmem_desc_v2, without its reserved words and signature."""

    context: int
    code: int
    plain_at: int
    plain_size: int
    secure_at: int
    secure_size: int
    entry: int
    data: int
    data_size: int
    argument_count: int
    arguments: int


def run(board: Port, falcon: Falcon) -> Program | None:
    """Fetch the program; return which it is, or None, and a violation, if that fails."""
    descriptor = Descriptor._make(_DESCRIPTOR.unpack_from(falcon.dmem))
    why = _problem(falcon, descriptor)
    if why:
        board.violation(f"{falcon.name}: the boot loader: {why}")
        return None
    target = falcon.registers.get(TRANSCFG + 4 * descriptor.context, 0) & 3
    size = descriptor.secure_at + descriptor.secure_size
    code = board.falcon_read(target, descriptor.code, size)
    data = board.falcon_read(target, descriptor.data, descriptor.data_size)
    if code is None or data is None:
        board.violation(f"{falcon.name}: the boot loader cannot read its program")
        return None
    for at in range(0, size, BLOCK):
        secure = at >= descriptor.secure_at
        falcon.imem[at // BLOCK] = Block(at // BLOCK, secure, bytearray(code[at : at + BLOCK]))
    falcon.dmem[: len(data)] = data
    parsed = programs.parse(code)
    if parsed is None:
        board.violation(f"{falcon.name}: the boot loader fetched something that is not a program")
        return None
    return parsed[0]


def _problem(falcon: Falcon, descriptor: Descriptor) -> str:
    setting = falcon.registers.get(TRANSCFG + 4 * descriptor.context, 0)
    if descriptor.context != _CONTEXT or not setting & 4:
        return f"DMA context {descriptor.context} must be {_CONTEXT}, and physical"
    if descriptor.entry or descriptor.plain_at:
        return f"entry {descriptor.entry:#x}, plain code at {descriptor.plain_at:#x}"
    if descriptor.secure_at != descriptor.plain_size:
        return "secure code must follow the plain code"
    whole = descriptor.secure_at + descriptor.secure_size
    if not 0 < whole <= _LARGEST or not 0 < descriptor.data_size <= len(falcon.dmem):
        return f"{whole} bytes of code, {descriptor.data_size} of data"
    return ""
