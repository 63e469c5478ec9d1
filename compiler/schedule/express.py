"""From the tensor graph to index expressions: every tensor is a function of its ranges.

before: a Group, nodes on whole arrays.
after: a Computation, one expression for the element at the output ranges. Movement operations are
gone: they become changes of load indices, and pads become conditions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial, reduce

from ugpu.compiler.dtype import int32
from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.algebra import (
    NEVER,
    Index,
    Range,
    Validity,
    at_least_zero,
    constant,
    flatten,
)
from ugpu.compiler.expression.computation import Chosen, Computation
from ugpu.compiler.expression.lookup import looked_up, lookup, reduces
from ugpu.compiler.expression.merging import merge_ranges
from ugpu.compiler.expression.once import once
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    cast,
    const,
    load,
    rebuild,
    value,
)
from ugpu.compiler.graph.node import ByValue, Node
from ugpu.compiler.graph.operations import KINDS
from ugpu.compiler.schedule.group import Group, describe

FEW = 3  # pieces of a cat up to which each element selects among all of them


@once
def express(group: Group) -> Computation:
    """Express a group's root as a function of its ranges, with as few ranges as possible; a root
    that joins many pieces is expressed piece by piece."""
    return _in_pieces(group) or _merge(trace(group))


def in_pieces(group: Group) -> bool:
    """Return whether a kernel joins many arrays. It is then written piece by piece; elements do not
    select among all pieces."""
    root = _base(group)
    if group.in_place or group.others or group.stage or root.op != "cat":
        return False
    return id(root) not in {id(node) for node in group.inputs} and len(root.sources) > FEW


def _in_pieces(group: Group) -> Computation | None:
    if not in_pieces(group):
        return None
    root = _base(group)
    inputs, tracer = _inputs(group)
    output = Memory("out", root.dtype, max(1, root.size))
    origin, axis = describe(group), root.arg
    pieces = []
    start = 0
    for source in root.sources:
        ranges = tuple(Range(f"i{axis}", size) for axis, size in enumerate(source.shape))
        at = tuple(r.index() for r in ranges)
        found = tracer.value(source, at, ())
        if reduces(found):
            return None
        place = flatten((*at[:axis], at[axis] + start, *at[axis + 1 :]), root.shape)
        if source.size:
            pieces.append(Computation(output, inputs, _kept(ranges), found, origin, place))
        start += source.shape[axis]
    merged = tuple([_merge(piece) for piece in pieces])
    if not merged:
        return None
    whole = value("results", root.dtype, [piece.value for piece in merged])
    return Computation(output, inputs, (), whole, origin, pieces=merged)


def _base(group: Group) -> Node:
    """Return the node whose elements are the root's, in row-major order; the output has no more."""
    root = group.root.sources[0] if group.stage == "begin" else group.root
    read = {id(node) for node in group.inputs}
    while root.op in ("reshape", "contiguous") and id(root) not in read:
        if root.sources[0].storage is not None or id(root.sources[0]) in read:
            break
        root = root.sources[0]
    return root


def trace(group: Group) -> Computation:
    """Express a group as `express` does, with a range for each axis."""
    if group.others:
        return _trace_together(group)[0]
    output = Memory("out", group.root.dtype, max(1, group.root.size))
    if group.in_place and group.root.op == "scatter":
        return _trace_scatter(group)
    root = _base(group)
    inputs, tracer = _inputs(group, (output,))
    chosen = None
    counts = root.arg.counts if group.in_place else root.shape
    ranges = tuple(Range(f"i{axis}", size) for axis, size in enumerate(counts))
    indices = tuple(r.index() for r in ranges)
    place = None
    if group.in_place:
        place = flatten(root.arg.outer(indices), root.shape)
        expression = tracer.value(root.sources[1], indices, ())
        if len(root.sources) > 2:
            chosen = Chosen(_holds(tracer.value(root.sources[2], indices, ())))
    else:
        expression = tracer.value(root, indices, ())
    return Computation(
        output, inputs, _kept(ranges), expression, describe(group), place, chosen=chosen
    )


def _trace_scatter(group: Group) -> Computation:
    """Express the kernel that writes the chosen elements into memory that holds the rest."""
    root, choice = group.root, group.root.arg
    given = root.sources[1]
    inputs, tracer = _inputs(group)
    sizes = list(enumerate(given.shape))
    ordered = tuple(Range(f"j{axis}", size) for axis, size in sizes[: choice.ordered])
    ranges = tuple(Range(f"i{axis}", size) for axis, size in sizes[choice.ordered :])
    at = tuple(r.index() for r in (*ordered, *ranges))
    inside: list[Value] = []
    found: dict[int, Index] = {}
    for axis, source in zip(choice.axes, root.sources[2:], strict=True):
        number = tracer.value(source, at, ())
        found[axis] = looked_up(number, root.shape[axis], choice.checked, inside)
    rest = iter(at[len(at) - (len(root.shape) - len(found)) :])
    place = choice.region.outer(
        [found[i] if i in found else next(rest) for i in range(len(root.shape))]
    )
    output = Memory("out", root.dtype, max(1, root.size))
    expression = tracer.value(given, at, ())
    position = flatten(place, root.shape)
    if choice.mode != "set":
        there = load(output, position)
        expression = ops.build(choice.mode, root.dtype, [there, expression])
    most = max(choice.axes, key=lambda axis: root.shape[axis])
    allowed = _holds(reduce(partial(binary, "and"), inside)) if inside else ()
    chosen = Chosen(allowed, _kept(ordered), found[most], root.shape[most])
    return Computation(
        output, inputs, _kept(ranges), expression, describe(group), position, chosen=chosen
    )


def _holds(test: Value) -> Validity:
    """Return the validity that a bool is true."""
    if test.op == "const":
        return () if test.arg else NEVER
    return at_least_zero(lookup(ops.expand(cast(test, int32)), 2) - 1)


def _kept(ranges: Sequence[Range]) -> tuple[Range, ...]:
    return tuple(r for r in ranges if r.size > 1)


def _trace_together(group: Group) -> tuple[Computation, bool]:
    """Trace several roots of one shape; also return whether each root that another uses is used
    element for element."""
    roots = group.roots
    outputs = [
        Memory(f"out{i or ''}", root.dtype, max(1, root.size)) for i, root in enumerate(roots)
    ]
    inputs, tracer = _inputs(group, outputs)
    ranges = tuple(Range(f"i{axis}", size) for axis, size in enumerate(group.root.shape))
    indices = tuple(r.index() for r in ranges)
    values = [tracer.value(root, indices, ()) for root in roots]
    whole = value("results", values[0].dtype, values)
    known = {id(root) for root in roots}
    aligned = sum(key[0] in known for key in tracer.done) == len(roots)
    computation = Computation(
        outputs[0], inputs, _kept(ranges), whole, describe(group), None, tuple(outputs[1:])
    )
    return computation, aligned


def trace_aligned(group: Group) -> Computation | None:
    """Return `trace` of a group with several roots; None if it would compute one of them twice."""
    computation, aligned = _trace_together(group)
    return computation if aligned else None


def _inputs(group: Group, outputs: Sequence[Memory] = ()) -> tuple[tuple[Memory, ...], Tracer]:
    """Return the inputs' memories; what a result overwrites is read from its output."""
    inputs = tuple([input_memory(i, node) for i, node in enumerate(group.inputs)])
    places = {id(node): memory for node, memory in zip(group.inputs, inputs, strict=True)}
    for old, output in zip(group.over, outputs, strict=bool(group.over)):
        if old is not None:
            places[id(old)] = output
    return inputs, Tracer(places)


def input_memory(number: int, node: Node) -> Memory:
    """Return the memory that a kernel reads a node from."""
    space = "by_value" if isinstance(node.storage, ByValue) else "global"
    return Memory(f"in{number}", node.dtype, max(1, node.size), space)


class Tracer:
    """A kernel being expressed (graph.node.Trace). memories: by id, the nodes that it reads."""

    def __init__(self, memories: dict[int, Memory]) -> None:
        self.memories = memories
        self.done: dict[tuple[int, tuple[Index, ...], Validity], Value] = {}
        self.reductions = -1

    def value(self, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
        """Return the element of `node` at the indices; it is read only where `valid` holds."""
        key = (id(node), at, valid)
        found = self.done.get(key)
        if found is not None:
            return found
        memory = self.memories.get(id(node))
        if memory is None:
            express = KINDS[node.op].express
            assert express is not None, node.op
            found = express(self, node, at, valid)
        elif valid == NEVER:
            found = const(0, node.dtype)
        elif memory.space == "by_value":
            found = load(memory, constant(0))
        else:
            found = load(memory, flatten(at, node.shape), valid)
        self.done[key] = found
        return found

    def number(self) -> int:
        """Return a number for the ranges of one more reduction."""
        self.reductions += 1
        return self.reductions


# ---- merging adjacent ranges -------------------------------------------------------------------


def _merge(computation: Computation) -> Computation:
    """Join neighbouring ranges if no index becomes more complex: one long loop beats two."""
    chosen = computation.chosen or Chosen()
    indices = (computation.position, chosen.coordinate, *chosen.allowed)
    if computation.place is None:
        indices = ()
    ranges, expression = computation.ranges, computation.value
    if expression.op == "along":  # the ranges before and after its own
        *_, own = expression.arg
        first, last = ranges.index(own[0]), ranges.index(own[-1])
        before, expression, _ = merge_ranges(ranges[:first], expression, ())
        behind, expression, _ = merge_ranges(ranges[last + 1 :], expression, ())
        ranges = (*before, *ranges[first : last + 1], *behind)
        return dataclasses.replace(computation, ranges=ranges, value=expression)
    ranges, expression, indices = merge_ranges(ranges, expression, indices)
    if chosen.ordered:
        ordered, expression, indices = merge_ranges(chosen.ordered, expression, indices)
        chosen = dataclasses.replace(chosen, ordered=ordered)

    def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
        if node.op != "reduce":
            return None
        operation, over = node.arg
        merged, body, _ = merge_ranges(over, sources[0], ())
        return value("reduce", node.dtype, (body,), (operation, merged))

    changed = dataclasses.replace(computation, ranges=ranges, value=rebuild(expression, change))
    if not indices:
        return changed
    place, coordinate, *allowed = indices
    if computation.chosen is not None:
        chosen = dataclasses.replace(chosen, allowed=tuple(allowed), coordinate=coordinate)
        changed = dataclasses.replace(changed, chosen=chosen)
    return dataclasses.replace(changed, place=place)
