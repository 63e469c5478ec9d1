"""BARs of the card behind the bridge, and the combining of writes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from ugpu.hcq.errors import BadArgument, UgpuError
from ugpu.usbgpu.bridge.interface import Bridge, Completion, Status, Tlp

_ALL_ONES = 0xFFFF_FFFF
_MOST = 4096  # bytes that are held back


class Combiner:
    """Accesses to memory space, in order. Within `batch`, register writes are held back, and runs
    of ascending addresses become one transfer. Thread-safe: a lock makes each access atomic."""

    def __init__(self, bridge: Bridge, check: Callable[[], None]) -> None:
        self._bridge = bridge
        self._check = check
        self._lock = threading.RLock()
        self._depth = 0
        self._first = 0  # address of the writes held back
        self._held = bytearray()

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """See Transport.batch. Writes made before an exception are sent, too."""
        with self._lock:
            before = self._depth
            try:
                self._depth = before + 1
                yield
            except BaseException:
                with contextlib.suppress(UgpuError):  # the first error is the useful one
                    self._leave(before)
                raise
            else:
                self._leave(before)

    def _leave(self, depth: int) -> None:
        self._depth = depth
        if not depth:
            self.flush()

    def flush(self) -> None:
        """Send the writes held back. Those interrupted by an exception other than ours are sent
        again."""
        with self._lock:
            if self._held:
                try:
                    self._bridge.write_memory(self._first, bytes(self._held))
                except UgpuError:
                    self._held = bytearray()
                    raise
                self._held = bytearray()

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Write whole dwords."""
        with self._lock:
            self._check()
            size = len(data)
            if self._held and (
                address != self._first + len(self._held) or len(self._held) + size > _MOST
            ):
                self.flush()
            if self._depth and size <= _MOST:
                if not self._held:
                    self._first = address
                self._held += data
                return
            self.flush()
            self._bridge.write_memory(address, data)

    def read32(self, address: int) -> int:
        """Read a dword; all ones where no function takes the request, or it is not completed."""
        with self._lock:
            self._check()
            self.flush()
            done: Completion = self._bridge.request(Tlp.MEMORY_READ, address)
            return done.value if done.status is Status.OK else _ALL_ONES

    def read(self, address: int, size: int) -> bytes:
        """Read whole dwords of memory; all ones where the card does not answer."""
        with self._lock:
            self._check()
            self.flush()
            if size == 4:
                return self.read32(address).to_bytes(4, "little")
            data = self._bridge.read_block(Tlp.MEMORY_READ, address, size)
            return b"\xff" * size if data is None else data


class BridgeWindow:
    """A BAR of the card. See hcq.transport.base.Window. A 64-bit access is two of 32 bits, the low
    half first."""

    def __init__(self, combiner: Combiner, index: int, address: int, size: int) -> None:
        self.index = index
        self.size = size
        self._combiner = combiner
        self._address = address

    def read32(self, offset: int) -> int:
        """Read one register: two transfers."""
        self._check(offset, 4, 4)
        return self._combiner.read32(self._address + offset)

    def write32(self, offset: int, value: int) -> None:
        """Write one register: one transfer."""
        self._check(offset, 4, 4)
        self._combiner.write(self._address + offset, _bytes(value, 4))

    def read64(self, offset: int) -> int:
        """Read two registers: four transfers."""
        self._check(offset, 8, 8)
        low = self._combiner.read32(self._address + offset)
        return low | self._combiner.read32(self._address + offset + 4) << 32

    def write64(self, offset: int, value: int) -> None:
        """Write two registers: two transfers."""
        self._check(offset, 8, 8)
        self._combiner.write(self._address + offset, _bytes(value, 8))

    def read(self, offset: int, size: int) -> bytes:
        """Read a block of memory: two transfers for each MiB, plus one."""
        self._check(offset, size, 4)
        return self._combiner.read(self._address + offset, size) if size else b""

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write a block of memory: two transfers for each MiB."""
        view = memoryview(data).cast("B") if data else memoryview(b"")
        self._check(offset, len(view), 4)
        if view:
            self._combiner.write(self._address + offset, view)

    def close(self) -> None:
        """No-op: the window owns nothing."""

    def _check(self, offset: int, size: int, align: int) -> None:
        misfit = (offset | size) & (align - 1)
        if offset < 0 or size < 0 or misfit or offset + size > self.size:
            raise BadArgument(
                f"BAR {self.index}: accesses must be aligned to their width and inside the window",
                offset=offset, width=size, size=self.size,
            )  # fmt: skip

    def __repr__(self) -> str:
        return f"<BridgeWindow BAR {self.index}, {self.size} bytes>"


def _bytes(value: int, width: int) -> bytes:
    if not 0 <= value < 1 << 8 * width:
        raise BadArgument(f"the value must fit in {8 * width} bits", value=value)
    return value.to_bytes(width, "little")
