"""How long a section may take, and how large its work may be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Budget:
    """Seconds from now on. small: the device is a model, so sizes are those a model can bear.

    clock: what tells the time; tests give their own. calls: where a section that runs a process of
    its own has that write its last calls to the driver.
    """

    seconds: float
    small: bool = False
    clock: Callable[[], float] = time.monotonic
    calls: Path | None = None
    begin: float = field(init=False)

    def __post_init__(self) -> None:
        self.begin = self.clock()

    @property
    def left(self) -> float:
        """Seconds left; negative when it is over."""
        return self.seconds - (self.clock() - self.begin)

    def part(self, share: float) -> Budget:
        """A budget of a share of what is left."""
        return Budget(max(0.0, self.left) * share, self.small, self.clock)

    def rounds(self, most: int) -> Iterator[int]:
        """Count to `most` while there is time, at least once."""
        for number in range(most):
            yield number
            if self.left <= 0:
                return


def median_s(work: Callable[[], object], budget: Budget, most: int = 1000) -> tuple[float, int]:
    """Seconds of one `work`, as the median of as many as there is time for; and how many."""
    times = []
    for _ in budget.rounds(most):
        start = budget.clock()
        work()
        times.append(budget.clock() - start)
    times.sort()
    return times[len(times) // 2], len(times)
