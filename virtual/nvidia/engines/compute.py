"""The compute class: its methods, and launches.

Source: open-gpu-doc classes/compute/clc5c0.h to clcec0.h. SEND_PCAS_A with SEND_SIGNALING_PCAS_B or
PCAS2_B queues a launch. It runs when its channel waits for idle or has nothing else to do. Grids of
one channel that are not ordered may therefore run in any order, and a semaphore release without
wait-for-idle comes before them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ugpu.nv import abi
from ugpu.virtual.nvidia.engines.coherence import Scope
from ugpu.virtual.nvidia.engines.grid import GridRunner
from ugpu.virtual.nvidia.engines.qmd import LaunchDescriptor, not_run, parse, qmd_size, refuse
from ugpu.virtual.nvidia.faults import Fault, Xid
from ugpu.virtual.nvidia.host.errors import ChannelError
from ugpu.virtual.nvidia.host.semaphore import store
from ugpu.virtual.nvidia.host.state import ChannelState
from ugpu.virtual.nvidia.memory.faults import Client

# PCAS_ACTION values that start a grid: SCHEDULE, INVALIDATE_COPY_SCHEDULE, PREFETCH_SCHEDULE,
# INVALIDATE_PREFETCH_COPY_SCHEDULE
_SCHEDULING = (2, 3, 9, 10)
_NOP, _INVALIDATE, _PREFETCH = 0, 1, 8


@cache
def _reserved_bits(class_id: int, address: int) -> int | None:
    """Return the bits of a method's word that no field covers; None for an unknown method."""
    found = abi.methods(class_id).find(address)
    if found is None:
        return None
    return found[0].undefined(0xFFFF_FFFF)


@cache
def _method_name(class_id: int, address: int) -> str:
    found = abi.methods(class_id).find(address)
    return found[0].name if found is not None else f"{address:#x}"


class ComputeEngine:
    """A compute object on a channel. Only its runlist's thread serves it."""

    def __init__(self, channel: ChannelState, class_id: int) -> None:
        self.class_id = class_id
        self.channel = channel
        self.launches = 0
        self._values: dict[int, int] = {}
        self._pending: list[LaunchDescriptor] = []
        self._parsed: dict[bytes, LaunchDescriptor] = {}
        self._inline: bytearray | None = None
        self._inline_start = 0
        table = abi.methods(class_id)
        self._data = table.LOAD_INLINE_QMD_DATA.offset
        self._data_end = self._data + qmd_size(channel.gpu.facts)
        names = {
            "SEND_PCAS_B": self._pcas_range,
            "SEND_SIGNALING_PCAS_B": self._signal,
            "SEND_SIGNALING_PCAS2_B": self._signal2,
            "WAIT_FOR_IDLE": self._wait_for_idle,
            "INVALIDATE_SHADER_CACHES": self._invalidate_idle,
            "INVALIDATE_SHADER_CACHES_NO_WFI": self._invalidate,
            "SET_REPORT_SEMAPHORE_D": self._report,
            "REPORT_SEMAPHORE_EXECUTE": self._report_execute,
            "SET_INLINE_QMD_ADDRESS_A": self._inline_address,
            "SET_INLINE_QMD_ADDRESS_B": self._inline_address,
        }
        self._actions: dict[int, Callable[[int], None]] = {
            table.method(name).offset: action for name, action in names.items() if name in table
        }
        self._offset = {
            name: table.method(name).offset
            for name in (
                "SEND_PCAS_A", "SET_INLINE_QMD_ADDRESS_A", "SET_INLINE_QMD_ADDRESS_B",
                "SET_SHADER_SHARED_MEMORY_WINDOW_A", "SET_SHADER_SHARED_MEMORY_WINDOW_B",
                "SET_SHADER_LOCAL_MEMORY_WINDOW_A", "SET_SHADER_LOCAL_MEMORY_WINDOW_B",
                "SET_SHADER_LOCAL_MEMORY_A", "SET_SHADER_LOCAL_MEMORY_B",
                "SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A",
                "SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_B",
                "SET_REPORT_SEMAPHORE_A", "SET_REPORT_SEMAPHORE_B", "SET_REPORT_SEMAPHORE_C",
                "SET_REPORT_SEMAPHORE_PAYLOAD_LOWER", "SET_REPORT_SEMAPHORE_PAYLOAD_UPPER",
                "SET_REPORT_SEMAPHORE_ADDRESS_LOWER", "SET_REPORT_SEMAPHORE_ADDRESS_UPPER",
            )
            if name in table
        }  # fmt: skip
        self._runner = GridRunner(self, channel, self.pair)

    def close(self) -> None:
        """Release the object; no work of its channel is running any more."""
        self._runner.memory.close()
        coherence = self.channel.gpu.machine.coherence
        if coherence is not None:
            coherence.gone(self)

    def value(self, name: str) -> int:
        """Return the last value of a method; 0 if it was never written."""
        return self._values.get(self._offset[name], 0)

    def has_set(self, name: str) -> bool:
        """Return whether a method was ever written."""
        return self._offset[name] in self._values

    def pair(self, name: str) -> int:
        """Return a 64-bit value from methods NAME_A (upper) and NAME_B."""
        return self.value(f"{name}_A") << 32 | self.value(f"{name}_B")

    def burst(self, address: int, words: tuple[int, ...]) -> None:
        """Execute methods at ascending addresses; words of an inline descriptor are one piece."""
        if self._data <= address < self._data_end and len(words) > 1:
            room = (self._data_end - address) // 4
            self._load(address, words[:room])
            address, words = address + 4 * room, words[room:]
        for value in words:
            self.method(address, value)
            address += 4

    def method(self, address: int, value: int) -> None:
        """Execute one method. Raises ChannelError for an unknown method or reserved bits."""
        if self._data <= address < self._data_end:
            self._load(address, (value,))
            return
        reserved = _reserved_bits(self.class_id, address)
        if reserved is None or self.channel.gpu.machine.faults.take(
            Fault.CLASS_ERROR, self.channel.gpu.index
        ):
            raise ChannelError(
                Xid.CLASS_ERROR, f"class {self.class_id:04x} has no method {address:#06x}"
            )
        if value & reserved:
            raise ChannelError(
                Xid.GR_EXCEPTION,
                f"class {self.class_id:04x} {_method_name(self.class_id, address)} ="
                f" {value:#010x}: reserved bits {value & reserved:#x}",
            )
        self._values[address] = value
        action = self._actions.get(address)
        if action is not None:
            action(value)

    def drain(self) -> None:
        """Run all launched grids."""
        while self._pending:
            reverse = self.channel.gpu.options.overlap == "reverse"
            launch: LaunchDescriptor | None = self._pending.pop(-1 if reverse else 0)
            while launch is not None:
                self._runner.run(launch)
                self.launches += 1
                self._release(launch)
                for address in launch.dependents[1:]:
                    self._take_in(address)
                launch = self._fetch(launch.dependents[0]) if launch.dependents else None

    def _load(self, address: int, words: tuple[int, ...]) -> None:
        if self._inline is None:
            raise ChannelError(
                Xid.GR_EXCEPTION, "LOAD_INLINE_QMD_DATA must follow SET_INLINE_QMD_ADDRESS_B"
            )
        start = address - self._data
        for word in words:
            self._inline[start : start + 4] = word.to_bytes(4, "little")
            start += 4
        where = self._inline_start + address - self._data
        written = bytes(self._inline[address - self._data : start])
        self.channel.space.write(where, written, Client.FRONT_END)

    def _inline_address(self, value: int) -> None:
        upper = self.value("SET_INLINE_QMD_ADDRESS_A")
        if self._mmu3:
            if upper >> 30 & 1 != (qmd_size(self.channel.gpu.facts) == 384):
                self._inline = None
            upper &= 0x1FF
        self._inline_start = (upper << 32 | self.value("SET_INLINE_QMD_ADDRESS_B")) << 8
        self._inline = bytearray(qmd_size(self.channel.gpu.facts))

    @property
    def _mmu3(self) -> bool:
        return self.channel.gpu.facts.mmu == 3

    def _pcas_range(self, value: int) -> None:
        """SEND_PCAS_B: invalidate part of a descriptor; no-op, because none is cached."""

    def _signal(self, value: int) -> None:
        if value & 2:  # SCHEDULE
            self._launch()

    def _signal2(self, value: int) -> None:
        action = value & 0xF
        if action in _SCHEDULING:
            self._launch()
        elif action not in (_NOP, _INVALIDATE, _PREFETCH):
            raise ChannelError(Xid.GR_EXCEPTION, f"PCAS_ACTION {action} is not modelled")

    def _launch(self) -> None:
        if not self.has_set("SEND_PCAS_A"):
            raise ChannelError(Xid.GR_EXCEPTION, "a launch must follow SEND_PCAS_A")
        self._take_in(self.value("SEND_PCAS_A") << 8)

    def _take_in(self, address: int) -> None:
        """Queue a descriptor with its current content; it runs later."""
        launch = self._fetch(address)
        if launch is not None:
            self._pending.append(launch)

    def _fetch(self, address: int) -> LaunchDescriptor | None:
        """Return the current content of a descriptor; None if it is skipped."""
        facts = self.channel.gpu.facts
        for window in ("SHARED", "LOCAL"):
            name = f"SET_SHADER_{window}_MEMORY_WINDOW"
            if not self.has_set(f"{name}_A") or not self.has_set(f"{name}_B"):
                raise refuse(f"{name} was never set")
        raw = self.channel.space.read(address, qmd_size(facts), Client.SKED)
        launch = self._parsed.get(raw)
        if launch is None:
            reason = not_run(raw, facts)
            if reason is not None:
                self.channel.gpu.violations.append(reason)
                return None
            launch = parse(raw, facts)
            if len(self._parsed) >= 256:
                self._parsed.clear()
            self._parsed[raw] = launch
        return launch

    def _release(self, launch: LaunchDescriptor) -> None:
        gpu = self.channel.gpu
        for release in launch.releases:
            if gpu.machine.faults.take(Fault.LOST_RELEASE, gpu.index):
                continue
            self._runner.release(release)
        if launch.releases:
            gpu.kick()

    def _wait_for_idle(self, value: int) -> None:
        self.drain()

    def _invalidate_idle(self, value: int) -> None:
        self.drain()
        self._invalidate(value)

    def _invalidate(self, value: int) -> None:
        """INVALIDATE_SHADER_CACHES: INSTRUCTION 0, FLUSH_DATA 2, data 4, CONSTANT 12."""
        gpu = self.channel.gpu
        if value >> 2 & 1:
            self.channel.barrier(self, Scope.GPU)
        if value >> 4 & 1:
            gpu.data_cache.invalidate()
        if value & 1:
            gpu.instruction_cache.invalidate()
        if value >> 12 & 1:
            gpu.constant_cache.invalidate()

    def _report(self, value: int) -> None:
        """SET_REPORT_SEMAPHORE_D: a release after all earlier work."""
        if value & 3 != 0:
            raise ChannelError(
                Xid.GR_EXCEPTION, f"SET_REPORT_SEMAPHORE_D {value:#x}: traps are not modelled"
            )
        address = self.value("SET_REPORT_SEMAPHORE_A") << 32
        address |= self.value("SET_REPORT_SEMAPHORE_B")
        self._report_to(address, self.value("SET_REPORT_SEMAPHORE_C"), 4, not value >> 28 & 1,
                        not value >> 2 & 1)  # fmt: skip

    def _report_execute(self, value: int) -> None:
        if value & 3 != 0:
            raise ChannelError(
                Xid.GR_EXCEPTION, f"REPORT_SEMAPHORE_EXECUTE {value:#x} is not modelled"
            )
        address = self.value("SET_REPORT_SEMAPHORE_ADDRESS_UPPER") << 32
        address |= self.value("SET_REPORT_SEMAPHORE_ADDRESS_LOWER")
        payload = self.value("SET_REPORT_SEMAPHORE_PAYLOAD_LOWER")
        wide = bool(value >> 12 & 1)
        if wide:
            payload |= self.value("SET_REPORT_SEMAPHORE_PAYLOAD_UPPER") << 32
        flushed = not value >> 5 & 1
        self._report_to(address, payload, 8 if wide else 4, value >> 3 & 3 == 0, flushed)

    def _report_to(
        self, address: int, payload: int, size: int, stamped: bool, flushed: bool
    ) -> None:
        self.drain()
        gpu = self.channel.gpu
        if flushed:
            self.channel.barrier(self, Scope.SYSTEM)
        self.channel.released(address, "a report")
        if gpu.machine.faults.take(Fault.LOST_RELEASE, gpu.index):
            return
        stamp = gpu.time_ns() if stamped else None
        store(self.channel.space, Client.FRONT_END, address, payload, size, stamp)
        gpu.kick()
