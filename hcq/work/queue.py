"""Queues: the recorder used by callers, and the hardware queue provided by a driver."""

from __future__ import annotations

import enum
import operator
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import BadArgument, Closed, NotSupported
from ugpu.hcq.state.checks import WORD, whole
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Barrier, Command, Copy, Fill, Launch, Signal, Timestamp, Wait
from ugpu.hcq.work.command_buffer import CommandBuffer, Part, Symbol, values_of
from ugpu.hcq.work.program import Kernel, pack_arguments
from ugpu.hcq.work.timeline import CAPTURED, Timeline, TimelineDriver, TimelineState

if TYPE_CHECKING:
    from ugpu.hcq.work.state import OpenDevice


class QueueKind(enum.Enum):
    """Kind of a queue: COMPUTE executes all commands, COPY all except Launch."""

    COMPUTE = "compute"
    COPY = "copy"


class QueueDriver(TimelineDriver, Protocol):
    """What queues use of a driver."""

    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]: ...
    def all_queues(self) -> Sequence[HardwareQueue]: ...


class QueueState(TimelineState, Protocol):
    """What queues, and work for them, use of their device."""

    @property
    def driver(self) -> QueueDriver: ...

    def submit(self, hardware: HardwareQueue, commands: Sequence[Command]) -> int: ...
    def submit_prepared(
        self, hardware: HardwareQueue, prepared: CommandBuffer, parameters: Sequence[int]
    ) -> int: ...
    def submit_resident(
        self,
        hardware: HardwareQueue,
        prepared: CommandBuffer,
        resident: Resident,
        part: Part,
        values: NDArray[np.uint64],
    ) -> int: ...
    def await_room(self, hardware: HardwareQueue, words: int) -> None: ...


class Resident(ABC):
    """A command buffer's image placed in memory permanently, for replay. Owned by a graph.

    Attributes:
        words: the writable image.
        address: its address in the device's address space.
    """

    words: NDArray[np.uint32]
    address: int

    def fill(self, encoded: CommandBuffer, values: NDArray[np.uint64]) -> None:
        """Write the image; symbol i has values[i]."""
        encoded.patch(self.words, values)

    def insert(self, part: Part, values: NDArray[np.uint64]) -> None:
        """Write the words that change in a replay."""
        part.insert(self.words, values)

    @abstractmethod
    def close(self) -> None: ...


class HardwareQueue(ABC):
    """One hardware queue, provided by the driver. Submissions execute in order.

    Only the holder of the owning device's lock calls these methods. An exception (such as Ctrl-C)
    may occur at any point of a submission: the submission either takes place with its timeline
    value, or not at all. If the hardware is notified in several steps, the driver records its
    decision in `intent` before the first step with a visible effect. `complete` repeats these
    steps, each of which can be repeated safely.
    """

    core: QueueState
    kind: QueueKind
    name: str
    timeline: Timeline
    intent: object | None = None
    reuses_launches = False  # whether launches of one shape share an image: hcq.work.prepared

    @abstractmethod
    def encode(self, commands: Sequence[Command]) -> CommandBuffer:
        """Encode commands without accessing hardware. Raises BadArgument for commands that this
        queue does not support."""

    @abstractmethod
    def submit(self, buffer: CommandBuffer, values: NDArray[np.uint64]) -> None:
        """Place the image in transient memory, patch it and ring the doorbell. Its end is marked by
        the timeline's value `last` + 1, to which `last` rises.

        values[i] belongs to buffer.symbols[i], except that of kind "image", which the queue fills
        in itself. If there is no `room`, blocks and checks for failures (core.check_failures)
        meanwhile.
        """

    def room(self, words: int) -> bool:
        """Return whether an image of `words` words (0: a resident one) can be submitted without
        waiting."""
        return True

    def reclaim(self) -> bool:
        """Free the memory of submissions that have ended; return whether there were any."""
        return False

    @abstractmethod
    def overwrite(self) -> None:
        """Overwrite the images of ended submissions, and what the ring has of them: all memory of
        the queue that contains arguments, values or addresses. Submissions in flight are left
        alone."""

    def complete(self) -> None:
        """Carry out the steps of `intent`, if there is one, and clear it; idempotent."""
        return

    def submit_prepared(
        self, buffer: CommandBuffer, signal: int, parameters: Sequence[int]
    ) -> None:
        """Submit like `submit`, with signal and parameters[slot] as the values of the symbols of
        these kinds."""
        self.submit(buffer, values_of(buffer, signal, parameters))

    def repetition(
        self,
        prepared: CommandBuffer,
        parameters: Sequence[int],
        changing: Sequence[Collection[int]],
    ) -> Repetition:
        """See Repetition. Does not touch hardware; any thread may call it."""
        return Repetition(self, prepared, parameters, changing)

    @abstractmethod
    def place(self, buffer: CommandBuffer) -> Resident:
        """Give a captured image (unpatched) its own memory."""

    @abstractmethod
    def submit_resident(self, resident: Resident, command_words: int, value: int) -> None:
        """Execute a placed, patched image, whose end is marked by the timeline's `value`: one ring
        entry, one doorbell. Allocates nothing. `last` rises to `value`."""


class NativeWork(Protocol):
    """A repetition that native code can submit, with the interpreter lock (hcq.cpu.direct).

    Attributes:
        address: of the record that `ugpu_now` takes.
        given: the address of its numbers, 64-bit words, which are to be written before.
    """

    address: int
    given: int


class Repetition:
    """Prepared work (hcq.work.prepared) with its parameters, except some that change: the i-th
    number of each submission is for the slots changing[i].

    A driver may provide a faster one (HardwareQueue.repetition).

    Attributes:
        in_one_step: whether a submission is one call of native code.
        at_once: whether the last submission had ended when it returned.
    """

    in_one_step = False
    at_once = False

    def __init__(
        self,
        hardware: HardwareQueue,
        prepared: CommandBuffer,
        parameters: Sequence[int],
        changing: Sequence[Collection[int]],
    ) -> None:
        self.core = hardware.core
        self.hardware = hardware
        self.prepared = prepared
        self.parameters = list(parameters)
        self.changing = changing

    def submit(self, *numbers: int) -> int:
        """Run it with these numbers; otherwise like Core.submit_prepared."""
        given = self.parameters.copy()
        for slots, number in zip(self.changing, numbers, strict=True):
            for slot in slots:
                given[slot] = number
        return self.core.submit_prepared(self.hardware, self.prepared, given)

    def native(self) -> NativeWork | None:
        """Return what native code needs to submit it, where a driver has that. It must be kept as
        long as its addresses are used."""
        return None


class Queue:
    """Records commands for one hardware queue; `submit`, or leaving `with`, submits them.

    Recording does not touch hardware. Leaving `with` by an exception drops the recorded commands.
    Each submission signals the queue's timeline. `submit` returns that value, to be awaited with
    `timeline.wait(value)` or on another queue with `wait`.
    """

    def __init__(self, hardware: HardwareQueue) -> None:
        self.hardware = hardware
        self.commands: list[Command] = []

    @property
    def core(self) -> QueueState:
        """The device's core, for internal modules."""
        return self.hardware.core

    @property
    def device(self) -> OpenDevice:
        """The device of the queue."""
        return self.hardware.core.device

    @property
    def timeline(self) -> Timeline:
        return self.hardware.timeline

    def launch(
        self,
        kernel: Kernel,
        *,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[object] = (),
        dynamic_local: int = 0,
        cluster: Sequence[int] | None = None,
        cooperative: bool = False,
    ) -> Queue:
        """Run `kernel` over grid (groups) x block (threads per group).

        args: see pack_arguments. dynamic_local: bytes of local memory per group in addition to the
        kernel's static share, for kernels that declare an array without a size. cluster: number of
        groups that run together and can access each other's local memory; the grid must be a
        multiple of it. cooperative: all groups run at the same time, alone on the queue, so that
        they may wait for each other; submitting raises BadArgument for more groups than the device
        can run. NotSupported on targets without these features.
        """
        if not isinstance(kernel, Kernel):
            raise BadArgument(f"kernel must be a Kernel, got {kernel!r}")
        if kernel.program.core is not self.core:
            raise BadArgument("the kernel belongs to another device", kernel=kernel.name)
        if kernel.program.closed:
            raise Closed(f"the program of kernel {kernel.name} is closed")
        if self.hardware.kind is not QueueKind.COMPUTE:
            raise BadArgument("a copy queue cannot launch kernels", queue=self.hardware.name)
        full_grid, full_block = _three("grid", grid), _three("block", block)
        threads = full_block[0] * full_block[1] * full_block[2]
        most = self.core.driver.target.max_threads_per_group
        if threads > most or 0 in full_block:
            raise BadArgument("bad group size", block=full_block, at_most=most)
        if dynamic_local:
            dynamic_local = whole("dynamic_local", dynamic_local, 0, 1 << 32)
            self._check_dynamic(kernel, dynamic_local)
        together = None if cluster is None else self._check_cluster(kernel, full_grid, cluster)
        if cooperative and not self.core.driver.target.cooperative:
            raise NotSupported("cooperative launches", target=self.core.driver.target.name)
        if not isinstance(args, Sequence):
            raise BadArgument(f"args must be a sequence, got {args!r}")
        block_bytes, references = pack_arguments(kernel, args)
        core = self.hardware.core
        for value in args:
            if isinstance(value, Buffer) and (
                value.closed or value.owner is not None or value.core is not core
            ):
                self._check(value)
        self.commands.append(
            Launch(
                kernel,
                full_grid,
                full_block,
                block_bytes,
                references,
                dynamic_local,
                together,
                bool(cooperative),
            )
        )
        return self

    def _check_cluster(
        self, kernel: Kernel, grid: tuple[int, int, int], cluster: Sequence[int]
    ) -> tuple[int, int, int]:
        target, sizes = self.core.driver.target, _three("cluster", cluster)
        if not target.max_cluster:
            raise NotSupported("clusters of groups", target=target.name, cluster=sizes)
        if not 1 <= sizes[0] * sizes[1] * sizes[2] <= target.max_cluster:
            raise BadArgument(
                f"{kernel.name}: a cluster must have at most {target.max_cluster} groups",
                cluster=sizes,
            )
        if any(groups % part for groups, part in zip(grid, sizes, strict=True)):
            raise BadArgument(
                f"{kernel.name}: the grid must be a multiple of the cluster",
                grid=grid,
                cluster=sizes,
            )
        return sizes

    def _check_dynamic(self, kernel: Kernel, size: int) -> None:
        target = self.core.driver.target
        most = target.dynamic_local_memory
        if not most:
            raise NotSupported("dynamic local memory", target=target.name, size=size)
        if kernel.local_size + size > most:
            raise BadArgument(
                f"{kernel.name}: a group must use at most {most} bytes of local memory",
                static=kernel.local_size,
                dynamic=size,
            )

    def copy(self, destination: Buffer, source: Buffer, size: int | None = None) -> Queue:
        """Copy `size` bytes (default: all of source). Overlapping ranges raise BadArgument."""
        self._check(destination)
        self._check(source)
        count = source.size if size is None else whole("size", size, 0, WORD)
        if count > source.size or count > destination.size:
            raise BadArgument(
                "the copy extends past the end of a buffer",
                size=count,
                source=source.size,
                destination=destination.size,
            )
        low, high = sorted((destination.address, source.address))
        if count and low + count > high:
            raise BadArgument(
                "source and destination of a copy overlap", destination=destination, source=source
            )
        if count:
            self.commands.append(Copy(Symbol.of(destination), Symbol.of(source), count))
        return self

    def fill(self, destination: Buffer, value: int = 0) -> Queue:
        """Fill with a repeated signed or unsigned 32-bit value; the size must be a multiple of
        4."""
        self._check(destination)
        value = whole("value", value, -(1 << 31), 1 << 32) & 0xFFFF_FFFF
        if destination.size % 4:
            raise BadArgument(
                "fill offset and size must be multiples of 4 bytes", size=destination.size
            )
        if destination.size:
            self.commands.append(Fill(Symbol.of(destination), value, destination.size))
        return self

    def wait(self, timeline: Timeline, value: int | None = None) -> Queue:
        """Stall until `timeline` reaches `value` (default: everything submitted to it so far).

        For a timeline of another device, the host waits and signals the queue (hcq.device.follow).
        """
        self._check_timeline(timeline)
        losses = timeline.core.losses
        if value is None:
            awaited = timeline.core.last_value(timeline)
            losses.tell_own(timeline)
            if losses.of(timeline, awaited) is not None:
                return self  # nothing is under way: the last submission was lost
        else:
            awaited = whole("value", value, 0, WORD)
            losses.check(timeline, awaited)
        if timeline.core is not self.core:
            if awaited >= CAPTURED:
                raise BadArgument("a captured submission can only be awaited inside its graph")
            timeline = self.core.followers.gate(timeline)
        self.commands.append(Wait(timeline, Symbol.constant(awaited)))
        return self

    def signal(self, timeline: Timeline, value: int) -> Queue:
        """Raise `timeline` to `value` when all earlier commands have finished. The host does this
        for another device's timeline (hcq.device.follow)."""
        self._check_timeline(timeline)
        value = whole("value", value, 0, WORD)
        if timeline.core.is_own(timeline):
            raise BadArgument(
                "a queue cannot signal its own timeline; it is raised by each submission"
            )
        if timeline.core is not self.core:
            timeline = self.core.followers.relay(timeline)
        self.commands.append(Signal(timeline, Symbol.constant(value)))
        return self

    def timestamp(self, destination: Buffer, offset: int = 0) -> Queue:
        """Write the device clock's 64-bit tick count to destination[offset:] (8-byte aligned)."""
        self._check(destination)
        offset = whole("offset", offset, 0, WORD)
        if offset % 8 or offset + 8 > destination.size:
            raise BadArgument(
                "a timestamp requires 8 bytes at an offset that is a multiple of 8", offset=offset
            )
        self.commands.append(Timestamp(Symbol.of(destination, offset)))
        return self

    def barrier(self) -> Queue:
        """Make the results of earlier commands visible to later ones."""
        self.commands.append(Barrier())
        return self

    def submit(self) -> int:
        """Submit the recorded commands; return the timeline value that marks their end."""
        commands, self.commands = self.commands, []
        return self.core.submit(self.hardware, commands)

    def __repr__(self) -> str:
        return f"<Queue {self.hardware.name} of {self.core.name}: {len(self.commands)} recorded>"

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.commands.clear()
        elif self.commands:
            self.submit()

    def _check_timeline(self, timeline: Timeline) -> None:
        if not isinstance(timeline, Timeline):
            raise BadArgument(f"timeline must be a Timeline, got {timeline!r}")

    def _check(self, buffer: Buffer) -> None:
        if not isinstance(buffer, Buffer):
            raise BadArgument(f"buffer must be a Buffer, got {buffer!r}")
        if buffer.core is not self.core:
            raise BadArgument("the buffer belongs to another device", buffer=buffer)
        buffer._check_open()


def _three(what: str, sizes: Sequence[int]) -> tuple[int, int, int]:
    if type(sizes) is tuple and len(sizes) == 1 and type(sizes[0]) is int:
        size = sizes[0]  # the usual case
        if 0 <= size < 1 << 31:
            return size, 1, 1
    try:
        given = tuple(operator.index(size) for size in sizes)
    except TypeError:
        raise BadArgument(f"{what} must be one to three ints", **{what: sizes}) from None
    full = (*given, 1, 1, 1)[:3]
    if not 1 <= len(given) <= 3 or any(not 0 <= size < 1 << 31 for size in full):
        raise BadArgument(f"{what} must be one to three sizes from 1 to 2^31 - 1", **{what: given})
    return full[0], full[1], full[2]
