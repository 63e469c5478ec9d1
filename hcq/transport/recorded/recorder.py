"""Record a driver's accesses to a device, including memory shared by DMA.

    recorder, recording = record(transport)      use `recorder` in place of `transport`
    Path("boot.txt").write_text(recording.save())

Accesses to memory cannot be observed, so memory is compared with its earlier content: before and
after every access, and each time the driver polls for something (`clock.polled`,
`interrupts.wait`). The differences are recorded at that point. This costs a pass over all shared
memory each time: a recorder is a diagnostic tool, not meant to be fast. A word that changes twice
between two comparisons is recorded with its last value.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq import outfile
from ugpu.hcq.errors import BadArgument, DeviceBusy, HostError, NotSupported, UgpuError
from ugpu.hcq.state import trace
from ugpu.hcq.state.clock import WatchedClock
from ugpu.hcq.state.instruction import Culprit, take_culprit
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.transport.base import (
    DmaMemory,
    DmaSegment,
    Interrupts,
    PciIdentity,
    ResetKind,
    Transport,
    Window,
)
from ugpu.hcq.transport.life import TransportLife, close_all
from ugpu.hcq.transport.recorded.accesses import Access, TracingTransport, TracingWindow
from ugpu.hcq.transport.recorded.format import (
    BOOTED,
    RECORDING,
    Allocation,
    Content,
    Failure,
    Free,
    Look,
    Moment,
    Presence,
    Recording,
    Reset,
    Stage,
    Wait,
    long_write,
)

log = logging.getLogger(__name__)

_WORD = 8  # bytes; changes are recorded in whole words of memory
_GAP = 64  # words: changes closer than that are recorded as one
_INSTANT_S = 1e-5  # accesses closer than that have the time of the first
# Usually nothing has changed: the C library detects that ten times as fast as NumPy.
_compare = ctypes.PyDLL(None).memcmp
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _opened(path: Path) -> TextIO:
    outfile.check_file(path, RECORDING)
    try:
        return path.open("w", encoding="ascii")
    except OSError as error:
        raise BadArgument(f"cannot write a recording to {path}: {error.strerror}") from None


def record(inner: Transport) -> tuple[RecordingTransport, Recording]:
    """Return a transport around `inner`, and the recording that grows while it is used."""
    recorder = RecordingTransport(inner)
    return recorder, recorder.recording


class RecordedMemory:
    """Memory of the inner transport, and its content at the last comparison."""

    def __init__(
        self, inner: DmaMemory, number: int, on_close: Callable[[RecordedMemory], None]
    ) -> None:
        self.number = number
        self.size = inner.size
        view = inner.view
        if not isinstance(view, memoryview):
            raise NotSupported("DMA memory that is not in this process cannot be recorded")
        self.view: memoryview = view
        self.segments: Sequence[DmaSegment] = inner.segments
        self._inner = inner
        self._on_close = on_close
        self._now: NDArray[np.uint64] | None = np.frombuffer(view, np.uint64)
        self._before = self._now.copy()
        self._places = self._now.ctypes.data, self._before.ctypes.data, self._now.nbytes

    def changes(self, *, at_once: bool) -> list[Content]:
        """Return the changes since the last call, in runs of words."""
        if self._now is None or not _compare(*self._places):
            return []
        places = np.flatnonzero(self._now != self._before)
        if not len(places):
            return []
        changes = []
        for run in np.split(places, np.flatnonzero(np.diff(places) > _GAP) + 1):
            first, end = int(run[0]), int(run[-1]) + 1
            # Read only once: the device may write meanwhile, which is the next change.
            self._before[first:end] = self._now[first:end]
            data = self._before[first:end].tobytes()
            changes.append(Content(self.number, first * _WORD, data, at_once))
        return changes

    def close(self) -> None:
        """Return it to the inner transport. Idempotent."""
        if self._now is not None:
            self._on_close(self)
            self._now = None  # otherwise its owner could not release the view
        self._inner.close()


class RecordingWindow:
    """A window that reports each access, and has memory compared before and after it."""

    def __init__(
        self,
        inner: Window,
        note: Callable[[Access], None],
        around: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._inner = TracingWindow(inner, note)
        self._around = around
        self.index = inner.index

    @property
    def size(self) -> int:
        """Bytes of the window."""
        return self._inner.size

    def read32(self, offset: int) -> int:
        with self._around():
            return self._inner.read32(offset)

    def write32(self, offset: int, value: int) -> None:
        with self._around():
            self._inner.write32(offset, value)

    def read64(self, offset: int) -> int:
        with self._around():
            return self._inner.read64(offset)

    def write64(self, offset: int, value: int) -> None:
        with self._around():
            self._inner.write64(offset, value)

    def read(self, offset: int, size: int) -> bytes:
        with self._around():
            return self._inner.read(offset, size)

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        with self._around():
            self._inner.write(offset, data)


class RecordingInterrupts:
    """The inner transport's interrupts, with memory compared before and after each wait."""

    def __init__(self, inner: Interrupts, looked: Callable[[bool], None]) -> None:
        self._inner = inner
        self._looked = looked
        self.vectors = inner.vectors

    def enable(self, count: int) -> None:
        self._inner.enable(count)

    def wait(self, limit_s: float, vector: int = 0) -> bool:
        self._looked(False)
        came = self._inner.wait(limit_s, vector)
        self._looked(came)
        return came


class RecordingTransport(TransportLife):
    """Records each completed access of `inner`, its memory, its resets. Owns `inner`: closing this
    closes it. Accesses that raise are not recorded."""

    def __init__(
        self,
        inner: Transport,
        path: str | Path | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        """path: a file that the recording is written to when this is closed. BadArgument if it
        cannot be; the caller then still owns `inner`. now: returns seconds; without it the
        recording has no times."""
        file = _opened(Path(path)) if path is not None else None
        super().__init__(inner.name)
        self.inner = inner
        self.at_end(inner.close)
        self.identity: PciIdentity = inner.identity
        self.recording = Recording(inner.identity)
        self._traced = TracingTransport(inner, self._note)
        self._windows: dict[int, RecordingWindow] = {}
        self._memories: dict[int, RecordedMemory] = {}
        self._allocated = 0
        self._interrupts: RecordingInterrupts | None = None
        self._present = True
        self._opening = False
        self.observer: Callable[[], object] | None = None
        self._observing = False
        self._now = now
        self._begin = self._noted = now() if now is not None else 0.0
        self._entries_lock = threading.Lock()  # waits come from separate threads
        self.traits = inner.traits
        self.clock = WatchedClock(inner.clock, self.polled)
        # ORDER: called from the last one up. The inner transport frees all memory at once.
        self.at_end(self._let_go)
        if file is not None:
            self.at_end(functools.partial(self._write, file), drop=file.close)
        self.at_end(self._look)
        self.opened()

    def image(self, name: str, data: bytes) -> None:
        """Add a firmware image that the driver read to the recording; a replay needs it."""
        self.recording.firmware[name] = data

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Record the stages while a driver brings the device up on this thread, and how it failed.
        After each stage `observer` inspects the device, if there is one."""
        thread = threading.get_ident()

        def on_event(event: trace.Event) -> None:
            if event.name != "boot" or threading.get_ident() != thread:
                return
            if event.phase == "begin":
                self.recording.entries.append(Stage(str(event.arguments["stage"])))
                return
            if event.error is not None:
                self._fail(event.error)
            self._observe()

        self._opening = True
        try:
            with trace.subscribe(on_event):
                yield
            self._look()
            self.recording.entries.append(Stage(BOOTED))
        finally:
            self._opening = False

    def _observe(self) -> None:
        if self.observer is None or self.closed:
            return
        self._look()
        self.recording.entries.append(Look(True))
        self._observing = True
        try:
            self.observer()
        except UgpuError as error:  # the stage's own error has the reason
            log.debug("the device cannot be looked at: %s", error)
        finally:
            self._observing = False
            self.recording.entries.append(Look(False))

    def _fail(self, error: BaseException) -> None:
        if not any(isinstance(entry, Failure) for entry in self.recording.entries):
            self.recording.entries.append(Failure(type(error).__name__, str(error)))

    def _note(self, access: Access) -> None:
        if self._now is not None:
            now = self._now()
            if now - self._noted >= _INSTANT_S:
                self._noted = now
                self.recording.entries.append(Moment(round(now - self._begin, 6)))
        self.recording.entries.append(long_write(access))

    def _look(self, *, at_once: bool = False) -> bool:
        """Record the changes of the shared memory since the last comparison; return whether there
        were any."""
        with self._entries_lock:
            changes = [
                change
                for memory in list(self._memories.values())
                for change in memory.changes(at_once=at_once)
            ]
            self.recording.entries += changes
        return bool(changes)

    @contextmanager
    def _around(self) -> Iterator[None]:
        """Record separately what the driver did before an access and what the device did on it.
        Records nothing around an observer's accesses."""
        if self._observing:
            yield
            return
        self._look()
        yield
        self._look(at_once=True)

    def polled(self, found: bool) -> None:
        """Note that the driver polls, see Clock.polled: later changes are recorded separately."""
        if not self.closed and self._look():
            self.recording.entries.append(Wait())

    @property
    def interrupts(self) -> RecordingInterrupts | None:
        """The inner transport's. Waits are not recorded, but the changes that they waited for
        are."""
        inner = self.inner.interrupts
        if self._interrupts is None and inner is not None:
            self._interrupts = RecordingInterrupts(inner, self.polled)
            self.recording.interrupts = inner.vectors
        return self._interrupts

    def config_read(self, offset: int, width: int = 4) -> int:
        with self._around():
            return self._traced.config_read(offset, width)

    def config_write(self, offset: int, value: int, width: int = 4) -> None:
        with self._around():
            self._traced.config_write(offset, value, width)

    def window(self, index: int) -> RecordingWindow:
        inner = self.inner.window(index)
        if index not in self._windows:
            self._windows[index] = RecordingWindow(inner, self._note, self._around)
            self.recording.windows[index] = inner.size
        return self._windows[index]

    def allocate_dma(self, size: int, *, contiguous: bool = False) -> RecordedMemory:
        self._look()
        inner = self.inner.allocate_dma(size, contiguous=contiguous)
        memory = RecordedMemory(inner, self._allocated, self._forget)
        self._allocated += 1
        self._memories[memory.number] = memory
        entry = Allocation(memory.number, memory.size, tuple(memory.segments))
        self.recording.entries.append(entry)
        return memory

    def _forget(self, memory: RecordedMemory) -> None:
        if memory.number in self._memories:
            self._look()
            del self._memories[memory.number]
            self.recording.entries.append(Free(memory.number))

    def batch(self) -> AbstractContextManager[None]:
        return self.inner.batch()

    def reset(self, kind: ResetKind) -> None:
        """Reset; a refusal is recorded too, since drivers then continue another way."""
        with self._around():
            try:
                self.inner.reset(kind)
            except (NotSupported, DeviceBusy) as error:
                refusal = f"{type(error).__name__} {error}"
                self.recording.entries.append(Reset(kind, " ".join(refusal.split())))
                raise
            self.recording.entries.append(Reset(kind))

    def culprit(self, *, address: int | None = None, pc: int | None = None) -> Culprit | None:
        """See hcq.state.instruction.Witness: the inner transport's."""
        return take_culprit(self.inner, address=address, pc=pc)

    def facts(self) -> dict[str, object]:
        """Return the inner transport's facts."""
        return self.inner.facts()

    def sensors(self) -> Sequence[Sensor]:
        """Return the inner transport's sensors."""
        return self.inner.sensors()

    def present(self) -> bool:
        """Return whether the device responds; recorded when that changes."""
        present = self.inner.present()
        if present != self._present and not self.closed:
            self._present = present
            self.recording.entries.append(Presence(present))
        return present

    def _write(self, file: TextIO) -> None:
        error = sys.exc_info()[1]
        if self._opening and error is not None:  # a driver that gives up outside its stages
            self._fail(error)
        try:
            with file:
                file.write(self.recording.save())
        except OSError as error:
            raise HostError(f"no recording in {file.name}: {error.strerror}") from error

    def _let_go(self) -> None:
        memories, self._memories = self._memories, {}
        close_all(memories.values())

    def __repr__(self) -> str:
        return f"<RecordingTransport around {self.inner!r}>"
