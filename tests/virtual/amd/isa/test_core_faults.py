"""What goes wrong on the cores ends a dispatch or is reported; the process survives all of it."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.amd.isa import gfx_kernels
from tests.support.amd.isa.gfx_run import CODE, KERNARGS, Machine
from tests.support.kernels import AMD, compile_ir
from tests.support.waiting import when
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.shader import Dispatch, Ending
from ugpu.virtual.shader.memory import Abort, Access

END = 0xBFB00000  # s_endpgm
NOP = 0xBF800000


@pytest.fixture(scope="module")
def core() -> GfxCore:
    return GfxCore(2)


def image(text: str) -> bytes:
    return compile_ir(text, gfx_kernels.TRIPLE, "gfx1100")


def raw(machine: Machine, words: list[int], address: int = CODE) -> Dispatch:
    """Map code words and describe a dispatch of one wave of them."""
    machine.memory.map(address, np.array(words, np.uint32), writable=False, executable=True)
    machine.memory.map(KERNARGS, np.zeros(1024, np.uint32))
    return Dispatch(
        code_address=address, groups=(1, 1, 1), threads=(32, 1, 1), rsrc1=3 | 0xF0 << 12,
        rsrc2=2 << 1 | 1 << 7, rsrc3=0, wave32=True,
        user_data=[KERNARGS & 0xFFFFFFFF, KERNARGS >> 32, *[0] * 14],
    )  # fmt: skip


def test_wild_pointers_fault_and_the_rest_goes_on(core: GfxCore) -> None:
    machine = Machine(core)
    target, view = machine.place(np.arange(64, dtype=np.uint32))
    frozen, still = machine.place(np.arange(64, dtype=np.uint32), writable=False)
    wild = [0, 0x10, 0xFFFF_FFFF_FFFF_FFFC, 0x8000_0000_0000_0000, target - 4, frozen + 8]
    pointers = np.array([target + 4 * lane for lane in range(32)], np.uint64)
    pointers[: len(wild)] = wild
    outcome, views = machine.run(
        image(gfx_kernels.WILD), [pointers, np.full(32, 99, np.uint32)], 1, 32
    )
    assert outcome.ending is Ending.DONE
    assert list(views[1][:6]) == [0, 0, 0, 0, 0, 2]
    assert np.array_equal(views[1][6:], np.arange(6, 32))
    assert (view[6:32] == 7).all()
    assert np.array_equal(view[:6], np.arange(6))
    assert np.array_equal(still, np.arange(64))
    reads = {address for address, access in machine.memory.faults if access is Access.READ}
    writes = {address for address, access in machine.memory.faults if access is Access.WRITE}
    assert reads == {address % 2**64 for address in wild[:5]}
    assert writes == reads | {frozen + 8}


def test_stale_translations_serve_until_invalidated(core: GfxCore) -> None:
    machine = Machine(core)
    code = compile_ir(AMD, gfx_kernels.TRIPLE, "gfx1100")
    kernel = machine.load(code, "add")
    machine.place(np.zeros(1, np.uint32))  # has the TLB entry of the arguments' page
    arrays = [machine.place(np.full(64, k, np.uint32)) for k in range(3)]
    block = struct.pack("<QQQI", *(address for address, _ in arrays), 64)
    dispatch = machine.dispatch(kernel, block, (1, 1, 1), (64, 1, 1))
    assert core.run(dispatch, machine.memory, machine.abort).ending is Ending.DONE
    assert (arrays[0][1] == 3).all()
    machine.memory.unmap(arrays[0][0], 4096)
    arrays[0][1][:] = 0
    core.run(dispatch, machine.memory, machine.abort)
    assert (arrays[0][1] == 3).all()
    assert not machine.memory.faults
    machine.memory.invalidate()
    arrays[0][1][:] = 0
    core.run(dispatch, machine.memory, machine.abort)
    assert not arrays[0][1].any()
    assert {access for _, access in machine.memory.faults} == {Access.WRITE}


def test_an_unknown_instruction_halts_only_when_it_is_reached(core: GfxCore) -> None:
    machine = Machine(core)
    bad = 0xD7FF0000  # a VOP3 opcode that no table has
    outcome = core.run(raw(machine, [NOP, bad, 0, END]), machine.memory, machine.abort)
    assert outcome.ending is Ending.ILLEGAL_INSTRUCTION
    assert outcome.pc == CODE + 4
    assert outcome.words[0] == bad
    assert outcome.detail
    # s_cmp_eq_u32 0, 0 ; s_cbranch_scc1 over the bad words
    skipping = [0xBF068080, 0xBFA20002, bad, 0, END]
    outcome = core.run(raw(machine, skipping), machine.memory, machine.abort)
    assert outcome.ending is Ending.DONE


def test_registers_beyond_the_allocation_are_illegal(core: GfxCore) -> None:
    machine = Machine(core)
    # v_mov_b32 v40, 0 with 32 registers, and with 48.
    dispatch = raw(machine, [0x7E500280, END])
    outcome = core.run(dispatch, machine.memory, machine.abort)
    assert outcome.ending is Ending.ILLEGAL_INSTRUCTION
    more = dataclasses.replace(dispatch, rsrc1=5 | 0xF0 << 12)
    assert core.run(more, machine.memory, machine.abort).ending is Ending.DONE


def test_code_that_cannot_be_fetched(core: GfxCore) -> None:
    machine = Machine(core)
    dispatch = raw(machine, [NOP] * 1024)  # runs off the end of its page
    outcome = core.run(dispatch, machine.memory, machine.abort)
    assert outcome.ending is Ending.FETCH_FAULT
    assert outcome.pc == CODE + 4096
    assert machine.memory.faults == [(CODE + 4096, Access.EXECUTE)]
    nowhere = dataclasses.replace(dispatch, code_address=KERNARGS)
    outcome = core.run(nowhere, machine.memory, machine.abort)
    assert outcome.ending is Ending.FETCH_FAULT
    assert outcome.pc == KERNARGS


def test_changed_code_at_the_same_address_is_translated_again(core: GfxCore) -> None:
    machine = Machine(core)
    address, view = machine.place(np.zeros(32, np.uint32))
    # s_load_b64 s[2:3], s[0:1], null ; v_lshlrev_b32 v0, 2, v0 ; s_waitcnt ; v_mov_b32 v1, k
    # global_store_b32 v0, v1, s[2:3]
    head = [0xF4040080, 0xF8000000, 0x30000082, 0xBF89FC07]
    tail = [0xDC6A0000, 0x00020100, END]
    for constant in (1, 2, 1):
        dispatch = raw(machine, [*head, 0x7E020280 + constant, *tail])
        machine.memory.map(KERNARGS, np.array([address], np.uint64))
        machine.memory.invalidate()
        assert core.run(dispatch, machine.memory, machine.abort).ending is Ending.DONE
        assert (view == constant).all()


def test_an_endless_loop_is_aborted(core: GfxCore, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(core)
    read: list[int] = []
    refill = machine.memory.refill

    def noted(tlb: Any, address: int, *how: Any) -> int:
        read.append(address)
        return refill(tlb, address, *how)

    monkeypatch.setattr(machine.memory, "refill", noted)
    ending = when(lambda: read, machine.abort.set)  # it has read the flag and loops
    outcome, _ = machine.run(image(gfx_kernels.SPIN), [np.zeros(1, np.uint32)], 100, 64)
    ending.join()
    assert outcome.ending is Ending.ABORTED
    machine.abort.clear()
    outcome, _ = machine.run(image(gfx_kernels.SPIN), [np.ones(1, np.uint32)], 100, 64)
    assert outcome.ending is Ending.DONE


def test_a_failing_memory_ends_the_dispatch_with_its_error(
    core: GfxCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Exception):
        pass

    machine = Machine(core)
    dispatch = raw(machine, [0xF4040080, 0xF8000000, END])

    def refill(tlb: object, address: int, access: Access, who: object) -> int:
        raise Broken

    monkeypatch.setattr(machine.memory, "refill", refill)
    with pytest.raises(Broken):
        core.run(dispatch, machine.memory, machine.abort)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"threads": (1024, 2, 1)}, "2048 threads"),
        ({"threads": (0, 1, 1)}, "at least 1"),
        ({"code_address": CODE + 4}, "multiple of 256"),
        ({"rsrc2": 255 << 15}, "bytes of LDS"),
        ({"rsrc2": 17 << 1}, "user SGPRs"),
        ({"rsrc2": 1}, "WAVESIZE"),
        ({"rsrc2": 1, "scratch_wave_size": 1024, "threads": (256, 1, 1)}, "8 waves"),
        (
            {"rsrc2": 1, "scratch_wave_size": 1024, "threads": (256, 1, 1), "wave32": False},
            "4 waves",
        ),
        ({"rsrc1": 3 | 0xF1 << 12}, "rounding"),
    ],
)
def test_bad_dispatches(core: GfxCore, change: dict[str, Any], word: str) -> None:
    machine = Machine(core)
    dispatch = dataclasses.replace(raw(machine, [END]), **change)
    outcome = core.run(dispatch, machine.memory, machine.abort)
    assert outcome.ending is Ending.BAD_DISPATCH
    assert word in outcome.detail


def test_no_groups_no_waves(core: GfxCore) -> None:
    machine = Machine(core)
    dispatch = dataclasses.replace(raw(machine, [0xD7FF0000]), groups=(4, 0, 1))
    assert core.run(dispatch, machine.memory, Abort()).ending is Ending.DONE


def test_indirect_jumps_to_code_first_seen_when_taken(core: GfxCore) -> None:
    machine = Machine(core)
    # s_getpc_b64 s[2:3] ; s_add_u32 s2, s2, 0x200 ; s_addc_u32 s3, s3, 0 ; s_setpc_b64 s[2:3]
    words = [0xBE824700, 0x8002FF02, 0x200, 0x82038003, 0xBE804802]
    words += [0xD7FF0000] * (0x204 // 4 - len(words)) + [NOP, END]
    outcome = core.run(raw(machine, words), machine.memory, machine.abort)
    assert outcome.ending is Ending.DONE, outcome
    words[0x204 // 4] = 0xD7FF0000
    outcome = core.run(raw(machine, words), machine.memory, machine.abort)
    assert outcome.ending is Ending.ILLEGAL_INSTRUCTION
    assert outcome.pc == CODE + 0x204


def test_compiled_code_is_kept_on_disk(tmp_path: Path) -> None:
    for _ in range(2):
        machine = Machine(GfxCore(1, cache=tmp_path))
        x = np.arange(64, dtype=np.uint32)
        code = compile_ir(AMD, gfx_kernels.TRIPLE, "gfx1100")
        outcome, views = machine.run(code, [x * 0, x, x, 64], 1, 64, name="add")
        assert outcome.ending is Ending.DONE
        assert np.array_equal(views[0], 2 * x)
        files = sorted(tmp_path.iterdir())
        assert len(files) >= 1
        for path in files:  # a damaged file counts as absent
            path.write_bytes(path.read_bytes()[:-8])


def test_a_halted_wave_ends_the_endless_ones(core: GfxCore) -> None:
    machine = Machine(core)
    # s_cmp_eq_u32 s2, 5 ; s_cbranch_scc1 to the bad words ; loop: s_branch loop
    words = [0xBF068502, 0xBFA20001, 0xBFA0FFFF, 0xD7FF0000, 0]
    dispatch = dataclasses.replace(raw(machine, words), groups=(64, 1, 1))
    dispatch = dataclasses.replace(dispatch, user_data=[0, 0, 5, *[0] * 13], rsrc2=3 << 1)
    outcome = core.run(dispatch, machine.memory, machine.abort)
    assert outcome.ending is Ending.ILLEGAL_INSTRUCTION
    # Group 1 halts, on whichever thread; group 0 spins on the other.
    words = [0xBF068102, 0xBFA20001, 0xBFA0FFFF, 0xD7FF0000, 0]
    dispatch = dataclasses.replace(raw(machine, words), groups=(8, 1, 1))
    machine.memory.invalidate()
    outcome = core.run(dispatch, machine.memory, machine.abort)
    assert outcome.ending is Ending.ILLEGAL_INSTRUCTION
    assert outcome.group == (1, 0, 0)
    assert outcome.pc == CODE + 12
