"""Errors that engines report by interrupt, injected by name: `report(chip, "sdma ecc")`.

Only the interrupt is modelled: the engine continues, because no part of the model can fail in these
ways. Facts: Linux 6.12 ivsrcid/gfx/irqsrcs_gfx_11_0_0.h, ivsrcid/sdma0/
irqsrcs_sdma0_5_0.h (sources), soc15_ih_clientid.h (clients), kfd_int_process_v11.c (SQ words).
"""

from __future__ import annotations

from typing import NamedTuple

from ugpu.hcq.errors import BadArgument
from ugpu.virtual.amd.board import Board

_GFX, _GRBM_CP = 0x0A, 0x14
_SQ_ERROR = 2 << 6  # encoding, in the second word
_VMID = 8
_SDMA0_QUEUE0 = 0
_MEC_PIPE0_QUEUE0 = 1 << 2


class Report(NamedTuple):
    """An entry of the interrupt ring."""

    client: int
    source: int
    ring: int
    data: tuple[int, int, int, int] = (0, 0, 0, 0)


def _sdma(source: int, page: int = 0) -> Report:
    return Report(_GFX, source, _SDMA0_QUEUE0, (page, 0, 0, 0))


def _sq(kind: int) -> Report:
    return Report(_GFX, 239, 0, (kind << 21, _SQ_ERROR, 0, 0))


REPORTS: dict[str, Report] = {
    "cp reserved bit": Report(_GRBM_CP, 180, _MEC_PIPE0_QUEUE0),
    "cp bad opcode": Report(_GRBM_CP, 183, _MEC_PIPE0_QUEUE0),
    "cp privileged register": Report(_GRBM_CP, 184, _MEC_PIPE0_QUEUE0),
    "cp privileged instruction": Report(_GRBM_CP, 185, _MEC_PIPE0_QUEUE0),
    "cp ecc": Report(_GRBM_CP, 197, _MEC_PIPE0_QUEUE0),
    "cp fatal": Report(_GRBM_CP, 201, _MEC_PIPE0_QUEUE0),
    "rlc fatal": Report(_GFX, 128, 0),
    "utcl2 poison": Report(_GFX, 1, 0),
    "sq fatal uncorrectable": _sq(0),
    "sq memory violation": _sq(2),
    "sq fatal detected": _sq(3),
    "sdma protected register": _sdma(50),
    "sdma invalid doorbell": _sdma(54),
    "sdma atomic timeout": _sdma(56),
    "sdma poll timeout": _sdma(57),
    "sdma page timeout": _sdma(58),
    "sdma null page": _sdma(59),
    "sdma page fault": _sdma(60, 0x1234_5678),
    "sdma canonical hole": _sdma(61, 0x8000_0000),
    "sdma ecc": _sdma(62),
    "sdma frozen": _sdma(63),
    "sdma sram ecc": _sdma(64),
    "sdma semaphore incomplete": _sdma(65),
    "sdma semaphore wait failed": _sdma(66),
}


def report(chip: Board, name: str) -> None:
    """Make an engine report the error `name`; BadArgument, listing the known names, if unknown."""
    if name not in REPORTS:
        raise BadArgument(f"unknown report {name!r}; known: {', '.join(sorted(REPORTS))}")
    found = REPORTS[name]
    chip.ih.raise_interrupt(found.client, found.source, found.ring, _VMID, found.data)
