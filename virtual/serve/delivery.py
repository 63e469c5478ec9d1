"""Interrupts of one client: the line (INTx), messages (MSI), and messages by a table (MSI-X).

A client enables one type at a time (Linux drivers/vfio/pci/vfio_pci_intrs.c). The line is masked
when it is delivered, until the client unmasks it; what the device raises meanwhile is delivered
then. Of MSI-X's vectors those with an eventfd are enabled in the device's table.
"""

from __future__ import annotations

import threading

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.transport.vfio_user.wire import Interrupt
from ugpu.hcq.uapi import constants
from ugpu.virtual.serve.events import Events

_MESSAGES = (Interrupt.MSI, Interrupt.MSIX)


class Delivery:
    """The eventfds of all types, and the type that is enabled. Thread-safe."""

    def __init__(self, vectors: int) -> None:
        """vectors: the messages that the model sends."""
        self._vectors = vectors
        self._events = {Interrupt.MSI: Events(vectors)}
        self._lock = threading.Lock()
        self._enabled: Interrupt | None = None
        self._masked = self._pending = False  # the line

    def offer(self, *, line: bool, table: int) -> None:
        """Offer the line, and `table` messages by a table, of a device that sends interrupts."""
        if self._vectors and line:
            self._events[Interrupt.INTX] = Events(1)
        if self._vectors and table:
            self._events[Interrupt.MSIX] = Events(table)

    def count(self, index: int) -> int:
        """Return the number of interrupts of a type; 0 for a type that is not offered."""
        events = self._events.get(Interrupt(index))
        return 0 if events is None else events.count

    def flags(self, index: int) -> int:
        """Return the VFIO_IRQ_INFO flags of a type."""
        names = constants("vfio")
        if not self.count(index):
            return 0
        if index == Interrupt.INTX:
            return int(
                names.VFIO_IRQ_INFO_EVENTFD
                | names.VFIO_IRQ_INFO_MASKABLE
                | names.VFIO_IRQ_INFO_AUTOMASKED
            )
        return int(names.VFIO_IRQ_INFO_EVENTFD | names.VFIO_IRQ_INFO_NORESIZE)

    def messages(self) -> frozenset[int]:
        """Return the vectors of MSI-X that have an eventfd."""
        return self._events[Interrupt.MSIX].assigned()

    # ---- the client --------------------------------------------------------------------------

    def assign(self, index: int, start: int, count: int, events: list[int]) -> None:
        """Assign eventfds, see Events.assign, and enable the type. BadArgument if another one is
        enabled."""
        kind = Interrupt(index)
        with self._lock:
            if self._enabled not in (None, kind):
                raise BadArgument(f"expected interrupts of one type, {self._enabled} is enabled")
            self._events[kind].assign(start, count, events)
            self._enabled = kind
            self._masked = self._pending = False

    def disable(self, index: int) -> None:
        """Remove all eventfds of a type."""
        kind = Interrupt(index)
        with self._lock:
            self._events[kind].assign(0, self._events[kind].count, [])
            if self._enabled is kind:
                self._enabled = None

    def mask(self, masked: bool) -> None:
        """Mask or unmask the line."""
        with self._lock:
            self._masked = masked
            again = not masked and self._pending
            if again:
                self._pending, self._masked = False, True
        if again:
            self._events[Interrupt.INTX].signal(0)

    def trigger(self, index: int, vector: int) -> None:
        """Signal an eventfd as the device would."""
        if index == Interrupt.INTX:
            self._raise_line()
        else:
            self._events[Interrupt(index)].signal(vector)

    # ---- the device --------------------------------------------------------------------------

    def signal(self, vector: int) -> None:
        """Deliver an interrupt by the type that is enabled; nothing without one."""
        enabled = self._enabled
        if enabled is Interrupt.INTX:
            self._raise_line()
        elif enabled in _MESSAGES:
            self._events[enabled].signal(vector)

    def _raise_line(self) -> None:
        with self._lock:
            if self._masked:
                self._pending = True
                return
            self._masked = True
        self._events[Interrupt.INTX].signal(0)

    # ---- life --------------------------------------------------------------------------------

    def release(self) -> None:
        """See Events.release."""
        for events in self._events.values():
            events.release()

    def close(self) -> None:
        """See Events.close."""
        for events in self._events.values():
            events.close()
