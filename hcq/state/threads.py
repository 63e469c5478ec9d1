"""Starting threads, which the system may refuse.

A Ctrl-C inside `start` may leave a thread that runs, or one that never will. An object that starts
its one thread when it is first needed must get neither two of them nor none:

    start:   under its lock, if not was_started(self._thread): store a new thread, then start it
    thread:  first, under that lock, end if another one is stored
    join:    only a thread that was_started
"""

from __future__ import annotations

import threading
from typing import TypeGuard

from ugpu.hcq.errors import OutOfMemory


def start(thread: threading.Thread) -> None:
    """Start a thread. OutOfMemory if the system cannot start more; the thread then never
    existed."""
    try:
        thread.start()
    except RuntimeError as error:
        raise OutOfMemory(
            f"the system could not start thread {thread.name!r}: {error}",
            threads=threading.active_count(),
            remedy="raise the limit of processes (ulimit -u, pids.max of the control group), or "
            "close other devices",
        ) from error


def was_started(thread: threading.Thread | None) -> TypeGuard[threading.Thread]:
    """Return whether a thread has begun to run; it may have ended since."""
    return thread is not None and thread.ident is not None
