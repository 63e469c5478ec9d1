"""Message-signalled interrupts of a virtual card, as its host sees them."""

from __future__ import annotations

import threading

from ugpu.hcq.errors import BadArgument, Closed


class MessageInterrupts:
    """MSI as the host sees it: one vector, as these boards have."""

    vectors = 1

    def __init__(self) -> None:
        self._came = threading.Event()
        self._closed = False

    def close(self) -> None:
        """Wake waiting threads with Closed."""
        self._closed = True
        self._came.set()

    def enable(self, count: int) -> None:
        """Check `count`: BadArgument for more than the one vector, which is always enabled."""
        if count != self.vectors:
            raise BadArgument(
                f"requested {count} interrupt vectors, the card has {self.vectors}",
                wanted=count,
                vectors=self.vectors,
            )

    def signal(self) -> None:
        """Receive a message from the card."""
        self._came.set()

    def wait(self, limit_s: float, vector: int = 0) -> bool:
        """Block until a message has arrived since the last call; False after `limit_s`."""
        if vector:
            raise BadArgument("the vector is not enabled", vector=vector, enabled=self.vectors)
        came = self._came.wait(limit_s)
        if self._closed:
            raise Closed("the interrupts' transport is closed")
        if came:
            self._came.clear()
        return came
