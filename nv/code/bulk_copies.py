"""Bulk copies for sm_120, without a routine that only CUDA's driver has.

For sm_120 and sm_121 the assembler turns `cp.async.bulk` to `.shared::cluster` into a call of
`__cuda_syscall_cp_async_bulk_unicast`, and the same copy to `.shared::cta` into an instruction
(observed: nvJitLink 13.5.37). Addresses of a group's own shared memory are the same in both (PTX
ISA 8.x, "State Spaces: Shared State Space"). Addresses of other groups' memory come from `mapa`
alone, so a text without `mapa` refers to the group's own memory.
"""

from __future__ import annotations

import re

_COPY = re.compile(
    rb"(cp\.async\.bulk)\.shared::cluster(\.global\.mbarrier::complete_tx::bytes)"
    rb"(?!\.multicast)"
)


def to_own_memory(ptx: bytes, target: str) -> bytes:
    """Return the text with bulk copies to the group's own memory.

    Text for other chips, or that may refer to another group's memory, is returned unchanged.
    """
    if not target.startswith("sm_12") or b"mapa" in ptx:
        return ptx
    return _COPY.sub(rb"\1.shared::cta\2", ptx)
