"""Kernels for Adreno GPUs (TargetSpec.abi "ir3") as LLVM IR text.

The text equals that of the other GPUs except for the intrinsics, which
compiler.codegen.adreno.calls lists; compiler.codegen.adreno.build makes machine code of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ugpu.compiler.codegen.adreno.llvm.syntax import PLAIN
from ugpu.compiler.codegen.adreno.profit import fetched
from ugpu.compiler.codegen.gpu import Gpu
from ugpu.compiler.codegen.instructions.exchange import Word
from ugpu.compiler.codegen.values import Values
from ugpu.compiler.dtype import bool_
from ugpu.compiler.expression.algebra import Index
from ugpu.compiler.expression.value import Load, Memory, Value
from ugpu.compiler.kernel.ir import Kernel
from ugpu.hcq.state.target import TargetSpec


class AdrenoValues(Values):
    """Values of Adreno GPUs. fetched: accesses that read a texture. A block loads a variable once
    and stores it once, so that less text is written and read."""

    fetched: frozenset[Load] = frozenset()

    def __init__(self, index_type: str, has_fma: bool, spaces: Mapping[str, str]) -> None:
        super().__init__(index_type, has_fma, spaces)
        self._held: dict[str, str] = {}  # a variable's value, in the current block
        self._stores: dict[str, int] = {}  # and the line of its last store

    def block(self) -> None:
        """Begin a block, at whose start no variable's value is known."""
        self._held.clear()
        self._stores.clear()

    def load(self, access: Load, lanes: int) -> str:
        memory = access.memory
        if memory.space != "register" or memory.dtype is bool_:
            return super().load(access, lanes)
        name = self.address(memory, access.index, access.index)
        known = self._held.get(name)
        if known is None:
            known = self._held[name] = super().load(access, lanes)
        return known

    def store(self, memory: Memory, index: Index, value: Value) -> None:
        if memory.space != "register" or memory.dtype is bool_:
            super().store(memory, index, value)
            return
        name = self.address(memory, index, index)
        self._held[name] = self.value(value)
        super().store(memory, index, value)
        before = self._stores.get(name)
        if before is not None:
            self.text[before] = ""  # the same block stores it again
        self._stores[name] = len(self.text) - 1

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
    """A kernel of an ir3 object (hcq.objects.ir3_object)."""

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

    def enter(self, label: str) -> None:
        super().enter(label)
        assert isinstance(self.lines, AdrenoValues)
        self.lines.block()

    def barrier(self) -> None:
        self.lines.declarations.add("declare void @adreno.barrier()")
        self.lines.put("call void @adreno.barrier()")

    def attributes(self) -> str:
        return f'"adreno-threads"="{self.kernel.block}" {PLAIN}'
