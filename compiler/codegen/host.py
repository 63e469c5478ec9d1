"""Kernels for the host (TargetSpec.abi "host").

A group is one iteration of a loop, its local memory is on the stack, and barriers are empty, since
a group has one thread.
"""

from __future__ import annotations

from typing import ClassVar

from ugpu.compiler.codegen.instructions import amx
from ugpu.compiler.codegen.instructions.conversion import to_integer
from ugpu.compiler.codegen.lines import stored_type
from ugpu.compiler.codegen.shell import Shell
from ugpu.compiler.codegen.values import Values
from ugpu.compiler.dtype import DType
from ugpu.compiler.expression.value import Memory, Value
from ugpu.compiler.kernel.ir import Kernel, Loop, Prefetch, TileStep
from ugpu.hcq.cpu.mark import marked
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.target import TargetSpec


class HostValues(Values):
    """Values whose conversions LLVM vectorises."""

    def to_integer(self, text: str, kind: str, node: Value | None, target: DType) -> str:
        return to_integer(self, text, kind, node, target)


class Host(Shell):
    """A kernel as a function over flat group numbers."""

    values: ClassVar[type[Values]] = HostValues
    pointers: ClassVar = {"global": "ptr", "local": "ptr", "register": "ptr"}

    def __init__(self, kernel: Kernel, target: TargetSpec, bits: int) -> None:
        features = target.features.split(",")
        for needed in ("sse4.1", "f16c"):  # without them rounding and float16 are library calls
            if f"-{needed}" in features and target.triple.startswith("x86"):
                raise NotSupported(
                    f"this processor does not support {needed}, which kernels require"
                )
        known = "+fma" in features or not target.triple.startswith("x86")
        super().__init__(kernel, target, bits, known)
        self.has_tiles = False
        self.rolled = 0  # number of loops so far that must not be unrolled

    def tile(self, step: TileStep) -> None:
        self.has_tiles = True
        amx.emit(self.lines, step)

    def prefetch(self, statement: Prefetch) -> None:
        """LLVM Language Reference, "llvm.prefetch": for a write, to keep in all levels or all but
        the nearest, data."""
        lines, write = self.lines, statement.memory in self.kernel.parameters[: self.kernel.outputs]
        pointer = lines.address(statement.memory, statement.index, statement.index)
        lines.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        where = f"i32 {int(write)}, i32 {4 - statement.level}, i32 1"
        lines.put(f"call void @llvm.prefetch.p0(ptr {pointer}, {where})")

    def again(self, loop: Loop) -> str:
        """LLVM Language Reference, "llvm.loop.unroll.disable"; each loop has its own node."""
        if not loop.rolled:
            return ""
        self.rolled += 1
        return f", !llvm.loop !{self.rolled + 1}"

    def barrier(self) -> None:
        """Emit nothing: a group is one thread."""

    def vectors(self) -> str:
        """Return the attribute for rows of tiles: loops that pack them use whole vectors, also
        where LLVM would take two of half the size."""
        return ' "prefer-vector-width"="512"' if self.has_tiles else ""

    def module(self) -> str:
        kernel, lines = self.kernel, self.lines
        allocas = self.registers()
        for memory in kernel.locals:
            if memory.space == "local":
                kind = f"[{memory.count} x {stored_type(memory.dtype)}]"
                allocas.append(f"  %{memory.name} = alloca {kind}, align 64")
                lines.pointers[memory.name] = f"%{memory.name}"
        for memory in kernel.parameters:
            lines.pointers[memory.name] = f"%{memory.name}"
        lines.take(kernel.parameters)
        self._groups()

        def parameter(place: int, memory: Memory) -> str:
            if memory.space == "by_value":
                return f"i64 %{memory.name}"
            read = "" if place < kernel.outputs else "readonly "
            return f"ptr noalias {read}align 64 %{memory.name}"

        parameters = ", ".join([parameter(*each) for each in enumerate(kernel.parameters)])
        kinds = ["i64" if m.space == "by_value" else "ptr" for m in kernel.parameters]
        inner = f"{kernel.name}.groups"
        text = [
            f"define internal void @{inner}({parameters}, i64 %first, i64 %last) #0 {{",
            "entry:",
            *allocas,
            *([amx.begin(lines, f"{kernel.name}.tiles")] if self.has_tiles else ()),
            *lines.text,
            *([amx.end(lines)] if self.has_tiles else ()),
            "  ret void",
            "}",
            f"define void @{kernel.name}(ptr %kernarg, ptr %launch) #0 {{",
        ]
        for i, kind in enumerate(kinds):
            text.append(f"  %at{i} = getelementptr i8, ptr %kernarg, i64 {8 * i}")
            text.append(f"  %p{i} = load {kind}, ptr %at{i}")
        given = ", ".join(f"{kind} %p{i}" for i, kind in enumerate(kinds))
        text += [
            "  %first = load i64, ptr %launch",
            "  %at = getelementptr i8, ptr %launch, i64 8",
            "  %last = load i64, ptr %at",
            f"  call void @{inner}({given}, i64 %first, i64 %last)",
            "  ret void",
            "}",
            marked(
                kernel.name,
                [
                    f"{kind} {memory.name}"
                    for kind, memory in zip(kinds, kernel.parameters, strict=True)
                ],
            ),
            *([amx.constant(f"{kernel.name}.tiles")] if self.has_tiles else ()),
            *sorted(lines.declarations),
            # without "no-builtins" LLVM may call memset and memcpy, which the loader lacks
            f'attributes #0 = {{ nounwind "no-builtins" noinline{self.vectors()} }}',
            "!0 = !{}",
            *(('!1 = !{!"llvm.loop.unroll.disable"}',) if self.rolled else ()),
            *[f"!{2 + n} = distinct !{{!{2 + n}, !1}}" for n in range(self.rolled)],
        ]
        return "\n".join(text) + "\n"

    def _groups(self) -> None:
        """Emit the loop over the flat group numbers [first, last)."""
        lines, grid = self.lines, self.kernel.grid
        lines.put("br label %groups.head")
        self.enter("groups.head")
        position = len(lines.text)
        lines.put("%more = icmp slt i64 %group, %last")
        lines.put("br i1 %more, label %groups.run, label %groups.done")
        self.enter("groups.run")
        rest = "%group"
        for axis in range(3):
            name = self.kernel.group(axis).name
            if axis == 2 or all(size == 1 for size in grid[axis + 1 :]):
                lines.variables[name] = rest
                rest = "0"
            else:
                lines.variables[name] = lines.new(f"urem i64 {rest}, {grid[axis]}")
                rest = lines.new(f"udiv i64 {rest}, {grid[axis]}")
        self.nested(self.kernel.body)
        lines.put("%next = add nuw nsw i64 %group, 1")
        lines.put("br label %groups.head")
        phi = f"  %group = phi i64 [ %first, %entry ], [ %next, %{self.block} ]"
        lines.text.insert(position, phi)
        self.enter("groups.done")
