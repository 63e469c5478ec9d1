"""Waits are checked: LLVM's kernels have all that they need, and each missing one is named."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from tests.support.amd.isa import gfx_encode as asm
from tests.support.amd.isa.gfx_corpus import compile_ir, corpus
from tests.support.amd.isa.gfx_host import has_twin
from tests.support.corpus.operation_corpus import corpus as operation_corpus
from tests.support.kernels import contract_object
from tests.support.shader_memory import ArrayMemory
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.chips.navi31.facts import FACTS
from ugpu.am.chips.navi48.facts import FACTS as NAVI48
from ugpu.am.device.device import open_device
from ugpu.virtual.amd.gpu import attach, build_chip
from ugpu.virtual.amd.isa.targets.target import target
from ugpu.virtual.amd.isa.translator.program import Program, load
from ugpu.virtual.amd.isa.waits import check
from ugpu.virtual.amd.options import ChipOptions

BASE = 0x10000
WAIT_WORD, WAIT_MASK = 0xBF890000, 0xFFFF0000
SPLIT_WAITS = range(0xBFC0, 0xBFCA)  # upper halves of gfx12's waits, from loadcnt to storecnt_dscnt
NOP = 0xBF800000
CPUS = {"gfx11": "gfx1100", "gfx12": "gfx1201"}


class Code(ArrayMemory):
    """Code in memory, as the translator fetches it."""

    def __init__(self, code: bytes) -> None:
        super().__init__()
        self._code = code.ljust(-(-len(code) // 4096) * 4096, b"\0")

    def fetch(self, address: int, size: int) -> bytes | None:
        """Read instructions; None outside the code."""
        at = address - BASE
        return self._code[at : at + size] if 0 <= at <= len(self._code) - size else None


def program(words: Sequence[int], name: str = "gfx11") -> Program:
    """Return a program that ends in s_endpgm. name: instruction set."""
    code = struct.pack(f"<{len(words) + 1}I", *words, 0xBFB00000)
    return load(Code(code), BASE, target=target(name))


def kernels(name: str, step: int) -> dict[str, bytes]:
    """Return the code of each `step`-th kernel; of gfx12 those without gfx11's own intrinsics."""
    every = {title: ir for title, ir in corpus().items() if name == "gfx11" or has_twin(ir)}
    return {title: compile_ir(ir, cpu=CPUS[name]).text for title, ir in list(every.items())[::step]}


def waitless(word: int) -> int:
    """Return a word of code whose wait, if it is one, waits for nothing."""
    if word & WAIT_MASK == WAIT_WORD:
        return word | 0xFFFF
    return NOP if word >> 16 in SPLIT_WAITS else word


@pytest.mark.parametrize("name", CPUS)
@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_kernels_of_llvm_wait_for_their_loads(step: int, name: str) -> None:
    for title, code in kernels(name, step).items():
        assert check(load(Code(code), BASE, target=target(name))) == [], title


@pytest.mark.parametrize("name", CPUS)
def test_a_kernel_without_its_waits_is_reported(name: str) -> None:
    """Each wait becomes one for nothing, which most kernels depend on."""
    reported, waiting = 0, 0
    for text in kernels(name, 8).values():
        words = struct.unpack(f"<{len(text) // 4}I", text)
        changed = [waitless(word) for word in words]
        waiting += changed != list(words)
        code = struct.pack(f"<{len(words)}I", *changed)
        reported += bool(check(load(Code(code), BASE, target=target(name))))
    assert waiting > 45
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
        (*OTHER, *LOAD, *wait(vmcnt=1), *MOVE), "needed: vmcnt of at most 0",
    ),
    "the other counter": ((*LOAD, *wait(lgkmcnt=0), *MOVE), "reads v4"),
    "overwritten": ((*LOAD, *asm.vop1("v_mov_b32", 4, asm.integer(1))), "writes v4"),
    "loaded again, in order": ((*LOAD, *LOAD, *wait(vmcnt=0), *MOVE), ""),
    "LDS": ((*LDS, *asm.vop1("v_mov_b32", 9, asm.v(6))), "needed: lgkmcnt of at most 0"),
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


def split_wait(counter: str, *counts: int) -> tuple[int, ...]:
    """Encode a wait of gfx12."""
    numbers = {"load": 0, "store": 1, "ds": 6, "km": 7, "load_ds": 8, "store_ds": 9}
    simm16 = counts[0] if len(counts) == 1 else counts[0] << 8 | counts[1]
    return (SPLIT_WAITS[numbers[counter]] << 16 | simm16,)


# As LLVM 22 encodes them for gfx1201. Both kinds of loads leave v1 or s2.
LOAD12 = (0xEE050002, 0x00000001, 0x00000000)  # global_load_b32 v1, v0, s[2:3]
SCALAR12 = (0xF4002080, 0xF8000020)  # s_load_b64 s[2:3], s[0:1], 0x20
WAIT_ALU = (0xBF88FF9E,)  # s_wait_alu depctr_sa_sdst(0)
MOVE12 = asm.vop1("v_mov_b32", 9, asm.v(1))
LDS12, MOVE_LDS = asm.ds("ds_load_b32", addr=7, dst=6), asm.vop1("v_mov_b32", 9, asm.v(6))
CASES12 = {
    "used at once": ((*LOAD12, *MOVE12), "(needed: s_wait_loadcnt of at most 0)"),
    "after the wait": ((*LOAD12, *split_wait("load", 0), *MOVE12), ""),
    "a wait for stores": ((*LOAD12, *split_wait("store", 0), *MOVE12), "reads v1"),
    "a hint": ((*LOAD12, *WAIT_ALU, *MOVE12), "reads v1"),
    "LDS": ((*LDS12, *split_wait("load", 0), *MOVE_LDS), "(needed: s_wait_dscnt of at most 0)"),
    "LDS after its wait": ((*LDS12, *split_wait("ds", 0), *MOVE_LDS), ""),
    "LDS with stores": ((*LDS12, *split_wait("store_ds", 63, 0), *MOVE_LDS), ""),
    "LDS is not in the first field": (
        (*LDS12, *split_wait("store_ds", 0, 63), *MOVE_LDS), "reads v6",
    ),
    "both": ((*LDS12, *LOAD12, *split_wait("load_ds", 0, 0), *MOVE_LDS, *MOVE12), ""),
    "one of both": ((*LDS12, *LOAD12, *split_wait("load_ds", 0, 1), *MOVE_LDS, *MOVE12), "v6"),
    "a scalar load": (
        (*SCALAR12, *split_wait("ds", 0), *asm.sop1("s_mov_b32", 10, 2)),
        "(needed: s_wait_kmcnt of at most 0)",
    ),
    "LDS does not count with scalar loads": (
        (*LDS12, *SCALAR12, *split_wait("ds", 0), *MOVE_LDS), "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES12)
def test_each_counter_of_gfx12_has_its_own_wait(name: str) -> None:
    words, expected = CASES12[name]
    found = check(program(words, "gfx12"))
    assert (len(found) == 1 and expected in found[0]) if expected else found == []


def test_a_path_without_the_wait_counts() -> None:
    """A branch may skip the wait; after it, the value is not known to be there."""
    words = (*LOAD, *asm.sopp("s_cbranch_scc0", 1), *wait(vmcnt=0), *MOVE)
    assert len(check(program(words))) == 1
    around = (*LOAD, *asm.sopp("s_cbranch_scc0", 1), *asm.sopp("s_nop"), *wait(vmcnt=0), *MOVE)
    assert check(program(around)) == []


def without_waits(image: bytes) -> bytes:
    """Return a code object in which each wait waits for nothing."""
    section = ELFFile(io.BytesIO(image)).get_section_by_name(".text")
    assert section is not None
    changed, start = bytearray(image), section["sh_offset"]
    for at in range(start, start + section["sh_size"], 4):
        struct.pack_into("<I", changed, at, waitless(*struct.unpack_from("<I", changed, at)))
    return bytes(changed)


@pytest.mark.parametrize(
    ("name", "facts", "asked"),
    [("navi31", FACTS, False), ("navi31", FACTS, True), ("navi48", NAVI48, True)],
)
def test_the_virtual_card_reports_them(name: str, facts: ChipFacts, asked: bool) -> None:
    """With `check_waits` a missing wait is a violation of the card, once; without it, nothing."""
    card = build_chip(facts, ChipOptions(vram=512 << 20, noise=0, check_waits=asked))
    try:
        with open_device(f"virtual:{name}", attach(name, card)) as device:
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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "facts"), [("navi31", FACTS), ("navi48", NAVI48)])
def test_kernels_of_the_compiler_wait_and_have_no_races(name: str, facts: ChipFacts) -> None:
    card = build_chip(facts, ChipOptions(noise=0, check_waits=True))
    try:
        with open_device(f"virtual:{name}", attach(name, card)) as device:
            for case in list(operation_corpus().values())[::24]:
                case.check(device)
                assert card.violations == [], case.name
    finally:
        card.close()
