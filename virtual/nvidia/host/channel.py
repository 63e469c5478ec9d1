"""A channel: its ring, its push buffers, the methods of the host unit, and its engine objects.

Source: open-gpu-doc classes/host/clc46f.h, clc56f.h; manuals/ampere/ga100/dev_ram.ref.txt
(RAMUSERD), dev_pbdma.ref.txt; open-gpu-kernel-modules 580.142 src/common/sdk/nvidia/inc/class/
clc86f.h, clca6f.h (57-bit addresses).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

from ugpu.virtual.nvidia.faults import Fault, Xid
from ugpu.virtual.nvidia.host.errors import Aborted, ChannelError
from ugpu.virtual.nvidia.host.methods import HostMethods
from ugpu.virtual.nvidia.host.state import (
    ENGINE_FAULTED,
    PBDMA_FAULTED,
    ChannelState,
    Engine,
)
from ugpu.virtual.nvidia.memory.faults import Client, MmuFault
from ugpu.virtual.nvidia.memory.space import AddressSpace, FaultError
from ugpu.virtual.nvidia.state import GpuState

_COPY = 0xB5  # low byte of all copy classes
_COPIES = 4  # subchannel
GP_GET, GP_PUT, USERD_SIZE = 0x88, 0x8C, 512
_ENTRY = struct.Struct("<II")
_LONGEST_TURN = 256  # ring entries before the next channel has its turn
Waiting = Callable[[], bool]
_Result = TypeVar("_Result")


def _copies(engine: Engine) -> bool:
    return engine.class_id & 0xFF == _COPY


class Channel(ChannelState):
    """One channel. Its runlist's thread calls `advance`; the kernel driver calls the rest."""

    def __init__(
        self,
        gpu: GpuState,
        number: int,
        class_id: int,
        space: AddressSpace,
        userd: int,
        *,
        late: bool = False,
    ) -> None:
        """late: whether a doorbell can overtake a write of GP_PUT."""
        super().__init__(gpu, number, class_id, space)
        self.ring_address = 0
        self.ring_entries = 0
        self.enabled = False
        self.pending = False
        self.error: ChannelError | None = None
        self.on_error: Callable[[ChannelError], None] = lambda error: None
        self.on_fault: Callable[[MmuFault], bool] = lambda fault: False  # whether it may be served
        self.check_context: Callable[[], None] = lambda: None  # raises ChannelError
        self.entries_done = 0
        self._get = 0
        self._userd = userd
        self._late = late
        self._seen_put = self._next_put = 0  # GP_PUT as of the doorbell, and as of the next one
        self._bound: dict[int, Engine] = {}  # by subchannel
        self.copies_only = False  # its runlist has copy engines alone
        self._host = HostMethods(self)
        self._segment_base = 0  # Hopper: upper bits of push buffer addresses
        self._waiting: Waiting | None = None
        self._work: Generator[Waiting | None, None, None] | None = None

    def stop(self) -> None:
        """Accept no more work, and end running work."""
        self.stopped = True
        self.pending = False
        self.faulted = 0
        self.attention.set()

    @property
    def has_work(self) -> bool:
        """Whether there was a doorbell and the channel is alive."""
        # RACE: the doorbell may come after its entry was processed and ended the channel.
        return self.pending and self.error is None and not self.stopped

    def ready(self) -> bool:
        """Return whether `advance` would make progress: enabled, and not waiting."""
        if not self.enabled or self.error is not None or self.stopped:
            return False
        if self._waiting is None:
            return True
        try:
            return self._waiting()
        except FaultError:
            return True  # the page is gone: `advance` raises the fault

    def advance(self) -> None:
        """Work until the ring is empty or the channel must wait."""
        if self._work is None:
            self._work = self._run()
        try:
            if self.gpu.machine.faults.take(Fault.PREEMPTED, self.gpu.index):
                raise ChannelError(Xid.PREEMPTIVE_REMOVAL, "channel removed")
            self._waiting = next(self._work)
        except ChannelError as error:
            self._fail(error)
        except FaultError as error:
            self._fail(ChannelError(Xid.MMU_FAULT, str(error.fault), error.fault))
        except Aborted:
            self.stop()

    def _attempt(self, step: Callable[[], _Result]) -> Generator[Waiting, None, _Result]:
        """Return the result of a step. Where a client may serve its fault, the channel rests until
        its faulted bit is cleared and it is scheduled again; then the step is repeated."""
        while True:
            try:
                return step()
            except FaultError as error:
                host = error.fault.client is Client.HOST
                self.pending = False
                self.faulted = PBDMA_FAULTED if host else ENGINE_FAULTED  # ORDER: before a report
                if not self.on_fault(error.fault):
                    self.faulted = 0
                    raise
            yield lambda: not self.faulted

    def _fail(self, error: ChannelError) -> None:
        self.pending = False
        if self.stopped or self.gpu.lost:
            return
        self.error = error
        self.on_error(error)

    def settle(self) -> None:
        """Complete earlier writes to USERD."""
        self._seen_put = self._next_put = self._memory_put()

    def ring(self) -> None:
        """Handle a doorbell. The last write of GP_PUT before it may not have arrived yet."""
        self._seen_put, self._next_put = self._next_put, self._memory_put()

    def _read_put(self) -> int:
        return self._seen_put if self._late else self._memory_put()

    def _memory_put(self) -> int:
        return ctypes.c_uint32.from_address(self._userd + GP_PUT).value

    def _run(self) -> Generator[Waiting | None, None, None]:
        turn = 0
        while True:
            put = self._read_put()
            if put >= self.ring_entries:
                raise ChannelError(
                    Xid.PBDMA_ERROR,
                    f"GP_PUT must be below {self.ring_entries} (entries of the ring), got {put}",
                )
            if put == self._get:
                yield from self._attempt(self.drain)
                if self._read_put() == put:
                    self.pending = False
                    if self._read_put() != put:  # RACE: rung between the two reads
                        self.pending = True
                    turn = 0
                    yield None
                continue
            self.check_context()
            raw = yield from self._fetch(self.ring_address + 8 * self._get, 8)
            yield from self._entry(*_ENTRY.unpack(raw))
            self._get = (self._get + 1) % self.ring_entries
            ctypes.c_uint32.from_address(self._userd + GP_GET).value = self._get
            self.entries_done += 1
            turn += 1
            if turn >= _LONGEST_TURN or self.attention.aside:
                turn = 0
                yield None

    def _fetch(self, address: int, size: int) -> Generator[Waiting, None, bytes]:
        return self._attempt(lambda: self.space.read(address, size, Client.HOST))

    def _entry(self, low: int, high: int) -> Generator[Waiting, None, None]:
        """Execute a ring entry: a segment of methods, or a control entry if its length is 0."""
        length = high >> 10 & 0x1F_FFFF
        if low & 1:
            raise ChannelError(
                Xid.PBDMA_ERROR, f"GP entry {high:08x}:{low:08x}: conditional fetch is not modelled"
            )
        if high >> 8 & 1:
            raise ChannelError(
                Xid.PBDMA_ERROR, f"GP entry {high:08x}:{low:08x}: reserved bit 40 is set"
            )
        if length == 0:
            code = high & 0xFF
            if code == 4 and self.gpu.facts.mmu == 3:  # SET_PB_SEGMENT_EXTENDED_BASE
                self._segment_base = (low >> 8 & 0x1_FFFF) << 40
            elif code != 0:
                raise ChannelError(Xid.PBDMA_ERROR, f"GP entry has unknown opcode {code}")
            return
        address = self._segment_base | (high & 0xFF) << 32 | low & ~3
        raw = yield from self._fetch(address, 4 * length)
        words = struct.unpack(f"<{length}I", raw)
        if self.gpu.machine.faults.take(Fault.PUSHBUFFER, self.gpu.index):
            words = (0xC0DE_0000 | words[0] & 0xFFFF, *words[1:])
        yield from self._segment(words)

    def _segment(self, words: tuple[int, ...]) -> Generator[Waiting, None, None]:
        """Execute the methods of one segment: headers, each followed by its data."""
        at, end = 0, len(words)
        while at < end:
            header = words[at]
            at += 1
            operation, count = header >> 29, header >> 16 & 0x1FFF
            subchannel, address = header >> 13 & 7, (header & 0xFFF) << 2
            if operation == 4:  # IMMD_DATA: the count field contains the value
                yield from self._one(subchannel, address, count)
                continue
            if operation == 0 and header >> 16 & 3 == 0 and header == 0:
                continue  # NOP
            if operation == 7:  # END_PB_SEGMENT
                return
            if operation not in (1, 3, 5):
                raise ChannelError(Xid.PBDMA_ERROR, f"method header {header:08x} is invalid")
            if at + count > end:
                raise ChannelError(
                    Xid.PBDMA_ERROR,
                    f"method header {header:08x} requires {count} words, {end - at} are left",
                )
            data = words[at : at + count]
            at += count
            if operation == 1 and address >= 0x100:
                yield from self._attempt(partial(self._burst, subchannel, address, data))
                continue
            for position, value in enumerate(data):
                yield from self._one(subchannel, address, value)
                if operation == 1 or (operation == 5 and position == 0):
                    address += 4

    def _burst(self, subchannel: int, address: int, data: tuple[int, ...]) -> None:
        self._engine(subchannel, address).burst(address, data)

    def _engine(self, subchannel: int, address: int) -> Engine:
        engine = self._bound.get(subchannel)
        if engine is None and (subchannel == _COPIES or self.copies_only):
            # The mapping is fixed (dev_ram.ref.txt): a runlist of copy engines has one kind, and
            # this subchannel of a graphics runlist is for copies. NVK sends no SET_OBJECT there,
            # NVIDIA's UVM one on subchannel 0 (550.163.01 uvm_maxwell_ce.c).
            engine = next((each for each in list(self.engines.values()) if _copies(each)), None)
        if engine is None:
            raise ChannelError(
                Xid.PBDMA_ERROR, f"method {address:#x} on subchannel {subchannel} without an object"
            )
        self._aim(engine)
        return engine

    def _aim(self, engine: Engine) -> None:
        """Make an engine the one that methods go to. Between copies and the other classes of a
        graphics runlist the host waits for the first one (dev_ram.ref.txt). It also sends a system
        barrier, on which the check of visibility does not rely."""
        last = self._last
        if last is not None and (_copies(last) != _copies(engine)):
            self.wait_idle()
        self._last = engine

    def _one(self, subchannel: int, address: int, value: int) -> Generator[Waiting, None, None]:
        if address >= 0x100:
            yield from self._attempt(
                lambda: self._engine(subchannel, address).method(address, value)
            )
        elif address == 0:
            yield from self._attempt(lambda: self._set_object(subchannel, value))
        else:
            waiting = yield from self._attempt(lambda: self._host.method(address, value))
            if waiting is not None and not (yield from self._attempt(waiting)):
                # Work launched before continues while the channel waits.
                yield from self._attempt(self.drain)
                while not (yield from self._attempt(waiting)):
                    yield waiting

    def _set_object(self, subchannel: int, value: int) -> None:
        class_id = value & 0xFFFF
        engine = self.engines.get(class_id)
        if engine is None or value >> 21:
            raise ChannelError(
                Xid.CLASS_ERROR, f"SET_OBJECT {value:#x}: the channel has no object of this class"
            )
        self._bound[subchannel] = engine
        self._aim(engine)
