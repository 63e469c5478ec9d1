"""Device: the user's object for an open device.

Life cycle: created by hcq.open (registry), used, closed with `close`. It only forwards calls:
`hcq.device.core.Core` implements what is the same for all devices, `hcq.device.driver.Driver` the
rest. A vendor's subclass adds vendor-specific methods.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Self

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.checks import WORD, watts, whole
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.state.text import table
from ugpu.hcq.work.graph import Capture
from ugpu.hcq.work.queue import Queue, QueueKind
from ugpu.hcq.work.timeline import SIZE as TIMELINE_SIZE
from ugpu.hcq.work.timeline import Timeline

if TYPE_CHECKING:
    from ugpu.hcq.device.core import Core
    from ugpu.hcq.device.driver import Driver
    from ugpu.hcq.errors import UgpuError
    from ugpu.hcq.state.target import TargetSpec
    from ugpu.hcq.state.telemetry import Sensor
    from ugpu.hcq.work.buffer import Buffer
    from ugpu.hcq.work.program import Program
    from ugpu.hcq.work.recovery import Recovery

# Its `compile_source(device, source)` returns a Program.
_COMPILER = "ugpu.compiler.front.source"


# The devices whose `with` blocks the running code is in: the innermost is the default of tensors. A
# thread starts with none, a task of asyncio with those of the code that created it.
_entered: ContextVar[tuple[Device, ...]] = ContextVar("entered", default=())


def entered() -> tuple[Device, ...]:
    """Return the devices whose `with` blocks the running code is in and that are open, innermost
    last."""
    return tuple([device for device in _entered.get() if not device.closed])


def core_of(device: Device) -> Core:
    """Return a device's core, for code that prepares work once and submits it many times, such as
    the compiler's runtime."""
    return device._core


def owner_of(buffer: Buffer) -> Device:
    """Return the device that owns a buffer."""
    device = buffer.device
    assert isinstance(device, Device)
    return device


class Device:
    """A device that runs kernels. Thread-safe. A context manager: inside `with` it is the default
    device of tensors (in this thread, or task of asyncio). Leaving `with` closes it, and raises a
    failure of its work that was not raised yet, unless an exception ends the block.

    A failure reported by the hardware (ChipError, LinkError, FirmwareError) is raised in every
    waiting thread and kept in `failure`; every later submission raises it again, until `reset`. In
    a forked child, and while another thread is in `close`, methods that need the device raise
    Closed.
    """

    def __init__(self, driver: Driver) -> None:
        self.__driver = driver
        self._core = driver.core
        self._core.device = self

    # ---- what it is --------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name used to open it, such as "cpu"."""
        return self._core.name

    @property
    def target(self) -> TargetSpec:
        """The properties that a compiler needs: instruction set, wave size, limits."""
        return self.__driver.target

    @property
    def clock_hertz(self) -> float:
        """Rate of the ticks written by Queue.timestamp."""
        return self.__driver.clock_hertz

    def info(self) -> dict[str, object]:
        """Return facts for display and for --json: chip, memory, firmware, link."""
        return self.__driver.info()

    def sensors(self) -> Sequence[Sensor]:
        """Return the device's sensors; each is read when requested."""
        return self.__driver.sensors()

    @property
    def driver(self) -> Driver:
        """The driver, for debuggers, tools and tests. Its interface is hcq.device.driver."""
        return self.__driver

    @property
    def power_limit_w(self) -> float:
        """The most power that the board may use on average, in watts; can be set, until the device
        is closed. NotSupported where the device reports none or it cannot be set; BadArgument with
        the board's range (`driver.power_limit()`) for another value."""
        self._core.check_usable()
        return self.__driver.power_limit().watts

    @power_limit_w.setter
    def power_limit_w(self, limit: float) -> None:
        self._core.check_usable()
        self.__driver.set_power_limit(watts("power_limit_w", limit))

    # ---- memory, programs, queues ------------------------------------------------------------

    def alloc(self, size: int, *, placement: Placement = Placement.DEVICE) -> Buffer:
        """Allocate a buffer of `size` bytes; its content is undefined. Owned by the caller. Raises
        OutOfMemory when the memory is exhausted."""
        return self._core.alloc(size, placement=placement)

    def memory_peak(self, restart: bool = False) -> int:
        """Return the most bytes that tensors on this device used at a time, since it was opened or
        the last restart. Sizes are those of the pool, rounded up; memory that it keeps unused, and
        buffers of `alloc`, do not count. restart: begin again with what is in use now."""
        use = self._core.memory_use
        peak = use.peak
        if restart:
            use.peak = use.bytes
        return peak

    def load(self, image: bytes) -> Program:
        """Load a code object of this device's target; its kernels are accessible by name. Owned by
        the caller. BadCodeObject names the kind of an unsupported image and how to build one that
        loads."""
        return self._core.load(image)

    def compile(self, source: object) -> Program:
        """Compile and load your own kernel: LLVM IR or PTX (text), or kernel IR (`ugpu.ir.Kernel`).

        LLVM runs in a child process; objects are cached. Raises BadArgument for source that the
        device does not support, CompileError with `line` and `code` for source that the compiler
        rejects. See docs/your-own-kernel.md.
        """
        self._core.check_usable()
        program: Program = importlib.import_module(_COMPILER).compile_source(self, source)
        return program

    def queue(self, kind: QueueKind = QueueKind.COMPUTE, index: int = 0) -> Queue:
        """Return a recorder for hardware queue `index` of a kind."""
        core = self._core
        if core.closed or core.failure is not None or core.closer is not None:
            core.check_usable()
        if not isinstance(kind, QueueKind):
            raise BadArgument(f"kind must be a QueueKind, got {kind!r}")
        queues = self.__driver.hardware_queues(kind)
        if type(index) is int and 0 <= index < len(queues):
            return Queue(queues[index])
        index = whole("index", index, -WORD, WORD)
        if not 0 <= index < len(queues):
            raise BadArgument(f"no {kind.value} queue {index}", have=len(queues))
        return Queue(queues[index])

    def capture(self) -> Capture:
        """Record commands instead of running them: `with device.capture() as graph:`; then
        `graph.replay()`."""
        return self._core.capture()

    def timeline(self, name: str = "timeline") -> Timeline:
        """Return a new counter that queues and the host can raise and wait for. `close` frees its
        memory."""
        memory = self._core.alloc(TIMELINE_SIZE, placement=Placement.HOST)
        return Timeline(self._core, memory, name)

    # ---- waiting and failures ----------------------------------------------------------------

    @property
    def limit_s(self) -> float:
        """Default time limit of waits, in seconds; can be set."""
        return self._core.limit_s

    @limit_s.setter
    def limit_s(self, seconds: float) -> None:
        self._core.limit_s = seconds

    def synchronize(self, limit_s: float | None = None) -> None:
        """Wait until all queues are idle; raise failures reported meanwhile.

        DeviceHang, with the device's diagnosis, for a queue that is not idle within `limit_s`
        (default: the device's).
        """
        if limit_s is not None or not self._core.quiet():
            self._core.synchronize(limit_s)

    @property
    def idle(self) -> bool:
        """Return whether all submitted work has ended; costs a few reads of host memory."""
        return self._core.idle

    @property
    def failure(self) -> UgpuError | None:
        """The failure reported by the hardware, until `reset`; None without one."""
        return self._core.failure

    @property
    def last_failure(self) -> UgpuError | None:
        """The failure handled by the last `reset`."""
        return self._core.last_failure

    @property
    def resets(self) -> int:
        """Number of resets."""
        return self._core.resets

    def reset(self, to: str | None = None) -> Recovery:
        """Recover the device after a failure with the mildest rung of its ladder (hcq.state.ladder)
        that works; return a report.

        Work in flight on the queues that are set up again is lost. Programs stay loaded, graphs can
        be replayed, and buffers keep their addresses; `Recovery.lost` lists those that lost their
        content. to: use only this rung ("queue", "block", "mode1"...). After an exception the
        device has failed, and can be reset again.
        """
        return self._core.reset(None if to is None else Level.named(to))

    @property
    def recovery(self) -> Recovery | None:
        """The report of the last reset, including one by `on_fault="recover"`."""
        return self._core.healer.last

    @property
    def on_fault(self) -> str:
        """Reaction to a failure: "raise" (it remains until `reset`) or "recover"; can be set."""
        return self._core.healer.policy

    @on_fault.setter
    def on_fault(self, policy: str) -> None:
        self._core.healer.policy = policy

    # ---- rest --------------------------------------------------------------------------------

    @property
    def can_rest(self) -> bool:
        """Return whether the driver can let parts of an idle device lose clocks or power."""
        return self.__driver.rests

    @property
    def resting(self) -> bool:
        """Return whether the device rests. It wakes on any request that needs it."""
        return self.__driver.at_rest

    def rest(self, limit_s: float | None = None) -> bool:
        """Wait until all queues are idle, then let the device rest (hcq.device.driver). Return
        whether it rests: False if the driver cannot do this, or if work was submitted meanwhile.
        Raises what `synchronize` raises."""
        core = self._core
        if self.__driver.rests:
            core.synchronize(limit_s)
        with core.lock:
            core.check_usable()
            return self.__driver.begin_rest()

    def wake(self) -> None:
        """Wake the device now, rather than at the next request that needs it; idempotent. Raises
        the device's failure if it does not come back."""
        with self._core.lock:
            self._core.check_usable()
            self.__driver.end_rest()

    # ---- life --------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Return whether the device was closed, or belongs to the parent of a forked process."""
        return self._core.closed

    def close(self) -> None:
        """Wait for work in flight, then shut down; idempotent.

        Does not raise failures of that work or earlier ones. Other threads get Closed from now on;
        their waits end first, if the work ends.
        """
        self._core.close()

    def __enter__(self) -> Self:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        before = _entered.get()
        for place in reversed(range(len(before))):
            if before[place] is self:  # which need not be the innermost one
                _entered.set((*before[:place], *before[place + 1 :]))
                break
        if kind is None:
            self._core.leave()
        else:
            self.close()

    def __repr__(self) -> str:
        return repr(self._core)

    def _repr_html_(self) -> str:
        core, target, use = self._core, self.target, self._core.memory_use
        return table(f"Device {self.name}", {
            "target": target.name,
            "state": "closed" if core.closed else "failed" if core.failure else "open",
            "compute units": target.compute_units,
            "memory of tensors": f"{use.bytes} bytes, {use.peak} at most",
        })  # fmt: skip
