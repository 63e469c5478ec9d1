"""Values: operations on scalars and short vectors, from the scheduler's expressions to the emitter.

    value      = op(dtype, lanes; sources; arg)       pure but for loads; see OPS
    index      = compiler.expression.algebra.Index    integers that are functions of ranges

Values are interned: structurally equal values are one object, compared by identity. A value with
lanes > 1 is a short vector. "reduce", "along", "function", "number" and "results" exist only before
lowering; compiler.kernel.verify checks what may stand where. Code that creates values holds
`interning`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from ugpu.compiler.dtype import DType, bool_, float32
from ugpu.compiler.expression.algebra import Index, Range, Validity, substitute_all


@dataclass(frozen=True)
class Memory:
    """An array that loads and stores name. space: "global" a parameter; "by_value" a parameter that
    is a number itself, its only element, in the low bits of 64; "local" shared by the group's
    threads; "register" private to a thread and indexed by constants. lanes: of a register's
    element. swizzled: local memory in rows of 128 bytes, whose 16-byte chunk c of row r is at
    place c xor r % 8, so that the same chunk of eight rows uses all banks; indices ignore this.
    among: parameters of which it is one; `which` of them (beyond the ends: the last one there) is
    the same for a whole group. ring: local memory without swizzling, beside the swizzled one in
    the memory that the launch gives.
    """

    name: str
    dtype: DType
    count: int
    space: str = "global"
    lanes: int = 1
    swizzled: bool = False
    among: tuple[Memory, ...] = ()
    which: Index | None = None
    ring: bool = False

    @property
    def dynamic(self) -> bool:
        """Return whether the launch specifies the size in bytes."""
        return self.swizzled or self.ring


# op: (number of sources, None for any; the requirement on dtypes)
#   "same": sources and result alike, "compare": alike sources and a bool, "free": no rule
OPS: Mapping[str, tuple[int | None, str]] = {
    "const": (0, "free"),  # arg: the Python value
    "index": (0, "free"),  # arg: an Index; its value as an integer
    "load": (0, "free"),  # arg: Load
    "gate": (2, "same"),  # arg: Validity; the first source where it holds, else the second
    "reduce": (1, "same"),  # arg: (op, ranges); only before lowering
    "along": (None, "free"),  # arg: (kind of node, what, ranges); as in compiler.graph.along
    "results": (None, "free"),  # the values of several outputs; only before lowering
    "function": (None, "same"),  # arg: the name of an elementary function; only before lowering
    "number": (1, "free"),  # a float32 that narrow operations do not round; only before lowering
    "cast": (1, "free"),
    "bitcast": (1, "free"),
    "extract": (1, "free"),  # arg: the lane
    "pack": (None, "free"),  # scalars to a vector
    "broadcast": (1, "free"),  # a scalar to all lanes
    "shuffle": (2, "free"),  # arg: for each lane, the lane of the two vectors side by side
    "compress": (2, "compress"),  # a vector's lanes where the bools hold, in order; then zeros
    "count": (1, "count"),  # of the lanes of a vector of bools that hold
    "where": (3, "where"),
    "add": (2, "same"),
    "sub": (2, "same"),
    "mul": (2, "same"),
    "div": (2, "float"),
    "floordiv": (2, "integer"),  # rounds down; by zero gives zero
    "mod": (2, "integer"),  # the sign of the divisor; by zero gives zero
    "min": (2, "same"),  # NaN if either is
    "max": (2, "same"),
    "fma": (3, "float"),
    "dot2": (3, "dot2"),  # total + a0 * b0 + a1 * b1 for neighbouring pairs of bfloat16
    "dot4": (3, "dot4"),  # total + a0 * b0 + .. + a3 * b3: neighbouring bytes, of a unsigned
    "narrow": (1, "narrow"),  # float32 that are not denormal (these become 0) to bfloat16, as cast
    "exchange": (1, "same"),  # arg: a power of two; the value of the wave's lane number xor arg
    "matrix": (3, "matrix"),  # arg: a unit of matrix_units; the wave's left x right + total
    "matrices": (0, "free"),  # arg: (Load, turned); four 8 x 16-byte matrices, spread over a wave
    "and": (2, "bits"),
    "or": (2, "bits"),
    "xor": (2, "bits"),
    "shl": (2, "integer"),  # by the width or more gives zero, and the sign for shr of a signed type
    "shr": (2, "integer"),
    "lt": (2, "compare"),
    "le": (2, "compare"),
    "eq": (2, "compare"),
    "ne": (2, "compare"),
    "neg": (1, "same"),
    "sqrt": (1, "float"),
    "floor": (1, "float"),
    "ceil": (1, "float"),
    "trunc": (1, "float"),
    "round": (1, "float"),  # half to even
    "mulhi": (2, "integer"),  # upper half of the product of two uint32
}


REDUCTIONS = ("sum", "prod", "max", "min", "and", "or")


@dataclass(frozen=True)
class Load:
    """memory[index]; zero where the conditions do not hold (nothing is read there)."""

    memory: Memory
    index: Index
    conditions: Validity = ()


class Value:
    """One operation; make it with `value`."""

    __slots__ = ("__weakref__", "arg", "dtype", "key", "lanes", "op", "sources")

    op: str
    dtype: DType
    lanes: int
    sources: tuple[Value, ...]
    arg: Any  # depends on op: see OPS
    key: tuple[object, ...]

    def __repr__(self) -> str:
        return f"<{self.op} {type_text(self.dtype, self.lanes)}>"


interning = threading.RLock()


_interned: WeakValueDictionary[tuple[object, ...], Value] = WeakValueDictionary()


def value(
    op: str,
    dtype: DType,
    sources: Sequence[Value] = (),
    arg: Any = None,  # depends on op: see OPS
    lanes: int = 1,
) -> Value:
    """Return the one Value with this structure."""
    shown = repr(arg) if op == "const" else arg  # 0.0, -0.0 and False are equal, but not the same
    key = (op, dtype, lanes, tuple(map(id, sources)), shown)
    found = _interned.get(key)
    if found is None:
        found = Value()
        found.op, found.dtype, found.lanes = op, dtype, lanes
        found.sources, found.arg, found.key = tuple(sources), arg, key
        _interned[key] = found
    return found


def const(number: bool | int | float, dtype: DType) -> Value:
    """Return a constant, wrapped to the type's width."""
    if dtype.is_float:
        return value("const", dtype, (), float(number))
    if dtype is bool_:
        return value("const", dtype, (), bool(number))
    wrapped = int(number) & ((1 << dtype.bits) - 1)
    if dtype.kind == "i" and wrapped >> (dtype.bits - 1):
        wrapped -= 1 << dtype.bits
    return value("const", dtype, (), wrapped)


def cast(source: Value, dtype: DType) -> Value:
    """Return the value in another type; a constant stays one if that is exact."""
    if source.dtype is dtype:
        return source
    if source.op == "const" and source.lanes == 1:
        number = source.arg
        if dtype.is_float:
            exact = source.dtype.is_float or abs(number) <= 1 << 53  # as a Python float
            if (dtype is float32 and exact) or math.isinf(number) or number != number:
                return const(number, dtype)
        elif not source.dtype.is_float:
            return const(number, dtype)
    return value("cast", dtype, (source,), lanes=source.lanes)


def load(memory: Memory, index: Index, conditions: Validity = (), lanes: int = 1) -> Value:
    return value("load", memory.dtype, (), Load(memory, index, conditions), lanes)


def broadcast(source: Value, lanes: int) -> Value:
    """Return a scalar in all lanes of a vector."""
    return source if lanes == 1 else value("broadcast", source.dtype, (source,), lanes=lanes)


def binary(op: str, left: Value, right: Value) -> Value:
    """Return an operation on two values of one type; comparisons give bool."""
    dtype = bool_ if OPS[op][1] == "compare" else left.dtype
    return value(op, dtype, (left, right), lanes=left.lanes)


def walk(root: Value) -> Iterator[Value]:
    """Yield every value below `root`, sources first, each once."""
    seen: set[int] = set()
    stack: list[Value | None] = [root]  # None is above one whose sources have been yielded
    while stack:
        node = stack.pop()
        if node is None:
            node = stack.pop()
            assert node is not None
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            if node.sources:
                stack += (node, None, *reversed(node.sources))
            else:
                yield node


def unseen(root: Value, seen: set[int]) -> Iterator[Value]:
    """Yield every value at or below `root` whose identity is not in `seen`, in no order, and add
    it there. For values that statements of a kernel share, each once."""
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            stack += node.sources
            yield node


def rebuild(root: Value, change: Callable[[Value, tuple[Value, ...]], Value | None]) -> Value:
    """Rewrite bottom-up: change(node, new sources) gives the replacement, or None to keep the
    node."""
    done: dict[int, Value] = {}
    for node in walk(root):
        sources = tuple(done[id(source)] for source in node.sources)
        new = change(node, sources)
        if new is None:
            new = node
            if any(a is not b for a, b in zip(sources, node.sources, strict=True)):
                new = value(node.op, node.dtype, sources, node.arg, node.lanes)
        done[id(node)] = new
    return done[id(root)]


def substitute(root: Value, values: Mapping[Range, Index]) -> Value:
    """Replace ranges in every index of a value."""

    def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
        if node.op == "index":
            return value("index", node.dtype, (), node.arg.substitute(values))
        if node.op == "load":
            access: Load = node.arg
            return load(
                access.memory,
                access.index.substitute(values),
                substitute_all(access.conditions, values),
                node.lanes,
            )
        if node.op == "gate":
            return gate(substitute_all(node.arg, values), *sources)
        return None

    return rebuild(root, change) if values else root


def gate(conditions: Validity, inside: Value, outside: Value) -> Value:
    """Return `inside` where the conditions hold, else `outside`."""
    from_load = (
        inside.op == "load"
        and outside.op == "const"
        and outside.arg == 0
        and set(conditions) <= set(inside.arg.conditions)
    )
    if not conditions or from_load or inside is outside:
        return inside
    if any(condition.high < 0 for condition in conditions):
        return outside
    return value("gate", inside.dtype, (inside, outside), conditions, inside.lanes)


def indices_of(root: Value) -> Iterator[Index]:
    """Yield every index expression in a value."""
    for node in walk(root):
        yield from own_indices(node)


def own_indices(node: Value) -> Iterator[Index]:
    """Yield the index expressions of a value alone, without those of its sources."""
    if node.op == "index":
        yield node.arg
    elif node.op == "load":
        yield node.arg.index
        yield from node.arg.conditions
    elif node.op == "gate":
        yield from node.arg


def type_text(dtype: DType, lanes: int) -> str:
    return dtype.name if lanes == 1 else f"{dtype.name}x{lanes}"
