"""Clusters: addresses of shared memory in the cluster, and the cluster's barrier.

`runtime.clusters` runs the groups and opens the barrier. `runtime.distributed` resolves addresses.
Source: PTX ISA 8.x, "Cluster of Cooperative Thread Arrays", mapa, getctarank, barrier.cluster.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import Instruction
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.translator.access.bulk import published
from ugpu.virtual.nvidia.sm.translator.handler import Handler, type_of
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, number

_OFFSETS = layout.GENERIC_WINDOW_SIZE - 1


def _window(k: Kernel, i: Instruction, address: Value) -> Value | None:
    """Return the base of a generic address; None for an address in the state space itself."""
    if "shared::cluster" in i.modifiers:
        return None
    if address.element != "i64":
        raise k.bad("generic addresses have 64 bits")
    return k.context_value(layout.SHARED_WINDOW, "i64")


def _map(k: Kernel, i: Instruction) -> None:
    """mapa: return the same address in the shared memory of another group of the cluster."""
    kind = type_of(k, i)
    if kind not in ("u32", "u64") or len(i.operands) != 3:
        raise k.bad("expected an address, one to map and the rank of a group")
    rank = k.source(i.operands[2], "u32")
    size = k.context_value(layout.CLUSTER_SIZE)
    beyond = k.mask_bits(k.varying(k.cmp("uge", k.varying(rank), size)))
    lanes = k.value(f"and i32 {beyond}, {k.mask()}")
    k.fault_if(lanes, layout.BAD_RANK)
    address = k.source(i.operands[1], kind)
    window = _window(k, i, address)
    at = address if window is None else k.op("sub", address, window)
    at = k.op("and", at, number(at.element, _OFFSETS))
    place = k.resize(k.op("add", rank, number("i32", 1)), at.element, False)
    place = k.op("shl", place, number(at.element, layout.CLUSTER_SHIFT))
    mapped = k.op("or", place, at)
    k.write(i.operands[0], mapped if window is None else k.op("add", mapped, window))


def _rank(k: Kernel, i: Instruction) -> None:
    """getctarank: return the rank of the group whose shared memory contains an address."""
    kind = type_of(k, i)
    if kind not in ("u32", "u64") or len(i.operands) != 2:
        raise k.bad("expected a result and an address")
    address = k.source(i.operands[1], kind)
    window = _window(k, i, address)
    at = address if window is None else k.op("sub", address, window)
    place = k.op("lshr", at, number(at.element, layout.CLUSTER_SHIFT))
    place = k.resize(place, "i32", False)
    own = k.cmp("eq", place, number("i32", 0))
    other = k.op("sub", place, number("i32", 1))
    k.write(i.operands[0], k.choose(own, k.context_value(layout.RANK), other))


# -- the barrier ---------------------------------------------------------------------------------


def _at(k: Kernel, offset: int) -> tuple[str, str]:
    """Return the address of a field of the warp's state, and its value."""
    at = k.value(f"getelementptr i8, ptr %warp, i64 {offset}")
    return at, k.value(f"load i32, ptr {at}")


def arrive(k: Kernel, releases: bool) -> None:
    """Record that the running lanes have arrived."""
    lanes = k.active()
    at, arrived = _at(k, layout.STATE_CLUSTER_ARRIVED)
    _, passes = _at(k, layout.STATE_CLUSTER_PASS)
    before = k.value(f"or i32 {arrived}, {passes}")
    k.fault_if(k.value(f"and i32 {before}, {lanes}"), layout.ARRIVED_TWICE)
    if releases:
        published(k)
    k.do(f"store i32 {k.value(f'or i32 {arrived}, {lanes}')}, ptr {at}")
    first = k.context(layout.FIRST, "ptr")
    some = k.value(f"getelementptr i8, ptr {first}, i64 {layout.CLUSTER_ARRIVALS}")
    k.do(f"store i32 1, ptr {some}")


def passes(k: Kernel) -> str:
    """Return, as i1, whether the phase of the running lanes is over; if so, their wait is done."""
    lanes = k.active()
    _, arrived = _at(k, layout.STATE_CLUSTER_ARRIVED)
    at, over = _at(k, layout.STATE_CLUSTER_PASS)
    either = k.value(f"or i32 {arrived}, {over}")
    never = k.value(f"and i32 {lanes}, {k.value(f'xor i32 {either}, -1')}")
    k.fault_if(never, layout.NOT_ARRIVED)
    off = k.value(f"xor i32 {lanes}, -1")
    k.do(f"store i32 {k.value(f'and i32 {over}, {off}')}, ptr {at}")
    left = k.value(f"and i32 {lanes}, {k.value(f'xor i32 {over}, -1')}")
    return k.value(f"icmp eq i32 {left}, 0")


def wait(k: Kernel) -> None:
    """Record that the running lanes wait for the end of their phase."""
    at, waits = _at(k, layout.STATE_CLUSTER_WAITS)
    k.do(f"store i32 {k.value(f'or i32 {waits}, {k.active()}')}, ptr {at}")


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {"mapa": _map, "getctarank": _rank}
