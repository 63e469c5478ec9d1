"""The generic boot loader of Turing: fetches a program by DMA, as a descriptor in DMEM says, and
jumps to it.

Source: Linux 6.12 drivers/gpu/drm/nouveau/nvkm/falcon/fw.c, nvkm/subdev/gsp/fwsec.c
(nvkm_gsp_fwsec_v2), include/nvfw/flcn.h (flcn_bl_dmem_desc_v2).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ugpu.virtual.nvidia.gsp.falcon.core import TRANSCFG, Block, Falcon, Port, Refused, require
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
    try:
        return _fetch(board, falcon, Descriptor._make(_DESCRIPTOR.unpack_from(falcon.dmem)))
    except Refused as refusal:
        board.violation(f"{falcon.name}: the boot loader: {refusal}")
        return None


def _fetch(board: Port, falcon: Falcon, descriptor: Descriptor) -> Program:
    setting = falcon.registers.get(TRANSCFG + 4 * descriptor.context, 0)
    known = descriptor.context == _CONTEXT and setting & 4
    text = f"DMA context {descriptor.context} must be {_CONTEXT}, and physical"
    require(known, 0, text)
    plain = not descriptor.entry and not descriptor.plain_at
    require(plain, 0, f"entry {descriptor.entry:#x}, plain code at {descriptor.plain_at:#x}")
    follows = descriptor.secure_at == descriptor.plain_size
    require(follows, 0, "secure code must follow the plain code")
    size, data_size = descriptor.secure_at + descriptor.secure_size, descriptor.data_size
    fits = 0 < size <= _LARGEST and 0 < data_size <= len(falcon.dmem)
    require(fits, 0, f"{size} bytes of code, {data_size} of data")
    code = board.falcon_read(setting & 3, descriptor.code, size)
    data = board.falcon_read(setting & 3, descriptor.data, data_size)
    if code is None or data is None:
        raise Refused(0, "cannot read its program")
    for at in range(0, size, BLOCK):
        secure = at >= descriptor.secure_at
        falcon.imem[at // BLOCK] = Block(at // BLOCK, secure, bytearray(code[at : at + BLOCK]))
    falcon.dmem[: len(data)] = data
    parsed = programs.parse(code)
    if parsed is None:
        raise Refused(0, "it fetched something that is not a program")
    return parsed[0]
