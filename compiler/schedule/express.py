"""From the tensor graph to index expressions: every tensor is a function of its ranges.

before: a Group, nodes on whole arrays.
after: a Computation, one expression for the element at the output ranges. Movement operations are
gone: they become changes of load indices, and pads become conditions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial, reduce

from ugpu.compiler.dtype import DType, int32, uint64
from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.algebra import (
    NEVER,
    Index,
    Range,
    Validity,
    at_least_zero,
    both,
    constant,
    flatten,
    unflatten,
    within,
)
from ugpu.compiler.expression.computation import Chosen, Computation
from ugpu.compiler.expression.lookup import looked_up, lookup
from ugpu.compiler.expression.merging import merge_ranges
from ugpu.compiler.expression.onehot import pick
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    cast,
    const,
    gate,
    load,
    rebuild,
    value,
    walk,
)
from ugpu.compiler.graph.node import ALONE, Node
from ugpu.compiler.schedule.group import Group, describe

FEW = 3  # pieces of a cat up to which each element selects among all of them


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
        if any(node.op == "reduce" for node in walk(found)):
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
    if group.in_place and group.root.op == "scatter":
        return _trace_scatter(group)
    root = _base(group)
    inputs, tracer = _inputs(group)
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
    output = Memory("out", root.dtype, max(1, root.size))
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
    roots = (group.root, *group.others)
    inputs, tracer = _inputs(group)
    ranges = tuple(Range(f"i{axis}", size) for axis, size in enumerate(group.root.shape))
    indices = tuple(r.index() for r in ranges)
    values = [tracer.value(root, indices, ()) for root in roots]
    outputs = [
        Memory(f"out{i or ''}", root.dtype, max(1, root.size)) for i, root in enumerate(roots)
    ]
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


def _inputs(group: Group) -> tuple[tuple[Memory, ...], _Tracer]:
    inputs = tuple(
        Memory(f"in{i}", node.dtype, max(1, node.size)) for i, node in enumerate(group.inputs)
    )
    places = {id(node): memory for node, memory in zip(group.inputs, inputs, strict=True)}
    return inputs, _Tracer(places)


class _Tracer:
    def __init__(self, memories: dict[int, Memory]) -> None:
        self.memories = memories
        self.done: dict[tuple[int, tuple[Index, ...], Validity], Value] = {}
        self.reductions = 0

    def value(self, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
        """Return the element of `node` at the indices; it is read only where `valid` holds."""
        key = (id(node), at, valid)
        found = self.done.get(key)
        if found is None:
            found = self.done[key] = self._trace(node, at, valid)
        return found

    def _trace(self, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
        op = node.op
        if id(node) in self.memories:
            if valid == NEVER:
                return const(0, node.dtype)
            return load(self.memories[id(node)], flatten(at, node.shape), valid)
        if op == "const":
            return const(node.arg, node.dtype)
        if op == "iota":
            return value("index", node.dtype, (), at[0])
        if op in ops.BUILDERS:
            sources = []
            for source in node.sources:
                sources.append(self.value(source, at, valid))
            return _as_index(op, node.dtype, sources) or ops.build(op, node.dtype, sources)
        if op == "cat":
            return self._cat(node, at, valid)
        if op == "gather":
            return self._gather(node, at, valid)
        if op == "assign":
            old, given, *masks = node.sources
            inside, inner = node.arg.inner(at)
            outside = self.value(old, at, valid)
            if inside == NEVER:
                return outside
            new = self.value(given, inner, both(valid, inside))
            for mask in masks:
                test = self.value(mask, inner, both(valid, inside))
                new = value("where", node.dtype, (test, new, outside))
            return gate(inside, new, outside)
        source = node.sources[0]
        if op == "cast":
            return _convert(self.value(source, at, valid), node.dtype)
        if op == "bitcast":
            inner = self.value(source, at, valid)
            return inner if inner.dtype is node.dtype else value("bitcast", node.dtype, (inner,))
        if op == "contiguous":
            return self.value(source, at, valid)
        if op == "reduce":
            return self._reduce(node, at, valid)
        if op in ALONE:
            return self._along(node, at, valid)
        if op == "pad":
            return self._pad(node, at, valid)
        return self.value(source, _moved(node, at), valid)

    def _reduce(self, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
        operation, axes = node.arg
        source = node.sources[0]
        inner = list(at)
        ranges = []
        for axis in axes:
            counter = Range(f"k{self.reductions}_{axis}", source.shape[axis])
            ranges.append(counter)
            inner[axis] = counter.index()
        self.reductions += 1
        body = self.value(source, tuple(inner), valid)
        if operation == "sum" and len(ranges) == 1:
            picked = pick(body, ranges[0])
            if picked is not None:
                return picked
        return value("reduce", node.dtype, (body,), (operation, tuple(ranges)))

    def _along(self, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
        """Return a scan or a sort, the root of its kernel, along the range at its axis."""
        what, axis = node.arg
        body, *start = node.sources
        inner = (*at[: len(body.shape) - 1], at[-1])  # for a long sort, without the axis of size 2
        first = (*at[:axis], constant(0), *at[axis + 1 :])
        sources = [self.value(body, inner, valid)]
        sources += [self.value(each, first, valid) for each in start]
        (along,) = at[axis].ranges()
        return value(node.op, node.dtype, sources, (what, along))

    def _pad(self, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
        pairs, number = node.arg
        source = node.sources[0]
        inside: Validity = ()
        inner = []
        for index, (before, _), size in zip(at, pairs, source.shape, strict=True):
            inner.append(index - before)
            inside = both(inside, within(index, before, before + size))
        outside = const(number, node.dtype)
        if inside == NEVER or source.size == 0:
            return outside
        return gate(inside, self.value(source, tuple(inner), both(valid, inside)), outside)

    def _cat(self, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
        axis = node.arg
        stop = node.shape[axis]
        result: Value | None = None
        for source in reversed(node.sources):
            start = stop - source.shape[axis]
            if start == stop:
                continue
            inner = (*at[:axis], at[axis] - start, *at[axis + 1 :])
            inside = within(at[axis], start, stop)
            piece = self.value(source, inner, both(valid, inside))
            before_stop = at_least_zero(constant(stop - 1) - at[axis])
            result = piece if result is None else gate(before_stop, piece, result)
            stop = start
        assert result is not None, "cat of nothing"
        return result

    def _gather(self, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
        """Read at indices that are values; zero where an index is out of range, if it can be."""
        axes, checked = node.arg
        source, *givens = node.sources
        if node.size == 0 or source.size == 0:
            return const(0, node.dtype)
        common = len(givens[0].shape)
        rest = iter(at[common:])
        found: dict[int, Index] = {}
        inside: list[Value] = []
        for axis, given in zip(axes, givens, strict=True):
            number = self.value(given, at[:common], valid)
            found[axis] = looked_up(number, source.shape[axis], checked, inside)
        inner = tuple(found[i] if i in found else next(rest) for i in range(len(source.shape)))
        piece = self.value(source, inner, valid)
        if not inside:
            return piece
        allowed = reduce(partial(binary, "and"), inside)
        return value("where", node.dtype, (allowed, piece, const(0, node.dtype)))


def _as_index(op: str, dtype: DType, sources: Sequence[Value]) -> Value | None:
    """Return sums and multiples of indices as indices if the type holds them without wrapping, and
    likewise their quotients and remainders by positive constants."""
    if op not in ("add", "sub", "mul", "floordiv", "mod") or not dtype.is_integer:
        return None
    if not any(s.op == "index" for s in sources) or any(
        s.op not in ("index", "const") for s in sources
    ):
        return None
    left, right = (s.arg if s.op == "index" else constant(s.arg) for s in sources)
    if op in ("floordiv", "mod"):
        if not right.is_constant or right.constant <= 0:
            return None
        total = left // right.constant if op == "floordiv" else left % right.constant
    elif op == "mul":
        if not (left.is_constant or right.is_constant):
            return None
        total = right * left.constant if left.is_constant else left * right.constant
    else:
        total = left + right if op == "add" else left - right
    lowest = 0 if dtype.kind == "u" else -(1 << (dtype.bits - 1))
    if total.low < lowest or total.magnitude() >= 1 << (dtype.bits - 1):
        return None
    return value("index", dtype, (), total)


def _convert(inner: Value, dtype: DType) -> Value:
    if inner.op == "index" and dtype.is_integer and inner.arg.magnitude() < 1 << (dtype.bits - 1):
        return value("index", dtype, (), inner.arg)
    if inner.op == "index" and dtype.is_float and inner.arg.magnitude() < 1 << 31:
        inner = value("index", int32, (), inner.arg)
    return cast(inner, dtype)


def _moved(node: Node, at: tuple[Index, ...]) -> tuple[Index, ...]:
    """Return the indices into a movement operation's source."""
    source = node.sources[0]
    if node.op == "reshape":
        return tuple(unflatten(flatten(at, node.shape), source.shape))
    if node.op == "permute":
        inner: list[Index] = [constant(0)] * len(at)
        for index, axis in zip(at, node.arg, strict=True):
            inner[axis] = index
        return tuple(inner)
    if node.op == "expand":
        sizes = source.shape
        return tuple(constant(0) if s == 1 else i for i, s in zip(at, sizes, strict=True))
    if node.op == "shrink":
        return tuple(i + start for i, (start, _) in zip(at, node.arg, strict=True))
    if node.op == "flip":
        return tuple(
            constant(size - 1) - i if axis in node.arg else i
            for axis, (i, size) in enumerate(zip(at, node.shape, strict=True))
        )
    assert node.op == "stride", node.op
    return tuple(i * step for i, step in zip(at, node.arg, strict=True))


# ---- merging adjacent ranges -------------------------------------------------------------------


def _merge(computation: Computation) -> Computation:
    """Join neighbouring ranges if no index becomes more complex: one long loop beats two."""
    chosen = computation.chosen or Chosen()
    indices = (computation.position, chosen.coordinate, *chosen.allowed)
    if computation.place is None:
        indices = ()
    ranges, expression = computation.ranges, computation.value
    if expression.op in ALONE:  # the ranges before and after the one that it goes along
        last = ranges.index(expression.arg[1])
        long = expression.op == "sort" and expression.dtype is uint64
        first = last - 1 if long else last  # there is a range of size 2 before
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
