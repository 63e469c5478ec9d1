"""Compile the native functions that kernels share, and make their names known to the linker.

What asynchronous kernels need is compiled when the first of them comes; the launcher reaches it
through addresses in the worker context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from hcq.emu import jit
from hcq.emu import math as emu_math
from nv.virtual.sm.runtime import (
    access,
    atomics,
    bulks,
    clusters,
    distributed,
    factors,
    flights,
    launcher,
    layout,
    mbarriers,
    products,
    proxies,
    residents,
    resolve,
    tiles,
)

_Part = tuple[Callable[[], tuple[str, set[str]]], list[str]]
_PACKAGE = Path(__file__).parent.parent
_LOADED: list[jit.Loaded] = []  # kept as long as their functions may run
PROFILES = (
    '!0 = !{!"branch_weights", i32 1000, i32 1}\n!1 = !{!"branch_weights", i32 1, i32 1000}\n'
)


def _compiled(folder: Path | None, title: str, parts: Iterable[_Part]) -> jit.Loaded:
    texts: list[str] = []
    declarations: set[str] = set()
    names: list[str] = []
    for make, public in parts:
        text, needed = make()
        texts.append(text)
        declarations |= needed
        names += public
    ir = "\n".join([*texts, *sorted(declarations), PROFILES])
    objects = jit.ObjectCache(folder)
    key = jit.key_of(_PACKAGE, title, ir)
    image = objects.get(key)
    if image is None:
        image = jit.compile_object(ir, jit.FULL, 1)
        objects.put(key, image)
    loaded = jit.Loaded(image)
    for name in names:
        jit.publish(name, loaded.address(name))
    return loaded


def _math() -> tuple[str, set[str]]:
    return emu_math.math_ir(resolve.PREFIX)


@cache
def launch_addresses(folder: Path | None) -> tuple[int, int]:
    """Return the addresses of the launchers, of groups and of clusters; the functions of all
    kernels are there then."""
    loaded = _compiled(folder, "runtime", (
        (resolve.resolve_ir, resolve.names()), (access.access_ir, access.names()),
        (atomics.atomics_ir, atomics.names()), (tiles.tiles_ir, tiles.names()),
        (launcher.launcher_ir, launcher.names()), (_math, emu_math.names(resolve.PREFIX)),
        (distributed.distributed_ir, distributed.names()),
        (clusters.clusters_ir, clusters.names()), (residents.residents_ir, []),
    ))  # fmt: skip
    _LOADED.append(loaded)
    group, cluster = (loaded.address(resolve.PREFIX + name) for name in (
        "launch", "launch_clusters"))  # fmt: skip
    return group, cluster


@cache
def flight_hooks(folder: Path | None) -> tuple[int, ...]:
    """Return what the launcher calls for asynchronous kernels; their functions are there then."""
    launch_addresses(folder)
    loaded = _compiled(folder, "flights", (
        (mbarriers.mbarriers_ir, mbarriers.names()), (flights.flights_ir, flights.names()),
        (bulks.bulks_ir, bulks.names()), (proxies.proxies_ir, proxies.names()),
        (products.products_ir, products.names()), (factors.factors_ir, []),
    ))  # fmt: skip
    _LOADED.append(loaded)
    return tuple(loaded.address(resolve.PREFIX + name) for name in layout.HOOKED)
