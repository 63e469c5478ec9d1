"""Expressions as stable text, for goldens, cache keys and people."""

from __future__ import annotations

from ugpu.compiler.expression.algebra import Validity
from ugpu.compiler.expression.value import Load, Memory, Value, type_text, walk


def format_value(root: Value) -> str:
    """Print one expression, a line per shared operation."""
    lines: list[str] = []
    printer = Printer(lines)
    lines.append(printer.expression(root, ""))
    return "\n".join(lines) + "\n"


def memory_text(memory: Memory) -> str:
    """Return name, type and size of a memory."""
    swizzled = " swizzled" if memory.swizzled else " ring" if memory.ring else ""
    kind = type_text(memory.dtype, memory.lanes)
    return f"{memory.space} {kind} {memory.name}[{memory.count}]{swizzled}"


def conditions_text(conditions: Validity) -> str:
    return " and ".join(f"{condition} >= 0" for condition in conditions) or "always"


class Printer:
    """Prints expressions; an operation that is used more than once gets its own line."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def expression(self, root: Value, indent: str) -> str:
        """Return the text of `root`; operations used more than once get a line and number first."""
        nodes = list(walk(root))
        uses: dict[int, int] = {}
        for node in nodes:
            for source in node.sources:
                uses[id(source)] = uses.get(id(source), 0) + 1
        shown: dict[int, str] = {}
        count = 0
        for node in nodes:
            text = operation_text(node, [shown[id(source)] for source in node.sources])
            if uses.get(id(node), 0) > 1 and node.op not in ("const", "index"):
                self.lines.append(f"{indent}%{count} = {text}")
                text = f"%{count}"
            shown[id(node)] = text
            count += text.startswith("%")
        return shown[id(root)]


def access_text(access: Load, lanes: int) -> str:
    """Format an access: what is read, and where."""
    many = f" x{lanes}" if lanes > 1 else ""
    check = f" if {conditions_text(access.conditions)}" if access.conditions else ""
    return f"{access.memory.name}[{access.index}{many}{check}]"


def operation_text(node: Value, sources: list[str]) -> str:
    """Return the text of one operation, given the text of its sources."""
    if node.op == "const":
        return f"{node.arg!r}:{type_text(node.dtype, node.lanes)}"
    if node.op == "index":
        return f"[{node.arg}]:{type_text(node.dtype, node.lanes)}"
    if node.op == "load":
        return access_text(node.arg, node.lanes)
    if node.op == "matrices":
        access, turned = node.arg
        return f"matrices{' turned' if turned else ''}({access_text(access, 1)})"
    if node.op == "gate":
        return f"({sources[0]} if {conditions_text(node.arg)} else {sources[1]})"
    if node.op == "along":
        kind, what, (*_, along) = node.arg
        return f"{kind}[{what}, {along.name} in {along.size}]({', '.join(sources)})"
    if node.op == "reduce":
        over = ", ".join(f"{r.name} in {r.size}" for r in node.arg[1])
        return f"{node.arg[0]}[{over}]({sources[0]})"
    if node.op in ("cast", "bitcast", "number", "broadcast", "pack"):
        kind = type_text(node.dtype, node.lanes)
        return f"{node.op}:{kind}({', '.join(sources)})"
    if node.op == "extract":
        return f"{sources[0]}.{node.arg}"
    free = f".{node.arg}" if node.arg is not None else ""
    return f"{node.op}{free}({', '.join(sources)})"
