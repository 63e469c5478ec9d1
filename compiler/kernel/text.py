"""Kernels as stable text, for goldens, cache keys and people."""

from __future__ import annotations

from collections.abc import Iterable

from ugpu.compiler.expression.text import Printer, access_text, conditions_text, memory_text
from ugpu.compiler.kernel.ir import (
    Asynchronous,
    Await,
    Barrier,
    Bulk,
    Close,
    Fetch,
    If,
    Kernel,
    Loop,
    Prefetch,
    Settle,
    Signal,
    Statement,
    Store,
    TileStep,
)


def format_kernel(kernel: Kernel) -> str:
    """Print a kernel; equal text means equal behaviour."""
    return printed(kernel)[0]


def statement_lines(kernel: Kernel) -> dict[int, int]:
    """Return the line, from 1, of each statement in the printed kernel, by the statement's id."""
    return printed(kernel)[1]


def printed(kernel: Kernel) -> tuple[str, dict[int, int]]:
    """Return the results of `format_kernel` and `statement_lines`."""
    head = [f"kernel {kernel.name} grid {kernel.grid} block {kernel.block}"]
    if kernel.cluster > 1:
        head.append(f"  cluster {kernel.cluster}")
    if kernel.origin:
        head.append(f"  computes {kernel.origin}")
    head += [f"  {memory_text(memory)}" for memory in (*kernel.parameters, *kernel.locals)]
    body = _last_body[0]
    if body.printed is not kernel.body:  # a kernel is printed for its name, then with its name
        body = _Statements(kernel.body)
        _last_body[0] = body
    places = {number: line + len(head) for number, line in body.places.items()}
    return "\n".join([*head, *body.lines]) + "\n", places


class _Statements(Printer):
    """printed: a kernel's body. places: the line of each statement, by its id."""

    def __init__(self, printed: tuple[Statement, ...]) -> None:
        super().__init__([])
        self.printed = printed
        self.places: dict[int, int] = {}
        self.statements(printed, "  ")

    def _body(self, statement: If | Loop, indent: str) -> None:
        self.places[id(statement)] = len(self.lines)
        self.statements(statement.body, indent + "  ")

    def statements(self, body: Iterable[Statement], indent: str) -> None:
        for statement in body:
            if isinstance(statement, Store):
                shown = self.expression(statement.value, indent)
                self.lines.append(f"{indent}{statement.memory.name}[{statement.index}] = {shown}")
            elif isinstance(statement, Barrier):
                self.lines.append(
                    f"{indent}barrier{' of the cluster' if statement.cluster else ''}"
                )
            elif isinstance(statement, Prefetch):
                level = "" if statement.level == 1 else f" to level {statement.level}"
                place = f"{statement.memory.name}[{statement.index}]"
                self.lines.append(f"{indent}prefetch {place}{level}")
            elif isinstance(statement, TileStep):
                self.lines.append(f"{indent}{_tile_text(statement)}")
            elif isinstance(statement, If):
                self.lines.append(f"{indent}if {conditions_text(statement.conditions)}:")
                self._body(statement, indent)
            elif not isinstance(statement, Loop):
                self.lines.append(f"{indent}{_asynchronous(statement)}")
            else:
                limit = f" below {statement.bound}" if statement.bound is not None else ""
                span = f"{statement.range.name} in {statement.range.size}"
                rolled = " rolled" if statement.rolled else ""
                self.lines.append(f"{indent}for {span}{limit}{rolled}:")
                self._body(statement, indent)
            self.places.setdefault(id(statement), len(self.lines))


def _tile_text(step: TileStep) -> str:
    if step.operation == "zero":
        return f"tile{step.tile} = 0"
    if step.operation == "multiply":
        left, right = step.factors
        return f"tile{step.tile} += tile{left} x tile{right}, {step.kind}"
    assert step.memory is not None
    place = f"{step.memory.name}[{step.index} by {step.pitch}]"
    if step.operation == "store":
        return f"{place} = tile{step.tile}"
    return f"tile{step.tile} = {place}{', streamed' if step.operation == 'stream' else ''}"


def _asynchronous(statement: Asynchronous) -> str:
    if isinstance(statement, Fetch):
        source = access_text(statement.source, statement.lanes)
        return f"{statement.memory.name}[{statement.index}] <- {source}"
    if isinstance(statement, Close):
        return "close fetches"
    if isinstance(statement, Await):
        return f"await fetches but {statement.pending}{' for units' if statement.units else ''}"
    if isinstance(statement, Signal):
        place = f"{statement.memory.name}[{statement.index}]"
        group = "" if statement.group is None else f" of group {statement.group}"
        return f"{statement.operation} {place} {statement.number}{group}"
    if isinstance(statement, Bulk):
        source = f"{statement.source.name}[{statement.start} x{statement.count}]"
        place = f"{statement.signal.name}[{statement.place}]"
        groups = f" in {statement.groups} groups" if statement.groups > 1 else ""
        return f"{statement.memory.name}[{statement.index}] <- {source} for {place}{groups}"
    if isinstance(statement, Settle):
        return f"settle {statement.totals.name} but {statement.pending}"
    turned = ["turned " if turned else "" for turned in statement.turned]
    parts = ", ".join(
        f"{tile}: {turned[0]}{statement.left.name}[{left}] x "
        f"{turned[1]}{statement.right.name}[{right}]"
        for tile, left, right in statement.steps
    )
    columns = f"64x{statement.columns}"
    return f"{statement.totals.name} += {statement.unit} {columns} ({parts})"


_last_body = [_Statements(())]  # what was printed last
