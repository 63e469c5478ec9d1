"""What a tensor's node is, for people: its elements once they are stored, else the expression."""

from __future__ import annotations

from typing import Any

import numpy as np

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.graph.node import Node, stored_as
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.compiler.runtime.recording import current_recording
from ugpu.hcq.errors import UgpuError

WHOLE = 1000  # elements up to which all are read (NumPy shortens from the same number on)
ENDS = 3  # elements that are read at each end of a longer array
DEEPEST = 8  # operations within each other
LONGEST = 200  # characters of an expression

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "lt": "<",
    "le": "<=", "eq": "==", "ne": "!=", "and": "&", "or": "|", "xor": "^", "shl": "<<",
    "shr": ">>",
}  # fmt: skip
_PLAIN = ("expand", "contiguous")  # shown as their source


def values(node: Node) -> str | None:
    """Return the elements of a stored node as NumPy shows them, or why they cannot be read; None if
    they are not computed. Waits for the device."""
    base = stored_as(node)
    storage = base.storage
    if not isinstance(storage, Storage):
        return None
    if current_recording() is not None:
        return "stored"
    try:
        if node.size <= WHOLE:
            array = _read(storage, node, 0, node.size).reshape(node.shape)
            return np.array2string(array, separator=", ")
        ends = [_read(storage, node, start, ENDS) for start in (0, node.size - ENDS)]
    except UgpuError as error:
        return f"stored, not readable ({type(error).__name__})"
    first, last = (np.array2string(each, separator=", ")[1:-1] for each in ends)
    return f"[{first}, ..., {last}]"


def _read(storage: Storage, node: Node, start: int, count: int) -> Any:  # an array of any type
    array = np.empty(count, dtypes.to_numpy(node.dtype))
    if count:
        size = node.dtype.itemsize
        part = storage.buffer[start * size : (start + count) * size]
        part.core.copies.download(part, array.data.cast("B"))
    return dtypes.decode(array, node.dtype)


def expression(node: Node) -> str:
    """Return the operations that compute a node, from stored arrays, as text of limited length."""
    text = _expression(node, DEEPEST)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _expression(node: Node, depth: int, inside: bool = False) -> str:
    if node.storage is not None or node.op == "buffer":
        return _name(node)
    op, arg = node.op, node.arg
    if op == "const":
        return str(arg)
    if op == "iota":
        return f"arange({node.size})"
    if depth == 0:
        return "..."
    if op in _PLAIN:
        return _expression(node.sources[0], depth, inside)
    given = [_expression(each, depth - 1, op in _INFIX) for each in node.sources]
    if op in _INFIX and len(given) == 2:
        text = f"{given[0]} {_INFIX[op]} {given[1]}"
        return f"({text})" if inside else text
    if op == "reduce":
        name, axes = arg
        return f"{name}({given[0]}, {axes[0] if len(axes) == 1 else axes})"
    if op == "cast":
        return f"{node.dtype.name}({given[0]})"
    if op in ("reshape", "permute", "shrink", "flip", "stride", "pad"):
        given.append(str(list(node.shape) if op == "reshape" else arg))
    return f"{op}({', '.join(given)})"


def _name(node: Node) -> str:
    return f"{node.dtype.name}{list(node.shape)}"


def facts(node: Node) -> tuple[str, str]:
    """Return the state of a node ("stored" or "pending"), and its elements or expression."""
    found = values(node)
    return ("pending", expression(node)) if found is None else ("stored", found)
