"""The copy class: lines from one pitch layout to another, remapped components, semaphores.

Source: open-gpu-doc classes/dma-copy/clc5b5.h to clcab5.h; manuals in the same repository say that
one launch copies LINE_COUNT lines of LINE_LENGTH_IN elements. A launch is queued. It is executed
when something waits for it or the channel has nothing else to do. A pipelined launch does not wait
for earlier copies; here it is executed before them, so that a missing wait shows.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from ugpu.nv import abi
from ugpu.virtual.nvidia.engines.coherence import Scope, pages_of
from ugpu.virtual.nvidia.faults import Fault, Xid
from ugpu.virtual.nvidia.host.errors import ChannelError
from ugpu.virtual.nvidia.host.semaphore import reduce, store
from ugpu.virtual.nvidia.host.state import ChannelState
from ugpu.virtual.nvidia.memory.faults import Client, FaultAccess, FaultType, MmuFault
from ugpu.virtual.nvidia.memory.space import FaultError

_NAMES = (
    "LAUNCH_DMA", "OFFSET_IN_UPPER", "OFFSET_IN_LOWER", "OFFSET_OUT_UPPER", "OFFSET_OUT_LOWER",
    "PITCH_IN", "PITCH_OUT", "LINE_LENGTH_IN", "LINE_COUNT", "SET_SEMAPHORE_A", "SET_SEMAPHORE_B",
    "SET_SEMAPHORE_PAYLOAD", "SET_SEMAPHORE_PAYLOAD_UPPER", "SET_REMAP_CONST_A",
    "SET_REMAP_CONST_B", "SET_REMAP_COMPONENTS", "SET_SRC_PHYS_MODE", "SET_DST_PHYS_MODE",
)  # fmt: skip
_CONST_A, _CONST_B, _NO_WRITE = 4, 5, 6
_PIPELINED, _SEMAPHORE = 1, 3 << 3  # of LAUNCH_DMA


@cache
def _table(class_id: int) -> tuple[dict[str, int], dict[int, int]]:
    """Return offsets by name, and reserved bits by offset."""
    table = abi.methods(class_id)
    reserved = {}
    for name in table:
        if name != "SET_OBJECT":
            method = table.method(name)
            reserved[method.offset] = method.undefined(0xFFFF_FFFF)
    return {name: table.method(name).offset for name in _NAMES if name in table}, reserved


class CopyEngine:
    """A copy object on a channel. Only its runlist's thread serves it."""

    def __init__(self, channel: ChannelState, class_id: int) -> None:
        self.class_id = class_id
        self.channel = channel
        self.copies = 0
        self._values: dict[int, int] = {}
        self._physical = (False, False)  # of source and target
        self._pending: list[tuple[int, dict[int, int]]] = []  # flags, and values of all methods
        self._coherence = channel.gpu.machine.coherence
        self._offset, self._reserved = _table(class_id)
        self._launch = self._offset["LAUNCH_DMA"]

    def close(self) -> None:
        """Release the object; no work of the channel is running any more."""
        if self._coherence is not None:
            self._coherence.gone(self)

    def drain(self) -> None:
        """Execute all launched copies. One that faults stays the first."""
        held = self._values
        try:
            while self._pending:
                flags, self._values = self._pending[0]
                self._copy(flags)
                del self._pending[0]
        finally:
            self._values = held

    def burst(self, address: int, words: tuple[int, ...]) -> None:
        """Execute methods at ascending addresses."""
        for value in words:
            self.method(address, value)
            address += 4

    def method(self, address: int, value: int) -> None:
        """Execute one method. Raises ChannelError for an unknown method or reserved bits."""
        reserved = self._reserved.get(address)
        if reserved is None:
            raise self._error(f"class {self.class_id:04x} has no method {address:#06x}")
        if value & reserved:
            raise self._error(f"method {address:#06x} = {value:#010x}: reserved bits are set")
        self._values[address] = value
        if address == self._launch:
            self._take(value)

    def _error(self, text: str) -> ChannelError:
        # Xids 39 to 41 name copy engines 0 to 2; a class error of any engine is 69.
        return ChannelError(Xid.CLASS_ERROR, f"copy engine: {text}")

    def _value(self, name: str) -> int:
        return self._values.get(self._offset[name], 0)

    def _pair(self, upper: str, lower: str) -> int:
        return self._value(upper) << 32 | self._value(lower)

    def _take(self, flags: int) -> None:
        """Check a launch, and put it at its place in the queue."""
        transfer = flags & 3
        if transfer == 3:
            raise self._error(f"LAUNCH_DMA {flags:#x}: transfer type must be 0 to 2, got 3")
        if flags >> 12 & 3 and not self.channel.privileged:
            raise self._error("physical addresses require a privileged channel")
        if transfer and flags >> 7 & 3 != 3:
            raise self._error("block-linear layouts are not modelled")
        if transfer and flags >> 20 & 3:
            raise self._error("secure copies are not modelled")
        at = len(self._pending)
        if transfer == _PIPELINED and self.channel.gpu.options.overlap == "reverse":
            # UNSURE: whether semaphores delay a pipelined copy; here it stays behind them.
            while at and not self._pending[at - 1][0] & _SEMAPHORE:
                at -= 1
        self._pending.insert(at, (flags, dict(self._values)))

    def _copy(self, flags: int) -> None:
        if flags & 3:
            self._transfer(flags)
            self.copies += 1
        if flags >> 2 & 1:  # FLUSH_ENABLE, of FLUSH_TYPE SYS or GL; also for earlier copies
            self.channel.barrier(self, Scope.GPU if flags >> 25 & 1 else Scope.SYSTEM)
        kind = flags >> 3 & 3
        if kind:
            self._semaphore(flags, kind)

    def _transfer(self, flags: int) -> None:
        source = self._pair("OFFSET_IN_UPPER", "OFFSET_IN_LOWER")
        target = self._pair("OFFSET_OUT_UPPER", "OFFSET_OUT_LOWER")
        length = self._value("LINE_LENGTH_IN")
        lines = self._value("LINE_COUNT") if flags >> 9 & 1 else 1
        pitch_in, pitch_out = self._value("PITCH_IN"), self._value("PITCH_OUT")
        gpu = self.channel.gpu
        if gpu.machine.faults.take(Fault.COPY_FAULT, gpu.index):
            raise FaultError(MmuFault(FaultType.PTE, FaultAccess.READ, source, Client.COPY))
        if not length or not lines:
            return
        self._physical = bool(flags >> 12 & 1), bool(flags >> 13 & 1)
        if flags >> 10 & 1:
            self._remap(source, target, length, lines, pitch_in, pitch_out)
            return
        if lines > 1 and pitch_in == pitch_out == length:
            length, lines = length * lines, 1
        for line in range(lines):
            self._move(source + line * pitch_in, target + line * pitch_out, length)

    def _move(self, source: int, target: int, size: int) -> None:
        """Copy one line. A fault on either side is raised before any of the line is written."""
        inputs = self._runs(source, size, FaultAccess.READ)
        outputs = self._runs(target, size, FaultAccess.WRITE)
        self._watch(inputs, outputs)
        while inputs and outputs:
            (from_host, from_size), (to_host, to_size) = inputs[0], outputs[0]
            step = min(from_size, to_size)
            ctypes.memmove(to_host, from_host, step)
            inputs[0] = (from_host + step, from_size - step)
            outputs[0] = (to_host + step, to_size - step)
            inputs = inputs if inputs[0][1] else inputs[1:]
            outputs = outputs if outputs[0][1] else outputs[1:]

    def _runs(self, address: int, size: int, access: FaultAccess) -> list[tuple[int, int]]:
        """Return the pieces in this process of one side of a copy."""
        writes = access is FaultAccess.WRITE
        if not self._physical[writes]:
            return self.channel.space.runs(address, size, access, Client.COPY)
        mode = self._value("SET_DST_PHYS_MODE" if writes else "SET_SRC_PHYS_MODE") & 3
        pieces = self.channel.gpu.physical_runs(address, size, system=mode != 0)
        if pieces is None:
            raise FaultError(MmuFault(FaultType.REGION_VIOLATION, access, address, Client.COPY))
        return pieces

    def _watch(self, inputs: list[tuple[int, int]], outputs: list[tuple[int, int]]) -> None:
        """Record that pieces are read and written."""
        if self._coherence is None:
            return
        gpu, who = self.channel.gpu, "a copy"
        gpu.violations += self._coherence.read(self, gpu.index, who, pages_of(inputs))
        self._coherence.wrote(self, gpu.index, who, pages_of(outputs), Scope.NOBODY)

    def _remap(
        self, source: int, target: int, count: int, lines: int, pitch_in: int, pitch_out: int
    ) -> None:
        """Copy lines of `count` elements whose components are from the source or constants."""
        code = self._value("SET_REMAP_COMPONENTS")
        size = (code >> 16 & 3) + 1
        inputs, outputs = (code >> 20 & 3) + 1, (code >> 24 & 3) + 1
        choose = [code >> 4 * component & 7 for component in range(outputs)]
        if any(pick > _NO_WRITE or inputs <= pick < 4 for pick in choose):
            raise self._error(
                f"SET_REMAP_COMPONENTS {code:#x} selects a component that does not exist"
            )
        constants = (self._value("SET_REMAP_CONST_A"), self._value("SET_REMAP_CONST_B"))
        reads = any(pick < 4 for pick in choose)
        zeros = all(
            pick in (_CONST_A, _CONST_B) and not constants[pick - _CONST_A] for pick in choose
        )
        for line in range(lines):
            where = target + line * pitch_out
            if zeros:
                self._zero(where, count * outputs * size)
                continue
            made = np.empty((count, outputs, size), np.uint8)
            if _NO_WRITE in choose:
                old = self._read(where, count * outputs * size)
                made[:] = np.frombuffer(old, np.uint8).reshape(count, outputs, size)
            taken = np.zeros((0, 0, 0), np.uint8)
            taken_from = (source + line * pitch_in, count * inputs * size)
            if reads:
                raw = self._read(*taken_from)
                taken = np.frombuffer(raw, np.uint8).reshape(count, inputs, size)
            for component, pick in enumerate(choose):
                if pick < 4:
                    made[:, component] = taken[:, pick]
                elif pick != _NO_WRITE:
                    word = constants[pick - _CONST_A].to_bytes(4, "little")[:size]
                    made[:, component] = np.frombuffer(word, np.uint8)
            pieces = self._runs(where, made.size, FaultAccess.WRITE)
            if self._coherence is not None:
                self._watch(
                    self._runs(*taken_from, FaultAccess.READ) if reads else [], list(pieces)
                )
            content = made.tobytes()
            for host, length in pieces:
                ctypes.memmove(host, content[:length], length)
                content = content[length:]

    def _read(self, address: int, size: int) -> bytes:
        pieces = self._runs(address, size, FaultAccess.READ)
        return b"".join(ctypes.string_at(host, length) for host, length in pieces)

    def _zero(self, target: int, size: int) -> None:
        """Write one line of zeros."""
        outputs = self._runs(target, size, FaultAccess.WRITE)
        self._watch([], outputs)
        for host, length in outputs:
            self.channel.gpu.memory.zero(host, length)

    def _semaphore(self, flags: int, kind: int) -> None:
        if kind == 3:
            raise self._error("conditional interrupt semaphores are not modelled")
        gpu = self.channel.gpu
        if gpu.machine.faults.take(Fault.LOST_RELEASE, gpu.index):
            return
        address = self._pair("SET_SEMAPHORE_A", "SET_SEMAPHORE_B")
        wide = bool(flags >> 27 & 1) and "SET_SEMAPHORE_PAYLOAD_UPPER" in self._offset
        payload = self._value("SET_SEMAPHORE_PAYLOAD")
        size = 4
        if wide:
            payload |= self._value("SET_SEMAPHORE_PAYLOAD_UPPER") << 32
            size = 8
        stamp = gpu.time_ns() if kind == 2 else None
        self.channel.released(address, "the release of a copy")
        if flags >> 19 & 1:
            old = self.channel.space.read_word(address, size, Client.COPY)
            payload = reduce(flags >> 14 & 7, old, payload, 8 * size, not flags >> 18 & 1)
        store(self.channel.space, Client.COPY, address, payload, size, stamp)
        gpu.kick()
