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
from ugpu.virtual.shader.library import Library

_SOURCES = (Path(__file__).parent.parent, emu.PACKAGE)


@cache
def launch_addresses(folder: Path | None) -> tuple[int, int]:
    """Return the addresses of the launchers, of groups and of clusters. Makes the functions for all
    kernels available."""
    functions = Library(_SOURCES, folder, "runtime", (
        (resolve.resolve_ir, resolve.names()), (access.access_ir, access.names()),
        (atomics.wide_ir, atomics.names()), shared_atomics.part(resolve.PREFIX, layout.IO),
        (tiles.tiles_ir, tiles.names()),
        (launcher.launcher_ir, launcher.names()), emu_math.part(resolve.PREFIX),
        (distributed.distributed_ir, distributed.names()),
        (clusters.clusters_ir, clusters.names()), (residents.residents_ir, []),
    ))  # fmt: skip
    group, cluster = (functions.address(resolve.PREFIX + name) for name in (
        "launch", "launch_clusters"))  # fmt: skip
    return group, cluster


@cache
def flight_hooks(folder: Path | None) -> tuple[int, ...]:
    """Return the launcher's hooks for asynchronous kernels; makes their functions available."""
    launch_addresses(folder)
    functions = Library(_SOURCES, folder, "flights", (
        (mbarriers.mbarriers_ir, mbarriers.names()), (flights.flights_ir, flights.names()),
        (bulks.bulks_ir, bulks.names()), (proxies.proxies_ir, proxies.names()),
        (products.products_ir, products.names()), (factors.factors_ir, []),
    ))  # fmt: skip
    return tuple(functions.address(resolve.PREFIX + name) for name in layout.HOOKED)
