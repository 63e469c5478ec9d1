"""Copies in bulk for sm_120, without a routine that only CUDA's driver has.

The assembler makes `cp.async.bulk` to `.shared::cluster` a call of
`__cuda_syscall_cp_async_bulk_unicast` for sm_120 and sm_121, and an instruction of the same copy to
`.shared::cta` (observed: nvJitLink 13.5.37). Addresses of a group's own shared memory are the same
in both (PTX ISA 8.x, "State Spaces: Shared State Space"); those of other groups come from `mapa`
alone, so that a text without it means its own memory.
"""

from __future__ import annotations

import re

_COPY = re.compile(
    rb"(cp\.async\.bulk)\.shared::cluster(\.global\.mbarrier::complete_tx::bytes)"
    rb"(?!\.multicast)"
)


def to_own_memory(ptx: bytes, target: str) -> bytes:
    """The text with copies to the group's own memory; as it is for other chips, and where it may
    mean another group's."""
    if not target.startswith("sm_12") or b"mapa" in ptx:
        return ptx
    return _COPY.sub(rb"\1.shared::cta\2", ptx)
