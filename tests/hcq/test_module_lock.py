"""What a module builds once is there for all threads, whoever keeps the lock of its making."""

from __future__ import annotations

import threading

from hcq.cpu import processor
from hcq.life import ModuleLock


def test_native_code_that_is_built_needs_no_lock() -> None:
    built = processor.native()
    found: list[object] = []
    with processor._build_lock.lock:  # as a thread does that was cut off before it released it
        other = threading.Thread(target=lambda: found.append(processor.native()), daemon=True)
        other.start()
        other.join(60)
    assert found == [built]


def test_a_child_of_a_fork_has_a_free_lock() -> None:
    lock = ModuleLock()
    taken: list[bool] = []
    with lock.lock:
        lock.abandon()
        other = threading.Thread(target=lambda: taken.append(lock.lock.acquire(blocking=False)))
        other.start()
        other.join()
    assert taken == [True]
