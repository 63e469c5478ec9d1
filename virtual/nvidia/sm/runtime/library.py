"""Compile the native functions that kernels share, and register their names with the linker.

A launcher has a first version, which compiles in an eighth of the time. The functions for
asynchronous kernels are compiled at the first such kernel. The launcher calls them through
addresses in the worker context.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
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

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)
_SOURCES = (Path(__file__).parent.parent, emu.PACKAGE)


OFTEN = 200  # calls of a launcher after which its second version is worth compiling


class Launcher:
    """A function that runs the groups of a grid, its clusters, or those that wait; compiled at its
    first call. Several threads may call it. waiting: runs a group whose warps all wait."""

    def __init__(self, functions: Library, name: str, waiting: Launcher | None = None) -> None:
        self._functions = functions
        self._name = resolve.PREFIX + name
        self._waiting = waiting
        self._calls = 0
        self._native: Callable[[int, int], int] | None = None

    def __call__(self, context: int, kernel: int) -> int:
        """Run a kernel; both are addresses. Return a code of `layout`."""
        code = self._call(context, kernel)
        while code == layout.WAITING and self._waiting is not None:
            code = self._waiting(context, kernel)
            if code == layout.FINISHED:  # the groups that have begun: others may not have
                code = self._call(context, kernel)
        return code

    def _call(self, context: int, kernel: int) -> int:
        native = self._native
        if native is None or self._functions.improved(self._name):
            address = self._functions.address(self._name, quick=native is None)
            native = self._native = _LAUNCH(address)
        self._calls += 1
        if self._calls == OFTEN:
            self._functions.improve([self._name])
        return native(context, kernel)


@cache
def launchers(folder: Path | None) -> tuple[Launcher, Launcher]:
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
    waiting = Launcher(functions, "residents")
    return Launcher(functions, "launch", waiting), Launcher(functions, "launch_clusters")


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
