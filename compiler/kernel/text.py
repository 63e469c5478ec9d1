"""Kernels as stable text, for goldens, cache keys and people."""

from __future__ import annotations

from collections.abc import Iterable

from compiler.expression.algebra import Validity
from compiler.kernel.ir import (
    Asynchronous,
    Await,
    Barrier,
    Bulk,
    Close,
    Fetch,
    If,
    Kernel,
    Load,
    Loop,
    Memory,
    Settle,
    Signal,
    Statement,
    Store,
    TileStep,
    Value,
    type_text,
    walk,
)


def format_kernel(kernel: Kernel) -> str:
    """Print a kernel; equal text means equal behaviour."""
    lines = [f"kernel {kernel.name} grid {kernel.grid} block {kernel.block}"]
    if kernel.cluster > 1:
        lines.append(f"  cluster {kernel.cluster}")
    if kernel.origin:
        lines.append(f"  computes {kernel.origin}")
    lines += [f"  {_memory(memory)}" for memory in (*kernel.parameters, *kernel.locals)]
    _Printer(lines).statements(kernel.body, "  ")
    return "\n".join(lines) + "\n"


def format_value(root: Value) -> str:
    """Print one expression, a line per shared operation."""
    lines: list[str] = []
    printer = _Printer(lines)
    lines.append(printer.expression(root, ""))
    return "\n".join(lines) + "\n"


def _memory(memory: Memory) -> str:
    swizzled = " swizzled" if memory.swizzled else " ring" if memory.ring else ""
    kind = type_text(memory.dtype, memory.lanes)
    return f"{memory.space} {kind} {memory.name}[{memory.count}]{swizzled}"


def conditions_text(conditions: Validity) -> str:
    return " and ".join(f"{condition} >= 0" for condition in conditions) or "always"


class _Printer:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def statements(self, body: Iterable[Statement], indent: str) -> None:
        for statement in body:
            if isinstance(statement, Store):
                shown = self.expression(statement.value, indent)
                self.lines.append(f"{indent}{statement.memory.name}[{statement.index}] = {shown}")
            elif isinstance(statement, Barrier):
                self.lines.append(
                    f"{indent}barrier{' of the cluster' if statement.cluster else ''}"
                )
            elif isinstance(statement, TileStep):
                self.lines.append(f"{indent}{_tile_text(statement)}")
            elif isinstance(statement, If):
                self.lines.append(f"{indent}if {conditions_text(statement.conditions)}:")
                self.statements(statement.body, indent + "  ")
            elif not isinstance(statement, Loop):
                self.lines.append(f"{indent}{_asynchronous(statement)}")
            else:
                limit = f" below {statement.bound}" if statement.bound is not None else ""
                span = f"{statement.range.name} in {statement.range.size}"
                self.lines.append(f"{indent}for {span}{limit}:")
                self.statements(statement.body, indent + "  ")

    def expression(self, root: Value, indent: str) -> str:
        """The text of `root`; operations used more than once get a line and a number first."""
        nodes = list(walk(root))
        uses: dict[int, int] = {}
        for node in nodes:
            for source in node.sources:
                uses[id(source)] = uses.get(id(source), 0) + 1
        shown: dict[int, str] = {}
        for node in nodes:
            text = operation_text(node, [shown[id(source)] for source in node.sources])
            if uses.get(id(node), 0) > 1 and node.op not in ("const", "index"):
                name = f"%{sum(1 for t in shown.values() if t.startswith('%'))}"
                self.lines.append(f"{indent}{name} = {text}")
                text = name
            shown[id(node)] = text
        return shown[id(root)]


def _tile_text(step: TileStep) -> str:
    if step.operation == "zero":
        return f"tile{step.tile} = 0"
    if step.operation == "multiply":
        left, right = step.factors
        return f"tile{step.tile} += tile{left} x tile{right}"
    assert step.memory is not None
    place = f"{step.memory.name}[{step.index} by {step.pitch}]"
    return (
        f"tile{step.tile} = {place}" if step.operation == "load" else f"{place} = tile{step.tile}"
    )


def _asynchronous(statement: Asynchronous) -> str:
    if isinstance(statement, Fetch):
        source = _access(statement.source, statement.lanes)
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


def _access(access: Load, lanes: int) -> str:
    many = f" x{lanes}" if lanes > 1 else ""
    check = f" if {conditions_text(access.conditions)}" if access.conditions else ""
    return f"{access.memory.name}[{access.index}{many}{check}]"


def operation_text(node: Value, sources: list[str]) -> str:
    """One operation on sources that are text already."""
    kind = type_text(node.dtype, node.lanes)
    if node.op == "const":
        return f"{node.arg!r}:{kind}"
    if node.op == "index":
        return f"[{node.arg}]:{kind}"
    if node.op == "load":
        return _access(node.arg, node.lanes)
    if node.op == "matrices":
        access, turned = node.arg
        return f"matrices{' turned' if turned else ''}({_access(access, 1)})"
    if node.op == "gate":
        return f"({sources[0]} if {conditions_text(node.arg)} else {sources[1]})"
    if node.op == "reduce":
        over = ", ".join(f"{r.name} in {r.size}" for r in node.arg[1])
        return f"{node.arg[0]}[{over}]({sources[0]})"
    if node.op in ("cast", "bitcast", "broadcast", "pack"):
        return f"{node.op}:{kind}({', '.join(sources)})"
    if node.op == "extract":
        return f"{sources[0]}.{node.arg}"
    free = f".{node.arg}" if node.arg is not None else ""
    return f"{node.op}{free}({', '.join(sources)})"
