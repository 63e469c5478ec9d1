"""Places of a run's intermediate values in one piece of memory.

    before   steps, and the last step that reads each value
    after    an offset for each value that nothing reads after the run; values that are there at
             the same time do not overlap

A value is placed where the first one that fits was, or at the end. Memory in size classes, which
the pool gives, is several times as much (of MobileNetV2's 27 MB of values 18, where 7 are enough),
and more than a processor's caches hold.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Set
from dataclasses import dataclass, field

from ugpu.compiler.plan.plan import Plan

ALIGN = 256  # bytes: alignment that kernels assume for every parameter (compiler.codegen)


@dataclass
class Layout:
    """offsets: by place of a value. size: bytes in all."""

    offsets: dict[int, int] = field(default_factory=dict)
    size: int = 0
    gaps: list[tuple[int, int]] = field(default_factory=list)  # in order: start, and end

    def place(self, value: int, size: int) -> None:
        """Find a place for a value."""
        for number, (start, end) in enumerate(self.gaps):
            if end - start >= size or end == self.size:
                del self.gaps[number]
                break
        else:
            start = end = self.size
        self.offsets[value] = start
        self.size = max(self.size, start + size)
        if start + size < end:
            insort(self.gaps, (start + size, end))

    def remove(self, value: int, size: int) -> None:
        """Use a value's place again from now on."""
        start = self.offsets[value]
        end = start + size
        for gap in [gap for gap in self.gaps if start in gap or end in gap]:
            self.gaps.remove(gap)
            start, end = min(start, gap[0]), max(end, gap[1])
        insort(self.gaps, (start, end))


def layout(plan: Plan, wanted: Set[int]) -> Layout:
    """Return the layout of the values that no step writes into the memory of others. wanted: places
    of values that are read after the run; their memory is their own."""
    own = {*wanted, *(step.target for step in plan.steps)}
    for step in plan.steps:
        own.update(step.hosted, [place for place, _ in step.over])
    found, sizes = Layout(), dict[int, int]()
    for number, step in enumerate(plan.steps):
        made = ((step.root, step.size), *step.others) if step.target is None else ()
        for place, size in made:
            if place not in own:
                sizes[place] = -(-size // ALIGN) * ALIGN
                found.place(place, sizes[place])
        for place in {*step.inputs, *step.results}.intersection(sizes):
            if plan.last_use[place] == number:
                found.remove(place, sizes.pop(place))
    return found
