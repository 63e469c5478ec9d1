"""Results of a memory hub's accesses."""

from __future__ import annotations

from typing import NamedTuple

from ugpu.virtual.shader.memory import Access


class Fault(NamedTuple):
    """One refused access. latched: True if the registers and the interrupt report this fault."""

    address: int
    access: Access
    vmid: int
    client: int
    status: int
    latched: bool = True
