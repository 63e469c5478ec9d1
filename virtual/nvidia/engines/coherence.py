"""Visibility of writes: detects missing barriers and invalidations of global data.

Memory of the model is coherent, so stale data is never read. With `MachineOptions.coherence` the
model records, by pages of 4 KiB, what hardware holds in caches and in flight. Each access that a
chip may get wrong is a violation:

- A grid reads a page whose content has changed since a grid read it, without an invalidation of
  global data in between: the first level cache of a multiprocessor is not coherent with anything
  (PTX ISA 8.x, "Cache Operators": the driver invalidates between dependent grids).
- An engine or a multiprocessor reads data that another engine wrote and no barrier made visible. A
  grid's barrier at its end is CWD_MEMBAR_TYPE (cl*qmd.h), a copy's is FLUSH_ENABLE (cl*b5.h).
  Releases have their own: RELEASE_MEMBAR_TYPE, FLUSH_DISABLE, RELEASE_WFI. For RELEASE_WFI the host
  waits for the engine and inserts a barrier for system memory (dev_pbdma.ref.txt). The second level
  cache is coherent for all engines of a GPU; the CPU and other GPUs need the system barrier.
- A release in system memory happens while the channel's own writes there are not yet visible to the
  CPU, which may be waiting for it.

UNSURE: that a release with wait-for-idle makes visible the writes of a grid without any barrier;
that a page which two engines share needs no more than its lines do.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ugpu.virtual.nvidia.memory.watched import PAGE


class Scope(enum.IntEnum):
    """Observers to which a write is visible."""

    NOBODY = 0
    GPU = 1  # all engines of the GPU
    SYSTEM = 2  # the CPU and other GPUs too


# CWD_MEMBAR_TYPE: L1_NONE, L1_SYSMEMBAR, L1_MEMBAR
GRID_SCOPES = {0: Scope.NOBODY, 1: Scope.SYSTEM, 3: Scope.GPU}


@dataclass
class _Write:
    who: str
    gpu: int
    scope: Scope


def pages_of(runs: Iterable[tuple[int, int]]) -> set[int]:
    """Return the pages of pieces (address in this process, length)."""
    return {
        page
        for address, length in runs
        for page in range(address // PAGE, (address + length - 1) // PAGE + 1)
    }


class Coherence:
    """State of one machine. Any thread may call. Engines are distinguished by identity.

    is_system: whether a page of this process is system memory, not the memory of a GPU.
    """

    def __init__(self, is_system: Callable[[int], bool]) -> None:
        self._is_system = is_system
        self._lock = threading.Lock()
        self._writes: dict[int, dict[int, _Write]] = {}  # by page, then engine
        self._pages: dict[int, set[int]] = {}  # by engine: pages not visible to all

    def wrote(self, engine: object, gpu: int, who: str, pages: set[int], scope: Scope) -> None:
        """Record that an engine has written pages, visible in `scope` so far."""
        with self._lock:
            mine = self._pages.setdefault(id(engine), set())
            for page in pages:
                if scope is Scope.SYSTEM:
                    self._take_out(id(engine), page)
                else:
                    mine.add(page)
                    self._writes.setdefault(page, {})[id(engine)] = _Write(who, gpu, scope)

    def barrier(self, engine: object, scope: Scope) -> None:
        """Record that all writes of an engine so far are now visible in `scope`."""
        with self._lock:
            for page in list(self._pages.get(id(engine), ())):
                write = self._writes[page][id(engine)]
                write.scope = max(write.scope, scope)
                if write.scope is Scope.SYSTEM:
                    self._take_out(id(engine), page)

    def read(self, engine: object, gpu: int, who: str, pages: set[int]) -> list[str]:
        """Return the violations of a read of pages by an engine now."""
        wrong: dict[str, int] = {}
        with self._lock:
            for page in pages:
                for writer, write in self._writes.get(page, {}).items():
                    need = Scope.GPU if write.gpu == gpu else Scope.SYSTEM
                    if writer != id(engine) and write.scope < need:
                        wrong[write.who] = wrong.get(write.who, 0) + 1
        return [
            f"{who} reads {count} pages that {writer} wrote, and no barrier has made that visible"
            for writer, count in wrong.items()
        ]

    def released(self, engines: Sequence[object], who: str, page: int) -> list[str]:
        """Return the violations of a release in a page, by a channel with these engines."""
        if not self._is_system(page):
            return []
        wrong: dict[str, int] = {}
        with self._lock:
            for engine in engines:
                for written in self._pages.get(id(engine), ()):
                    if self._is_system(written) and written != page:
                        write = self._writes[written][id(engine)]
                        wrong[write.who] = wrong.get(write.who, 0) + 1
        return [
            f"{who} is seen by the CPU before {count} pages of the system's memory that {writer}"
            " wrote: no barrier has made them visible"
            for writer, count in wrong.items()
        ]

    def freed(self, address: int, size: int) -> None:
        """Forget memory of this process that is about to be reused."""
        with self._lock:
            for page in [page for page in self._writes if 0 <= page * PAGE - address < size]:
                for engine in list(self._writes[page]):
                    self._take_out(engine, page)

    def gone(self, engine: object) -> None:
        """Record that an engine's context was torn down, which leaves nothing in flight."""
        self.barrier(engine, Scope.SYSTEM)
        with self._lock:
            self._pages.pop(id(engine), None)

    def _take_out(self, engine: int, page: int) -> None:
        self._pages.get(engine, set()).discard(page)
        writes = self._writes.get(page)
        if writes is not None:
            writes.pop(engine, None)
            if not writes:
                del self._writes[page]
