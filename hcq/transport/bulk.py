"""Memory between host and device that is filled and emptied by whole transfers.

Used by a transport whose host memory the device cannot access (Traits.bulk). The host cannot see
when the data that it has sent arrives: the device polls for a mark after it. Data that the device
has put there goes to the host after both are ready.

With another kind (Traits.staged), the data has arrived when its transfer has ended, and it is read
like registers. This is simpler, but nothing else runs during a transfer, and only a little of the
memory can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from ugpu.hcq.state.memory import BusAddr

Data: TypeAlias = bytes | bytearray | memoryview


class Signals(Protocol):
    """Memory that the device writes at any time and the host reads at the cost of few transfers. A
    write by the host costs one transfer for each byte that differs.

    Attributes:
        signals: the device's address of it.
        signals_size: in bytes.
    """

    signals: BusAddr
    signals_size: int

    def read_signals(self, start: int, size: int) -> bytes:
        """Return bytes of `signals` from `start` on."""
        ...

    def write_signals(self, start: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes of `signals` that the device does not write meanwhile."""
        ...


class StagedMemory(Signals, Protocol):
    """Memory that the host fills from its start on. Any thread; one transfer at a time.

    Attributes:
        address: the device's address of it.
        size: in bytes.
        readable: the host reads this many bytes from the start.
        spare: a page in the device's view that has no other use.
    """

    address: BusAddr
    size: int
    readable: int
    spare: BusAddr

    def fill(self, data: bytes | bytearray | memoryview) -> None:
        """Put data at the start; it has arrived when this returns. The old content behind it may be
        lost."""
        ...

    def read(self, size: int) -> bytes:
        """Return the first `size` bytes."""
        ...


class BulkMemory(Signals, Protocol):
    """Memory for whole transfers, in granules; sizes and offsets are bytes. One transfer takes
    place at a time; any thread may begin one.

    Attributes:
        address: the device's address of it.
        size: in bytes.
        granule: size and alignment of a transfer.
        fence: address where the device writes 8 bytes that the host reads at the cost of one
            transfer.
        start: address where the device reads a dword, 0 to 255, that the host writes at the cost of
            one transfer.
        release: address where the device writes a dword to let a receive begin.
        spare: a page in the device's view that has no other use.
        results: address of memory that the device writes at any time and the host reads.
        results_size: in bytes.
    """

    address: BusAddr
    size: int
    granule: int
    fence: BusAddr
    start: BusAddr
    release: BusAddr
    spare: BusAddr
    results: BusAddr
    results_size: int

    def send(self, offset: int, size: int, pieces: Iterable[Data]) -> None:
        """Send `size` bytes to `offset`, a multiple of `granule`, in pieces, each but the last a
        multiple of 1024. They arrive in ascending order, perhaps after this call has returned.
        Bytes after them, up to a multiple of 512, become zero. Each piece is requested while the
        previous one is in flight; the iterator may use fence and start."""
        ...

    def receive(
        self,
        offset: int,
        sizes: Sequence[int],
        begun: Callable[[], object],
        arrived: Callable[[int, bytes], object],
    ) -> None:
        """Receive from `offset`, a multiple of `granule`, in pieces of these sizes, each but the
        last a multiple of 1024. begun: called when everything is ready; it must make the device
        write to `release` soon. arrived: called with each piece's position and data while later
        ones are in flight. Both may use fence and start."""
        ...

    def read_fence(self) -> int:
        """Return the 64 bits at `fence`."""
        ...

    def read_results(self, size: int) -> bytes:
        """Return the first `size` bytes of `results`."""
        ...

    def clear_results(self) -> None:
        """Set the first dword of `results` to zero; the device must not write it meanwhile."""
        ...

    def write_start(self, value: int) -> None:
        """Write 0 to 255 to `start`."""
        ...

    def clear(self) -> None:
        """Set fence and start to zero; the device must not write either during the call."""
        ...
