"""Images of commands in their own memory: captured graphs, and images too large for an arena."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import numpy as np

from ugpu.hcq.transport.view import HostView
from ugpu.hcq.work.command_buffer import CommandBuffer
from ugpu.hcq.work.queue import Resident


class CommandMemory(Protocol):
    """Memory that holds an image, for device and host."""

    @property
    def address(self) -> int: ...
    @property
    def view(self) -> HostView: ...


M = TypeVar("M", bound=CommandMemory)


class OwnImage(Resident, Generic[M]):
    """An image in memory of its own.

    Attributes:
        kernels: names of the kernels that it launches.
        memory: owned; None once it is freed.
    """

    memory: M | None = None

    def __init__(
        self, buffer: CommandBuffer, allocate: Callable[[int], M], free: Callable[[M], None]
    ) -> None:
        """allocate: returns memory of so many bytes."""
        self.kernels = buffer.kernels
        self._free = free
        count = len(buffer.words)
        try:
            self.memory = memory = allocate(4 * max(count, 1))
            self.address = int(memory.address)
            self.take(memory.view, count)
        except BaseException:
            self.close()
            raise

    def take(self, view: HostView, count: int) -> None:
        """Set `words`, of which there are `count`."""
        assert isinstance(view, memoryview)
        self.words = np.frombuffer(view, np.uint32)[:count]

    def close(self) -> None:
        if self.memory is not None:
            self.words = np.zeros(0, np.uint32)  # releases the memory's view
            self._free(self.memory)
            self.memory = None
