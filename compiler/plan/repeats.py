"""Repeated structure: a network's layers are planned once, however they were written.

before: the structure of a graph (compiler.plan.plan), in which a run of entries repeats with
the places of their sources shifted: layers, each of which reads the one before, its own weights
and perhaps arrays that all layers share.
after: the plan of the same graph with KEPT of the layers, in which the second is repeated at other
places. Graphs with equal parts find this plan by content, whatever the number of layers.

A layer's plan depends on its neighbours: fusion reaches across their borders, and the first and the
last layers have different neighbours. So the graph with KEPT layers is planned as any other, and
its plan is used only if its second and third layer do the same and no kernel computes more than the
layer before its own; otherwise the graph is not planned by repetition. The decisions depend only on
these layers: they use the costs of what a kernel computes, and its readers.

Writes into memory in place (a decoder's keys and values) are decided for the whole graph first
(compiler.schedule.hazards), since they depend on references. They repeat if every layer except the
first and the last writes the same, and each write waits only for reads of its own layer and its
neighbours; a write that waits for values computed by the last layers leaves the graph without such
a plan.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ugpu.compiler.graph.call import parameter_like
from ugpu.compiler.graph.node import Node
from ugpu.compiler.plan.plan import Plan, Step, Structure, last_uses
from ugpu.compiler.schedule.group import Group, members
from ugpu.compiler.schedule.grouping import wanted_apart
from ugpu.compiler.schedule.hazards import InPlace

KEPT = 4  # layers of the graph that is planned
SHORTEST = 8  # entries of a layer; looking for shorter ones costs more than it saves
TRIES = 4  # distances that are tried
FAR = 1  # number of layers back that a layer may read from
MANY = 1 << 20  # assumed uses of values that all layers share, whatever the number of layers


@dataclass(frozen=True)
class Repeats:
    """Places first ... first + period * count - 1 are `count` equal layers."""

    first: int
    period: int
    count: int

    @property
    def removed(self) -> int:
        """Number of places that are left out when KEPT layers stay."""
        return (self.count - KEPT) * self.period

    @property
    def cut(self) -> int:
        """The place where they are left out: behind two layers."""
        return self.first + 2 * self.period


def find_repeats(key: Structure) -> list[Repeats]:
    """Return the longest run of layers in a structure, then the same with two layers as one, whose
    plans may differ. Empty if there are too few layers to save anything."""
    entries = key[:-1]
    if len(entries) < SHORTEST * (KEPT + 1) or None in entries:
        return []  # too short, or with calls of functions, which are planned once already
    numbers: dict[Any, int] = {}
    kinds = [
        numbers.setdefault(entry[:-1] if len(entry) > 2 else entry, len(numbers))
        for entry in entries
    ]
    distances = _distances(kinds)
    if not distances:
        return []
    links = _Links(entries, kinds)
    runs = [found for period in distances if (found := links.run(period)) is not None]
    if not runs:
        return []
    best = max(runs, key=lambda found: found.removed)
    double = links.run(2 * best.period)
    both = (best,) if double is None else (best, double)
    return [found for found in both if links.stands_apart(found, key[-1])]


def _distances(kinds: Sequence[int]) -> list[int]:
    """Return the distances between entries of the rarest kind that occurs often enough."""
    places: dict[int, list[int]] = {}
    for place, kind in enumerate(kinds):
        places.setdefault(kind, []).append(place)
    found: dict[int, None] = {}
    often = sorted((len(each), each) for each in places.values() if len(each) > KEPT)
    for _, listed in often:
        gaps = Counter(b - a for a, b in itertools.pairwise(listed))
        distance, times = gaps.most_common(1)[0]
        if times >= KEPT and distance >= SHORTEST:
            found[distance] = None
        if len(found) == TRIES:
            break
    return list(found)


class _Links:
    """Readers of each entry, as arrays: for each source of each entry its place, and the reader's
    place."""

    def __init__(self, entries: Structure, kinds: Sequence[int]) -> None:
        lists = [entry[-1] if len(entry) > 2 else () for entry in entries]
        self.counts = counts = np.array(list(map(len, lists)))
        self.kinds = np.array(kinds)
        self.start = np.cumsum(counts) - counts  # by entry, the first of its sources
        self.reader = np.repeat(np.arange(len(lists)), counts)
        self.source = np.fromiter(itertools.chain.from_iterable(lists), np.int64, int(counts.sum()))

    def run(self, period: int) -> Repeats | None:
        """Return the longest run of entries equal to those a period later that read the same:
        shifted along, or shared by all."""
        count = len(self.kinds) - period
        if count <= 0:
            return None
        alike = self.kinds[period:] == self.kinds[:-period]
        alike &= self.counts[period:] == self.counts[:-period]
        inside = alike[np.minimum(self.reader, count - 1)] & (self.reader < count)
        (slots,) = inside.nonzero()
        reader, source = self.reader[slots], self.source[slots]
        later = self.source[self.start[reader + period] + slots - self.start[reader]]
        moved = (later == source + period) & (reader - source <= FAR * period)
        alike[reader[~(moved | (later == source))]] = False
        (breaks,) = np.concatenate(([True], ~alike, [True])).nonzero()
        longest = int(np.argmax(np.diff(breaks)))
        first, length = int(breaks[longest]), int(breaks[longest + 1] - breaks[longest]) - 1
        layers = length // period + 1
        return Repeats(first, period, layers) if layers > KEPT else None

    def stands_apart(self, found: Repeats, roots: Sequence[int]) -> bool:
        """Return whether the entries after the layers, and the requested results, need at most the
        last layer, and shared values come before the layers."""
        first, end = found.first, found.first + found.period * found.count
        far = FAR * found.period
        needed = self.source >= first
        after = (self.reader >= end) & (self.source < end - far)
        early = (self.reader < end) & (self.reader >= first) & (self.source < self.reader - far)
        asked = any(first <= root < end - far for root in roots)
        return not asked and not bool((needed & (after | early)).any())


def results_alone(key: Structure, writes: Collection[int]) -> Structure:
    """Return a structure without the requests for `writes`, places of writes in place, of which
    another requested result is computed: they happen, and are kept, also without a request."""
    asked = tuple([root for root in key[-1] if root not in writes])
    reached, todo = set(asked), list(asked)
    while todo:
        entry = key[todo.pop()]
        if entry is not None and len(entry) > 2:
            new = [source for source in entry[-1] if source not in reached]
            reached.update(new)
            todo += new
    return (*key[:-1], tuple([root for root in key[-1] if root in asked or root not in reached]))


def shortened(key: Structure, found: Repeats) -> Structure:
    """Return the structure with KEPT layers."""
    first, cut, removed = found.first, found.cut, found.removed
    kept = list(key[:cut])
    for entry in key[cut + removed : -1]:
        if len(entry) > 2:
            moved = tuple([source if source < first else source - removed for source in entry[-1]])
            entry = (*entry[:-1], moved)
        kept.append(entry)
    kept.append(tuple([root if root < first else root - removed for root in key[-1]]))
    return tuple(kept)


def copied(short: Structure, nodes: Sequence[Node], found: Repeats) -> list[Node]:
    """Return separate nodes for a shortened structure; `nodes` are those of the whole."""
    made: list[Node] = []
    for place, entry in enumerate(short[:-1]):
        like = nodes[place if place < found.cut else place + found.removed]
        if len(entry) == 2:
            copy = Node("buffer", like.dtype, like.shape)
            copy.storage = parameter_like(like)
        else:
            sources = tuple([made[source] for source in entry[-1]])
            copy = Node(like.op, like.dtype, like.shape, sources, like.arg)
        made.append(copy)
    return made


# ---- writes in place ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """Where a graph writes in place. earlier: by place of a write, the places of the reads before
    it. stored: places of values stored for that."""

    earlier: dict[int, tuple[int, ...]]
    stored: frozenset[int] = frozenset()

    @property
    def key(self) -> tuple[object, ...]:
        return tuple(self.earlier.items()), self.stored


def written(ways: InPlace, nodes: Sequence[Node]) -> Written:
    """Return the values written in place, by places."""
    earlier = ways.earlier
    writes = [(place, earlier[id(node)]) for place, node in enumerate(nodes) if id(node) in earlier]
    if not ways.stored and not any(reads for _, reads in writes):
        return Written({place: () for place, _ in writes})
    places = {id(node): place for place, node in enumerate(nodes)}
    return Written(
        {place: tuple([places[id(read)] for read in reads]) for place, reads in writes},
        frozenset([places[key] for key in ways.stored]),
    )


def shortened_writes(whole: Written, found: Repeats) -> Written | None:
    """Return the same for the structure with KEPT layers; None if the layers left out do not write
    as the remaining ones do."""
    first, period, last = found.first, found.period, found.count - 1
    earlier: dict[int, tuple[int, ...]] = {}
    stored: list[int] = []
    inner: list[dict[int, Any]] = [{} for _ in range(last - 1)]  # moved to the second layer
    for place in sorted({*whole.earlier, *whole.stored}):
        reads = whole.earlier.get(place)
        layer = _layer_of(place, found)
        far = [read for read in reads or () if abs(_layer_of(read, found) - layer) > FAR]
        if any(read >= first for read in far):
            return None
        if 0 < layer < last:
            back = (layer - 1) * period
            moved = None if reads is None else _moved_back(reads, first, back)
            inner[layer - 1][place - back] = moved, place in whole.stored
        if layer < 2 or layer > last - 2:
            back = 0 if layer < 2 else found.removed
            stored += [place - back] if place in whole.stored else []
            if reads is not None:
                earlier[place - back] = _moved_back(reads, first, back)
    return Written(earlier, frozenset(stored)) if all(e == inner[0] for e in inner) else None


def _layer_of(place: int, found: Repeats) -> int:
    """Return the number of the layer; -1 before all layers, their count after them."""
    return min(max((place - found.first) // found.period, -1), found.count)


def _moved_back(places: Sequence[int], first: int, by: int) -> tuple[int, ...]:
    return tuple([place if place < first else place - by for place in places])


def ways_of(made: Written, copies: Sequence[Node]) -> InPlace:
    """Return the same for the copies of a shortened structure."""
    earlier = {id(copies[w]): [copies[read] for read in reads] for w, reads in made.earlier.items()}
    moved = {id(copies[write]): id(copies[write].sources[0]) for write in made.earlier}
    return InPlace(earlier, moved=moved, stored={id(copies[place]) for place in made.stored})


# ---- the plan ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repeating:
    """A plan whose steps second ... third - 1 are those of the second layer; the steps from there
    up to `rest` are the same for the third. Step numbers."""

    plan: Plan
    second: int
    third: int
    rest: int


def repeating(
    plan: Plan, groups: Sequence[Group], nodes: Sequence[Node], found: Repeats
) -> Repeating | None:
    """Return how to stretch a plan with KEPT layers, or None. groups: one for each step."""
    first, period = found.first, found.period
    places = {id(node): place for place, node in enumerate(nodes)}
    stored = {id(root) for group in groups for root in group.roots}
    short = Repeats(first, period, KEPT)

    def settled(source: Node) -> bool:
        """Return whether more layers sharing a value would not cause it to be stored."""
        own = places[id(source)] >= first or source.storage is not None
        return own or id(source) in stored or not wanted_apart(source, stored, MANY)

    numbers: list[int] = []  # the layer of each step, as `_layer_of` numbers it
    for step, group in zip(plan.steps, groups, strict=True):
        layers = {_layer_of(place, short) for place in step.results}
        if len(layers) > 1:
            return None
        (layer,) = layers
        numbers.append(layer)
        if layer < 1:
            continue
        # a kernel's values are at that place or behind, or before all layers
        lowest = first + (min(layer, KEPT - 1) - 1) * period
        for node in (node for root in group.roots for node in members(root, stored)):
            if first <= places[id(node)] < lowest or not all(map(settled, node.sources)):
                return None
        used = step.inputs if step.target is None else (*step.inputs, step.target)
        if layer > 2 and any(first <= place < first + period for place in used):
            return None
    second, third, rest = (numbers.index(n) if n in numbers else -1 for n in (1, 2, 3))
    if plan.empty or second < 0 or numbers != sorted(numbers) or not second < third < rest:
        return None
    made = Repeating(plan, second, third, rest)
    one, two = plan.steps[second:third], plan.steps[third:rest]
    return made if tuple([_moved(step, first, period) for step in one]) == two else None


def stretched(short: Repeating, found: Repeats) -> tuple[Plan, list[int]]:
    """Return the plan of the whole, and for each of its steps the number in the short plan."""
    first, steps = found.first, short.plan.steps
    made = list(steps[: short.third])
    numbers = list(range(short.third))
    layer = range(short.second, short.third)
    for again in range(1, found.count - KEPT + 1):
        made += [_moved(steps[number], first, again * found.period) for number in layer]
        numbers += layer
    made += [_moved(step, first, found.removed) for step in steps[short.third :]]
    numbers += range(short.third, len(steps))
    return Plan(tuple(made), (), last_uses(made)), numbers


def _moved(step: Step, first: int, by: int) -> Step:
    """Return a step for a later layer: places behind `first` are shifted."""

    def there(place: int) -> int:
        return place if place < first else place + by

    target = None if step.target is None else there(step.target)
    others = tuple([(there(place), size) for place, size in step.others])
    inputs = tuple([there(place) for place in step.inputs])
    over = tuple([(there(place), there(old)) for place, old in step.over])
    hosted = frozenset(map(there, step.hosted))
    return Step(
        step.key, there(step.root), inputs, step.size, target, others, over, hosted, step.starts
    )
