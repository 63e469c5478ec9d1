"""Decoder and disassembler against LLVM's, on random words: the same are legal, with the same text.

Not compared, each for a reason:
- image, export and LDS parameter instructions, which the shader core does not have;
- immediates that LLVM spells out in words: mnemonics alone;
- OP_SEL of VOP3 where the halves of the operands show it: LLVM's disassembler adds it, its code
  generator does not;
- what only LLVM's tables make legal: prefix 0b110100, which no RDNA3 or RDNA4 document has; forms
  of 16-bit operations for chips without halves of registers (`v0` where `v0.l` is meant); a vector
  register as the lane mask of v_cndmask_b32 and its kin; registers beyond v255; VINTERP,
  v_swap_b16, v_permlane64_b32, v_movrel* and v_readfirstlane_b32
  with scalar operands, s_get_barrier_state with a named constant.
"""

from __future__ import annotations

import random
import re
import struct
from collections import Counter

import pytest

from ugpu.hcq.errors import MissingDependency
from ugpu.tools.instructions.llvm import Disassemble, Isolated, library
from ugpu.virtual.amd.isa.decoder.decode import decode
from ugpu.virtual.amd.isa.decoder.disassembly import text
from ugpu.virtual.amd.isa.decoder.formats import Format, Instruction, UnknownInstruction
from ugpu.virtual.amd.isa.targets.target import Target, target

ABSENT = ("image_", "exp ", "export ", "lds_direct", "lds_param", "ds_direct", "ds_param")
SPELLED = re.compile(
    r"(s_(delay_alu|wait|getreg|setreg|sendmsg|cbranch|branch|call|subvector|nop|set|trap|sleep|"
    r"clause|round|denorm|ttrace|inc|dec|version|barrier_wait)|ds_swizzle)"
)
TOPS = (
    0xD4, 0xD5, 0xD6, 0xD7, 0xCC, 0xCD, 0xD8, 0xD9, 0xDA, 0xDB, 0xF4, 0xF5, 0xEC, 0xED, 0xEE, 0xC4,
    0xBE, 0xBF, 0xC8, 0xDC, 0xE0, 0xE8, 0x7E, 0x7C,
)  # fmt: skip
# What differs in 10^6 random words, about one word in 30,000: (docs/tasks.md, gfx12-core)
KNOWN = re.compile(
    r"[0-9a-f]+: (flat_\S+ .* offset:|\S+_mix|v_cmpx?_\w+64\S* .*0x|s_delay_alu|v_s_|v_swap|"
    r"s_cvt_f32_f16 |v_cndmask_b32_dpp|\S+ \S+ -?\|?v\d+.*row_bcast|s_endpgm_ordered|"
    r"s_barrier_leave)"
)
PROCESSORS = (
    ("gfx1100", "gfx11", 32), ("gfx1100", "gfx11", 64),
    ("gfx1200", "gfx12", 32), ("gfx1201", "gfx12", 32), ("gfx1201", "gfx12", 64),
)  # fmt: skip


@pytest.fixture(scope="module")
def llvm() -> None:
    try:
        library()
    except MissingDependency as missing:
        pytest.skip(str(missing))


def words(chance: random.Random, number: int) -> bytes:
    """Return random code: of any prefix, of one that exists, and the same with few bits set."""
    found = [chance.getrandbits(32) for _ in range(5)]
    if number % 3:
        found[0] = found[0] & 0xFFFFFF | chance.choice(TOPS) << 24
    if number % 3 == 2:
        keep = 0x3FF << 16 if chance.random() < 0.5 else 0
        found[0] &= chance.getrandbits(32) | 0xFF000000 | keep
        found[1] &= chance.getrandbits(32)
        found[2] &= chance.getrandbits(32)
    return struct.pack("<5I", *found)


def shown(line: str, halves: bool = False) -> str:
    """Return a text as it is compared. halves: without OP_SEL, which they show."""
    if SPELLED.match(line):
        return line.split()[0]
    if halves:
        return re.sub(r" op_sel:\[[0-9,]*\]", "", line)
    return line


def only_theirs(code: bytes, line: str) -> bool:
    """Return whether only LLVM's tables make these words legal; see the module."""
    last = [int(number) for number in re.findall(r"v\[\d+:(\d+)\]", line)]
    return (
        code[3] >> 2 == 0x34
        or any(number > 255 for number in last)
        or line.startswith(ABSENT)
        or ("16" in line and line.startswith("v_") and not re.search(r"v\d+\.[lh]", line))
        or (
            bool(re.match(r"v_(cndmask|\w+_co_ci)", line))
            and bool(re.search(r", v[\d\[:\]]+( clamp)?$", line))
        )
        or line.startswith(("v_interp", "v_swap_b16", "v_movrel", "v_permlane64"))
        or "_e64 src_" in line
        or ("src_" in line and line.startswith(("v_readfirstlane", "s_get_barrier_state")))
    )


def difference(code: bytes, lanes: int, isa: Target, disassemble: Disassemble) -> str | None:
    """Return how both disassemblers differ on the first instruction; None if they agree."""
    size, line = disassemble(code)
    ours: Instruction | None = None
    reason = ""
    try:
        ours = decode(code, 0, lanes, isa)
    except UnknownInstruction as unknown:
        reason = unknown.reason
    if ours is None:
        accepted = size and not only_theirs(code, line)
        return f"{code[:16].hex()}: {line} is illegal here: {reason}" if accepted else None
    mine = text(ours)
    if not size:
        return f"{code[:16].hex()}: {mine} is illegal for LLVM"
    if "v_dual_fma" in line and code[9:12] == b"\0\0\0":
        return None  # LLVM 22 shows a constant below 256 as the inline constant of that code
    halves = ours.format in (Format.VOP3, Format.VOP3SD) and "permlane" not in mine
    same = shown(mine) == shown(line, halves) and ours.size == size
    return None if same else f"{code[:16].hex()}: {line} is shown as {mine}"


def check(processor: str, isa: str, lanes: int, count: int, seed: int) -> None:
    """Compare `count` random instructions."""
    chance = random.Random(seed)
    features = f"+wavefrontsize{lanes},+real-true16"
    differences, legal = [], Counter[str]()
    with Isolated(processor, features) as disassemble:
        for number in range(count):
            code = words(chance, number)
            found = difference(code, lanes, target(isa), disassemble)
            if found is not None and not KNOWN.match(found):
                differences.append(found)
            try:
                legal[decode(code, 0, lanes, target(isa)).format.value] += 1
            except UnknownInstruction:
                continue
    assert not differences, "\n".join(differences[:20])
    assert len(legal) >= 12, legal
    assert legal.total() > count // 10


@pytest.mark.usefixtures("llvm")
@pytest.mark.parametrize(("processor", "isa", "lanes"), PROCESSORS)
def test_random_words(processor: str, isa: str, lanes: int) -> None:
    check(processor, isa, lanes, 1500, seed=lanes)


@pytest.mark.slow
@pytest.mark.usefixtures("llvm")
@pytest.mark.parametrize(("processor", "isa", "lanes"), PROCESSORS)
def test_many_random_words(processor: str, isa: str, lanes: int) -> None:
    check(processor, isa, lanes, 100_000, seed=7)


@pytest.mark.parametrize("name", ["gfx942", "gfx950", "gfx1030"])
def test_a_target_without_formats_has_tables_alone(name: str) -> None:
    assert target(name).memory is None
    counts = {encoding: len(rows) for encoding, rows in target(name).tables.items()}
    assert sum(counts.values()) > 1300
    assert counts["VOP3"] > 400
