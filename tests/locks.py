"""Find locks that threads take in different orders: `python -m tests.locks [PYTEST ARGUMENT ...]`.

Two threads that take two locks in opposite orders can stop each other for ever, which a test meets
only by bad luck. So the order itself is recorded while tests run: for each lock that a thread has
while it takes another one, the places where the two were made. A circle among these places is a
stop that can happen; it is printed with the stack of each of its steps, and the exit status is 1.

Locks of one place count as one, and their order among themselves is not looked at. Recorded are
locks that this project makes by `threading.Lock` and `threading.RLock`, the first where they are
used by `with` (others are signals between threads) or in a Condition.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
_FOLDER = "UGPU_TEST_LOCKS"
DEPTH = 12  # calls of a stack that are kept
#: what uses devices from several threads
TESTS = (
    "tests/contract/queues/test_contract_across.py",
    "tests/contract/life/test_contract_close_races.py",
    "tests/contract/queues/test_contract_graph.py",
    "tests/contract/life/test_contract_life.py",
    "tests/contract/queues/test_contract_queues.py",
    "tests/contract/queues/test_contract_recovery.py",
)
DEVICES = ("cpu", "virtual:navi31", "virtual:navi31+usb", "virtual:gh100", "virtual:a740")
LOCK, RLOCK = threading.Lock, threading.RLock

Step = tuple[str, str]  # places of two locks: the first was held when the second was taken


class _Threads(threading.local):
    def __init__(self) -> None:
        self.held: list[Watched] = []


THREADS = _Threads()
ROOTS = [ROOT]  # of the code whose locks are recorded
STEPS: dict[Step, str] = {}  # with the first stack that made each


class Watched:
    """A lock that is recorded. place: where it was made."""

    def __init__(self, lock: Any, place: str) -> None:  # Any: the two kinds have no common type
        self._lock, self._place = lock, place
        self._holder: list[Watched] = []  # what the thread holds that has it

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking and self not in THREADS.held:
            self._record(sys._getframe(1))
        taken = bool(self._lock.acquire(blocking, timeout))
        if taken:
            self._holder = THREADS.held
            self._holder.append(self)
        return taken

    def release(self) -> None:
        holder = self._holder
        self._lock.release()
        if self in holder:
            holder.remove(self)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def _record(self, frame: FrameType) -> None:
        for other in THREADS.held:
            step = other._place, self._place
            if other._place != self._place and step not in STEPS:
                STEPS[step] = "".join(traceback.format_stack(frame, DEPTH))


class Signal(Watched):
    """A plain lock, which another thread may release: recorded only in `with`, and in a
    Condition."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if sys._getframe(1).f_code.co_filename == threading.__file__:
            return super().acquire(blocking, timeout)
        return bool(self._lock.acquire(blocking, timeout))

    def __enter__(self) -> bool:
        return Watched.acquire(self)


class Reentrant(Watched):
    """What a Condition does with its lock while it waits."""

    def _release_save(self) -> object:
        count = THREADS.held.count(self)
        for _ in range(count):
            THREADS.held.remove(self)
        return self._lock._release_save(), count

    def _acquire_restore(self, saved: tuple[object, int]) -> None:
        self._record(sys._getframe(1))
        self._lock._acquire_restore(saved[0])
        self._holder = THREADS.held
        self._holder += [self] * saved[1]


def _made_at(frame: FrameType) -> str | None:
    """The place in the project that makes a lock; None for others."""
    path = Path(frame.f_code.co_filename)
    if ".venv" in path.parts:
        return None
    for root in ROOTS:
        if path.is_relative_to(root):
            return f"{path.relative_to(root)}:{frame.f_lineno}"
    return None


def _lock() -> Any:
    place = _made_at(sys._getframe(1))
    return LOCK() if place is None else Signal(LOCK(), place)


def _rlock() -> Any:
    place = _made_at(sys._getframe(1))
    return RLOCK() if place is None else Reentrant(RLOCK(), place)


def pytest_configure(config: pytest.Config) -> None:
    """Record from now on. This module is a plugin of pytest."""
    ROOTS.append(config.rootpath)
    vars(threading).update(Lock=_lock, RLock=_rlock)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what this process has recorded."""
    vars(threading).update(Lock=LOCK, RLock=RLOCK)
    path = Path(os.environ[_FOLDER]) / str(os.getpid())
    path.write_text(json.dumps([[*step, stack] for step, stack in STEPS.items()]), "utf-8")


def circles(steps: Iterable[Step]) -> list[list[Step]]:
    """Of each set of places that all lead to each other, the steps within it."""
    onward: dict[str, set[str]] = defaultdict(set)
    for first, second in steps:
        onward[first].add(second)

    def beyond(place: str) -> frozenset[str]:
        seen: set[str] = set()
        left = [place]
        while left:
            fresh = onward.get(left.pop(), set()) - seen
            seen |= fresh
            left += fresh
        return frozenset(seen)

    reached = {place: beyond(place) for place in list(onward)}
    found = {
        frozenset(other for other in there if place in reached.get(other, ()))
        for place, there in reached.items()
        if place in there
    }
    return [
        sorted(step for step in steps if step[0] in each and step[1] in each)
        for each in sorted(found, key=sorted)
    ]


def _recorded(folder: Path) -> Mapping[Step, str]:
    steps: dict[Step, str] = {}
    for path in folder.iterdir():
        for first, second, stack in json.loads(path.read_text("utf-8")):
            steps.setdefault((first, second), stack)
    return steps


def main(given: list[str]) -> int:
    devices = [option for name in DEVICES for option in ("--device", name)]
    chosen = given or ["-m", "", *devices, *TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.locks", *chosen]
    with tempfile.TemporaryDirectory() as name:
        environment = os.environ | {_FOLDER: name}
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        steps = _recorded(Path(name))
    found = circles(steps)
    for circle in found:
        print("locks that are taken in a circle:")
        for step in circle:
            print(f"  {step[0]}, then {step[1]}:\n{steps[step]}")
    print(f"{len(steps)} orders of two locks, {len(found)} circles")
    return done.returncode or bool(found) or not steps


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
