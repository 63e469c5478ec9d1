"""Memory between host and device that is filled and emptied by whole transfers.

A transport whose host memory the device does not reach has it instead (Traits.bulk). The host
cannot see when data that it has sent is there: the device polls for a mark behind it. What the
device has put there goes to the host after both have said that they are ready.

Another kind (Traits.staged) has the data when a transfer to it has ended, and is read like
registers: simpler, but nothing goes on beside a transfer, and little of it can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from hcq.memory import BusAddr

Data: TypeAlias = bytes | bytearray | memoryview


class Signals(Protocol):
    """Memory of `signals_size` bytes that the device sees at `signals`, writes as it likes, and
    that the host reads at the cost of few transfers; a write costs one for each byte that differs.
    """

    signals: BusAddr
    signals_size: int

    def read_signals(self, start: int, size: int) -> bytes:
        """Bytes of `signals` from `start` on."""
        ...

    def write_signals(self, start: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes of `signals` that the device does not write meanwhile."""
        ...


class StagedMemory(Signals, Protocol):
    """`size` bytes that the device sees at `address`: the host fills them from the start on, and
    reads the first `readable` ones. spare: a page of the device's view that has no other use. Any
    thread; one transfer at a time.
    """

    address: BusAddr
    size: int
    readable: int
    spare: BusAddr

    def fill(self, data: bytes | bytearray | memoryview) -> None:
        """Put data at the start; it is there when this returns. What was behind it may be lost."""
        ...

    def read(self, size: int) -> bytes:
        """The first `size` bytes."""
        ...


class BulkMemory(Signals, Protocol):
    """`size` bytes that the device sees at `address`, in `granule`s; sizes and offsets are bytes.

    fence: where the device writes 8 bytes that the host reads at the cost of one transfer.
    start: where it reads a dword, 0 to 255, that the host writes at the cost of one transfer.
    release: where it writes a dword to let a receive begin. One transfer takes place at a time; any
    thread may begin one.
    """

    address: BusAddr
    size: int
    granule: int
    fence: BusAddr
    start: BusAddr
    release: BusAddr

    def send(self, offset: int, size: int, pieces: Iterable[Data]) -> None:
        """Send `size` bytes to `offset`, a multiple of `granule`, in pieces, each but the last a
        multiple of 1024. They arrive in ascending order, perhaps after this call has returned.
        Bytes behind them, up to a multiple of 512, become zero. A piece is asked for while the one
        before is under way; what makes it may use fence and start."""
        ...

    def receive(
        self,
        offset: int,
        sizes: Sequence[int],
        begun: Callable[[], object],
        arrived: Callable[[int, bytes], object],
    ) -> None:
        """Receive from `offset`, a multiple of `granule`, in pieces of these sizes, each but the
        last a multiple of 1024. begun: called when everything is ready; it must have the device
        write to `release` soon. arrived: called with each piece's position and data while later
        ones are under way. Both may use fence and start."""
        ...

    def read_fence(self) -> int:
        """The 64 bits at `fence`."""
        ...

    def write_start(self, value: int) -> None:
        """Write 0 to 255 to `start`."""
        ...

    def clear(self) -> None:
        """Set fence and start to zero; the device must not write either during the call."""
        ...
