"""Host threads that share the groups of one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from hcq.emu.stack import deep

# LLVM IR that takes the next group of a launch: number %g of %total, by a %counter that the crew's
# threads share, at (%x, %y, %z) of a grid of %nx64 by %ny64 and so on. Begins at the label `take`,
# and goes to `finished` where none is left.
TAKE_GROUP = """\
take:
  %g = atomicrmw add ptr %counter, i64 1 monotonic
  %any = icmp ult i64 %g, %total
  br i1 %any, label %begin, label %finished
begin:
  %gx = urem i64 %g, %nx64
  %gyz = udiv i64 %g, %nx64
  %gy = urem i64 %gyz, %ny64
  %gz = udiv i64 %gyz, %ny64
  %x = trunc i64 %gx to i32
  %y = trunc i64 %gy to i32
  %z = trunc i64 %gz to i32
"""

W = TypeVar("W")
T = TypeVar("T")


class Crew(Generic[W]):
    """What native code works on, one for each of some host threads: those and the caller's own.

    A launch is run by as many as it is worth: each takes the next group until none is left, in
    native code, which leaves the interpreter to the others. One launch at a time.
    """

    def __init__(self, workers: Sequence[W], name: str) -> None:
        """name: of the threads, which are made when they are first needed."""
        self.workers = workers
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    def run(self, count: int, work: Callable[[W, int], T], *, here: bool = True) -> list[T]:
        """Do `work` with each of the first `count` workers, and its number, at the same time; what
        it returned.

        here: the caller's thread works too, and has the stack for it; the others have a deep one.

        Returns, or raises what the first of them raised, once none is at it any more.
        """
        if here and count == 1:
            return [work(self.workers[0], 0)]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(len(self.workers), self._name)
        with deep():  # a thread starts when work for it is submitted
            others = [
                self._pool.submit(work, self.workers[number], number)
                for number in range(int(here), count)
            ]
        try:
            first = [work(self.workers[0], 0)] if here else []
        finally:
            wait(others)
        return [*first, *(other.result() for other in others)]

    def close(self) -> None:
        """End the threads. May be called again; a later launch starts new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
