"""A function's control flow as nested conditionals and loops, the only kind that NIR has.

    blocks and branches  ->  run(block) | begin_if .. begin_else .. end_if | begin_loop .. end_loop
                             | break | continue

A loop is the set of blocks that can reach a branch back to a block that dominates them; all its
exits lead to one block. A conditional ends where its sides meet again (its immediate
post-dominator). Control flow that is not nested in this way is NotSupported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ugpu.hcq.errors import NotSupported

_END = ""  # behind all blocks that return


class Sink(Protocol):
    """Receiver of the structure, in order."""

    def run(self, block: str) -> None:
        """Take the instructions of a block, without its terminator."""

    def edge(self, source: str, target: str) -> None:
        """Control goes from one block to another: set the target's phis."""

    def begin_if(self, block: str) -> None:
        """Begin a conditional on a block's condition; the side where it holds comes first."""

    def begin_else(self) -> None: ...

    def end_if(self) -> None: ...

    def begin_loop(self) -> None: ...

    def end_loop(self) -> None: ...

    def leave(self) -> None:
        """Leave the innermost loop."""

    def again(self) -> None:
        """Continue with the innermost loop's next turn."""


class Walk:
    """One walk over a function. successors: of each block, empty if it returns; the first block is
    the entry."""

    def __init__(self, successors: Mapping[str, Sequence[str]], sink: Sink) -> None:
        self.successors = successors
        self.sink = sink
        entry = next(iter(successors))
        self.order = _reverse_postorder(successors, entry)
        above = _dominators(self.order, _turned(successors, self.order), entry)
        backward = {block: list(successors[block]) or [_END] for block in self.order}
        reverse = _turned(backward, [*self.order, _END])
        ends = _reverse_postorder(reverse, _END)
        self.merge = _dominators(ends, backward | {_END: []}, _END)
        self.loops = self._loops(above)
        self.exits = {head: self._exit(head) for head in self.loops}
        self._blocks(entry, _END, None)

    def _loops(self, above: Mapping[str, str]) -> dict[str, set[str]]:
        """Return the blocks of each loop, by its head."""
        place = {block: number for number, block in enumerate(self.order)}
        before = _turned(self.successors, self.order)
        loops: dict[str, set[str]] = {}
        for block in self.order:
            for target in self.successors[block]:
                if place[target] > place[block]:
                    continue
                if not _dominates(target, block, above):
                    raise NotSupported("a loop with two entries, for Adreno", block=target)
                inside = loops.setdefault(target, {target})
                waiting = [block]
                while waiting:
                    found = waiting.pop()
                    if found not in inside:
                        inside.add(found)
                        waiting += before[found]
        return loops

    def _exit(self, head: str) -> str:
        inside = self.loops[head]
        found = {t for block in inside for t in self.successors[block] if t not in inside}
        if any(not self.successors[block] for block in inside):
            found.add(_END)
        if len(found) > 1:
            raise NotSupported("a loop with several exits, for Adreno", block=head)
        return found.pop() if found else _END

    def _blocks(self, block: str, stop: str, loop: str | None) -> None:
        """Walk all blocks from one on, until control reaches `stop` or leaves or repeats `loop`."""
        fresh = True  # the head of `loop` itself has just been entered
        while block != stop:
            if block in self.loops and not (fresh and block == loop):
                self.sink.begin_loop()
                self._blocks(block, _END, block)
                self.sink.end_loop()
                block = self.exits[block]
                if self._jumps(block, stop, loop):
                    return
                fresh = False
                continue
            fresh = False
            self.sink.run(block)
            targets = self.successors[block]
            if not targets:
                return
            if len(set(targets)) == 1:
                self.sink.edge(block, targets[0])
                following = targets[0]
            else:
                following = self.merge[block]
                self.sink.begin_if(block)
                self._side(block, targets[0], following, loop)
                self.sink.begin_else()
                self._side(block, targets[1], following, loop)
                self.sink.end_if()
                if loop is not None and following in (loop, self.exits[loop]):
                    return  # both sides have jumped
            if self._jumps(following, stop, loop):
                return
            block = following

    def _side(self, source: str, target: str, stop: str, loop: str | None) -> None:
        self.sink.edge(source, target)
        if not self._jumps(target, stop, loop):
            self._blocks(target, stop, loop)

    def _jumps(self, target: str, stop: str, loop: str | None) -> bool:
        """Return whether going to a block ends the walk: it is behind the walked region."""
        if loop is not None and target == loop:
            self.sink.again()
            return True
        if loop is not None and target == self.exits[loop]:
            self.sink.leave()
            return True
        return target == stop


def _turned(successors: Mapping[str, Sequence[str]], order: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {block: [] for block in order}
    for block in order:
        for target in successors.get(block, ()):
            found[target].append(block)
    return found


def _reverse_postorder(successors: Mapping[str, Sequence[str]], entry: str) -> list[str]:
    order: list[str] = []
    seen = {entry}
    stack = [(entry, iter(successors[entry]))]
    while stack:
        block, rest = stack[-1]
        for target in rest:
            if target not in seen:
                seen.add(target)
                stack.append((target, iter(successors[target])))
                break
        else:
            order.append(block)
            stack.pop()
    return order[::-1]


def _dominators(
    order: Sequence[str], before: Mapping[str, Sequence[str]], entry: str
) -> dict[str, str]:
    """Return each block's immediate dominator (Cooper, Harvey, Kennedy: A Simple, Fast Dominance
    Algorithm)."""
    place = {block: number for number, block in enumerate(order)}
    above = {entry: entry}
    changed = True
    while changed:
        changed = False
        for block in order:
            if block == entry:
                continue
            found = ""
            known = [b for b in before[block] if b in above]
            if not known:
                continue
            found = known[0]
            for other in known[1:]:
                while found != other:
                    while place[found] > place[other]:
                        found = above[found]
                    while place[other] > place[found]:
                        other = above[other]
            if above.get(block) != found:
                above[block] = found
                changed = True
    return above


def _dominates(upper: str, lower: str, above: Mapping[str, str]) -> bool:
    while lower != upper:
        if above[lower] == lower:
            return False
        lower = above[lower]
    return True
