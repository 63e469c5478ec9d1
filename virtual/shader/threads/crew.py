"""Host threads that share the groups of one launch."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ugpu.hcq.objects.stack import deep
from ugpu.hcq.state.threads import start

W = TypeVar("W")
T = TypeVar("T")


class Crew(Generic[W]):
    """The contexts of native code, one for each of several host threads and the caller's own.

    A launch runs on as many threads as are worthwhile. Each takes the next group until none is
    left, in native code, which leaves the interpreter to the others. One launch at a time.
    """

    def __init__(self, workers: Sequence[W], name: str) -> None:
        """name: of the threads, which are made on first use."""
        self.workers = workers
        self._name = name
        self._mates: list[_Mate] = []
        weakref.finalize(self, _leave, self._mates).atexit = False

    def run(self, count: int, work: Callable[[W, int], T], *, here: bool = True) -> list[T]:
        """Call `work` with each of the first `count` workers, and its number, in parallel; return
        the results.

        here: the caller's thread works too, and has enough stack for it; the other threads have a
        deep stack.

        Returns, or raises the first of their errors, once all of them have ended.
        """
        if here and count == 1:
            return [work(self.workers[0], 0)]
        pieces = [
            _Piece(work, worker, number) for number, worker in enumerate(self.workers[:count])
        ]
        asked: list[_Mate] = []
        try:
            for piece in pieces[int(here) :]:
                mate = self._mate(len(asked))
                mate.start(piece)
                asked.append(mate)
            if here:
                pieces[0]()
        finally:
            self._wait(asked)
        return [piece.result() for piece in pieces]

    def _wait(self, asked: list[_Mate]) -> None:
        try:
            for mate in asked:
                mate.wait()
        except BaseException:  # an interrupt: threads that still work get no further requests
            _leave(self._mates)
            raise

    def _mate(self, number: int) -> _Mate:
        if number == len(self._mates):
            with deep():
                self._mates.append(_Mate(f"{self._name}_{number}"))
        return self._mates[number]

    def close(self) -> None:
        """End the threads. May be called again; a later launch starts new ones. The threads of an
        unreferenced crew end by themselves."""
        while self._mates:
            self._mates.pop().end()


def _leave(mates: list[_Mate]) -> None:
    while mates:
        mates.pop().leave()


class _Piece(Generic[W, T]):
    """One thread's part of a launch, and its outcome."""

    def __init__(self, work: Callable[[W, int], T], worker: W, number: int) -> None:
        self._work, self._worker, self._number = work, worker, number
        self._found: list[T] = []
        self._error: BaseException | None = None

    def __call__(self) -> None:
        try:
            self._found.append(self._work(self._worker, self._number))
        except BaseException as error:  # raised again by `result`
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its traceback holds this frame
        return self._found[0]


class _Mate:
    """A host thread that does one thing at a time, at the request of one other thread, which waits
    for it.

    Two locks pass the work there and back: a pool's queue, futures and conditions take longer than
    a short launch.
    """

    def __init__(self, name: str) -> None:
        self._work: Callable[[], None] | None = None
        self._left = False
        self._asked, self._done = threading.Lock(), threading.Lock()
        self._asked.acquire()
        self._done.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        start(self._thread)

    def start(self, work: Callable[[], None]) -> None:
        """Begin `work`, which must not raise."""
        self._work = work
        self._asked.release()

    def wait(self) -> None:
        """Wait until the started work has ended."""
        self._done.acquire()

    def end(self) -> None:
        """End the thread, which is idle."""
        self._asked.release()
        self._thread.join()

    def leave(self) -> None:
        """Have the thread end by itself, once its work has ended; it is not joined."""
        self._left = True
        with contextlib.suppress(RuntimeError):  # it has not yet begun its last request
            self._asked.release()

    def _run(self) -> None:
        while not self._left:
            self._asked.acquire()
            work, self._work = self._work, None
            if work is None:
                return
            work()
            del work  # another thread may wait until its references are gone
            self._done.release()
