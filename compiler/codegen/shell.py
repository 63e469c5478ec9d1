"""Statements of the kernel IR as LLVM IR text: the part shared by kernels of all targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from ugpu.compiler.codegen.lines import stored_type
from ugpu.compiler.codegen.values import Values
from ugpu.compiler.kernel.ir import (
    Asynchronous,
    Barrier,
    If,
    Kernel,
    Loop,
    Prefetch,
    Statement,
    Store,
    TileStep,
)
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.target import TargetSpec


class Shell:
    """Code generation shared by all targets. pointers: the LLVM pointer type of each memory space.
    bits: of the index arithmetic."""

    pointers: ClassVar[Mapping[str, str]]
    values: ClassVar[type[Values]] = Values

    def __init__(self, kernel: Kernel, target: TargetSpec, bits: int, has_fma: bool) -> None:
        self.kernel = kernel
        self.target = target
        self.lines = self.values(f"i{bits}", has_fma, self.pointers)
        self.lines.wave_size = target.wave_size
        self.lines.written = frozenset(m.name for m in kernel.parameters[: kernel.outputs])
        self.block = "entry"
        # First and end line of a statement's text, and its id; the innermost first.
        self.spans: list[tuple[int, int, int]] = []
        self.above = 0  # lines of the module above those

    def statements(self, body: Iterable[Statement]) -> None:
        for statement in body:
            start = len(self.lines.text)
            self.statement(statement)
            self.spans.append((start, len(self.lines.text), id(statement)))

    def statement(self, statement: Statement) -> None:
        if isinstance(statement, Store):
            self.lines.store(statement.memory, statement.index, statement.value)
        elif isinstance(statement, Prefetch):
            self.prefetch(statement)
        elif isinstance(statement, TileStep):
            self.tile(statement)
        elif isinstance(statement, If):
            self.conditional(statement)
        elif isinstance(statement, Barrier):
            if statement.cluster:
                self.meet()
            else:
                self.barrier()
            self.lines.shared.clear()
            self.lines.private.clear()
        elif isinstance(statement, Asynchronous):
            self.asynchronous(statement)
        else:
            self.loop(statement)

    def enter(self, label: str) -> None:
        self.lines.text.append(f"{label}:")
        self.block = label

    def nested(self, body: Iterable[Statement]) -> None:
        """Emit statements whose values must not be used outside of them."""
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

    def loop(self, loop: Loop) -> None:
        kind, variable = self.lines.index_type, loop.range
        limit = str(variable.size)
        if loop.bound is not None:
            limit = self.lines.intrinsic("smin", kind, [self.lines.index(loop.bound), limit])
        head, inside, after = (self.lines.label(stem) for stem in ("loop", "body", "end"))
        before = self.block
        counter, following = f"%{variable.name}.{head}", f"%{variable.name}.{head}.next"
        self.lines.put(f"br label %{head}")
        self.enter(head)
        position = len(self.lines.text)
        self.lines.put("")  # the counter, filled in once its predecessor blocks are known
        test = self.lines.new(f"icmp slt {kind} {counter}, {limit}")
        self.lines.put(f"br i1 {test}, label %{inside}, label %{after}")
        self.enter(inside)
        self.lines.variables[variable.name] = counter
        self.nested(loop.body)
        del self.lines.variables[variable.name]
        self.lines.put(f"{following} = add nuw nsw {kind} {counter}, 1")
        self.lines.put(f"br label %{head}{self.again(loop)}")
        incoming = f"[ 0, %{before} ], [ {following}, %{self.block} ]"
        self.lines.text[position] = f"  {counter} = phi {kind} {incoming}"
        self.enter(after)

    def again(self, loop: Loop) -> str:
        """Return the annotation of a loop's backward branch."""
        return ""

    def registers(self) -> list[str]:
        """Emit stack slots of the register arrays, one per element; LLVM promotes them."""
        lines = []
        for memory in self.kernel.locals:
            if memory.space != "register":
                continue
            for element in range(memory.count):
                name = f"{memory.name}.{element}"
                space = self.pointers["register"].removeprefix("ptr")
                space = f",{space}" if space else ""
                self.lines.pointers[name] = f"%{name}"
                lines.append(f"  %{name} = alloca {stored_type(memory.dtype, memory.lanes)}{space}")
        return lines

    def tile(self, step: TileStep) -> None:
        raise NotImplementedError

    def prefetch(self, statement: Prefetch) -> None:
        raise NotImplementedError

    def asynchronous(self, statement: Asynchronous) -> None:
        """Emit an operation that units execute while threads continue; NotSupported on targets
        without such units."""
        raise NotSupported(f"{type(statement).__name__} statements", target=self.target.name)

    def barrier(self) -> None:
        raise NotImplementedError

    def meet(self) -> None:
        """Emit a barrier of all groups of a cluster; NotSupported on targets without clusters."""
        raise NotSupported("barriers of clusters", target=self.target.name)

    def module(self) -> str:
        raise NotImplementedError
