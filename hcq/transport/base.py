"""The transport protocol: the only way a driver accesses hardware.

A transport is one PCI function (or its equivalent): configuration space, windows (BARs), DMA memory
with its bus addresses, interrupts, reset, and whether the device is still present. A driver is
given a transport and never searches for one. One thread at a time may use a transport, except
`Interrupts.wait`, which may block in a separate thread, and `close`, which may come from any
thread.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.transport.bulk import BulkMemory, StagedMemory
from ugpu.hcq.transport.view import HostView


@dataclass(frozen=True)
class PciIdentity:
    """Identity of a transport's function, from its configuration space.

    Attributes:
        vendor: id of the vendor.
        device: id of the device.
        revision: of the device.
        subsystem_vendor: id of the board's vendor.
        subsystem_device: id of the board.
        class_code: 24 bits: class, subclass, interface.
    """

    vendor: int
    device: int
    revision: int = 0
    subsystem_vendor: int = 0
    subsystem_device: int = 0
    class_code: int = 0

    def __str__(self) -> str:
        return f"{self.vendor:04x}:{self.device:04x}"


@dataclass(frozen=True)
class DmaSegment:
    """A run of DMA memory that is contiguous on the bus.

    Attributes:
        address: of the first byte, for the device.
        size: in bytes.
    """

    address: BusAddr
    size: int


class ResetKind(enum.Enum):
    """Scope of a reset. A transport rejects unsupported kinds with NotSupported."""

    FUNCTION = "function"  # FLR
    BUS = "bus"  # secondary bus reset
    POWER = "power"


@dataclass(frozen=True)
class Traits:
    """Capabilities of a transport.

    Attributes:
        any_order: accesses may come in any order and number (a replay requires the recorded ones).
        counts_interrupts: `Interrupts.wait` returns True exactly once for each interrupt that
            arrived.
        host_memory: DMA memory is memory of this process, without a limit. If False, only
            `dma_bytes` of it exist in all, and its view is a RemoteView: each access is a message,
            and raises DeviceLost once the device is gone. The driver then keeps rings and counters
            in the device, and copies through `bulk` or `staged`, whichever exists.
        dma_bytes: see `host_memory`.
        bulk: memory for copies, or None.
        staged: memory for copies, or None.
        resets: kinds that `reset` may be able to do; it rejects all others.
        register_messages: each register access is a message over a link, many times slower than an
            access to a mapped BAR; reading a block of neighbouring registers costs less than
            reading each of them. The driver then does not read registers whose value it has, and
            reads neighbours as a block.
        capabilities: places of the function's capabilities in configuration space, by id, if known.
    """

    any_order: bool = True
    counts_interrupts: bool = True
    host_memory: bool = True
    dma_bytes: int = 0
    bulk: BulkMemory | None = None
    staged: StagedMemory | None = None
    resets: frozenset[ResetKind] = frozenset({ResetKind.FUNCTION, ResetKind.BUS})
    register_messages: bool = False
    capabilities: Mapping[int, int] = field(default_factory=dict)


class Window(Protocol):
    """A BAR. Offsets and sizes are bytes; accesses must be naturally aligned and inside `size`.

    read32 and similar methods are exactly one bus access each. `read` and `write` move blocks
    (multiples of 4 bytes at 4-byte aligned offsets) in pieces chosen by the transport. Use them for
    memory only, never for registers with side effects. They may be used for registers only if the
    transport's traits allow it (register_messages); they then move dwords. Raises BadArgument for a
    bad offset or size, and DeviceLost when the transport detects that the device is gone (a read
    may also return all ones).
    """

    @property
    def index(self) -> int: ...
    @property
    def size(self) -> int: ...

    def read32(self, offset: int) -> int: ...
    def write32(self, offset: int, value: int) -> None: ...
    def read64(self, offset: int) -> int: ...
    def write64(self, offset: int, value: int) -> None: ...
    def read(self, offset: int, size: int) -> bytes: ...
    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None: ...


class DmaMemory(Protocol):
    """Host memory that the device can access; owned by the caller, freed by `close` (idempotent).

    Attributes:
        size: in bytes.
        segments: cover it in order.

    `view` is writable, coherent, and zero-filled at first.
    """

    size: int

    @property
    def view(self) -> HostView: ...

    segments: Sequence[DmaSegment]

    def close(self) -> None: ...


@runtime_checkable
class Placing(Protocol):
    """A transport whose caller may choose the bus address of DMA memory, so that a device which
    outlived its process finds memory where the former process had it."""

    def place_dma(self, size: int, address: BusAddr) -> DmaMemory:
        """Allocate memory in one run at `address`; see Transport.allocate_dma. OutOfMemory if the
        bus addresses are in use, or not the device's."""
        ...


class Interrupts(Protocol):
    """Message-signalled interrupts (MSI-X or MSI) of the function: one or several vectors.

    Vector 0 is delivered from the start; `enable` requests more. Each vector is counted separately,
    and several interrupts of a vector may be seen as one.
    """

    @property
    def vectors(self) -> int:
        """Number of vectors of the function, at least 1."""
        ...

    def enable(self, count: int) -> None:
        """Enable vectors 0 to `count` - 1; BadArgument for more than the function has.

        Enabled vectors stay enabled. Messages that the device sends during this call may be
        lost: enable all before the device may send any.
        """
        ...

    def wait(self, limit_s: float, vector: int = 0) -> bool:
        """Block until an interrupt has arrived on `vector` since the last call; False after
        `limit_s`. BadArgument for a vector that is not enabled."""
        ...


class Transport(Protocol):
    """One function. A context manager; `close` is idempotent and releases all windows and memory.

    Attributes:
        name: as opened.
        identity: from its configuration space.
        traits: its capabilities.

    `clock` is time as this transport counts it. Drivers wait, sleep and read the time by this clock
    alone, in any thread, even after `close`. The same object each time.
    """

    name: str
    identity: PciIdentity
    traits: Traits

    @property
    def clock(self) -> Clock: ...

    def config_read(self, offset: int, width: int = 4) -> int:
        """Read 1, 2 or 4 bytes of configuration space."""
        ...

    def config_write(self, offset: int, value: int, width: int = 4) -> None: ...

    def window(self, index: int) -> Window:
        """Open BAR `index` (0 to 5). The same object each time. BadArgument if there is none."""
        ...

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> DmaMemory:
        """Allocate `size` bytes (rounded up to 4096) of device-reachable host memory."""
        ...

    def batch(self) -> AbstractContextManager[None]:
        """Combine the register writes of this block if each of them is a message.

        They arrive in order, at the end of the block or before any access that must come after
        them: a read, a block of memory, configuration space. Not for blocks that sleep after a
        write, or that read memory for its effect. Does nothing if a BAR is mapped.
        """
        ...

    @property
    def interrupts(self) -> Interrupts | None:
        """The interrupts; None if the transport cannot deliver them, in which case the driver
        polls."""
        ...

    def reset(self, kind: ResetKind) -> None: ...

    def facts(self) -> dict[str, object]:
        """Return facts about the path to the function, for reports, without an access to it."""
        ...

    def sensors(self) -> Sequence[Sensor]:
        """Return sensors on the path to the function; each is read when requested, in any
        thread."""
        ...

    def present(self) -> bool:
        """Return whether the function still answers in configuration space."""
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
