"""Waits are checked: LLVM's kernels have all that they need, and each missing one is named."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from tests.support import gfx_encode as asm
from tests.support.gfx_corpus import compile_ir, corpus
from tests.support.kernels import contract_object
from tests.support.shader_memory import ArrayMemory
from ugpu.am.chips.navi31.facts import FACTS
from ugpu.am.device.device import open_device
from ugpu.virtual.amd.gpu import attach, build_chip
from ugpu.virtual.amd.isa.translator.program import Program, load
from ugpu.virtual.amd.isa.waits import check
from ugpu.virtual.amd.options import ChipOptions

BASE = 0x10000
WAIT_WORD, WAIT_MASK = 0xBF890000, 0xFFFF0000


class Code(ArrayMemory):
    """Code in memory, as the translator fetches it."""

    def __init__(self, code: bytes) -> None:
        super().__init__()
        self._code = code.ljust(-(-len(code) // 4096) * 4096, b"\0")

    def fetch(self, address: int, size: int) -> bytes | None:
        """Read instructions; None outside the code."""
        at = address - BASE
        return self._code[at : at + size] if 0 <= at <= len(self._code) - size else None


def program(words: Sequence[int]) -> Program:
    """Return a program that ends in s_endpgm."""
    code = struct.pack(f"<{len(words) + 1}I", *words, 0xBFB00000)
    return load(Code(code), BASE)


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_kernels_of_llvm_wait_for_their_loads(step: int) -> None:
    for name, ir in list(corpus().items())[::step]:
        assert check(load(Code(compile_ir(ir).text), BASE)) == [], name


def test_a_kernel_without_its_waits_is_reported() -> None:
    """Each s_waitcnt becomes a wait for nothing, which most kernels depend on."""
    reported, waiting = 0, 0
    for ir in list(corpus().values())[::8]:
        text = compile_ir(ir).text
        words = list(struct.unpack(f"<{len(text) // 4}I", text))
        places = [at for at, word in enumerate(words) if word & WAIT_MASK == WAIT_WORD]
        for at in places:
            words[at] |= 0xFFFF
        waiting += bool(places)
        code = struct.pack(f"<{len(words)}I", *words)
        reported += bool(check(load(Code(code), BASE)))
    assert waiting > 60
    assert reported > 0.95 * waiting


LOAD = asm.global_access("load_b32", addr=0, saddr=2, dst=4)
OTHER = asm.global_access("load_b32", addr=0, saddr=2, dst=5, offset=4)
LDS = asm.ds("ds_load_b32", addr=1, dst=6)
SCALAR = asm.smem_load(8, 2, 0)
MOVE = asm.vop1("v_mov_b32", 9, asm.v(4))


def wait(vmcnt: int = 63, lgkmcnt: int = 63) -> tuple[int, ...]:
    """Encode s_waitcnt."""
    return asm.sopp("s_waitcnt", vmcnt << 10 | lgkmcnt << 4 | 7)


CASES = {
    "used at once": (
        (*LOAD, *MOVE), "reads v4 without a wait for `global_load_b32 v4, v0, s[2:3]`",
    ),
    "after the wait": ((*LOAD, *wait(vmcnt=0), *MOVE), ""),
    "of two, the older": ((*LOAD, *OTHER, *wait(vmcnt=1), *MOVE), ""),
    "of two, the newer": (
        (*OTHER, *LOAD, *wait(vmcnt=1), *MOVE), "needed: vmcnt or loadcnt of at most 0",
    ),
    "the other counter": ((*LOAD, *wait(lgkmcnt=0), *MOVE), "reads v4"),
    "overwritten": ((*LOAD, *asm.vop1("v_mov_b32", 4, asm.integer(1))), "writes v4"),
    "loaded again, in order": ((*LOAD, *LOAD, *wait(vmcnt=0), *MOVE), ""),
    "LDS": ((*LDS, *asm.vop1("v_mov_b32", 9, asm.v(6))), "lgkmcnt or dscnt of at most 0"),
    "LDS after its wait": ((*LDS, *wait(lgkmcnt=0), *asm.vop1("v_mov_b32", 9, asm.v(6))), ""),
    "a scalar load": ((*SCALAR, *asm.sop1("s_mov_b32", 10, 8)), "reads s8"),
    "a scalar load, wait for one": (
        (*SCALAR, *asm.smem_load(9, 2, 4), *wait(lgkmcnt=1), *asm.sop1("s_mov_b32", 10, 8)),
        "reads s8",
    ),
    "LDS beside a scalar load": (
        (*LDS, *SCALAR, *wait(lgkmcnt=1), *asm.vop1("v_mov_b32", 9, asm.v(6))), "reads v6",
    ),
    "an address": ((*LOAD, *asm.global_access("load_b32", addr=4, saddr=2, dst=7)), "reads v4"),
    "stored data": ((*LOAD, *asm.global_access("store_b32", addr=0, saddr=2, data=4)), "reads v4"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_use_before_its_wait_is_named(name: str) -> None:
    words, expected = CASES[name]
    found = check(program(words))
    assert (len(found) == 1 and expected in found[0]) if expected else found == []


def test_a_path_without_the_wait_counts() -> None:
    """A branch may skip the wait; after it, the value is not known to be there."""
    words = (*LOAD, *asm.sopp("s_cbranch_scc0", 1), *wait(vmcnt=0), *MOVE)
    assert len(check(program(words))) == 1
    around = (*LOAD, *asm.sopp("s_cbranch_scc0", 1), *asm.sopp("s_nop"), *wait(vmcnt=0), *MOVE)
    assert check(program(around)) == []


def without_waits(image: bytes) -> bytes:
    """Return a code object in which each s_waitcnt waits for nothing."""
    section = ELFFile(io.BytesIO(image)).get_section_by_name(".text")
    assert section is not None
    changed, start = bytearray(image), section["sh_offset"]
    for at in range(start, start + section["sh_size"], 4):
        (word,) = struct.unpack_from("<I", changed, at)
        if word & WAIT_MASK == WAIT_WORD:
            struct.pack_into("<I", changed, at, word | 0xFFFF)
    return bytes(changed)


@pytest.mark.parametrize("asked", [False, True])
def test_the_virtual_card_reports_them(asked: bool) -> None:
    """With `check_waits` a missing wait is a violation of the card, once; without it, nothing."""
    card = build_chip(FACTS, ChipOptions(vram=512 << 20, noise=0, check_waits=asked))
    try:
        with open_device("virtual:navi31", attach("navi31", card)) as device:
            values = np.arange(64, dtype=np.uint32)
            with (
                device.load(without_waits(contract_object(device.target))) as loaded,
                device.alloc(values.nbytes) as source,
                device.alloc(values.nbytes) as out,
            ):
                source.copy_from(values)
                arguments = (out, source, np.uint32(64), np.uint32(3))
                for _ in range(2):
                    with device.queue() as queue:
                        queue.launch(loaded["scale"], grid=(1,), block=(64,), args=arguments)
                    device.synchronize()
                assert np.array_equal(out.numpy(np.uint32), 3 * values), "the core has all values"
        found = [text for text in card.violations if "without a wait" in text]
        assert bool(found) == asked
        assert asked or card.violations == []
        assert len(found) == len(set(found))
    finally:
        card.close()
