"""Performance counters: which event each counter of a group counts, and for which programs.

The model allocates and frees counters as KGSL does. It counts only time: other counters stay 0, and
`machine.asked` records the requested events.
Source: Qualcomm's KGSL, adreno_perfcounter.c (adreno_perfcounter_get, _put, _query_group,
_read_group), adreno_ioctl.c (a program's counters are released when its file closes); Mesa 25.0.7
src/freedreno/registers/adreno/a6xx.xml (RBBM_PERFCTR_*).
"""

from __future__ import annotations

import errno
import struct
import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

from ugpu.qcom.regs import constants, structs
from ugpu.virtual.adreno.state import MachineState
from ugpu.virtual.node.process import UserMemory
from ugpu.virtual.node.refusal import refused

_MOST_READS = 100
_ALWAYS_ON = 0x0980  # CP_ALWAYS_ON_COUNTER
# Group, first register, counters; two registers for each, low and high.
_SIX = (
    ("CP", 0x400, 14), ("RBBM", 0x41C, 4), ("PC", 0x424, 8), ("VFD", 0x434, 8), ("HLSQ", 0x444, 6),
    ("VPC", 0x450, 6), ("CCU", 0x45C, 5), ("TSE", 0x466, 4), ("RAS", 0x46E, 4),
    ("UCHE", 0x476, 12), ("TP", 0x48E, 12), ("SP", 0x4A6, 24), ("RB", 0x4D6, 8), ("VSC", 0x4E6, 2),
    ("LRZ", 0x4EA, 4), ("CMP", 0x4F2, 4),
)  # fmt: skip
_SEVEN = (*((name, first - 0x100, count) for name, first, count in _SIX), ("UFC", 0x3FA, 4))


@dataclass
class _Counter:
    register: int
    event: int  # KGSL_PERFCOUNTER_NOT_USED where it is free
    users: int = 0


@dataclass
class Counters:
    """All counters of a GPU. Under the machine's lock."""

    machine: MachineState
    groups: dict[int, list[_Counter]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        codes = constants("msm_kgsl")
        self.unused = codes.KGSL_PERFCOUNTER_NOT_USED
        self.fixed = codes.KGSL_PERFCOUNTER_GROUP_ALWAYSON
        self.groups[self.fixed] = [_Counter(_ALWAYS_ON, 0)]  # the event is the counter's number
        for name, first, count in _SEVEN if self.machine.facts.generation == 7 else _SIX:
            self.groups[codes[f"KGSL_PERFCOUNTER_GROUP_{name}"]] = [
                _Counter(first + 2 * number, self.unused) for number in range(count)
            ]

    def group(self, number: int) -> list[_Counter]:
        """Return the counters of a group; a group that this GPU lacks has none."""
        if number >= constants("msm_kgsl").KGSL_PERFCOUNTER_GROUP_MAX:
            raise refused(errno.EINVAL, f"no group {number} of counters")
        return self.groups.get(number, [])

    def get(self, number: int, event: int) -> _Counter:
        """Return a counter for an event, shared with the programs that already count it."""
        group = self.group(number)
        if number == self.fixed and event >= len(group):
            raise refused(errno.EINVAL, f"group {number} has {len(group)} counters")
        found = next((one for one in group if one.event == event), None)
        if found is None:
            # The last free one: the kernel driver's search continues to the end.
            found = next((one for one in reversed(group) if one.event == self.unused), None)
            if found is None:
                raise refused(errno.EBUSY, f"no counter of group {number} is free")
            found.event = event
            self.machine.asked[f"event {event} of counter group {number}"] += 1
        found.users += 1
        return found

    def put(self, number: int, event: int) -> None:
        """Release a counter."""
        found = next((one for one in self.group(number) if one.event == event and one.users), None)
        if found is None:
            raise refused(errno.EINVAL, f"no counter of group {number} counts event {event}")
        found.users -= 1
        if not found.users and number != self.fixed:
            found.event = self.unused

    def value(self, number: int, event: int) -> int:
        """Return the value of an event's counter; 0 where no counter counts it."""
        self.group(number)
        return self.machine.ticks() if (number, event) == (self.fixed, 0) else 0


class CountedMachine(Protocol):
    """A machine with performance counters."""

    lock: threading.RLock
    counters: Counters


class Counting(Protocol):
    """A program that counts. counters: (group, event) of the counters that it holds."""

    counters: list[tuple[int, int]]
    memory: UserMemory

    @property
    def machine(self) -> CountedMachine:
        """The program's machine."""
        ...


def perfcounter_get(node: Counting, call: Any) -> None:
    """PERFCOUNTER_GET: returns the counter's registers."""
    with node.machine.lock:
        found = node.machine.counters.get(call.groupid, call.countable)
        node.counters.append((call.groupid, call.countable))
        call.offset, call.offset_hi = found.register, found.register + 1


def perfcounter_put(node: Counting, call: Any) -> None:
    """PERFCOUNTER_PUT, for counters that this program holds."""
    with node.machine.lock:
        pair = call.groupid, call.countable
        if pair not in node.counters:
            raise refused(errno.ENODEV, f"this process has no counter for {pair}")
        node.machine.counters.put(*pair)
        node.counters.remove(pair)


def perfcounter_query(node: Counting, call: Any) -> None:
    """PERFCOUNTER_QUERY: number of counters in a group, and the events that they count."""
    with node.machine.lock:
        call.max_counters = 0
        group = node.machine.counters.group(call.groupid)
        call.max_counters = len(group)
        if call.countables and call.count:
            events = [counter.event for counter in group[: call.count]]
            node.memory.write(call.countables, struct.pack(f"<{len(events)}I", *events))


def perfcounter_read(node: Counting, call: Any) -> None:
    """PERFCOUNTER_READ: 64-bit values of events."""
    layout = structs("msm_kgsl").kgsl_perfcounter_read_group
    if not call.reads or not 0 < call.count <= _MOST_READS:
        raise refused(errno.EINVAL, f"{call.count} reads of counters")
    with node.machine.lock:
        raw = bytearray(node.memory.read(call.reads, call.count * layout.size))
        for at in range(0, len(raw), layout.size):
            one = layout.view(memoryview(raw)[at : at + layout.size])
            one.value = node.machine.counters.value(one.groupid, one.countable)
        node.memory.write(call.reads, bytes(raw))


HANDLERS = {
    "PERFCOUNTER_GET": perfcounter_get,
    "PERFCOUNTER_PUT": perfcounter_put,
    "PERFCOUNTER_QUERY": perfcounter_query,
    "PERFCOUNTER_READ": perfcounter_read,
}
