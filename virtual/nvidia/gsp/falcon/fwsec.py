"""FWSEC on the GSP's falcon: makes the FRTS region (command 0x15), and the state before an unload
(0x19, "SB").

Source: Linux 7.3.4 nouveau nvkm/subdev/gsp/fwsec.c; open-gpu-kernel-modules 570.144
kernel_gsp_fwsec.c, kernel_gsp_frts_tu102.c (commands, the status registers 0x1438 and 0x1454).
UNSURE: the error codes; those of the real program are not public.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING

from ugpu.virtual.nvidia.gsp.falcon.core import PLANTED, Falcon, refusing, require
from ugpu.virtual.nvidia.gsp.falcon.wpr import FRTS_SIZE
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.gsp.firmware import vbios

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

FRTS, SB = 0x15, 0x19
FRTS_STATUS, SB_STATUS = 0x1438, 0x1454
_REGION_UNIT = 0x20000
_VIDEO_MEMORY = 2
_MAILBOX = 0x31  # of a planted fault


class FwsecError(enum.IntEnum):
    """What FWSEC reports."""

    INTERFACE = 1
    COMMAND = 2
    DESCRIPTION = 3
    REGION = 4
    ALREADY_UP = 5
    GSP_RUNS = 6


def run(board: Card, falcon: Falcon) -> None:
    """Execute the command in the program's data; report by the status registers."""
    command, codes, faults = 0, [0], board.faults
    with refusing(board, "FWSEC", codes.append):
        command = _command(falcon)
        fails = command == SB and faults.take(CardFault.SB_FAILS)
        require(not fails and not faults.take(CardFault.FWSEC_FAILS), FwsecError.REGION, PLANTED)
        if command == FRTS:
            start, end = _region(board, falcon)
            if faults.take(CardFault.FWSEC_ELSEWHERE):
                start, end = start - FRTS_SIZE, end - FRTS_SIZE
            if not faults.take(CardFault.FWSEC_NOTHING):
                board.wpr.set(start, end)
        else:
            known = command == SB
            require(known, FwsecError.COMMAND, f"init_cmd {command:#x} is not FRTS or SB")
            board.sb_done = True
    if command == SB:
        board.status[SB_STATUS] = codes[-1]
    else:
        board.status[FRTS_STATUS] = codes[-1] << 16
    falcon.answer(_MAILBOX if faults.take(CardFault.FWSEC_MAILBOX) else 0)


def _command(falcon: Falcon) -> int:
    data = falcon.dmem
    version, header, size, count = struct.unpack_from("<4B", data, vbios.INTERFACE)
    there = (version, size) == (1, 8) and count
    require(there, FwsecError.INTERFACE, "its interface table is gone from its data")
    entries = [
        struct.unpack_from("<2I", data, vbios.INTERFACE + header + size * index)
        for index in range(count)
    ]
    at = dict(entries).get(vbios.MAPPER_ID)
    there = at == vbios.MAPPER and data[at : at + 4] == vbios.MAPPER_MAGIC.to_bytes(4, "little")
    require(there, FwsecError.INTERFACE, "its DMEM mapper is gone from its data")
    return int(struct.unpack_from("<I", data, vbios.MAPPER + 0x2C)[0])


def _region(board: Card, falcon: Falcon) -> tuple[int, int]:
    require(not board.wpr.up, FwsecError.ALREADY_UP, "WPR2 is already set")
    require(not falcon.active, FwsecError.GSP_RUNS, "the GSP runs")
    version, size, _, _, _ = struct.unpack_from("<2IQ2I", falcon.dmem, vbios.COMMAND)
    known, bad = (version, size) == (1, 24), FwsecError.DESCRIPTION
    require(known, bad, f"read_vbios: version {version}, {size} bytes")
    words = struct.unpack_from("<5I", falcon.dmem, vbios.COMMAND + size)
    version, size, page, pages, media = words
    known = (version, size, media) == (1, 20, _VIDEO_MEMORY)
    require(known, bad, f"frts: version {version}, {size} bytes, media {media}")
    start, end, bad = page << 12, page + pages << 12, FwsecError.REGION
    fits = end - start == FRTS_SIZE and not end % _REGION_UNIT
    text = f"{FRTS_SIZE:#x} bytes and end at a multiple of {_REGION_UNIT:#x}"
    require(fits, bad, f"the region must have {text}, is {start:#x} to {end:#x}")
    require(end <= board.memory_size, bad, f"the region {start:#x} is past the end of memory")
    return start, end
