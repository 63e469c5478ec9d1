"""Starting threads, which the system may refuse."""

from __future__ import annotations

import threading

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
