"""Compile the native functions that kernels share, and register their names with the linker.

The functions for asynchronous kernels are compiled at the first such kernel. The launcher calls
them through addresses in the worker context.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ugpu.virtual import shader as emu
from ugpu.virtual.nvidia.sm.runtime import access, atomics, distributed, layout, resolve, tiles
from ugpu.virtual.nvidia.sm.runtime.flights import (
    bulks,
    factors,
    flights,
    mbarriers,
    products,
    proxies,
)
from ugpu.virtual.nvidia.sm.runtime.launch import clusters, launcher, residents
from ugpu.virtual.shader import atomics as shared_atomics
from ugpu.virtual.shader import math as emu_math
from ugpu.virtual.shader.entry import Entry
from ugpu.virtual.shader.library import Library

_SOURCES = (Path(__file__).parent.parent, emu.PACKAGE)


class Launcher:
    """What runs the groups of a grid. waiting: runs a group whose warps all
    wait."""

    def __init__(self, groups: Entry, waiting: Entry) -> None:
        self._groups = groups
        self._waiting = waiting

    def __call__(self, context: int, kernel: int) -> int:
        """Run a kernel; both are addresses. Return a code of `layout`."""
        code = self._groups(context, kernel)
        while code == layout.WAITING:
            code = self._waiting(context, kernel)
            if code == layout.FINISHED:  # the groups that have begun: others may not have
                code = self._groups(context, kernel)
        return code


@cache
def launchers(folder: Path | None) -> tuple[Launcher, Entry]:
    """Return the launchers, of groups and of clusters. Makes the functions for all kernels
    available."""
    functions = Library(_SOURCES, folder, "runtime", (
        (resolve.resolve_ir, resolve.names()), (access.access_ir, access.names()),
        (atomics.wide_ir, atomics.names()), shared_atomics.part(resolve.PREFIX, layout.IO),
        (tiles.tiles_ir, tiles.names()),
        (launcher.launcher_ir, launcher.names()), emu_math.part(resolve.PREFIX),
        (distributed.distributed_ir, distributed.names()),
        (clusters.clusters_ir, clusters.names()), (residents.residents_ir, residents.names()),
    ))  # fmt: skip
    groups, waiting, whole = (
        Entry(functions, resolve.PREFIX + name)
        for name in ("launch", "residents", "launch_clusters")
    )
    return Launcher(groups, waiting), whole


@cache
def flight_hooks(folder: Path | None) -> tuple[int, ...]:
    """Return the launcher's hooks for asynchronous kernels; makes their functions available."""
    launchers(folder)
    functions = Library(_SOURCES, folder, "flights", (
        (mbarriers.mbarriers_ir, mbarriers.names()), (flights.flights_ir, flights.names()),
        (bulks.bulks_ir, bulks.names()), (proxies.proxies_ir, proxies.names()),
        (products.products_ir, products.names()), (factors.factors_ir, []),
    ))  # fmt: skip
    return tuple(functions.address(resolve.PREFIX + name) for name in layout.HOOKED)
