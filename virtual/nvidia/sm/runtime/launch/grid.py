"""A checked launch, in the form that the launcher uses.

Source of the limits: CUDA C++ programming guide, "Technical specifications per compute capability"
and "Thread Block Clusters", Hopper and Blackwell Tuning Guides; PTX ISA 8.x, "Cluster Dimension
Directives".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import NotSupported
from ugpu.virtual.nvidia.sm.ptx.module import Function
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.launch.occupancy import groups_per_multiprocessor
from ugpu.virtual.nvidia.sm.translator.access.variables import Places
from ugpu.virtual.nvidia.sm_contract import GridLaunch

_MOST_THREADS = 1024
_MOST_BLOCK = (1024, 1024, 64)
_MOST_GRID = ((1 << 31) - 1, 65535, 65535)
# Largest shared memory of a group, by compute capability.
_MOST_SHARED = {
    75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 101: 227, 103: 227, 110: 227,
    120: 99, 121: 99,
}  # fmt: skip
_MOST_LOCAL = 512 << 10
# Largest number of groups in a cluster, by compute capability; 8 on others; none below the first.
_MOST_CLUSTER = {90: 16, 100: 16, 103: 16}


class BadLaunch(Exception):
    """The multiprocessors cannot launch the grid that the front end describes."""


def capability(target: str) -> int:
    """Return the number of "sm_90a". Raises BadLaunch."""
    digits = target.removeprefix("sm_").rstrip("af")
    if not digits.isdigit():
        raise BadLaunch(f"target must be sm_NN, got {target!r}")
    return int(digits)


@dataclass(frozen=True)
class Grid:
    """A checked launch. Sizes are bytes.

    cluster: groups of a cluster. clusters: of the grid. shared_size: of a group. local_size: of a
    thread. resident: clusters that the chip holds at a time. ids, masks: of each warp's lanes.
    full: whether every warp has 32 threads. rows: whether each warp is in one row of the block.
    """

    launch: GridLaunch
    cluster: tuple[int, int, int]
    clusters: tuple[int, int, int]
    warps: int
    threads: int
    groups: int
    shared_size: int
    dynamic_size: int
    local_size: int
    resident: int
    full: bool
    rows: bool
    ids: NDArray[np.uint32]
    masks: NDArray[np.uint32]

    @classmethod
    def of(cls, launch: GridLaunch, entry: Function, places: Places) -> Grid:
        """Check a launch. Raises BadLaunch with the reason."""
        x, y, z = launch.block
        for name, sizes, most in (
            ("block", launch.block, _MOST_BLOCK), ("grid", launch.grid, _MOST_GRID)
        ):  # fmt: skip
            low = 1 if name == "block" else 0
            if any(not low <= s <= m for s, m in zip(sizes, most, strict=True)):
                raise BadLaunch(f"{name} of {sizes[0]}x{sizes[1]}x{sizes[2]}; at most {most}")
        threads = x * y * z
        if threads > _MOST_THREADS:
            raise BadLaunch(f"block of {threads} threads; at most {_MOST_THREADS}")
        _check_limits(launch, entry, threads)
        cluster = launch.cluster or (1, 1, 1)
        _check_cluster(launch, entry, cluster)
        if launch.shared_size < places.shared_size:
            raise BadLaunch(
                f"{launch.shared_size} bytes of shared memory; {entry.name} declares"
                f" {places.shared_size}"
            )
        most_shared = 1024 * _MOST_SHARED.get(capability(launch.target), 48)
        if launch.shared_size > most_shared + 1024:
            raise BadLaunch(
                f"{launch.shared_size} bytes of shared memory; {launch.target} has {most_shared}"
            )
        if len(launch.parameters) < places.parameter_size:
            raise BadLaunch(
                f"{len(launch.parameters)} bytes of parameters; {entry.name} takes"
                f" {places.parameter_size}"
            )
        local = max(places.local_size, launch.local_size)
        if local > _MOST_LOCAL:
            raise BadLaunch(f"{local} bytes of local memory a thread; at most {_MOST_LOCAL}")
        warps = -(-threads // layout.LANES)
        gx, gy, gz = launch.grid
        clusters = gx // cluster[0], gy // cluster[1], gz // cluster[2]
        return cls(
            launch, cluster, clusters, warps, threads, gx * gy * gz, launch.shared_size,
            launch.shared_size - places.shared_size,
            local if places.local_size or places.stack else 0,
            _resident(launch, warps), threads % layout.LANES == 0, x % layout.LANES == 0,
            _ids(x, y, z), _masks(threads),
        )  # fmt: skip


def _resident(launch: GridLaunch, warps: int) -> int:
    """Return how many clusters the chip holds at a time; without clusters each group is one."""
    groups = max(launch.sm_count, 1) * groups_per_multiprocessor(
        capability(launch.target), warps, launch.shared_size, launch.registers
    )
    x, y, z = launch.cluster or (1, 1, 1)
    return max(groups // (x * y * z), 1)


def _check_limits(launch: GridLaunch, entry: Function, threads: int) -> None:
    required = entry.limits.get("reqntid")
    if required:
        wanted = (*required, 1, 1)[:3]
        if wanted != launch.block:
            raise BadLaunch(f"block of {launch.block}; {entry.name} requires {wanted}")
    most = entry.limits.get("maxntid")
    if most:
        limit = int(np.prod(most))
        if threads > limit:
            raise BadLaunch(f"block of {threads} threads; {entry.name} takes at most {limit}")


def _check_cluster(launch: GridLaunch, entry: Function, cluster: tuple[int, int, int]) -> None:
    if "blocksareclusters" in entry.limits:
        raise NotSupported(f"PTX line {entry.line}: {entry.name} counts its grid in clusters")
    size = cluster[0] * cluster[1] * cluster[2]
    said = f"clusters of {'x'.join(map(str, cluster))} groups" if launch.cluster else "no clusters"
    required = (*entry.limits.get("reqnctapercluster", cluster), 1, 1)[:3]
    if required != cluster:
        raise BadLaunch(f"{said}; {entry.name} requires {'x'.join(map(str, required))}")
    if "explicitcluster" in entry.limits and launch.cluster is None:
        raise BadLaunch(f"{said}; {entry.name} requires that the launch says")
    if launch.cluster is None:
        return
    number = capability(launch.target)
    if number < min(_MOST_CLUSTER):
        raise BadLaunch(f"{said}; {launch.target} has none")
    most = min((_MOST_CLUSTER.get(number, 8), *entry.limits.get("maxclusterrank", ())))
    if not 1 <= size <= most:
        raise BadLaunch(f"{said}; at most {most}")
    if any(groups % part for groups, part in zip(launch.grid, cluster, strict=True)):
        raise BadLaunch(f"{said} do not divide a grid of {'x'.join(map(str, launch.grid))}")


@lru_cache(maxsize=256)
def _ids(x: int, y: int, z: int) -> NDArray[np.uint32]:
    """Return tid of every lane: [warp][axis][lane]."""
    warps = -(-x * y * z // layout.LANES)
    linear = np.arange(warps * layout.LANES, dtype=np.uint32)
    ids = np.empty((warps, 3, layout.LANES), np.uint32)
    ids[:, 0] = (linear % x).reshape(warps, -1)
    ids[:, 1] = (linear // x % y).reshape(warps, -1)
    ids[:, 2] = (linear // (x * y)).reshape(warps, -1)
    raw = np.zeros(ids.size + 16, np.uint32)
    start = (-raw.ctypes.data % 64) // 4
    found = raw[start : start + ids.size].reshape(ids.shape)
    found[:] = ids
    return found


@lru_cache(maxsize=256)
def _masks(threads: int) -> NDArray[np.uint32]:
    warps = -(-threads // layout.LANES)
    masks = np.full(warps, 0xFFFFFFFF, np.uint32)
    rest = threads % layout.LANES
    if rest:
        masks[-1] = (1 << rest) - 1
    return masks
