"""Random cases of every vector and scalar ALU opcode, and random registers to run them with."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tests.support.amd.isa import gfx_encode as asm
from tests.support.amd.isa import gfx_tables
from tests.support.amd.isa.gfx_cases import LANES, SCALARS, VECTORS, Case, Registers
from tests.support.amd.isa.gfx_tables import Shape

GROUPS = 6
_FLOATING = ("f16", "f32", "f64")
_HALVES = ("f16", "b16", "bf16")
_CARRIES = ("_co_u32", "_co_ci_u32", "v_div_scale", "v_mad_u64", "v_mad_i64")
_SATURATING = ("add_nc", "sub_nc", "subrev_nc")
# They move lanes or registers in their own ways: made by hand below, or not at all.
TRANSCENDENTAL = ("rcp", "rsq", "sqrt", "exp", "log", "sin", "cos")
SPECIAL = {
    "v_nop", "v_pipeflush", "v_readfirstlane_b32", "v_readlane_b32", "v_writelane_b32",
    "v_permlane16_b32", "v_permlanex16_b32", "v_permlane64_b32", "v_swap_b32", "v_swaprel_b32",
    "v_movreld_b32", "v_movrels_b32", "v_movrelsd_b32", "v_movrelsd_2_b32", "v_mqsad_u32_u8",
}  # fmt: skip
SPECIAL_WORDS = np.array(
    [
        0, 0x80000000, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0xBF800000, 0x3F7FFFFF,
        0x3F000000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7FA00000,
        0xFFFFFFFF, 0x7FFFFFFF, 0x4F000000, 0xCF000000, 0x4F800000, 0x47FFE000, 0x33000000,
        0x3C003C00, 0x7C00FC00, 0x7E007D00, 0x00010001, 0x04000400, 0x7BFF7BFF, 0x80008000,
        0x3FF00000, 0xBFF00000, 0x7FF00000, 0x7FF80000, 0x41E00000, 0x00100000, 0x00080000,
        2, 3, 5, 16, 31, 32, 33, 64, 0xFFFF, 0xFFFE, 0x10000, 0x7FFF, 0x8000, 0xFFFFFF, 0x800000,
    ],
    np.uint32,
)  # fmt: skip


def registers(seed: int, groups: int = GROUPS) -> Registers:
    """Make random registers: plain random bits, special values, numbers of like size."""
    rng = np.random.default_rng(seed)
    vectors = np.stack([_words(rng, (VECTORS, LANES), group) for group in range(groups)])
    scalars = np.stack([_words(rng, (16,), group) for group in range(groups)])
    scalars[0, SCALARS + 1] = 0xFFFF_FFFF  # EXEC of the first group: all lanes
    scalars[:, SCALARS + 2] &= 1
    scalars[:, SCALARS + 3] &= 3
    return Registers(vectors, scalars)


def without_denormals(given: Registers) -> Registers:
    """Replace words that are f32 denormals by zeros of their sign."""

    def flushed(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
        return np.where(words & 0x7F800000, words, words & 0x80000000).astype(np.uint32)

    scalars = given.scalars.copy()
    scalars[:, :SCALARS] = flushed(scalars[:, :SCALARS])
    return Registers(flushed(given.vectors), scalars)


def _words(rng: np.random.Generator, shape: tuple[int, ...], group: int) -> NDArray[np.uint32]:
    words = rng.integers(0, 1 << 32, shape, np.uint32)
    kind = group % 3
    if kind == 1:  # numbers near one, so that sums cancel and quotients are ordinary
        near = rng.integers(0, 1 << 24, shape, np.uint32) + np.uint32(0x3F000000)
        double = rng.integers(0, 1 << 22, shape, np.uint32) + np.uint32(0x3FE00000)
        words = np.where(rng.random(shape) < 0.5, near, double)
        words ^= rng.integers(0, 2, shape, np.uint32) << np.uint32(31)
    special = rng.random(shape) < (0.6 if kind == 2 else 0.15)
    found: NDArray[np.uint32] = np.where(special, rng.choice(SPECIAL_WORDS, shape), words)
    return found.astype(np.uint32)


def small_registers(seed: int, groups: int = 2) -> Registers:
    """Make registers full of small whole numbers in f16, for sums that are exact in any order."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-8, 9, (groups, VECTORS, LANES, 2)).astype(np.float16)
    vectors = numbers.view(np.uint32).reshape(groups, VECTORS, LANES)
    scalars = np.zeros((groups, 16), np.uint32)
    scalars[:, SCALARS + 1] = 0xFFFF_FFFF
    return Registers(vectors.copy(), scalars)


class _Sources:
    """Picks sources: mostly vector registers, now and then scalars and constants."""

    def __init__(self, chance: random.Random, name: str) -> None:
        self.chance = chance
        # As numbers of the transcendental unit small integers are denormals.
        self.lowest = 0 if name.split("_")[1] in TRANSCENDENTAL else -16
        self.literal = chance.choice(SPECIAL_WORDS.tolist()) ^ chance.getrandbits(4)
        if self.lowest == 0 and not self.literal & 0x7F800000:
            self.literal |= 0x40000000

    def pick(self, kind: str, number: int) -> int:
        if kind == "mask":
            return self.chance.choice([asm.VCC, asm.s(44), asm.s(45)])
        draw = self.chance.random()
        if draw < 0.51:
            return asm.v(8 + 2 * number)
        if draw < 0.55 and not kind.endswith("64") and self.lowest:
            return self.chance.choice([asm.VCC, asm.EXEC, asm.M0, asm.NULL, asm.SCC, 251, 252])
        if draw < 0.72:
            return asm.s(40 + 2 * number)
        if draw < 0.84:
            return asm.integer(self.chance.randint(self.lowest, 64 if self.lowest else 0))
        if draw < 0.94:
            return self.chance.choice(asm.FLOATS)
        return asm.LITERAL


def _modifiable(kinds: tuple[str, ...]) -> int:
    """Return the mask of sources that may be negated."""
    return sum(1 << number for number, kind in enumerate(kinds) if kind in _FLOATING)


def _clamps(shape: Shape) -> bool:
    return shape.dst in _FLOATING or any(stem in shape.name for stem in _SATURATING)


def _long(shape: Shape, chance: random.Random, label: str, plain: bool = False) -> Case:
    sources = _Sources(chance, shape.name)
    codes = [sources.pick(kind, number) for number, kind in enumerate(shape.srcs)]
    if plain:
        codes = [
            asm.VCC if kind == "mask" else asm.v(8 + 2 * number)
            for number, kind in enumerate(shape.srcs)
        ]
    if shape.name.startswith("v_div_scale"):  # scales one of the operands of a division
        codes[0] = codes[chance.choice([1, 2])]
    modifiable = 0 if plain or "div_scale" in shape.name else _modifiable(shape.srcs)
    carries = any(stem in shape.name for stem in _CARRIES)
    halves = sum(
        1 << number
        for number, kind in enumerate(shape.srcs)
        if kind in _HALVES and not 106 <= codes[number] < 256  # registers have halves
    )
    halves |= 8 if shape.dst in _HALVES else 0
    mask = shape.dst == "mask"
    words = asm.vop3(
        shape.name,
        chance.choice([46, asm.VCC]) if mask else chance.choice([16, 16, 8]),
        codes,
        neg=chance.getrandbits(3) & modifiable,
        absolute=0 if carries else chance.getrandbits(3) & modifiable,
        op_sel=0 if carries or plain else chance.getrandbits(4) & halves,
        clamp=not plain and _clamps(shape) and chance.random() < 0.3,
        sdst=chance.choice([46, asm.VCC, asm.NULL]) if carries else None,
        literal=sources.literal,
    )
    return Case(f"{shape.name} {label}", words)


def _upper(kind: str, chance: random.Random) -> int:
    """Return 128, which picks the upper half, for some 16-bit operands."""
    return 128 if kind in _HALVES and chance.random() < 0.5 else 0


def _short(encoding: str, shape: Shape, chance: random.Random) -> Case:
    sources = _Sources(chance, shape.name)
    first = sources.pick(shape.srcs[0], 0)
    first |= _upper(shape.srcs[0], chance) if first >= 256 else 0
    if "literal" in shape.srcs and first == asm.LITERAL:
        first = asm.v(8)
    words = _short_words(encoding, shape, chance, first, sources.literal)
    return Case(f"{shape.name} short", words)


def _short_words(
    encoding: str, shape: Shape, chance: random.Random, first: int, literal: int
) -> asm.Encoded:
    dst = 16 | _upper(shape.dst, chance)
    others = [kind for kind in shape.srcs[1:] if kind not in ("literal", "mask")]
    second = 10 | _upper(others[0], chance) if others else 0
    if encoding == "VOP1":
        return asm.vop1(shape.name, dst, first, literal)
    if encoding == "VOP2":
        return asm.vop2(shape.name, dst, first, second, literal)
    return asm.vopc(shape.name, first, second, literal)


_CONTROLS = (
    [0x1B, 0xE4, 0x4E, 0xB1, 0x140, 0x141]
    + [base + count for base in (0x100, 0x110, 0x120) for count in (1, 3, 8, 15)]
    + [base + count for base in (0x150, 0x160) for count in (0, 1, 7, 15)]
)


def _permuted(encoding: str, shape: Shape, chance: random.Random) -> Case | None:
    if shape.srcs[0] == "f64" or shape.srcs[0] == "b64" or "literal" in shape.srcs:
        return None
    eight = chance.random() < 0.25
    code = chance.choice([asm.DPP8, asm.DPP8_FI]) if eight else asm.DPP16
    words = _short_words(encoding, shape, chance, code, 0)
    register = 8 | _upper(shape.srcs[0], chance)
    if eight:
        selectors = [chance.randrange(8) for _ in range(8)]
        return Case(f"{shape.name} dpp8", asm.dpp8(words, register, selectors))
    modifiers = 0
    for number, kind in enumerate(shape.srcs[:2]):
        if kind in _FLOATING:
            modifiers |= chance.getrandbits(2) << 2 * number
    control = chance.choice(_CONTROLS)
    words = asm.dpp16(
        words,
        register,
        control,
        row_mask=chance.choice([15, 15, 1, 2]),
        bank_mask=chance.choice([15, 15, 5, 10]),
        bound_ctrl=chance.random() < 0.5,
        fetch_inactive=chance.random() < 0.5,
        modifiers=modifiers,
    )
    return Case(f"{shape.name} dpp16 {control:#x}", words)


def vector_cases(encoding: str, seed: int) -> Iterator[Case]:
    """Make the cases of every opcode of VOP1, VOP2, VOPC or VOP3 (those that are VOP3 only)."""
    chance = random.Random(seed)
    if encoding == "VOP3":
        for number, shape in gfx_tables.table("VOP3").items():
            if number >= 512 and shape.name not in SPECIAL:
                yield _long(shape, chance, "plain", plain=True)
                yield _long(shape, chance, "picked")
        return
    long = {shape.name for shape in gfx_tables.table("VOP3").values()}
    for shape in gfx_tables.table(encoding).values():
        if shape.name in SPECIAL:
            continue
        yield _short(encoding, shape, chance)
        # Comparisons are many and alike: some of them in every form.
        permuted = _permuted(encoding, shape, chance) if shape.dpp else None
        if permuted is not None and (encoding != "VOPC" or chance.random() < 0.25):
            yield permuted
        if shape.name in long and (encoding != "VOPC" or chance.random() < 0.35):
            yield _long(shape, chance, "long")


def _packed_clamps(shape: Shape) -> bool:
    sums = shape.name.startswith(("v_pk_add", "v_pk_sub", "v_dot4", "v_dot8"))
    return sums or (shape.dst == "pk_f16")


def packed_cases(seed: int) -> Iterator[Case]:
    """Make the cases of VOP3P, matrices excepted."""
    chance = random.Random(seed)
    for shape in gfx_tables.table("VOP3P").values():
        if "wmma" in shape.name:
            continue
        for label in ("one", "two"):
            sources = _Sources(chance, shape.name)
            codes = [sources.pick(kind, number) for number, kind in enumerate(shape.srcs)]
            modified = "f16" in shape.name or "bf16" in shape.name or "mix" in shape.name
            plain = label == "one"
            halves = 7
            if "mix" in shape.name:  # an upper half of a constant means nothing there
                halves = sum(1 << at for at, code in enumerate(codes) if not 128 <= code < 256)
            signs = 3 if "_iu" in shape.name else 0 if plain or not modified else 7
            words = asm.vop3p(
                shape.name,
                16,
                [asm.v(8 + 2 * number) for number in range(len(codes))] if plain else codes,
                op_sel=0 if plain or "_iu" in shape.name else chance.getrandbits(3) & halves,
                op_sel_hi=7 if plain or "_iu" in shape.name else chance.getrandbits(3),
                neg_lo=chance.getrandbits(3) & signs,
                neg_hi=chance.getrandbits(3) & (0 if "_iu" in shape.name else signs),
                clamp=not plain and _packed_clamps(shape) and chance.random() < 0.3,
                literal=sources.literal,
            )
            yield Case(f"{shape.name} {label}", words)


_NO_DATA_FLOW = {
    "s_getpc_b64", "s_setpc_b64", "s_swappc_b64", "s_rfe_b64", "s_sendmsg_rtn_b32",
    "s_sendmsg_rtn_b64", "s_movrels_b32", "s_movrels_b64", "s_movreld_b32", "s_movreld_b64",
    "s_movrelsd_2_b32",
}  # fmt: skip


def scalar_cases(seed: int) -> Iterator[Case]:
    """Make the cases of SOP1, SOP2, SOPC and SOPK that only compute."""
    chance = random.Random(seed)

    def source(number: int) -> int:
        draw = chance.random()
        if draw < 0.6:
            return asm.s(40 + 2 * number)
        if draw < 0.7:
            return asm.integer(chance.randint(-16, 64))
        return chance.choice([asm.s(42), asm.LITERAL, 242, 245])

    for label in ("one", "two"):
        literal = chance.choice(SPECIAL_WORDS.tolist())
        for shape in gfx_tables.table("SOP1").values():
            wide_exec = shape.name.endswith("exec_b64")  # of wave64
            if shape.name not in _NO_DATA_FLOW and not wide_exec:
                words = asm.sop1(shape.name, 46, source(0), literal)
                yield Case(f"{shape.name} {label}", words)
        for shape in gfx_tables.table("SOP2").values():
            words = asm.sop2(shape.name, 46, source(0), source(1), literal)
            yield Case(f"{shape.name} {label}", words)
        for shape in gfx_tables.table("SOPC").values():
            yield Case(shape.name, asm.sopc(shape.name, source(0), source(1), literal))
        for shape in gfx_tables.table("SOPK").values():
            if shape.name.startswith(("s_movk", "s_cmovk", "s_cmpk", "s_addk", "s_mulk")):
                immediate = chance.choice([0, 1, 0x7FFF, 0x8000, 0xFFFF, chance.getrandbits(16)])
                yield Case(f"{shape.name} {label}", asm.sopk(shape.name, 40, immediate))


def lane_cases(seed: int) -> Iterator[Case]:
    """Make cases of the instructions that move data between lanes or registers."""
    chance = random.Random(seed)
    for lane in (asm.s(40), asm.integer(7), asm.integer(40), asm.M0):
        yield Case("v_readlane_b32", asm.vop3("v_readlane_b32", 46, [asm.v(8), lane]))
        yield Case("v_writelane_b32", asm.vop3("v_writelane_b32", 16, [asm.s(42), lane]))
    yield Case("v_readfirstlane_b32", asm.vop1("v_readfirstlane_b32", 46, asm.v(8)))
    yield Case("v_swap_b32", asm.vop1("v_swap_b32", 16, asm.v(8)))
    yield Case("v_permlane64_b32", asm.vop1("v_permlane64_b32", 16, asm.v(8)))
    for name in ("v_movrels_b32", "v_movreld_b32", "v_movrelsd_b32", "v_movrelsd_2_b32"):
        yield Case(name, asm.vop1(name, 14, asm.v(8)))
    yield Case("v_swaprel_b32", asm.vop1("v_swaprel_b32", 14, asm.v(8)))
    for name in ("s_movrels_b32", "s_movreld_b32", "s_movrelsd_2_b32"):
        yield Case(name, asm.sop1(name, 44, 40))
    for name in ("v_permlane16_b32", "v_permlanex16_b32"):
        for op_sel in range(4):
            sources = [asm.v(8), asm.s(40), chance.choice([asm.s(42), asm.integer(9)])]
            yield Case(f"{name} {op_sel}", asm.vop3(name, 16, sources, op_sel=op_sel))


def dual_cases(seed: int, count: int) -> Iterator[Case]:
    """Make cases of VOPD: random pairs."""
    chance = random.Random(seed)
    shapes = gfx_tables.vopd()
    for _ in range(count):
        x, y = shapes[chance.randrange(13)], chance.choice(list(shapes.values()))
        words = asm.vopd(
            (x.name, chance.choice([16, 8]), chance.choice([asm.v(8), asm.s(40), 242]), 10),
            (y.name, chance.choice([17, 9]), chance.choice([asm.v(9), asm.s(42), 130]), 11),
            chance.choice(SPECIAL_WORDS.tolist()),
        )
        yield Case(f"{x.name} :: {y.name}", words)


_UNLIKELY = (
    "addtid", "append", "consume", "bvh", "swizzle", "permute", "ds_nop", "condxchg",
    "gws", "ordered_count", "gs_reg",  # of the whole chip: cores refuse them by name
)  # fmt: skip


def _offset(chance: random.Random, name: str, size: int) -> int:
    """Pick an offset within 16 bytes: whole words for loads and stores, aligned for atomics."""
    if size >= 16:
        return 0
    if name.endswith(("8", "16", "d16", "hi")):
        return chance.randrange(0, 14)
    plain = "load" in name or ("store" in name and "xchg" not in name)
    return chance.randrange(0, 17 - size, 4 if plain else size)


def share_cases(seed: int) -> Iterator[Case]:
    """Make a case of every DS opcode: fill LDS from v[8:11], operate, read LDS back into them.

    Each lane keeps to its own 16 bytes, so that the order of the lanes does not matter.
    """
    chance = random.Random(seed)
    for shape in gfx_tables.ds().values():
        if any(part in shape.name for part in _UNLIKELY):
            continue
        if "stride64" in shape.name and "load" not in shape.name:
            continue
        paired = "2addr" in shape.name
        size = 4 * max(shape.data, shape.dst, 1)
        offset = 1 << 8 if paired else _offset(chance, shape.name, size)
        # Reads of other lanes' bytes: all of them must have been written.
        whole = asm.sop1("s_mov_b32", asm.EXEC, asm.integer(-1)) if "stride" in shape.name else ()
        words = (
            *whole,
            *asm.ds("ds_store_b128", addr=1, data=8),
            *asm.ds(shape.name, addr=1, data=12, data1=14, dst=16, offset=offset),
            *asm.sopp("s_waitcnt"),
            *asm.ds("ds_load_b128", addr=1, dst=8),
            *asm.sopp("s_waitcnt"),
        )
        yield Case(f"{shape.name} offset {offset}", words)
    for _ in range(12):
        offset = chance.choice([chance.getrandbits(15), 0x8000 | chance.getrandbits(8)])
        words = (*asm.ds("ds_swizzle_b32", addr=8, dst=16, offset=offset), *asm.sopp("s_waitcnt"))
        yield Case(f"ds_swizzle_b32 {offset:#x}", words)
    for name in ("ds_permute_b32", "ds_bpermute_b32"):
        for offset in (0, 4, 0x81):
            words = (*asm.ds(name, addr=8, data=10, dst=16, offset=offset), *asm.sopp("s_waitcnt"))
            yield Case(f"{name} {offset}", words)


def global_cases(seed: int) -> Iterator[Case]:
    """Make cases of every GLOBAL opcode, with and without a returned value, as for LDS."""
    chance = random.Random(seed)
    for shape in gfx_tables.flat().values():
        if "g" not in shape.segments or "addtid" in shape.name or "csub" in shape.name:
            continue
        size = 4 * max(shape.dst, shape.data if "cmpswap" not in shape.name else shape.dst)
        for glc in (False, True) if "atomic" in shape.name else (False,):
            offset = _offset(chance, shape.name, size)
            operation = asm.global_access(
                shape.name, addr=1, saddr=2, data=12, dst=16, offset=offset, glc=glc
            )
            words = (
                *asm.global_access("store_b128", addr=1, saddr=2, data=8),
                *operation,
                *asm.sopp("s_waitcnt"),
                *asm.global_access("load_b128", addr=1, saddr=2, dst=8),
                *asm.sopp("s_waitcnt"),
            )
            yield Case(f"global_{shape.name} glc {glc}", words)
