"""Packets that read, write and wait for memory and registers.

Source: Mesa 25.0.7 src/freedreno/registers/adreno/adreno_pm4.xml.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable

from ugpu.virtual.adreno.cp.state import ProcessorState
from ugpu.virtual.adreno.faults import Cause, GpuFault

_WORD = 0xFFFF_FFFF
_DOUBLE = 0xFFFF_FFFF_FFFF_FFFF
_COMPARE: dict[int, Callable[[int, int], bool]] = {
    0: lambda one, other: True, 1: operator.lt, 2: operator.le, 3: operator.eq,
    4: operator.ne, 5: operator.ge, 6: operator.gt,
}  # cp_cond_function  # fmt: skip
# Events of generation 6 whose timestamp is written when all work before is done (vgt_event_type).
_DONE_6 = ("CACHE_FLUSH_TS", "RB_DONE_TS", "WT_DONE_TS", "PC_CCU_FLUSH_DEPTH_TS",
           "PC_CCU_FLUSH_COLOR_TS", "PC_CCU_RESOLVE_TS")  # fmt: skip


def event_write(cp: ProcessorState, body: list[int], at: int) -> None:
    """CP_EVENT_WRITE (generation 6) or CP_EVENT_WRITE7: end of pipe, with a value where
    requested."""
    if cp.machine.facts.generation == 7:
        _event_write_7(cp, body, at)
        return
    head = cp.packets.CP_EVENT_WRITE_0.decode(body[0])
    done = head.EVENT in {cp.codes[name] for name in _DONE_6}
    if done:
        cp.wait_for_idle()
    if len(body) >= 4:
        value = cp.machine.ticks() & _DOUBLE if head.TIMESTAMP else body[3]
        data = struct.pack("<Q", value) if head.TIMESTAMP else struct.pack("<I", value)
        cp.space.publish()
        cp.space.write(body[1] | body[2] << 32, data, "event")
    elif done and len(body) not in (1, 4):
        raise GpuFault(Cause.HANG, f"CP_EVENT_WRITE with {len(body)} words", at)


def _event_write_7(cp: ProcessorState, body: list[int], at: int) -> None:
    head = cp.packets.CP_EVENT_WRITE7_0.decode(body[0])
    if not head.WRITE_ENABLED:
        return
    cp.wait_for_idle()
    if head.WRITE_DST:
        raise cp.gap("CP_EVENT_WRITE7 to on-chip memory", at)
    address = body[1] | body[2] << 32
    source = head.WRITE_SRC
    if source == cp.codes.EV_WRITE_USER_32B:
        data = struct.pack("<I", body[3])
    elif source == cp.codes.EV_WRITE_USER_64B:
        data = struct.pack("<II", body[3], body[4])
    elif source == cp.codes.EV_WRITE_ALWAYSON:
        data = struct.pack("<Q", cp.machine.ticks() & _DOUBLE)
    else:
        raise cp.gap(f"CP_EVENT_WRITE7 with source {source}", at)
    cp.space.publish()
    cp.space.write(address, data, "event")


def mem_write(cp: ProcessorState, body: list[int], at: int) -> None:
    """CP_MEM_WRITE."""
    cp.space.publish()
    cp.store(body[0] | body[1] << 32, struct.pack(f"<{len(body) - 2}I", *body[2:]))


def _register(cp: ProcessorState, index: int, at: int) -> int:
    counter = cp.registers.map["CP_ALWAYS_ON_COUNTER_LO"].offset
    if index in (counter, counter + 1):
        return cp.machine.ticks() >> 32 * (index - counter) & _WORD
    return cp.registers.read(index, at)


def reg_to_mem(cp: ProcessorState, body: list[int], at: int) -> None:
    """CP_REG_TO_MEM: CNT registers, or pairs of them; a count of 0 is 1."""
    head = cp.packets.CP_REG_TO_MEM_0.decode(body[0])
    count = max(head.CNT, 1)
    if head["64B"] and head.CNT == 0:
        count = 2
    words = [_register(cp, head.REG + number, at) for number in range(count)]
    counter = cp.registers.map["CP_ALWAYS_ON_COUNTER_LO"].offset
    if counter == head.REG and count == 2:
        ticks = cp.machine.ticks()
        words = [ticks & _WORD, ticks >> 32 & _WORD]
    address = body[1] | body[2] << 32
    cp.space.publish()
    if head.ACCUMULATE:
        old = cp.words(address, count)
        words = [one + other & _WORD for one, other in zip(old, words, strict=True)]
    cp.space.write(address, struct.pack(f"<{count}I", *words))


def mem_to_reg(cp: ProcessorState, body: list[int], at: int) -> None:
    """CP_MEM_TO_REG."""
    head = cp.packets.CP_MEM_TO_REG_0.decode(body[0])
    shift = 2 if head.SHIFT_BY_2 else 0
    for number, value in enumerate(cp.words(body[1] | body[2] << 32, max(head.CNT, 1))):
        cp.registers.write(head.REG + number, value << shift & _WORD, at)


def mem_to_mem(cp: ProcessorState, body: list[int], at: int) -> None:
    """CP_MEM_TO_MEM: the sum of up to three values, each negated where requested."""
    head = cp.packets.CP_MEM_TO_MEM_0.decode(body[0])
    size, mask = (8, _DOUBLE) if head.DOUBLE else (4, _WORD)
    places = [low | high << 32 for low, high in zip(body[1::2], body[2::2], strict=True)]
    total = 0
    for number, address in enumerate(places[1:]):
        value = int.from_bytes(cp.space.read(address, size), "little")
        negated = number < 3 and head[f"NEG_{'ABC'[number]}"]
        total += -value if negated else value
    cp.space.publish()
    cp.space.write(places[0], (total & mask).to_bytes(size, "little"))


def memcpy(cp: ProcessorState, body: list[int], at: int) -> None:
    """CP_MEMCPY."""
    data = cp.space.read(body[1] | body[2] << 32, 4 * body[0])
    cp.space.write(body[3] | body[4] << 32, data)


def reg_rmw(cp: ProcessorState, body: list[int], at: int) -> None:
    """CP_REG_RMW: (register rotated, and-ed with SRC0) or-ed with, or added to, SRC1."""
    head = cp.packets.CP_REG_RMW_0.decode(body[0])
    value = _register(cp, head.DST_REG, at)
    value = (value << head.ROTATE | value >> (32 - head.ROTATE)) & _WORD
    first = _register(cp, body[1], at) if head.SRC0_IS_REG else body[1]
    second = _register(cp, body[2], at) if head.SRC1_IS_REG else body[2]
    value &= first
    value = value + second if head.SRC1_ADD else value | second
    cp.registers.write(head.DST_REG, value & _WORD, at)


def wait_reg_mem(cp: ProcessorState, body: list[int], at: int) -> None:
    """CP_WAIT_REG_MEM: until a word satisfies a comparison. A wait that never ends is a hang."""
    head = cp.packets.CP_WAIT_REG_MEM_0.decode(body[0])
    compare = _COMPARE.get(head.FUNCTION)
    if compare is None:
        raise GpuFault(Cause.HANG, f"CP_WAIT_REG_MEM with function {head.FUNCTION}", at)
    reference, mask = body[3], body[4]

    def value() -> int:
        if head.POLL == cp.codes.POLL_MEMORY:
            return cp.words(body[1] | body[2] << 32, 1)[0] & mask
        if head.POLL == cp.codes.POLL_REGISTER:
            return _register(cp, body[1], at) & mask
        raise cp.gap(f"CP_WAIT_REG_MEM that polls {head.POLL}", at)

    _until(cp, lambda: compare(value(), reference), "CP_WAIT_REG_MEM", at)


def wait_mem_gte(cp: ProcessorState, body: list[int], at: int) -> None:
    """CP_WAIT_MEM_GTE: until a word is at least the reference."""
    address = body[1] | body[2] << 32
    _until(cp, lambda: cp.words(address, 1)[0] >= body[3], "CP_WAIT_MEM_GTE", at)


def _until(cp: ProcessorState, probe: Callable[[], bool], name: str, at: int) -> None:
    while not probe():
        if not cp.engine.poll_memory(cp.machine.options.hang_limit_s):
            raise GpuFault(Cause.HANG, f"{name} waits for a value that is never written", at)


HANDLERS: dict[str, Callable[[ProcessorState, list[int], int], None]] = {
    "CP_MEM_WRITE": mem_write,
    "CP_REG_TO_MEM": reg_to_mem,
    "CP_MEM_TO_REG": mem_to_reg,
    "CP_MEM_TO_MEM": mem_to_mem,
    "CP_MEMCPY": memcpy,
    "CP_REG_RMW": reg_rmw,
    "CP_WAIT_REG_MEM": wait_reg_mem,
}
