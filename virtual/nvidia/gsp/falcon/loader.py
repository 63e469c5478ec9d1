"""The generic boot loader of Turing: fetches a program by DMA, as a descriptor in DMEM says, and
jumps to it.

Source: Linux 6.12 drivers/gpu/drm/nouveau/nvkm/falcon/fw.c, nvkm/subdev/gsp/fwsec.c
(nvkm_gsp_fwsec_v2), include/nvfw/flcn.h (flcn_bl_dmem_desc_v2).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ugpu.virtual.nvidia.gsp.falcon.core import TRANSCFG, Block, Falcon, Refused, refusing, require
from ugpu.virtual.nvidia.gsp.firmware import programs
from ugpu.virtual.nvidia.gsp.firmware.programs import BLOCK, Program

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

_DESCRIPTOR = struct.Struct("<32xIQIIIIIQI8x")  # without reserved words, signature, arguments
_CONTEXT = 4  # the DMA context that the descriptor must name
_LARGEST = 0x10000


def run(board: Card, falcon: Falcon) -> Program | None:
    """Fetch the program; return which it is, or None, and a violation, if that fails."""
    with refusing(board, f"{falcon.name}: the boot loader"):
        return _fetch(board, falcon)
    return None


def _fetch(board: Card, falcon: Falcon) -> Program:
    context, code_at, plain_at, plain_size, secure_at, secure_size, entry, data_at, data_size = (
        _DESCRIPTOR.unpack_from(falcon.dmem)
    )
    setting = falcon.registers.get(TRANSCFG + 4 * context, 0)
    known = context == _CONTEXT and setting & 4
    text = f"DMA context {context} must be {_CONTEXT}, and physical"
    require(known, 0, text)
    plain = not entry and not plain_at
    require(plain, 0, f"entry {entry:#x}, plain code at {plain_at:#x}")
    follows = secure_at == plain_size
    require(follows, 0, "secure code must follow the plain code")
    size = secure_at + secure_size
    fits = 0 < size <= _LARGEST and 0 < data_size <= len(falcon.dmem)
    require(fits, 0, f"{size} bytes of code, {data_size} of data")
    code = board.falcon_read(setting & 3, code_at, size)
    data = board.falcon_read(setting & 3, data_at, data_size)
    if code is None or data is None:
        raise Refused(0, "cannot read its program")
    for at in range(0, size, BLOCK):
        secure = at >= secure_at
        falcon.imem[at // BLOCK] = Block(at // BLOCK, secure, bytearray(code[at : at + BLOCK]))
    falcon.dmem[: len(data)] = data
    parsed = programs.parse(code)
    if parsed is None:
        raise Refused(0, "it fetched something that is not a program")
    return parsed[0]
