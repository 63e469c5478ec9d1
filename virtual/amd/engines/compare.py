"""Comparisons of packets that wait, by number, shared by PM4 and SDMA.

Source: Linux 6.12 nvd.h (WAIT_REG_MEM_FUNCTION), sdma_v6_0_0_pkt_open.h (POLL_REGMEM, func).
"""

from __future__ import annotations

from collections.abc import Callable

# Number 7 is not defined.
COMPARE: tuple[Callable[[int, int], bool] | None, ...] = (
    lambda value, reference: True,
    lambda value, reference: value < reference,
    lambda value, reference: value <= reference,
    lambda value, reference: value == reference,
    lambda value, reference: value != reference,
    lambda value, reference: value >= reference,
    lambda value, reference: value > reference,
    None,
)
