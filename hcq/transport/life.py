"""The life of a transport: opened once, closed once, dropped by a fork, closed at the latest when
the process ends.

A forked child does not inherit devices: its copies of descriptors and mappings are dropped,
otherwise the child would keep the kernel from taking the device back, and could write its
registers. At the interpreter's end (also after Ctrl-C), open transports are closed, so that a
device that was taken from its driver goes back to it. A process that is killed leaves its device
bound to vfio-pci.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Protocol, Self

from ugpu.hcq.errors import Closed
from ugpu.hcq.state import life
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.transport.base import Traits

_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


class Closable(Protocol):
    """A part of a transport: a window, memory, interrupts."""

    def close(self) -> None: ...


def close_all(parts: Iterable[Closable | None]) -> None:
    """Close all parts, the last one first; a failure does not stop the others."""
    life.call_all(part.close for part in parts if part is not None)


def absence_of(transport: object) -> dict[str, object]:
    """Return the fact `reason` for a DeviceLost, if the transport, or the one that it wraps, knows
    why its device is no longer present."""
    while transport is not None:
        reason = getattr(transport, "absence", "")
        if reason:
            return {"reason": reason}
        transport = getattr(transport, "inner", None)
    return {}


def end_absence(transport: object) -> bool:
    """Take up a function that is absent only because the host was suspended: `present` reports it
    again, and the caller boots it anew. Return whether that was so. The function has its addresses
    and its command register, which Linux restores (drivers/pci/pci-driver.c, pci_pm_resume)."""
    while transport is not None:
        suspends = getattr(transport, "suspends", None)
        if isinstance(transport, TransportLife) and suspends is not None and suspends.forget():
            transport.absence = ""
            return True
        transport = getattr(transport, "inner", None)
    return False


class TransportLife:
    """The lifecycle shared by all transports. Each resource that opening acquires is released by a
    call that is registered with `at_end` right after. `close` makes these calls in reverse order; a
    call that fails does not keep the others from being made. An `__init__` that fails half-way
    calls `close` too. `lock` protects state shared by threads; the same thread may take it
    twice."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.traits = Traits()
        self.clock = Clock()
        self.lock = threading.RLock()
        self.closed = False
        self.absence = ""  # why `present` is False, if more is known than a missing response
        self._ends = contextlib.ExitStack()
        self._closer: int | None = None  # the thread that makes the registered calls
        self._drops: list[Callable[[], object]] = []
        self._opened = False

    def at_end(
        self, end: Callable[[], object], *, drop: Callable[[], object] | None = None
    ) -> None:
        """Have `close` call `end`; a forked child calls `drop` instead, which releases its copy
        without touching the device or any thread."""
        self._ends.callback(end)
        if drop is not None:
            self._drops.append(drop)

    def opened(self) -> None:
        """Note that the transport works: from now on a fork drops it in the child, and the end of
        the process closes it."""
        self._opened = True
        life.part_opened(self)
        life.inherits(self)

    def batch(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: each write is sent immediately. See Transport.batch."""
        return _NOTHING

    def facts(self) -> dict[str, object]:
        """Return no facts beyond the name. See Transport.facts."""
        return {}

    def sensors(self) -> Sequence[Sensor]:
        """Return no sensors. See Transport.sensors."""
        return ()

    def check_open(self) -> None:
        """Raise Closed after `close`, and in a forked child."""
        if self.closed:
            raise Closed(f"{self.name} was closed")

    def close(self) -> None:
        """Stop the device's DMA, then free windows, memory and descriptors. Idempotent, from any
        thread. The first caller does the work; if an exception interrupts it, a later call does the
        rest."""
        me = threading.get_ident()
        with self.lock:
            self.closed = True
            life.part_closed(self)
            life.inherits_no_more(self)
            if self._closer not in (None, me):
                return
            self._closer = me
        try:
            self._ends.close()  # each call is removed before it is made
        finally:
            self._closer = None

    def abandon(self) -> None:
        """Become closed in a forked child, which must not touch the parent's device."""
        self.lock = threading.RLock()  # a thread that the child lacks may hold the old one
        self._closer = None
        self.closed = True
        self._ends.pop_all()
        drops, self._drops = self._drops, []  # nothing is left for a grandchild to drop
        life.call_all(drops)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_opened", False) and not self.closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {getattr(self, 'identity', '')}>"
