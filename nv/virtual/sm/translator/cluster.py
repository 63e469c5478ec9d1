"""Clusters of one group: addresses of shared memory in the cluster are those of the group itself.

Kernels that want clusters of several groups are refused when they are launched (`runtime.grid`).
Source: PTX ISA 8.x, "Cluster of Cooperative Thread Arrays", mapa, getctarank, barrier.cluster.
"""

from __future__ import annotations

from nv.virtual.sm.ptx.module import Instruction
from nv.virtual.sm.runtime import layout
from nv.virtual.sm.translator.handler import Handler, type_of
from nv.virtual.sm.translator.kernel import Kernel
from nv.virtual.sm.translator.value import number


def _map(k: Kernel, i: Instruction) -> None:
    """mapa: the address in the shared memory of a group of the cluster: there is only group 0."""
    kind = type_of(k, i)
    if kind not in ("u32", "u64") or len(i.operands) != 3:
        raise k.bad("an address, one to map and the rank of a group are wanted")
    rank = k.source(i.operands[2], "u32")
    beyond = k.mask_bits(k.cmp("ne", k.varying(rank), number("i32", 0)))
    k.fault_if(k.value(f"and i32 {beyond}, {k.mask()}"), layout.BAD_ADDRESS)
    k.write(i.operands[0], k.source(i.operands[1], kind))


def _rank(k: Kernel, i: Instruction) -> None:
    k.write(i.operands[0], number("i32", 0))


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {"mapa": _map, "getctarank": _rank}
