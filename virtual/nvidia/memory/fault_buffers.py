"""The MMU's fault buffers, and accesses that wait until their fault is replayed or cancelled.

Faults of units of the GPCs are replayable where the address space allows page faults and buffer 1
is enabled. All others are final: the GSP ends their channel, after an entry in buffer 0 if the CPU
has enabled that. A buffer that is full drops faults until its overflow is cleared; an access that
waits reports its fault again after a replay.

Sources: open-gpu-kernel-modules 550.163.01 and 595.45.04: dev_vm.h, clc369.h, dev_fault.h,
kernel-open/nvidia-uvm uvm_turing_fault_buffer.c, uvm_volta_host.c, uvm_gpu_replayable_faults.c,
kern_gmmu_gv100.c; Linux 6.12 nouveau nvkm/subdev/fault/gv100.c, tu102.c.
"""

from __future__ import annotations

import enum
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ugpu.nv import abi
from ugpu.virtual.nvidia.chip import ENGINE_COPY0, ENGINE_GR0, VirtualGpu
from ugpu.virtual.nvidia.memory.faults import (
    Client,
    FaultAccess,
    Faulting,
    MmuFault,
    Stall,
)

BUFFERS, BUFFER_SIZE = 0xB83000, 0x40  # registers: 0x20 bytes for each buffer
NON_REPLAYABLE, REPLAYABLE = 0, 1
ENTRY = 32
DEFAULT_ENTRIES = 8192  # UNSURE: of which chip
_LOW, _HIGH, _GET, _PUT, _SIZE = range(0, 20, 4)
_POINTER, _CORRUPTED, _OVERFLOW = (1 << 20) - 1, 1 << 30, 1 << 31  # of GET and PUT
_DEFAULT, _ENABLE = 1 << 30, 1 << 31  # of SIZE
_PHYSICAL = 1 << 0  # ADDR_MODE, of LO
_PAGE = 4096
_VALID, _MAY_REPLAY, _REPLAYABLE, _HUB = 1 << 31, 1 << 30, 1 << 7, 1 << 20
_LOOK_S = 0.02  # how often a waiting access looks whether its grid must end
# Table of dev_fault.h; MMU engines GRAPHICS, CE0 and HOST0. UNSURE: which HOST a runlist has.
FAMILIES = {
    "turing": ("tu102", 64, 15, 32), "ampere": ("ga100", 64, 15, 32), "ada": ("ga100", 64, 15, 32),
    "hopper": ("gh100", 384, 43, 64), "blackwell": ("gb100", 384, 65, 85),
}  # fmt: skip
_CLIENTS = {
    Client.SM: "GPC_T1_0", Client.SKED: "HUB_SKED", Client.HOST: "HUB_HOST",
    Client.FRONT_END: "HUB_FE", Client.COPY: "HUB_CE0",
}  # fmt: skip


class Replay(enum.IntEnum):
    """TLB_INVALIDATE_REPLAY of MEM_OP_C, REPLAY of MMU_INVALIDATE."""

    NONE = 0
    START = 1
    START_ACK_ALL = 2
    CANCEL_TARGETED = 3
    CANCEL_GLOBAL = 4
    CANCEL_VA_GLOBAL = 5


# Accesses that CANCEL_VA_GLOBAL ends, by MEM_OP_C's ACCESS_TYPE.
_ATOMICS = (FaultAccess.ATOMIC_STRONG, FaultAccess.ATOMIC_WEAK)
_CANCELLED: dict[int, tuple[FaultAccess, ...]] = {
    0: (FaultAccess.READ, FaultAccess.PREFETCH), 1: (FaultAccess.WRITE,),
    2: (FaultAccess.ATOMIC_STRONG,), 4: (FaultAccess.ATOMIC_WEAK,), 5: _ATOMICS,
    6: (FaultAccess.WRITE, *_ATOMICS), 7: tuple(FaultAccess),
}  # fmt: skip


class Bar2(Protocol):
    """The aperture through which the MMU reaches a buffer in video memory."""

    def write(self, offset: int, content: bytes) -> None: ...


class Board(Protocol):
    """The card, as its fault buffers use it."""

    @property
    def gpu(self) -> VirtualGpu: ...
    @property
    def bar2(self) -> Bar2: ...
    def violation(self, text: str) -> None: ...
    def bus_write(self, address: int, content: bytes) -> bool: ...


@dataclass
class _Buffer:
    """One buffer. words: its registers. pages: on the bus, where the GSP placed it; else its
    address is one of BAR2."""

    words: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(0, 20, 4), 0))
    pages: Sequence[int] = ()

    @property
    def enabled(self) -> bool:
        return bool(self.words[_SIZE] & _ENABLE) and self.entries > 1

    @property
    def entries(self) -> int:
        return self.words[_SIZE] & _POINTER

    @property
    def pending(self) -> bool:
        return self.enabled and (self.words[_GET] ^ self.words[_PUT]) & _POINTER != 0


@dataclass
class _Waiting:
    """An access that waits. stall: how its wait ended."""

    directory: int
    fault: MmuFault
    stall: Stall | None = None


class MmuFaults:
    """Both buffers of a card, and what waits for a replay. Any thread may call.

    signal: called with the number of a buffer that has entries.
    """

    def __init__(self, board: Board, signal: Callable[[int], object]) -> None:
        self._board = board
        self._signal = signal
        self._changed = threading.Condition()
        self._buffers = (_Buffer(), _Buffer())
        self._waiting: dict[tuple[Faulting, int, FaultAccess], _Waiting] = {}

    def reset(self) -> None:
        """Enter the state after a reset: no buffer, and what waits has faulted for good."""
        with self._changed:
            self._buffers = (_Buffer(), _Buffer())
            self._changed.notify_all()

    # Registers

    def read(self, at: int) -> int:
        """Read a register. GET and PUT both show the flags."""
        with self._changed:
            return self._buffers[at // 32].words.get(at % 32, 0)

    def write(self, at: int, value: int) -> None:
        """Write a register. A write of GET looks again whether entries are left."""
        number, at = divmod(at, 32)
        with self._changed:
            buffer = self._buffers[number]
            self._set(buffer, at, value)
            pending = buffer.pending
            self._changed.notify_all()
        if at in (_GET, _SIZE) and pending:
            self._signal(number)

    def _set(self, buffer: _Buffer, at: int, value: int) -> None:
        words = buffer.words
        if at == _GET:
            flags = words[_GET] & ~value & (_CORRUPTED | _OVERFLOW)
            if value & _POINTER >= buffer.entries and buffer.enabled:
                flags |= _CORRUPTED
                self._board.violation(f"fault buffer: GET {value & _POINTER} of {buffer.entries}")
            words[_GET] = flags | value & _POINTER
            words[_PUT] = flags | words[_PUT] & _POINTER
        elif at == _SIZE:
            size = DEFAULT_ENTRIES if value & _DEFAULT else value & _POINTER
            words[_SIZE] = value & ~_POINTER & ~_DEFAULT | size
            buffer.pages = buffer.pages if value & _ENABLE else ()
        elif at in (_LOW, _HIGH):
            if at == _LOW and value & _PHYSICAL:
                self._board.violation("fault buffer: physical addresses are not modelled")
            words[at] = value
        else:
            self._board.violation(f"fault buffer: write of {value:#x} to register {at:#x}")

    def place(self, number: int, pages: Sequence[int]) -> None:
        """Enable a buffer in pages on the bus, as the GSP does; without pages, disable it."""
        with self._changed:
            self._buffers[number].pages = tuple(pages)
        self.write(32 * number + _SIZE, _ENABLE | len(pages) * _PAGE // ENTRY if pages else 0)

    # Faults

    def report(self, channel: Faulting, fault: MmuFault) -> bytes:
        """Report a fault that ends its channel; return its entry."""
        entry = self._entry(channel, fault, replayable=False)
        self._put(NON_REPLAYABLE, entry)
        return entry

    def stall(self, channel: Faulting, directory: int, fault: MmuFault) -> Stall:
        """Report a fault of a channel in an address space that allows page faults, and wait for
        its end. directory: of the space."""
        buffer = self._buffers[REPLAYABLE]
        if fault.client is not Client.SM or not buffer.enabled:
            return Stall.FINAL
        key = channel, fault.page, fault.access
        with self._changed:
            waiting = self._waiting.get(key)
            first = waiting is None
            if waiting is None:
                waiting = self._waiting[key] = _Waiting(directory, fault)
        if first:
            self._put(REPLAYABLE, self._entry(channel, fault, replayable=True))
        with self._changed:
            while waiting.stall is None:
                if channel.ending:
                    waiting.stall = Stall.ENDING
                elif not self._buffers[REPLAYABLE].enabled:
                    waiting.stall = Stall.FINAL
                else:
                    self._changed.wait(_LOOK_S)
            if self._waiting.get(key) is waiting:
                del self._waiting[key]
        return waiting.stall

    def replay(self, how: int, directory: int = 0, address: int = 0, access: int = 7) -> None:
        """Replay or cancel what waits: see Replay. directory, address, access: of what
        CANCEL_VA_GLOBAL cancels; access as in MEM_OP_C."""
        if how == Replay.NONE:
            return
        if how > Replay.CANCEL_VA_GLOBAL:
            self._board.violation(f"fault replay {how} is not known")
            return
        final = how >= Replay.CANCEL_TARGETED
        with self._changed:
            for key, waiting in list(self._waiting.items()):
                matches = (
                    waiting.directory == directory
                    and waiting.fault.page == address & -_PAGE
                    and waiting.fault.access in _CANCELLED.get(access, ())
                )
                if how != Replay.CANCEL_VA_GLOBAL or matches:
                    waiting.stall = Stall.FINAL if final else Stall.RETRY
                    del self._waiting[key]
            self._changed.notify_all()

    def _entry(self, channel: Faulting, fault: MmuFault, *, replayable: bool) -> bytes:
        """Return NVC369_BUF_ENTRY."""
        table, graphics, copy, host = FAMILIES[self._board.gpu.facts.family]
        client = abi.fault_codes(table).field("CLIENT").values[_CLIENTS[fault.client]]
        runlist = max(0, channel.runlist_engine - ENGINE_COPY0 + 1)
        if fault.client is Client.HOST:
            engine = host + runlist
        elif channel.runlist_engine == ENGINE_GR0:
            engine = graphics + (channel.subcontext if fault.client is Client.SM else 0)
        else:
            engine = copy + runlist - 1
        info = fault.kind | client << 8 | fault.access << 16 | _MAY_REPLAY | _VALID
        info |= _REPLAYABLE if replayable else 0
        info |= 0 if fault.client is Client.SM else _HUB
        return struct.pack(
            "<QQQII", channel.instance & -_PAGE, fault.page, self._board.gpu.time_ns(), engine, info
        )

    def _put(self, number: int, entry: bytes) -> None:
        """Write an entry and advance PUT, unless the buffer is off or has no room."""
        with self._changed:
            buffer = self._buffers[number]
            words = buffer.words
            if not buffer.enabled or words[_PUT] & _OVERFLOW:
                return
            put = words[_PUT] & _POINTER
            after = (put + 1) % buffer.entries
            if after == words[_GET] & _POINTER:
                words[_GET] |= _OVERFLOW
                words[_PUT] |= _OVERFLOW
            else:
                self._write(buffer, put * ENTRY, entry)
                words[_PUT] = words[_PUT] & ~_POINTER | after
        self._signal(number)

    def _write(self, buffer: _Buffer, offset: int, entry: bytes) -> None:
        if buffer.pages:
            self._board.bus_write(buffer.pages[offset // _PAGE] + offset % _PAGE, entry)
            return
        start = buffer.words[_HIGH] << 32 | buffer.words[_LOW] & -_PAGE
        self._board.bar2.write(start + offset, entry)
