"""Order of the nodes of a run before and after a write into memory.

A graph of layers has a write in each layer, so examining all of it for every write would take time
quadratic in their number. Places are visited in the order of the graph, so that a value that
depends on both the old contents and the new is found early, and nothing behind it is visited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from ugpu.compiler.graph.node import Node
from ugpu.compiler.graph.operations import ONE_TO_ONE, WRITES

_SAME = (*ONE_TO_ONE, "expand")  # operations that make no new elements
_OLD, _NEW = 1, 2  # what a value depends on: the old contents, the write


@dataclass(frozen=True)
class Cut:
    """reads: nodes that depend on the old contents alone, sources first. ends: those of them to be
    stored, because nodes that also depend on the write read them."""

    reads: list[Node]
    ends: list[Node]


class Order:
    """Users come after their sources, and writes after the reads they wait for."""

    def __init__(
        self, nodes: Sequence[Node], users: Mapping[int, list[Node]], held: Set[int]
    ) -> None:
        """held: ids of nodes that are referenced elsewhere and not requested."""
        self.nodes, self.users, self.held = nodes, users, held
        self.places: dict[int, int] = {}
        self.spoiled: set[int] | None = None  # places that `held` values depend on
        self.waiting: dict[int, list[Node]] = {}  # by id of a read, the writes that wait for it
        self.backward = -1  # the last place of a read that comes behind a write waiting for it

    def reads(self, old: Node, write: Node) -> list[Node] | None:
        """Return all that depends on `old` other than through the write. None if some of it depends
        on the write too, or is referenced elsewhere and would be computed again."""
        if all(user is write for user in self.users.get(id(old), ())):
            return []
        places = self._places()
        limit = len(self.nodes)  # places from here on do not matter
        reads: dict[int, Node] = {}  # by place
        later: set[int] = set()
        early = [places[id(user)] for user in self.users[id(old)] if user is not write]
        late = [places[id(user)] for user in self._after(write)]
        heapify(early)
        heapify(late)
        while early or late:
            if early:
                place = heappop(early)
                node = self.nodes[place]
                if place not in reads and node is not write:
                    if id(node) in self.held or place in later:
                        return None
                    reads[place] = node
                    for user in self.users.get(id(node), ()):
                        heappush(early, places[id(user)])
                if not early and places[id(write)] > self.backward:
                    limit = max(reads) + 1
            if late:
                place = heappop(late)
                if place in reads:
                    return None
                if place >= limit:
                    break
                if place not in later:
                    later.add(place)
                    for user in self._after(self.nodes[place]):
                        heappush(late, places[id(user)])
        return list(reads.values())

    def cut(self, old: Node, write: Node) -> Cut | None:
        """Return a cut that lets the reads of an old value end before the write, although values
        computed from them also depend on the write. None if that costs more than a copy of the old
        value, or if a value referenced elsewhere would have to be computed again."""
        places = self._places()
        direct = [user for user in self.users.get(id(old), ()) if user is not write]
        if places[id(write)] <= self.backward:  # its users may be at earlier places
            return None
        if any(places[id(user)] in self._spoiled() for user in direct):
            return None
        hangs: dict[int, int] = {}  # by place
        queue: list[int] = []
        reads: dict[int, Node] = {}  # by place
        ends: dict[int, Node] = {}
        waiting = 0  # places in the queue that depend on the old contents

        def enter(users: Sequence[Node], what: int) -> None:
            nonlocal waiting
            for user in users:
                place = places[id(user)]
                before = hangs.get(place, 0)
                hangs[place] = before | what
                if not before:
                    heappush(queue, place)
                waiting += what == _OLD and not before & _OLD

        enter(direct, _OLD)
        enter(self._after(write), _NEW)
        while waiting:
            place = heappop(queue)
            node, what = self.nodes[place], hangs[place]
            waiting -= what & _OLD
            if node is write:
                continue
            if what == _OLD:
                reads[place] = node
                enter(self.users.get(id(node), ()), _OLD)
                continue
            enter(self._after(node), _NEW)
            for source in node.sources if what & _OLD else ():
                if source is old:
                    return None
                if places[id(source)] in reads:
                    end = self._smallest(source, reads)
                    ends[places[id(end)]] = end
        if any(node.op == "call" for node in ends.values()):
            return None
        if sum(map(_bytes, ends.values())) > _bytes(old):
            return None
        return Cut(list(reads.values()), list(ends.values()))

    def _smallest(self, node: Node, reads: Mapping[int, Node]) -> Node:
        """Return the node with the same elements before they are repeated or moved."""
        while node.op in _SAME and self._places()[id(node.sources[0])] in reads:
            node = node.sources[0]
        return node

    def _spoiled(self) -> set[int]:
        """Return the places that a value depends on that is referenced elsewhere and not stored."""
        found = self.spoiled
        if found is None:
            found = self.spoiled = set()
            for place in range(len(self.nodes) - 1, -1, -1):
                node = self.nodes[place]
                held = id(node) in self.held and node.op not in WRITES
                users = self.users.get(id(node), ())
                if held or any(self._places()[id(user)] in found for user in users):
                    found.add(place)
        return found

    def waits(self, write: Node, reads: Sequence[Node]) -> None:
        """Record that the write comes after these reads."""
        for read in reads:
            self.waiting.setdefault(id(read), []).append(write)
            if self.places[id(read)] > self.places[id(write)]:
                self.backward = max(self.backward, self.places[id(read)])

    def _after(self, node: Node) -> list[Node]:
        found = self.users.get(id(node), [])
        waiting = self.waiting.get(id(node))
        return found if waiting is None else found + waiting

    def _places(self) -> dict[int, int]:
        if not self.places:
            self.places = {id(node): place for place, node in enumerate(self.nodes)}
        return self.places


def _bytes(node: Node) -> int:
    return node.size * node.dtype.itemsize
