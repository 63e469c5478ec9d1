"""The rows of `compiler_works` and `compiler_models` with two threads, ours and the peers' alike:
the process and all it starts run on two processors. Skipped on a machine with one.

Peers start as many threads as there are processors when they are loaded, so that nothing here loads
them before. Compare `ratio`, of wall time: a peer's thread that waits burns processor time.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

THREADS = 2
SUBJECTS = ("lab.bench.compiler.bench_compiler_works", "lab.bench.models.bench_compiler_models")


def measure() -> list[dict[str, object]]:
    available = sorted(os.sched_getaffinity(0))
    if len(available) < THREADS:
        return [{"name": "works on two threads", "skipped": "this machine has one processor"}]
    os.sched_setaffinity(0, available[:THREADS])
    rows: list[dict[str, Any]] = []
    for subject in SUBJECTS:
        rows += import_module(subject).measure()
    return [row | {"name": f"{row['name']}, two threads"} for row in rows]
