"""Scratch: every load and store of it, at offsets of all kinds, against bytes kept lane by lane."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.amd.isa import gfx_encode as asm
from tests.support.amd.isa.gfx_corpus import compile_ir
from tests.support.amd.isa.gfx_run import ARRAYS, CODE, PRIVATE_APERTURE, SCRATCH, Machine
from tests.support.amd.isa.gfx_spilling import live_values, spilling_kernel
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.targets.target import target
from ugpu.virtual.amd.isa.translator.access.memory import LOADS, STORES
from ugpu.virtual.amd.shader import Dispatch, Ending
from ugpu.virtual.shader.memory import Access

SHARE = 512  # bytes of scratch of a lane
IMMEDIATE, BASE = 12, 100  # parts of the offset that all lanes have
_DATA, _OFFSET, _PLACE = 8, 2, 1  # vector registers
_BLOCK = 2048  # bytes of the arguments of one access: data, then offsets
_NAMES = [*LOADS, *STORES]


@dataclass(frozen=True)
class Step:
    """One access. mask: enabled lanes. offsets: of each lane, all together."""

    name: str
    mask: int
    offsets: NDArray[np.int64]


def _offsets(rng: np.random.Generator, kind: str, size: int, lanes: int) -> NDArray[np.int64]:
    """Choose offsets that the vector register adds to: dwords, if not `odd`."""
    step = 1 if kind == "odd" else min(size, 4)
    count = (SHARE - size) // step
    if kind in ("all", "beyond"):
        return rng.integers(0, count, lanes) * step + (SHARE - 20 if kind == "beyond" else 0)
    if kind == "odd":
        return rng.integers(0, count, lanes)
    same = np.full(lanes, rng.integers(0, count) * step)
    if kind == "page":  # rows of an access in two pages
        same[:] = 4096 // (4 * lanes) * 4 - 4
    return same


def _code(steps: list[Step], lanes: int, addressing: str) -> bytes:
    """Return a program: for each step, load arguments, access scratch, store the registers."""
    wide, words = lanes == 64, list(asm.vop2("v_lshlrev_b32", _PLACE, asm.integer(4), 0))
    move = "s_mov_b64" if wide else "s_mov_b32"
    for step in steps:
        for offset, register, load in ((0, _DATA, "load_b128"), (1024, _OFFSET, "load_b32")):
            words += asm.global_access(load, addr=_PLACE, saddr=0, dst=register, offset=offset)
        words += asm.sopp("s_waitcnt")
        words += asm.sop1("s_mov_b32", asm.EXEC, asm.LITERAL, step.mask & 0xFFFFFFFF)
        if wide:
            words += asm.sop1("s_mov_b32", asm.EXEC + 1, asm.LITERAL, step.mask >> 32)
        words += asm.scratch_access(
            step.name,
            addr=_OFFSET if "v" in addressing else None,
            saddr=4 if "s" in addressing else asm.NULL,
            data=_DATA if step.name in STORES else 0,
            dst=0 if step.name in STORES else _DATA,
            offset=_immediate(step, addressing),
        )
        words += asm.sopp("s_waitcnt")
        words += asm.sop1(move, asm.EXEC, asm.integer(-1))
        words += asm.global_access("store_b128", addr=_PLACE, saddr=2, data=_DATA)
        for register in (0, 2):
            words += asm.sop2("s_add_u32", register, register, asm.LITERAL, _BLOCK)
    words += asm.sopp("s_endpgm")
    return struct.pack(f"<{len(words)}I", *words)


def _immediate(step: Step, addressing: str) -> int:
    """Return the offset in the instruction: all of it, if nothing else has a part of it."""
    return int(step.offsets[0]) - BASE * ("s" in addressing) if "v" not in addressing else IMMEDIATE


def _expected(
    steps: list[Step], private: NDArray[np.uint8], data: NDArray[np.uint32]
) -> tuple[NDArray[np.uint32], set[tuple[int, Access]]]:
    """Carry the steps out on each lane's bytes; return what registers hold, and the faults."""
    after, faults = data.copy(), set()
    for number, step in enumerate(steps):
        store = step.name in STORES
        size, how = STORES[step.name] if store else LOADS[step.name]
        for lane, offset in enumerate(step.offsets.tolist()):
            if not step.mask >> lane & 1:
                continue
            raw = bytearray(after[number, lane].tobytes())
            shift = 2 * (store and bool(how))
            place = offset
            while place < offset + size:  # a dword at a time, or a byte where it is not whole
                rest = min(4, offset + size - place)
                part = rest if place % 4 + rest <= 4 else 1
                at = place - offset
                if place + part > SHARE:
                    kind = Access.WRITE if store else Access.READ
                    faults |= {(PRIVATE_APERTURE + place + k, kind) for k in range(part)}
                    raw[at : at + part] = bytes(part) if not store else raw[at : at + part]
                elif store:
                    private[lane, place : place + part] = list(raw[at + shift : at + shift + part])
                else:
                    raw[at : at + part] = private[lane, place : place + part].tobytes()
                place += part
            if not store:
                _set(after[number, lane], bytes(raw[:size]), str(how))
    return after, faults


def _set(registers: NDArray[np.uint32], got: bytes, how: str) -> None:
    """Put what a load returned into registers."""
    if len(got) >= 4:
        registers[: len(got) // 4] = np.frombuffer(got, np.uint32)
        return
    value = int.from_bytes(got, "little", signed="sign" in how)
    old = int(registers[0])
    if "low" in how:
        value = old & ~0xFFFF | value & 0xFFFF
    elif "high" in how:
        value = old & 0xFFFF | (value & 0xFFFF) << 16
    registers[0] = value & 0xFFFFFFFF


def _run(
    steps: list[Step], lanes: int, addressing: str, data: NDArray[np.uint32], *, apart: bool
) -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.uint8], Machine]:
    """Run the steps; return the registers, each lane's scratch before and after. apart: the pages
    of scratch are in different places of the host's memory."""
    machine = Machine(GfxCore(1))
    blocks = np.zeros((len(steps), _BLOCK // 4), np.uint32)
    blocks[:, : 4 * lanes] = data.reshape(len(steps), -1)
    shared = IMMEDIATE + BASE * ("s" in addressing)
    for block, step in zip(blocks, steps, strict=True):
        block[256 : 256 + 4 * lanes : 4] = (step.offsets - shared).astype(np.int32).view(np.uint32)
    source, _ = machine.place(blocks)
    to, out = machine.place(np.zeros_like(blocks))
    code = np.frombuffer(_code(steps, lanes, addressing), np.uint8)
    machine.memory.map(CODE, code, False, executable=True)
    rng = np.random.default_rng(5)
    words = rng.integers(0, 2**32, SHARE * lanes, np.uint32)
    step = 1024 if apart else len(words)  # pages of their own, or one array
    scratch = [
        machine.memory.map(SCRATCH + 4 * at, words[at : at + step])
        for at in range(0, len(words), step)
    ]
    before = _by_lane(scratch, lanes)
    low = 0xFFFFFFFF
    dispatch = Dispatch(
        code_address=CODE, groups=(1, 1, 1), threads=(lanes, 1, 1), rsrc1=3 | 0xF0 << 12,
        rsrc2=1 | 5 << 1, rsrc3=0, wave32=lanes == 32,
        user_data=[source & low, source >> 32, to & low, to >> 32, BASE, *[0] * 11],
        scratch_base=SCRATCH, scratch_wave_size=SHARE * lanes, scratch_waves=1,
        private_aperture=PRIVATE_APERTURE,
    )  # fmt: skip
    outcome = machine.core.run(dispatch, machine.memory, machine.abort)
    machine.core.close()
    assert outcome.ending is Ending.DONE, outcome
    assert source == ARRAYS
    after = out[:, : 4 * lanes].reshape(len(steps), lanes, 4)
    return after, before, _by_lane(scratch, lanes), machine


def _by_lane(scratch: list[NDArray[np.uint32]], lanes: int) -> NDArray[np.uint8]:
    """Return the first wave's scratch, a row of bytes for each lane."""
    rows = np.concatenate(scratch)[: SHARE * lanes // 4].reshape(SHARE // 4, lanes)
    return np.ascontiguousarray(rows.T).view(np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize(
    ("addressing", "kinds"),
    [("", ("same",)), ("s", ("same", "page")), ("vs", ("same", "page", "all", "odd", "beyond"))],
)
@pytest.mark.parametrize("apart", [False, True])
def test_every_access(lanes: int, addressing: str, kinds: tuple[str, ...], apart: bool) -> None:
    """Immediate offsets, with a scalar register, with a vector register; lanes masked at random."""
    rng = np.random.default_rng([lanes, len(addressing)])
    steps = []
    for name in _NAMES:
        size = (STORES.get(name) or LOADS[name])[0]
        for kind in kinds:
            mask = (1 << lanes) - 1
            if rng.integers(2):
                mask &= int(rng.integers(0, 1 << 63)) * 2 + 1
            steps.append(Step(name, mask, _offsets(rng, kind, size, lanes)))
    data = rng.integers(0, 2**32, (len(steps), lanes, 4), np.uint32)
    after, private, scratch, machine = _run(steps, lanes, addressing, data, apart=apart)
    wanted, faults = _expected(steps, private, data)
    for step, got, expected in zip(steps, after, wanted, strict=True):
        assert np.array_equal(got, expected), step
    assert np.array_equal(scratch, private)
    assert set(machine.memory.faults) == faults
    assert bool(faults) == ("beyond" in kinds)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cpu"), [("gfx11", "gfx1100"), ("gfx12", "gfx1201")])
@pytest.mark.parametrize("wide", [False, True])
def test_a_kernel_that_spills(name: str, cpu: str, wide: bool) -> None:
    """LLVM spills half of the values that a kernel keeps live."""
    kernel = compile_ir(spilling_kernel(), ",+wavefrontsize64" if wide else "", cpu)
    text = " ".join(line.text for line in kernel.listing)
    assert text.count("scratch_store_b32") > 80
    machine = Machine(GfxCore(1, target=target(name)))
    values = np.random.default_rng(1).random((180, 64), np.float32)
    outcome, views = machine.run(kernel.image, [np.zeros((180, 64), np.float32), values, 3], 1, 64)
    assert outcome.ending is Ending.DONE
    assert machine.memory.faults == []
    assert np.allclose(views[0], live_values(values, 3), rtol=1e-5)
    machine.core.close()
