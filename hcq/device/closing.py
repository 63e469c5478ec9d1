"""End of a device's life: closed, kept although dropped, or inherited by a forked child."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

from ugpu.hcq.errors import Closed, UgpuError
from ugpu.hcq.state import life, trace


class Gate:
    """State that decides whether a device may be given work now, in slots, which native code of a
    driver may read (hcq.cpu.direct)."""

    __slots__ = ("capturing", "closed", "closer", "failure", "launches", "replaying", "resets")


class Closing(Gate, ABC):
    """Closing of hcq.Device, and the errors of threads that use it meanwhile.

    Attributes:
        closer: the thread that is in `close`.
        inherited: the device belongs to a parent process.
        quiet: returns whether the device works and a wait for all its work would do nothing; False
            if this is unknown. A driver may set it.
        at_end: called once when the device has ended, by the thread that closed it, without the
            lock.
    """

    def __init__(self, name: str, lock: threading.RLock | None = None) -> None:
        """lock: the lock of a device that shares hardware with others; otherwise it gets its
        own."""
        self.name = name
        self.lock = lock or threading.RLock()
        self.closed = False
        self.ended = False  # `shutdown` has completed
        self.inherited = False
        self.closer: int | None = None
        self.failure: UgpuError | None = None
        self.quiet: Callable[[], bool] = bool  # False
        self.at_end: list[Callable[[], None]] = []

    def opened(self) -> None:
        """Keep the device until it is closed. A driver calls this at the end of its constructor."""
        life.device_opened(self)

    @abstractmethod
    def settle(self) -> None:
        """Wait until the device is idle or has failed; raises neither that failure nor a later
        one."""

    @abstractmethod
    def stop_helpers(self) -> None:
        """End everything besides the hardware that uses the device's memory: no thread uses it
        afterwards."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the hardware and release everything; called once, also after failures."""

    def check_usable(self) -> None:
        """Raise Closed or the device's failure, for operations that are about to begin."""
        if self.closer is not None and self.closer != threading.get_ident():
            raise Closed(f"{self.name} is being closed by another thread")
        self.check_alive()

    def check_alive(self) -> None:
        """Raise the same for waits: work in flight continues while another thread is in `close`."""
        self.check_open()
        if self.failure is not None:
            raise self.failure

    def check_open(self) -> None:
        """Raise Closed after `close`, and in a forked child."""
        if self.inherited:
            raise Closed(
                f"{self.name} was opened by the parent process: open it again in this process"
            )
        if self.closed:
            raise Closed(f"{self.name} is closed")

    def close(self) -> None:
        """Wait for work in flight, then shut down; idempotent. Does not raise failures that the
        device reports for that work, or reported before. Other threads get Closed from now on;
        their waits end first, if the work ends."""
        mine = False
        try:
            with self.lock:
                if self.ended or self.inherited or self.closer == threading.get_ident():
                    return
                mine = True
                self.closer = self.closer or threading.get_ident()
            self.settle()
            self.stop_helpers()
            with self.lock:
                if not self.ended:
                    self._end()
        finally:
            if mine:
                self.closer = None
            while self.ended and self.at_end:
                self.at_end.pop()()

    def _end(self) -> None:
        try:
            self.shut_down()
            life.device_closed(self)
        except UgpuError:  # a device that did not shut down is kept as it is
            self.closed = self.ended = True
            raise
        except BaseException:  # Ctrl-C: `close` can be called again
            self.closed = True
            raise
        self.closed = True
        self.ended = True

    def shut_down(self) -> None:
        """Call `shutdown`; subclasses override this to end further parts with it."""
        with trace.step("close", device=self.name):
            self.shutdown()

    def abandon(self) -> None:
        """Become closed in a forked child: the device, its threads and its memory belong to the
        parent. Touches none of them, and takes no lock, since a thread of the parent may have held
        it."""
        self.closed = self.inherited = True
        self.lock = threading.RLock()
        self.failure = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
