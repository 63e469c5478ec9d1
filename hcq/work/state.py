"""What all parts of a device use of it.

hcq.device.core.Core, hcq.device.driver.Driver and hcq.device.device.Device are above these parts
and provide it. A part that uses more adds it beside its own class, for itself and for the parts
above: MemoryState (buffer), TimelineState, QueueState, GraphState.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ugpu.hcq.errors import UgpuError
    from ugpu.hcq.state.clock import Clock
    from ugpu.hcq.state.target import TargetSpec


class OpenDevice(Protocol):
    """The user's object, as parts of the device return it: see hcq.device.device.Device, and
    owner_of there for the whole."""

    @property
    def name(self) -> str: ...
    @property
    def target(self) -> TargetSpec: ...
    @property
    def clock_hertz(self) -> float: ...
    @property
    def limit_s(self) -> float: ...
    @limit_s.setter
    def limit_s(self, seconds: float) -> None: ...
    @property
    def idle(self) -> bool: ...
    @property
    def failure(self) -> UgpuError | None: ...
    @property
    def last_failure(self) -> UgpuError | None: ...
    @property
    def resets(self) -> int: ...
    @property
    def closed(self) -> bool: ...

    def info(self) -> Mapping[str, object]: ...
    def synchronize(self, limit_s: float | None = ...) -> None: ...
    def close(self) -> None: ...


class DriverPart(Protocol):
    """What all parts use of a driver: see hcq.device.driver.Driver."""

    @property
    def target(self) -> TargetSpec: ...
    @property
    def clock(self) -> Clock: ...

    def notify_memory_written(self) -> None: ...


class RetiredMemory(Protocol):
    """Memory that was released while work may still access it: see hcq.device.retired."""

    def drop(self, release: Callable[[], None]) -> None: ...
    def release(self, release: Callable[[], None]) -> None: ...


class DeviceState(Protocol):
    """The state of one device that its parts share: hcq.device.core.Core implements it.

    Attributes:
        lock: serialises submissions.
        name: as opened.
        closed: whether the device is closed.
        closer: the thread that is in `close`.
        failure: what the hardware reported, until a reset.
        limit_s: how long a wait may take if its caller gives no limit, in seconds.
        resets: number so far.
        launches: number of kernels so far.
        quiet: see hcq.device.closing.
    """

    lock: threading.RLock
    name: str
    closed: bool
    closer: int | None
    failure: UgpuError | None
    limit_s: float
    resets: int
    launches: int
    quiet: Callable[[], bool]

    @property
    def device(self) -> OpenDevice: ...
    @property
    def driver(self) -> DriverPart: ...
    @property
    def retired(self) -> RetiredMemory: ...
    @property
    def idle(self) -> bool: ...
    @property
    def cut_off(self) -> bool: ...

    def complete(self) -> None: ...
    def settle(self) -> None: ...
    def synchronize(self, limit_s: float | None = ...) -> None: ...
    def check_failures(self) -> None: ...
    def check_usable(self) -> None: ...
