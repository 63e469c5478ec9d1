"""The one LLVM emitter: a Kernel to LLVM IR text, for the host and for AMD GPUs.

The two differ in how a kernel is entered (see TargetSpec.abi), in what a thread, a group and
local memory are, and in the width of indices: 64 bits on the host; on a GPU 32, unless range
analysis says that an index or a byte offset may pass 2^31 - 1. On the host a group is one
iteration of a loop, its local memory is on the stack, and barriers are nothing, since a group has
one thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compiler.codegen.lines import stored_type
from compiler.codegen.values import Values
from compiler.index.algebra import Index, Range
from compiler.kernel.ir import (
    Barrier,
    If,
    Kernel,
    Loop,
    Memory,
    Statement,
    Store,
    indices_of,
    walk,
)
from hcq.errors import NotSupported
from hcq.target import TargetSpec

LIMIT_32 = (1 << 31) - 1
# What the kernels never ask for, so that the driver need not provide it (LLVM AMDGPUUsage,
# "amdgpu-no-*" attributes).
_UNUSED = (
    "dispatch-ptr", "queue-ptr", "implicitarg-ptr", "dispatch-id", "heap-ptr", "hostcall-ptr",
    "multigrid-sync-arg", "default-queue", "completion-action", "lds-kernel-id", "workitem-id-y",
    "workitem-id-z", "flat-scratch-init", "cluster-id-x", "cluster-id-y", "cluster-id-z",
)  # fmt: skip
_FENCE = 'syncscope("workgroup")'


def emit(kernel: Kernel, target: TargetSpec) -> str:
    """LLVM IR of a verified kernel. NotSupported for an ABI we have no shell for."""
    if target.abi == "host":
        return _Host(kernel, target).module()
    if target.abi == "amdhsa":
        return _Amd(kernel, target).module()
    raise NotSupported(f"no code generator for targets of ABI {target.abi!r}", target=target.name)


def index_bits(kernel: Kernel, target: TargetSpec) -> int:
    """32 or 64: what the kernel's index arithmetic needs."""
    if target.abi == "host":
        return 64
    worst = 0
    for memory, index in _accesses(kernel.body):
        scale = memory.dtype.itemsize if memory is not None and memory.space == "global" else 1
        worst = max(worst, index.magnitude(), index.magnitude() * scale)
    return 32 if worst <= LIMIT_32 else 64


def _accesses(body: Iterable[Statement]) -> Iterator[tuple[Memory | None, Index]]:
    for statement in body:
        if isinstance(statement, Store):
            yield statement.memory, statement.index
            for node in walk(statement.value):
                if node.op == "load":
                    yield node.arg.memory, node.arg.index
            for index in indices_of(statement.value):
                yield None, index
        elif isinstance(statement, If):
            for condition in statement.conditions:
                yield None, condition
            yield from _accesses(statement.body)
        elif isinstance(statement, Loop):
            if statement.bound is not None:
                yield None, statement.bound
            yield from _accesses(statement.body)


class _Shell:
    """What both targets share: statements, registers, the frame of a module."""

    host = False

    def __init__(self, kernel: Kernel, target: TargetSpec, has_fma: bool) -> None:
        self.kernel = kernel
        self.target = target
        self.lines = Values(f"i{index_bits(kernel, target)}", has_fma, self.host)
        self.block = "entry"

    def statements(self, body: Iterable[Statement]) -> None:
        for statement in body:
            if isinstance(statement, Store):
                self.lines.store(statement.memory, statement.index, statement.value)
            elif isinstance(statement, If):
                self.conditional(statement)
            elif isinstance(statement, Barrier):
                self.barrier()
                self.lines.shared.clear()
                self.lines.private.clear()
            else:
                self.loop(statement.range, statement.bound, statement.body)

    def enter(self, label: str) -> None:
        self.lines.text.append(f"{label}:")
        self.block = label

    def nested(self, body: Iterable[Statement]) -> None:
        """Statements whose values must not be used outside of them."""
        self.lines.shared.clear()
        self.lines.private.clear()
        self.lines.scopes.append({})
        self.statements(body)
        self.lines.scopes.pop()
        self.lines.shared.clear()
        self.lines.private.clear()

    def conditional(self, statement: If) -> None:
        test = self.lines.conditions(statement.conditions)
        inside, after = self.lines.label("then"), self.lines.label("done")
        self.lines.put(f"br i1 {test}, label %{inside}, label %{after}")
        self.enter(inside)
        self.nested(statement.body)
        self.lines.put(f"br label %{after}")
        self.enter(after)

    def loop(self, variable: Range, bound: Index | None, body: tuple[Statement, ...]) -> None:
        kind = self.lines.index_type
        limit = str(variable.size)
        if bound is not None:
            limit = self.lines.intrinsic("smin", kind, [self.lines.index(bound), limit])
        head, inside, after = (self.lines.label(stem) for stem in ("loop", "body", "end"))
        before = self.block
        counter, following = f"%{variable.name}.{head}", f"%{variable.name}.{head}.next"
        self.lines.put(f"br label %{head}")
        self.enter(head)
        position = len(self.lines.text)
        test = self.lines.new(f"icmp slt {kind} {counter}, {limit}")
        self.lines.put(f"br i1 {test}, label %{inside}, label %{after}")
        self.enter(inside)
        self.lines.variables[variable.name] = counter
        self.nested(body)
        del self.lines.variables[variable.name]
        self.lines.put(f"{following} = add nuw nsw {kind} {counter}, 1")
        self.lines.put(f"br label %{head}")
        incoming = f"[ 0, %{before} ], [ {following}, %{self.block} ]"
        self.lines.text.insert(position, f"  {counter} = phi {kind} {incoming}")
        self.enter(after)

    def registers(self) -> list[str]:
        """Stack slots of the register arrays, one per element; LLVM turns them into registers."""
        lines = []
        for memory in self.kernel.locals:
            if memory.space != "register":
                continue
            for element in range(memory.count):
                name = f"{memory.name}.{element}"
                space = "" if self.host else ", addrspace(5)"
                self.lines.pointers[name] = f"%{name}"
                lines.append(f"  %{name} = alloca {stored_type(memory.dtype, memory.lanes)}{space}")
        return lines

    def barrier(self) -> None:
        raise NotImplementedError

    def module(self) -> str:
        raise NotImplementedError


class _Host(_Shell):
    host = True

    def __init__(self, kernel: Kernel, target: TargetSpec) -> None:
        features = target.features.split(",")
        for needed in ("sse4.1", "f16c"):  # without them rounding and float16 are library calls
            if f"-{needed}" in features and target.triple.startswith("x86"):
                raise NotSupported(f"this processor lacks {needed}, which kernels need")
        known = "+fma" in features or not target.triple.startswith("x86")
        super().__init__(kernel, target, known)

    def barrier(self) -> None:
        """A group is one thread."""

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
        self._groups()
        parameters = ", ".join(
            f"ptr noalias {'' if i == 0 else 'readonly '}align 64 %{memory.name}"
            for i, memory in enumerate(kernel.parameters)
        )
        inner, size = f"{kernel.name}.groups", 8 * len(kernel.parameters)
        text = [
            f"define internal void @{inner}({parameters}, i64 %first, i64 %last) #0 {{",
            "entry:",
            *allocas,
            *lines.text,
            "  ret void",
            "}",
            f"define void @{kernel.name}(ptr %kernarg, ptr %launch) #0 {{",
        ]
        for i in range(len(kernel.parameters)):
            text.append(f"  %at{i} = getelementptr i8, ptr %kernarg, i64 {8 * i}")
            text.append(f"  %p{i} = load ptr, ptr %at{i}")
        given = ", ".join(f"ptr %p{i}" for i in range(len(kernel.parameters)))
        text += [
            "  %first = load i64, ptr %launch",
            "  %at = getelementptr i8, ptr %launch, i64 8",
            "  %last = load i64, ptr %at",
            f"  call void @{inner}({given}, i64 %first, i64 %last)",
            "  ret void",
            "}",
            f"@{kernel.name}.ugpu = constant {{ i32, i32 }} {{ i32 1, i32 {size} }}",
            *sorted(lines.declarations),
            # without "no-builtins" LLVM may call memset and memcpy, which the loader has not
            'attributes #0 = { nounwind "no-builtins" noinline }',
            "!0 = !{}",
        ]
        return "\n".join(text) + "\n"

    def _groups(self) -> None:
        """The loop over the flat group numbers [first, last)."""
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


class _Amd(_Shell):
    def __init__(self, kernel: Kernel, target: TargetSpec) -> None:
        super().__init__(kernel, target, True)

    def barrier(self) -> None:
        # only local memory is shared between the threads of a group
        self.lines.put(f"fence {_FENCE} release, !mmra !1")
        self.lines.declarations.add("declare void @llvm.amdgcn.s.barrier()")
        self.lines.put("call void @llvm.amdgcn.s.barrier()")
        self.lines.put(f"fence {_FENCE} acquire, !mmra !1")

    def module(self) -> str:
        kernel, lines = self.kernel, self.lines
        allocas = self.registers()
        globals_ = []
        for memory in kernel.locals:
            if memory.space == "local":
                kind = f"[{memory.count} x {stored_type(memory.dtype)}]"
                name = f"@{kernel.name}.{memory.name}"
                globals_.append(f"{name} = internal addrspace(3) global {kind} poison, align 64")
                lines.pointers[memory.name] = name
        for memory in kernel.parameters:
            lines.pointers[memory.name] = f"%{memory.name}"
        unused = list(_UNUSED)
        self._variable("thread", "workitem.id.x", kernel.block)
        for axis in range(3):
            letter = "xyz"[axis]
            if kernel.grid[axis] > 1:
                self._variable(kernel.group(axis).name, f"workgroup.id.{letter}", kernel.grid[axis])
            else:
                unused.append(f"workgroup-id-{letter}")
        self.statements(kernel.body)
        parameters = ", ".join(
            f"ptr addrspace(1) noalias {'readonly' if i else 'writeonly'} align 256 %{memory.name}"
            for i, memory in enumerate(kernel.parameters)
        )
        size = f'"{kernel.block},{kernel.block}"'
        attributes = " ".join(f'"amdgpu-no-{name}"' for name in unused)
        text = [
            *globals_,
            f"define amdgpu_kernel void @{kernel.name}({parameters}) #0 {{",
            "entry:",
            *allocas,
            *lines.text,
            "  ret void",
            "}",
            *sorted(lines.declarations),
            f'attributes #0 = {{ nounwind "amdgpu-flat-work-group-size"={size} '
            f'"uniform-work-group-size"="true" {attributes} }}',
            "!0 = !{}",
            '!1 = !{!"amdgpu-synchronize-as", !"local"}',
        ]
        return "\n".join(text) + "\n"

    def _variable(self, name: str, intrinsic: str, size: int) -> None:
        lines = self.lines
        lines.declarations.add(f"declare i32 @llvm.amdgcn.{intrinsic}()")
        text = lines.new(f"call range(i32 0, {size}) i32 @llvm.amdgcn.{intrinsic}()")
        if lines.index_type == "i64":
            text = lines.new(f"zext nneg i32 {text} to i64")
        lines.variables[name] = text
