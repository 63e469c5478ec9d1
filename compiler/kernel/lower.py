"""Lowering: from a Computation to a Kernel for a kind of target.

This file chooses the shape of the kernel; the shapes themselves are in host_* and gpu_*: loops,
matmul (and matrix units), rows and online. Targets are told apart by their ABI, never by name.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from compiler.graph import ops
from compiler.index.ranges import Computation
from compiler.kernel import (
    gpu_loops,
    gpu_matmul,
    gpu_matrix,
    gpu_online,
    gpu_rows,
    host_loops,
    host_matmul,
    host_online,
    host_rows,
)
from compiler.kernel.chain import find_chain
from compiler.kernel.contraction import find_contraction
from compiler.kernel.grid import within_limits
from compiler.kernel.ir import Kernel
from compiler.kernel.online import find_online
from compiler.kernel.text import format_kernel
from compiler.kernel.verify import verify
from hcq.errors import NotSupported
from hcq.target import TargetSpec


def lower(computation: Computation, target: TargetSpec) -> Kernel:
    """The verified kernel. NotSupported for a target whose ABI we do not know."""
    if target.abi not in ("host", "amdhsa", "ptx"):
        raise NotSupported(
            f"no code generator for targets of ABI {target.abi!r}", target=target.name
        )
    kernel = within_limits(_shape(computation, target), target.max_grid)
    return verify(_named(kernel, computation))


def _shape(computation: Computation, target: TargetSpec) -> Kernel:
    on_host = target.abi == "host"
    online = find_online(computation)
    if online is not None:
        attention = host_online.attention if on_host else gpu_online.attention
        return attention(computation, online, target)
    chain = find_chain(computation)
    if chain is not None:
        rows = host_rows.rows if on_host else gpu_rows.rows
        return rows(computation, chain, target)
    computation = replace(computation, value=ops.expand(computation.value))
    contraction = find_contraction(computation, joint=on_host)
    if contraction is not None:
        unit = None if on_host else gpu_matrix.suits(contraction, target)
        if unit is not None:
            tiles = gpu_matrix.default_tiles(contraction, unit, target)
            return gpu_matrix.matmul(computation, contraction, target, unit, tiles)
        matmul = host_matmul.matmul if on_host else gpu_matmul.matmul
        return matmul(computation, contraction, target)
    if computation.reduction is not None:
        reduction = host_loops.reduction if on_host else gpu_loops.reduction
        return reduction(computation, target)
    elementwise = host_loops.elementwise if on_host else gpu_loops.elementwise
    return elementwise(computation, target)


def _named(kernel: Kernel, computation: Computation) -> Kernel:
    """Name a kernel by what it does, where, and a hash of its text: equal names, equal kernels."""
    words = computation.origin.split()
    shown = "_".join(words[:4]) + ("_and_more" if len(words) > 4 else "")
    sizes = "x".join(str(r.size) for r in computation.ranges) or "1"
    for reduction in computation.reductions[:1]:
        sizes += "_over_" + "x".join(str(r.size) for r in reduction.arg[1])
    plain = replace(kernel, name="kernel")
    digest = hashlib.sha256(format_kernel(plain).encode()).hexdigest()[:8]
    name = f"{shown}_{sizes}_{digest}"
    return replace(kernel, name=name, origin=computation.origin)
