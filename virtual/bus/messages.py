"""Message-signalled interrupts of a virtual card, as its host sees them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ugpu.hcq.errors import BadArgument, Closed


class MessageInterrupts:
    """MSI or MSI-X as the host sees it; vector 0 is enabled from the start.

    assign: enables vectors 0 to `count` - 1 in the card.
    """

    def __init__(
        self, vectors: int = 1, assign: Callable[[int], object] = lambda count: None
    ) -> None:
        self.vectors = vectors
        self._assign = assign
        self._came = [threading.Event() for _ in range(vectors)]
        self._enabled = 1
        self._closed = False

    def close(self) -> None:
        """Wake waiting threads with Closed."""
        self._closed = True
        for came in self._came:
            came.set()

    def enable(self, count: int) -> None:
        """Enable vectors 0 to `count` - 1; BadArgument for more than the card has."""
        if not 1 <= count <= self.vectors:
            raise BadArgument(
                f"requested {count} interrupt vectors, the card has {self.vectors}",
                wanted=count,
                vectors=self.vectors,
            )
        self._enabled = max(self._enabled, count)
        self.restore()

    def restore(self) -> None:
        """Enable in the card what was enabled before its reset."""
        self._assign(self._enabled)

    def signal(self, vector: int = 0) -> None:
        """Receive a message from the card."""
        self._came[vector].set()

    def wait(self, limit_s: float, vector: int = 0) -> bool:
        """Block until a message has arrived since the last call; False after `limit_s`."""
        if not 0 <= vector < self._enabled:
            raise BadArgument("the vector is not enabled", vector=vector, enabled=self._enabled)
        came = self._came[vector].wait(limit_s)
        if self._closed:
            raise Closed("the interrupts' transport is closed")
        if came:
            self._came[vector].clear()
        return came
