"""Results of a memory hub's accesses."""

from __future__ import annotations

from typing import NamedTuple

from hcq.emu.memory import Access


class Fault(NamedTuple):
    """One access that was refused. latched: it is the one that registers and interrupt tell of."""

    address: int
    access: Access
    vmid: int
    client: int
    status: int
    latched: bool = True
