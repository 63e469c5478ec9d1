"""Memory instructions for the oracle: SMEM, DS, FLAT, GLOBAL, SCRATCH, MUBUF; lane after lane.

Source: RDNA3 ISA document, chapters on scalar, vector and data-share memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from lab.oracles.gfx11.atomic import atomic_result
from lab.oracles.gfx11.state import LANES, WaveState, to_lanes
from ugpu.hcq.errors import NotSupported
from ugpu.virtual.amd.isa.decoder.formats import Format, Instruction
from ugpu.virtual.amd.isa.decoder.operands import Operand

_MASK64 = 0xFFFF_FFFF_FFFF_FFFF
_WORD = 0xFFFF_FFFF


class _Bytes:
    """A window of bytes: reads beyond it give zeros, writes beyond it are dropped."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.data = data

    def load(self, address: int, size: int) -> bytes:
        found = bytearray(size)
        for place in range(size):
            if 0 <= address + place < len(self.data):
                found[place] = int(self.data[address + place])
        return bytes(found)

    def store(self, address: int, data: bytes) -> None:
        for place, value in enumerate(data):
            if 0 <= address + place < len(self.data):
                self.data[address + place] = value


def execute_memory(instruction: Instruction, state: WaveState) -> None:
    """Execute one memory instruction."""
    if instruction.format is Format.SMEM:
        _scalar(instruction, state)
    elif instruction.format is Format.DS:
        _data_share(instruction, state)
    elif instruction.format in (Format.MUBUF, Format.MTBUF):
        _buffer(instruction, state)
    else:
        _vector(instruction, state)


# Scalar --------------------------------------------------------------------------------------


def _scalar(instruction: Instruction, state: WaveState) -> None:
    if instruction.dst is None:  # cache maintenance
        return
    base = instruction.srcs[0]
    offset = instruction.offset
    if instruction.soffset is not None:
        offset += state.read_scalar(instruction.soffset)
    if base.width == 4:
        _scalar_buffer(instruction, state, offset)
        return
    address = state.read_scalar(base) + offset & _MASK64 & ~3
    data = state.memory.load(address, 4 * instruction.dst.width)
    state.write_scalar(instruction.dst, int.from_bytes(data, "little"))


def _scalar_buffer(instruction: Instruction, state: WaveState, offset: int) -> None:
    descriptor = _Descriptor(state.read_scalar(instruction.srcs[0]))
    if instruction.dst is None:
        return
    value = 0
    for number in range(instruction.dst.width):
        place = (offset & ~3) + 4 * number
        if place + 4 <= descriptor.size:
            word = state.memory.load(descriptor.base + place, 4)
            value |= int.from_bytes(word, "little") << 32 * number
    state.write_scalar(instruction.dst, value)


# What all vector memory shares ---------------------------------------------------------------


def _lanes(state: WaveState) -> Iterator[int]:
    return (lane for lane in range(LANES) if state.exec >> lane & 1)


def _registers(state: WaveState, operand: Operand, lane: int) -> int:
    """Return a lane's value of consecutive registers."""
    value = 0
    for number in range(operand.width):
        value |= int(state.vgprs[operand.index + number, lane]) << 32 * number
    return value


def _set_registers(state: WaveState, operand: Operand, lane: int, value: int) -> None:
    for number in range(operand.width):
        state.vgprs[operand.index + number, lane] = value >> 32 * number & _WORD


_SIZES = {"u8": 1, "i8": 1, "b8": 1, "u16": 2, "i16": 2, "b16": 2, "b32": 4, "b64": 8, "b96": 12,
          "b128": 16}  # fmt: skip


def _access(name: str) -> tuple[int, bool, bool, bool]:
    """Return the size in memory, whether signed, whether a half register, whether the upper."""
    parts = name.split("_")
    kind = next(part for part in parts if part in _SIZES)
    return _SIZES[kind], kind[0] == "i", "d16" in parts, "hi" in parts


Load = Callable[[int, int], bytes]
Store = Callable[[int, bytes], None]


def _load_lane(
    instruction: Instruction, state: WaveState, lane: int, load: Load, address: int
) -> None:
    dst = instruction.dst
    if dst is None:
        raise NotSupported("a load without destination", instruction=instruction.name)
    size, sign, half, upper = _access(instruction.name)
    value = int.from_bytes(load(address, size), "little", signed=sign)
    if half:
        old = int(state.vgprs[dst.index, lane])
        value &= 0xFFFF
        value = old & 0xFFFF | value << 16 if upper else old & 0xFFFF0000 | value
    _set_registers(state, dst, lane, value)


def _store_lane(
    instruction: Instruction, state: WaveState, lane: int, store: Store, address: int
) -> None:
    if instruction.data is None:
        raise NotSupported("a store without data", instruction=instruction.name)
    size, _, _, upper = _access(instruction.name)
    value = _registers(state, instruction.data, lane) >> (16 if upper else 0)
    store(address, (value & (1 << 8 * size) - 1).to_bytes(size, "little"))


def _atomic_lane(
    instruction: Instruction, state: WaveState, lane: int, load: Load, store: Store, address: int
) -> None:
    """Execute a FLAT or buffer atomic: compare-and-swap has its new value first, then the old."""
    if instruction.data is None:
        raise NotSupported("an atomic without data", instruction=instruction.name)
    operation, kind = instruction.name.split("atomic_")[1].rsplit("_", 1)
    size = int(kind[1:]) // 8
    data = _registers(state, instruction.data, lane)
    value, compared = data & (1 << 8 * size) - 1, data >> 8 * size
    old = int.from_bytes(load(address, size), "little")
    new = atomic_result(operation, kind, old, value, compared)
    store(address, new.to_bytes(size, "little"))
    if instruction.dst is not None:
        _set_registers(state, instruction.dst, lane, old)


# Flat, global, scratch -----------------------------------------------------------------------


def _vector(instruction: Instruction, state: WaveState) -> None:
    for lane in _lanes(state):
        address = _address(instruction, state, lane)
        load, store, place = _target(instruction, state, lane, address)
        if "atomic" in instruction.name:
            _atomic_lane(instruction, state, lane, load, store, place)
        elif "load" in instruction.name:
            _load_lane(instruction, state, lane, load, place)
        else:
            _store_lane(instruction, state, lane, store, place)


def _address(instruction: Instruction, state: WaveState, lane: int) -> int:
    address = instruction.offset
    if instruction.addr is not None:
        address += _registers(state, instruction.addr, lane)
    if instruction.saddr is not None:
        address += state.read_scalar(instruction.saddr)
    if "addtid" in instruction.name:
        address += 4 * lane
    return address & (_WORD if instruction.format is Format.SCRATCH else _MASK64)


def _target(
    instruction: Instruction, state: WaveState, lane: int, address: int
) -> tuple[Load, Store, int]:
    """Return where an address leads: memory, or through an aperture LDS or scratch."""
    if instruction.format is Format.SCRATCH:
        window = _Bytes(state.scratch[lane])
        return window.load, window.store, address
    if instruction.format is Format.FLAT:
        if address >> 32 == state.shared_aperture >> 32:
            window = _Bytes(state.lds)
            return window.load, window.store, address & _WORD
        if address >> 32 == state.private_aperture >> 32:
            window = _Bytes(state.scratch[lane])
            return window.load, window.store, address & _WORD
    return state.memory.load, state.memory.store, address


# Buffers -------------------------------------------------------------------------------------


class _Descriptor:
    """A buffer resource (V#) without stride or swizzle: base, size in bytes."""

    def __init__(self, value: int) -> None:
        self.base = value & 0xFFFF_FFFF_FFFF
        self.size = value >> 64 & _WORD
        stride, swizzle = value >> 48 & 0x3FFF, value >> 62 & 3
        if stride or swizzle or value >> 119 & 1:
            raise NotSupported("structured or swizzled buffers", descriptor=value)


def _buffer(instruction: Instruction, state: WaveState) -> None:
    if instruction.srsrc is None or instruction.soffset is None:  # cache maintenance
        return
    if instruction.idxen or instruction.tfe or "format" in instruction.name:
        raise NotSupported("the oracle does not execute", instruction=instruction.name)
    descriptor = _Descriptor(state.read_scalar(instruction.srsrc))
    start = state.read_scalar(instruction.soffset)

    def load(offset: int, size: int) -> bytes:
        step = min(size, 4)
        found = b""
        for place in range(offset, offset + size, step):
            inside = place + step <= descriptor.size
            found += state.memory.load(descriptor.base + place, step) if inside else bytes(step)
        return found

    def store(offset: int, data: bytes) -> None:
        step = min(len(data), 4)
        for place in range(0, len(data), step):
            if offset + place + step <= descriptor.size:
                state.memory.store(descriptor.base + offset + place, data[place : place + step])

    for lane in _lanes(state):
        offset = start + instruction.offset
        if instruction.addr is not None:
            offset += _registers(state, instruction.addr, lane)
        if "atomic" in instruction.name:
            if offset + 4 <= descriptor.size:
                _atomic_lane(instruction, state, lane, load, store, offset)
            elif instruction.dst is not None:
                _set_registers(state, instruction.dst, lane, 0)
        elif "load" in instruction.name:
            _load_lane(instruction, state, lane, load, offset)
        else:
            _store_lane(instruction, state, lane, store, offset)


# Data share ----------------------------------------------------------------------------------


def _data_share(instruction: Instruction, state: WaveState) -> None:
    name = instruction.name
    if instruction.gds:
        raise NotSupported("global data share", instruction=name)
    if name == "ds_nop":
        return
    if name in ("ds_permute_b32", "ds_bpermute_b32", "ds_swizzle_b32"):
        _permute(instruction, state)
        return
    if name in ("ds_append", "ds_consume"):
        _append(instruction, state)
        return
    window = _Bytes(state.lds)
    for lane in _lanes(state):
        base = 0 if instruction.addr is None else _registers(state, instruction.addr, lane)
        if "addtid" in name:
            base = 4 * lane + (state.m0 & 0xFFFF)
        if "2addr" in name:
            _paired(instruction, state, lane, window, base)
        elif "_load_" in name:
            _load_lane(instruction, state, lane, window.load, base + instruction.offset)
        elif name.startswith("ds_store_"):
            _store_lane(instruction, state, lane, window.store, base + instruction.offset)
        else:
            _share_atomic(instruction, state, lane, window, base + instruction.offset)


def _paired(
    instruction: Instruction, state: WaveState, lane: int, window: _Bytes, base: int
) -> None:
    size = _SIZES[instruction.name.rsplit("_", 1)[1]]
    step = size * (64 if "stride64" in instruction.name else 1)
    places = [base + offset * step for offset in (instruction.offset0, instruction.offset1)]
    found = [window.load(place, size) for place in places]
    for place, data in zip(places, (instruction.data, instruction.data1), strict=True):
        if data is not None:
            window.store(place, _registers(state, data, lane).to_bytes(size, "little"))
    if instruction.dst is not None:
        _set_registers(state, instruction.dst, lane, int.from_bytes(b"".join(found), "little"))


def _share_atomic(
    instruction: Instruction, state: WaveState, lane: int, window: _Bytes, address: int
) -> None:
    """Execute an LDS atomic; its compare-and-store has the new value in data, the old in data1."""
    if instruction.data is None:
        raise NotSupported("the oracle does not execute", instruction=instruction.name)
    operation, kind = instruction.name[len("ds_") :].replace("_rtn", "").rsplit("_", 1)
    size = int(kind[1:]) // 8
    value = _registers(state, instruction.data, lane)
    other = 0 if instruction.data1 is None else _registers(state, instruction.data1, lane)
    old = int.from_bytes(window.load(address, size), "little")
    new = atomic_result(operation, kind, old, value, other)
    window.store(address, new.to_bytes(size, "little"))
    if instruction.dst is not None:
        _set_registers(state, instruction.dst, lane, old)


def _permute(instruction: Instruction, state: WaveState) -> None:
    if instruction.addr is None or instruction.dst is None:
        raise NotSupported("a permutation without registers", instruction=instruction.name)
    active = to_lanes(state.exec)
    first = state.vgprs[instruction.addr.index].copy()
    moved = np.zeros(LANES, np.uint32)
    if instruction.name == "ds_swizzle_b32":
        origin = _swizzle(instruction.offset)
        moved = np.where(active[origin], first[origin], np.uint32(0))
    else:
        if instruction.data is None:
            raise NotSupported("a permutation without data", instruction=instruction.name)
        data = state.vgprs[instruction.data.index].copy()
        lanes = ((first.astype(np.int64) + instruction.offset) // 4 % LANES).astype(int)
        for lane in range(LANES):
            if instruction.name == "ds_bpermute_b32":
                moved[lane] = data[lanes[lane]] if active[lanes[lane]] else 0
            elif active[lane]:
                moved[lanes[lane]] = data[lane]
    state.vgprs[instruction.dst.index][active] = moved[active]


def _swizzle(pattern: int) -> NDArray[np.int64]:
    """Return the source lane of each lane for a ds_swizzle pattern."""
    return np.array([_swizzled(pattern, lane) for lane in range(LANES)], np.int64)


def _swizzled(pattern: int, lane: int) -> int:
    mask = pattern & 0x1F
    if pattern >= 0xE000:  # the order of a fast Fourier transform
        return int(f"{lane:05b}"[::-1], 2) >> mask.bit_count() | lane & mask
    if pattern >= 0xC000:  # rotate
        amount = pattern >> 5 & 0x1F
        amount = -amount if pattern >> 10 & 1 else amount
        return lane & mask | (lane + amount) & ~mask & 0x1F
    if pattern & 0x8000:  # permute quads
        return lane & ~3 | pattern >> 2 * (lane & 3) & 3
    return (lane & mask | pattern >> 5 & 0x1F) ^ (pattern >> 10 & 0x1F)


def _append(instruction: Instruction, state: WaveState) -> None:
    if instruction.dst is None:
        raise NotSupported("no destination", instruction=instruction.name)
    window = _Bytes(state.lds)
    address = (state.m0 & 0xFFFF) + instruction.offset
    old = int.from_bytes(window.load(address, 4), "little")
    count = state.exec.bit_count()
    new = old + (count if instruction.name == "ds_append" else -count)
    window.store(address, (new & _WORD).to_bytes(4, "little"))
    state.vgprs[instruction.dst.index][to_lanes(state.exec)] = old
