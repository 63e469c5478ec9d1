"""A transport around another one that reports every access. Decoding registers is left to the
listener. Memory shared by DMA is used without accesses, so its use is not seen."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ugpu.hcq.state.instruction import Culprit, take_culprit
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.transport.base import DmaMemory, Interrupts, PciIdentity, ResetKind, Transport, Window
from ugpu.hcq.transport.life import TransportLife

CONFIG = -1  # the "window" of configuration space


@dataclass(frozen=True)
class Access:
    """One access.

    Attributes:
        window: BAR index or CONFIG.
        offset: in bytes.
        width: in bytes.
        is_write: otherwise a read.
        value: of 1 to 8 bytes, else None.
        data: of longer ones.
    """

    window: int
    offset: int
    width: int
    is_write: bool
    value: int | None
    data: bytes | None = None

    def __str__(self) -> str:
        place = "config" if self.window == CONFIG else f"bar{self.window}"
        verb = "write" if self.is_write else "read"
        shown = f"{self.value:#x}" if self.value is not None else f"{self.width} bytes"
        return f"{verb} {place} {self.offset:#x} {self.width} {shown}"


Listener = Callable[[Access], None]


class TracingWindow:
    """A window that reports its accesses. See TracingTransport."""

    def __init__(self, inner: Window, listener: Listener) -> None:
        self._inner = inner
        self._listener = listener
        self.index = inner.index

    @property
    def size(self) -> int:
        """Bytes of the window."""
        return self._inner.size

    def read32(self, offset: int) -> int:
        value = self._inner.read32(offset)
        self._listener(Access(self.index, offset, 4, False, value))
        return value

    def write32(self, offset: int, value: int) -> None:
        self._inner.write32(offset, value)
        self._listener(Access(self.index, offset, 4, True, value))

    def read64(self, offset: int) -> int:
        value = self._inner.read64(offset)
        self._listener(Access(self.index, offset, 8, False, value))
        return value

    def write64(self, offset: int, value: int) -> None:
        self._inner.write64(offset, value)
        self._listener(Access(self.index, offset, 8, True, value))

    def read(self, offset: int, size: int) -> bytes:
        data = self._inner.read(offset, size)
        self._listener(Access(self.index, offset, size, False, None, data))
        return data

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self._inner.write(offset, data)
        self._listener(Access(self.index, offset, len(data), True, None, bytes(data)))


class TracingTransport(TransportLife):
    """Reports each completed access of `inner` to `listener`, on the thread that made it.

    An access that raises is not reported. Owns `inner`: closing this closes it. windows: the BARs
    whose accesses are reported; None for all.
    """

    def __init__(
        self, inner: Transport, listener: Listener, *, windows: Container[int] | None = None
    ) -> None:
        super().__init__(inner.name)
        self.inner = inner
        self.listener = listener
        self.traits = inner.traits
        self.clock = inner.clock
        self.at_end(inner.close)
        self.identity: PciIdentity = inner.identity  # of the function behind it
        self._reported = windows
        self._windows: dict[int, TracingWindow] = {}

    @property
    def interrupts(self) -> Interrupts | None:
        """The inner transport's."""
        return self.inner.interrupts

    def config_read(self, offset: int, width: int = 4) -> int:
        value = self.inner.config_read(offset, width)
        self.listener(Access(CONFIG, offset, width, False, value))
        return value

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        self.inner.config_write(offset, value, width)
        self.listener(Access(CONFIG, offset, width, True, value))

    def window(self, index: int) -> Window:
        inner = self.inner.window(index)
        if self._reported is not None and index not in self._reported:
            return inner
        if index not in self._windows:
            self._windows[index] = TracingWindow(inner, self.listener)
        return self._windows[index]

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        return self.inner.allocate_dma(size, contiguous=contiguous)

    def batch(self) -> AbstractContextManager[None]:
        return self.inner.batch()

    def reset(self, kind: ResetKind) -> None:
        self.inner.reset(kind)

    def facts(self) -> dict[str, object]:
        """Return the inner transport's facts."""
        return self.inner.facts()

    def sensors(self) -> Sequence[Sensor]:
        """Return the inner transport's sensors."""
        return self.inner.sensors()

    def present(self) -> bool:
        return self.inner.present()

    def culprit(self, *, address: int | None = None, pc: int | None = None) -> Culprit | None:
        """See hcq.state.instruction.Witness: the inner transport's."""
        return take_culprit(self.inner, address=address, pc=pc)

    def __repr__(self) -> str:
        return f"<TracingTransport around {self.inner!r}>"
