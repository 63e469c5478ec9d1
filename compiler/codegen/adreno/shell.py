"""Kernels for Adreno GPUs (TargetSpec.abi "ir3") as LLVM IR text.

The text is that of the other GPUs but for the intrinsics, which compiler.codegen.adreno.calls
lists; compiler.codegen.adreno.build makes machine code of it.
"""

from __future__ import annotations

from typing import ClassVar

from compiler.codegen.adreno.profit import fetched
from compiler.codegen.exchange import Word
from compiler.codegen.gpu import Gpu
from compiler.codegen.values import Values
from compiler.expression.value import Load, Memory, Value
from compiler.kernel.ir import Kernel
from hcq.target import TargetSpec


class AdrenoValues(Values):
    """Values of Adreno GPUs. fetched: accesses that read a texture."""

    fetched: frozenset[Load] = frozenset()

    def marks(self, access: Load) -> str:
        found = super().marks(access)
        return f"{found}, !adreno.texel !0" if access in self.fetched else found

    def other_lane(self, mask: int) -> Word:
        def exchanged(word: str) -> str:
            return self.call("adreno.exchange", "i32", [("i32", word), ("i32", str(mask))])

        return exchanged

    def _integer(self, node: Value, sources: list[str], kind: str) -> str:
        if node.op == "mulhi" and kind == "i32":
            return self.call("adreno.mulhi", kind, [(kind, text) for text in sources])
        return super()._integer(node, sources, kind)


class Adreno(Gpu):
    """A kernel of an ir3 object (hcq.ir3object)."""

    values = AdrenoValues
    pointers: ClassVar = {
        "global": "ptr addrspace(1)",
        "local": "ptr addrspace(3)",
        "register": "ptr addrspace(5)",
    }
    convention = "spir_kernel"
    thread = "adreno.thread"
    group = "adreno.group.{}"
    separator = "."

    def __init__(self, kernel: Kernel, target: TargetSpec, bits: int) -> None:
        super().__init__(kernel, target, bits)
        assert isinstance(self.lines, AdrenoValues)
        self.lines.fetched = fetched(kernel)
        self._known = {access.memory.name for access in self.lines.fetched}

    def extent(self, memory: Memory) -> str:
        if memory.name not in self._known:
            return ""
        return f" dereferenceable({memory.count * memory.dtype.itemsize})"

    def barrier(self) -> None:
        self.lines.declarations.add("declare void @adreno.barrier()")
        self.lines.put("call void @adreno.barrier()")

    def attributes(self) -> str:
        return f'"adreno-threads"="{self.kernel.block}"'
