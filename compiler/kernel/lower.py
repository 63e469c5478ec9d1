"""Lowering: from a Computation to a Kernel for a kind of target.

This file chooses the kind of kernel. The kinds themselves are in the packages beside it (host, gpu,
nvidia, attention, shared): loops, matmul (and matrix units), rows and online. Targets are
distinguished by their ABI, never by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from ugpu.compiler.dtype import LACKING, require
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.once import once
from ugpu.compiler.expression.value import Value, rebuild, value, walk
from ugpu.compiler.graph.operations import KINDS
from ugpu.compiler.kernel import scatter
from ugpu.compiler.kernel.attention import gpu as gpu_attention
from ugpu.compiler.kernel.attention import host as host_online
from ugpu.compiler.kernel.choices import (
    BulkTiles,
    Choices,
    Dots,
    MatrixTiles,
    RingTiles,
    Space,
    Tiles,
)
from ugpu.compiler.kernel.gpu import dots as gpu_dots
from ugpu.compiler.kernel.gpu import loops as gpu_loops
from ugpu.compiler.kernel.gpu import matmul as gpu_matmul
from ugpu.compiler.kernel.gpu import matrix as gpu_matrix
from ugpu.compiler.kernel.gpu import reduction as gpu_reduction
from ugpu.compiler.kernel.gpu import rows as gpu_rows
from ugpu.compiler.kernel.host import loops as host_loops
from ugpu.compiler.kernel.host import place as host_place
from ugpu.compiler.kernel.host import rows as host_rows
from ugpu.compiler.kernel.host import turned as host_turned
from ugpu.compiler.kernel.host import windows as host_windows
from ugpu.compiler.kernel.host.products import dots as host_dots
from ugpu.compiler.kernel.host.products import matmul as host_matmul
from ugpu.compiler.kernel.host.products import winograd as host_winograd
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.kernel.nvidia import bulk as gpu_bulk
from ugpu.compiler.kernel.nvidia import ring as gpu_ring
from ugpu.compiler.kernel.shared.grid import within_limits
from ugpu.compiler.kernel.shared.pieces import side_by_side
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.kernel.verify import verify
from ugpu.compiler.pattern import cost
from ugpu.compiler.pattern.chain import find_chain, single
from ugpu.compiler.pattern.contraction import Contraction, find_contraction, find_sides
from ugpu.compiler.pattern.online import find_online
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.target import TargetSpec


def lower(computation: Computation, target: TargetSpec, choices: Choices | None = None) -> Kernel:
    """Return the verified kernel, with the default choices or given ones (of one of its `spaces`).
    NotSupported for a target with an unknown ABI."""
    if target.abi not in ("host", "amdhsa", "ptx", "ir3"):
        raise NotSupported(
            f"no code generator for targets of ABI {target.abi!r}", target=target.name
        )
    if target.abi in LACKING:
        for each in (computation, *computation.pieces):
            for node in walk(each.value):
                require(node.dtype, target)
    kernel = within_limits(_shape(computation, target).build(choices), target.max_grid)
    return verify(_named(kernel, computation))


def spaces(computation: Computation, target: TargetSpec) -> list[Space]:
    """Return the choices for a computation, the default's space first; empty without choices."""
    return _shape(computation, target).spaces()


@dataclass(frozen=True)
class _Shape:
    """A way to lower a computation. build: with given choices, or by default with None."""

    build: Callable[[Any], Kernel]  # Any: a record of one of the spaces, or None
    spaces: Callable[[], list[Space]] = list


@once
def _shape(computation: Computation, target: TargetSpec) -> _Shape:
    tiled = host_winograd.find_tiled(computation) if target.abi == "host" else None
    if tiled is not None:
        return _Shape(lambda _: host_winograd.convolution(computation.plain, target))
    computation = _summed(computation)
    if computation.value.op != "along":
        return _by_form(computation, target)
    kind, *_ = computation.value.arg
    name = KINDS[kind].lowerings.get(target.abi)
    if name is None:
        raise NotSupported(f"{kind} is only supported on hosts", target=target.name)
    build = import_module(name).lower
    return _Shape(lambda _: build(computation, target))


def _summed(computation: Computation) -> Computation:
    """Return a computation whose sums are computed without Winograd tiles."""

    def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
        if node.op != "reduce" or node.arg[0] != cost.TILED:
            return None
        return value("reduce", node.dtype, sources, ("sum", node.arg[1]))

    changed = rebuild(computation.value, change)
    return computation if changed is computation.value else replace(computation, value=changed)


def _by_form(computation: Computation, target: TargetSpec) -> _Shape:
    """Return the way for the first of these forms that a computation has: pieces, chosen elements,
    attention, a chain of reductions; otherwise a product, a reduction or element-wise."""
    host = target.abi == "host"
    if computation.pieces:
        piece = partial(host_loops.elementwise, alone=False) if host else gpu_loops.elementwise
        lowered = partial(piece, target=target)
        return _Shape(lambda _: side_by_side(computation.plain, target, lowered))
    chosen = computation.chosen
    if chosen is not None:
        scattered = scatter.host if host else scatter.gpu
        return _Shape(lambda _: scattered(computation.plain, chosen, target))
    online = find_online(computation)
    if online is not None:
        if host:
            return _Shape(lambda _: host_online.attention(computation, online, target))
        return _Shape(
            lambda wanted: gpu_attention.attention(computation, online, target, wanted),
            lambda: gpu_attention.attention_spaces(online, target),
        )
    chain = find_chain(computation)
    if chain is None:
        return (_host if host else _gpu)(computation.plain, target)
    if not host:
        return _Shape(
            lambda wanted: gpu_rows.rows(computation, chain, target, wanted),
            lambda: [gpu_rows.rows_space(computation, chain, target)],
        )
    place = host_place.find_place(chain, target)
    if place is not None:
        return _Shape(lambda _: host_place.places(computation, chain, place, target))
    return _Shape(lambda _: host_rows.rows(computation, chain, target))


def _host(plain: Computation, target: TargetSpec) -> _Shape:
    parts = find_contraction(plain, joint=True)
    dots = host_dots.find_dots(plain, parts, target)
    if dots is not None:
        return _Shape(lambda _: host_dots.multiply(plain, dots, target))
    if parts is not None and host_matmul.pays(parts):
        return _Shape(
            lambda tile: host_matmul.matmul(plain, parts, target, tile),
            lambda: [host_matmul.space(plain, parts, target)],
        )
    window = host_windows.find_window(plain)
    if window is not None:
        return _Shape(lambda _: host_windows.reduction(plain, window, target))
    turned = host_turned.find_turned(plain) if plain.reduction is None else None
    if turned is not None:
        return _Shape(lambda _: host_turned.elementwise(plain, turned, target))
    if plain.reduction is None:
        built = partial(host_loops.elementwise, plain, target)
    else:
        built = partial(host_rows.rows, plain, single(plain), target)
    return _Shape(built, lambda: [host_loops.space()])


def _gpu(plain: Computation, target: TargetSpec) -> _Shape:
    parts, sides = find_contraction(plain), find_sides(plain)
    if parts is not None:
        shape = _gpu_product(plain, parts, target)
    elif plain.reduction is not None:
        shape = _Shape(
            lambda sharing: gpu_reduction.reduction(plain, target, sharing),
            lambda: [gpu_reduction.sharing_space(plain, target)],
        )
    else:
        shape = _Shape(
            lambda threads: gpu_loops.elementwise(plain, target, threads),
            lambda: [gpu_loops.threads_space(plain, target)] if plain.ranges else [],
        )
    on_units = parts is not None and (
        gpu_matrix.suits(parts, target) or gpu_ring.suits(parts, target)
    )
    if sides is None or on_units or not gpu_dots.pays(sides, parts is not None):
        return shape

    def build(choices: Choices | None) -> Kernel:
        if choices is None or isinstance(choices, Dots):
            return gpu_dots.multiply(plain, sides, target, choices)
        return shape.build(choices)

    return _Shape(build, lambda: [gpu_dots.space(sides, target), *shape.spaces()])


def _gpu_product(computation: Computation, parts: Contraction, target: TargetSpec) -> _Shape:
    """Use matrix units if there are any for the types, unless the choices request otherwise."""
    unit, ringed = gpu_matrix.suits(parts, target), gpu_ring.suits(parts, target)
    packed = gpu_bulk.factors(parts, target)

    def default() -> RingTiles | MatrixTiles | Tiles | None:
        if packed is not None:
            return gpu_bulk.default_tiles(parts, packed[0], target)
        if ringed and gpu_ring.pays(parts, ringed[-1]):
            return gpu_ring.default_tiles(parts, ringed, target)
        return None if unit is None else gpu_matrix.default_tiles(parts, unit, target)

    def build(choices: RingTiles | MatrixTiles | Tiles | None) -> Kernel:
        tiles = choices or default()
        if isinstance(tiles, BulkTiles):
            return gpu_bulk.matmul(computation, parts, target, tiles)
        if isinstance(tiles, RingTiles):
            return gpu_ring.matmul(computation, parts, target, tiles)
        if isinstance(tiles, MatrixTiles):
            assert unit is not None
            return gpu_matrix.matmul(computation, parts, target, unit, tiles)
        return gpu_matmul.matmul(computation, parts, target, tiles)

    def all_spaces() -> list[Space]:
        found = [gpu_ring.space(parts, each, target) for each in ringed]
        if unit is not None:
            found.append(gpu_matrix.space(parts, unit, target))
        found.append(gpu_matmul.space(parts, target))
        if packed is not None:
            found.append(gpu_bulk.space(parts, packed[0], target))
        first = default()
        return sorted(found, key=lambda space: first is not None and not space.fits_kind(first))

    return _Shape(build, all_spaces)


def _named(kernel: Kernel, computation: Computation) -> Kernel:
    """Name a kernel by its operations, sizes and a hash of its text: equal names, equal kernels."""
    words = computation.origin.split()
    shown = "_".join(words[:4]) + ("_and_more" if len(words) > 4 else "")
    sizes = "x".join(str(r.size) for r in computation.ranges) or "1"
    for reduction in computation.reductions[:1]:
        sizes += "_over_" + "x".join(str(r.size) for r in reduction.arg[1])
    plain = replace(kernel, name="kernel")
    digest = hashlib.sha256(format_kernel(plain).encode()).hexdigest()[:8]
    name = f"{shown}_{sizes}_{digest}"
    return replace(kernel, name=name, origin=computation.origin)
