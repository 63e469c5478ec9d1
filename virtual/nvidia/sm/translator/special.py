"""Predefined registers.

Source: PTX ISA 8.x, "Special Registers".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.translator.control.analysis import varies_by_lane
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, number
from ugpu.virtual.shader.text import integer_of

_AXES = {"x": 0, "y": 1, "z": 2}
_FIELDS = {
    "ctaid.x": layout.GROUP_X, "ctaid.y": layout.GROUP_Y, "ctaid.z": layout.GROUP_Z,
    "nctaid.x": layout.GRID_X, "nctaid.y": layout.GRID_Y, "nctaid.z": layout.GRID_Z,
    "ntid.x": layout.BLOCK_X, "ntid.y": layout.BLOCK_Y, "ntid.z": layout.BLOCK_Z,
    "warpid": layout.WARP, "nwarpid": layout.WARPS, "smid": layout.SM, "nsmid": layout.SM_COUNT,
    "dynamic_smem_size": layout.DYNAMIC_SIZE, "total_smem_size": layout.SHARED_TOTAL,
    "aggr_smem_size": layout.SHARED_TOTAL,
    # Without clusters each group is its own cluster.
    "clusterid.x": layout.CLUSTER_ID_X, "clusterid.y": layout.CLUSTER_ID_Y,
    "clusterid.z": layout.CLUSTER_ID_Z, "nclusterid.x": layout.CLUSTERS_X,
    "nclusterid.y": layout.CLUSTERS_Y, "nclusterid.z": layout.CLUSTERS_Z,
    "cluster_ctaid.x": layout.RANK_X, "cluster_ctaid.y": layout.RANK_Y,
    "cluster_ctaid.z": layout.RANK_Z, "cluster_nctaid.x": layout.CLUSTER_X,
    "cluster_nctaid.y": layout.CLUSTER_Y, "cluster_nctaid.z": layout.CLUSTER_Z,
    "cluster_ctarank": layout.RANK, "cluster_nctarank": layout.CLUSTER_SIZE,
}  # fmt: skip
_CONSTANTS = {
    "current_graph_exec": 0,  # launches are never part of a graph launched by a device
    "gridid": 0, "tid.w": 0, "ctaid.w": 0, "ntid.w": 1, "nctaid.w": 1, "clusterid.w": 0,
    "nclusterid.w": 1, "cluster_ctaid.w": 0, "cluster_nctaid.w": 1,
}  # fmt: skip
_LANE_MASKS = {
    "lanemask_eq": lambda lane: 1 << lane,
    "lanemask_lt": lambda lane: (1 << lane) - 1,
    "lanemask_le": lambda lane: (2 << lane) - 1,
    "lanemask_gt": lambda lane: 0xFFFF_FFFF & ~((2 << lane) - 1),
    "lanemask_ge": lambda lane: 0xFFFF_FFFF & ~((1 << lane) - 1),
}


def read(k: Kernel, name: str, element: str) -> Value:
    """Read a predefined register. A floating-point type is that of its bits."""
    if element == "i1":
        if name != "is_explicit_cluster":
            raise k.bad(f"%{name} is not a predicate")
        return k.cmp("ne", k.context_value(layout.EXPLICIT), number("i32", 0))
    value = k.resize(_value(k, name), integer_of(element), False)
    return k.cast("bitcast", value, element)


def _value(k: Kernel, name: str) -> Value:
    if name in _FIELDS:
        return k.context_value(_FIELDS[name])
    if name in _CONSTANTS:
        return number("i32", _CONSTANTS[name])
    if name == "laneid":
        return k.each(list(range(32)))
    if name in _LANE_MASKS:
        return k.each([_LANE_MASKS[name](lane) for lane in range(32)])
    stem, _, axis = name.partition(".")
    if stem == "tid" and axis in _AXES:
        at = k.at("%ids", 128 * _AXES[axis])
        if varies_by_lane(name, k.rows):
            return Value(k.value(f"load <32 x i32>, ptr {at}, align 64"), "i32", False)
        return Value(k.value(f"load i32, ptr {at}"), "i32", True)
    if name in ("clock", "clock64", "clock_hi"):
        count = Value(k.call("i64", "llvm.readcyclecounter"), "i64", True)
        return _part(k, count, name, "clock64", "clock")
    if name.startswith("globaltimer"):
        timer = k.context(layout.TIMER, "ptr")
        count = Value(k.value(f"call i64 {timer}(i32 0)"), "i64", True)
        return _part(k, count, name, "globaltimer", "globaltimer_lo")
    if name.startswith("envreg"):
        listed = k.context(layout.ENVIRONMENT, "ptr")
        at = k.value(f"getelementptr i32, ptr {listed}, i64 {int(name[6:])}")
        return Value(k.value(f"load i32, ptr {at}"), "i32", True)
    raise k.unsupported(f"%{name}")


def _part(k: Kernel, count: Value, name: str, whole: str, low: str) -> Value:
    if name == whole:
        return count
    if name != low:
        count = k.op("lshr", count, number("i64", 32))
    return k.cast("trunc", count, "i32")
