"""The LLVM emitter for all targets: a Kernel to LLVM IR text, for the host and for AMD, NVIDIA and
Adreno GPUs.

Targets differ in how a kernel is entered (see TargetSpec.abi), in what a thread, a group and
local memory are, and in the width of indices: 64 bits on the host; on a GPU 32, unless range
analysis shows that an index or a byte offset may exceed 2^31 - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from ugpu.compiler.codegen.adreno.shell import Adreno
from ugpu.compiler.codegen.gpu import Amd
from ugpu.compiler.codegen.host import Host
from ugpu.compiler.codegen.located import Emitted
from ugpu.compiler.codegen.nvptx import Nvidia
from ugpu.compiler.codegen.shell import Shell
from ugpu.compiler.expression.algebra import Index
from ugpu.compiler.expression.value import Memory, own_indices, unseen
from ugpu.compiler.kernel.ir import Bulk, Fetch, If, Kernel, Loop, Signal, Statement, Store
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.target import TargetSpec

LIMIT_32 = (1 << 31) - 1
SHELLS: Mapping[str, Callable[[Kernel, TargetSpec, int], Shell]] = {
    "host": Host,
    "amdhsa": Amd,
    "ptx": Nvidia,
    "ir3": Adreno,
}


def emit(kernel: Kernel, target: TargetSpec) -> str:
    """Return the LLVM IR of a verified kernel. NotSupported for an unknown ABI."""
    return emitted(kernel, target).text


def emitted(kernel: Kernel, target: TargetSpec) -> Emitted:
    """Return the same, with the statement of each line. Keep the kernel as long as the result."""
    shell = SHELLS.get(target.abi)
    if shell is None:
        raise NotSupported(
            f"no code generator for targets of ABI {target.abi!r}", target=target.name
        )
    made = shell(kernel, target, index_bits(kernel, target))
    return Emitted(made.module(), made.above, made.spans)


def index_bits(kernel: Kernel, target: TargetSpec) -> int:
    """Return the bits that the kernel's index arithmetic needs: 32 or 64."""
    if target.abi == "host":
        return 64
    known: dict[int, int] = {}  # magnitudes, by the index's identity: the kernel keeps it alive
    for memory, index in _accesses(kernel.body, set()):
        worst = known.get(id(index))
        if worst is None:
            worst = known[id(index)] = index.magnitude()
        if memory is not None and memory.space == "global":
            worst *= memory.dtype.itemsize
        if worst > LIMIT_32:
            return 64
    return 32


def _accesses(
    body: Iterable[Statement], seen: set[int]
) -> Iterator[tuple[Memory | None, Index]]:  # fmt: skip
    """Yield every access and other index expression. seen: identities of values visited before,
    which statements share."""
    for statement in body:
        if isinstance(statement, Store):
            yield statement.memory, statement.index
            for node in unseen(statement.value, seen):
                if node.op == "load":
                    yield node.arg.memory, node.arg.index
                    for condition in node.arg.conditions:
                        yield None, condition
                else:
                    for index in own_indices(node):
                        yield None, index
        elif isinstance(statement, Fetch):
            yield statement.source.memory, statement.source.index
            for condition in statement.source.conditions:
                yield None, condition
        elif isinstance(statement, Bulk):
            yield statement.source, statement.start
        elif isinstance(statement, Signal):
            yield None, statement.number
        elif isinstance(statement, If):
            for condition in statement.conditions:
                yield None, condition
            yield from _accesses(statement.body, seen)
        elif isinstance(statement, Loop):
            if statement.bound is not None:
                yield None, statement.bound
            yield from _accesses(statement.body, seen)
