"""Single instructions against the oracle, on random numbers and on awkward ones."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import ptx_oracle as oracle
from tests.support.ptx_numbers import FORMS, NAN, is_nan
from tests.support.sm_unit import Try, Unit

_LANES = 40  # more than a warp, and a ragged one


def _binary(names: str, kinds: str, *modifiers: str) -> list[Try]:
    return [
        Try(".".join((name, *modifiers, kind)), oracle.width(kind), (oracle.width(kind),) * 2)
        for name in names.split() for kind in kinds.split()
    ]  # fmt: skip


def _unary(names: str, kinds: str, result: int | None = None) -> list[Try]:
    return [
        Try(f"{name}.{kind}", result or oracle.width(kind), (oracle.width(kind),))
        for name in names.split() for kind in kinds.split()
    ]  # fmt: skip


_ALL = "u16 s16 u32 s32 u64 s64"


def _integers() -> dict[str, list[Try]]:
    wide = [
        Try(f"{name}.wide.{kind}", 2 * bits, (bits, bits, 2 * bits)[: 2 if name == "mul" else 3])
        for name in ("mul", "mad") for kind, bits in (
            ("u16", 16), ("s16", 16), ("u32", 32), ("s32", 32))
    ]  # fmt: skip
    mad = [
        Try(f"mad.{half}.{kind}", oracle.width(kind), (oracle.width(kind),) * 3)
        for half in ("lo", "hi") for kind in _ALL.split()
    ]  # fmt: skip
    shifts = [
        Try(f"{name}.{kind}", oracle.width(kind), (oracle.width(kind), 32))
        for name, kinds in (("shl", "b16 b32 b64"), ("shr", _ALL)) for kind in kinds.split()
    ]  # fmt: skip
    fields = [
        Try(f"bfe.{kind}", oracle.width(kind), (oracle.width(kind), 32, 32))
        for kind in ("u32", "s32", "u64", "s64")
    ] + [Try(f"bfi.b{b}", b, (b, b, 32, 32)) for b in (32, 64)]  # fmt: skip
    permutes = [
        Try(f"prmt.b32{mode}", 32, (32, 32, 32))
        for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16")
    ]
    return {
        "sums": _binary("add sub", _ALL) + _binary("add sub", "s32", "sat"),
        "products": _binary("mul", _ALL, "lo") + _binary("mul", _ALL, "hi") + wide + mad,
        "products of 24 bits": _binary("mul24", "u32 s32", "lo")
        + _binary("mul24", "u32 s32", "hi")
        + [Try(f"mad24.{h}.{k}", 32, (32, 32, 32)) for h in ("lo", "hi") for k in ("u32", "s32")],
        "quotients": _binary("div rem", _ALL),
        "extremes": _binary("min max", _ALL) + _unary("abs neg", "s16 s32 s64")
        + [Try(f"sad.{k}", oracle.width(k), (oracle.width(k),) * 3) for k in _ALL.split()],
        "logic": _binary("and or xor", "b16 b32 b64") + _unary("not cnot", "b16 b32 b64")
        + [Try("lop3.b32", 32, (32, 32, 32), (str(t),)) for t in (0, 0xE8, 0x96, 0x1B, 255)],
        "counts": _unary("popc clz", "b32 b64", 32) + _unary("brev", "b32 b64")
        + _unary("bfind bfind.shiftamt", "u32 s32 u64 s64", 32),
        "shifts": shifts + [Try(f"shf.{d}.{m}.b32", 32, (32, 32, 32))
                            for d in "lr" for m in ("wrap", "clamp")],
        "fields": fields,
        "bytes": permutes
        + [Try(f"dp4a.{a}.{b}", 32, (32,) * 3) for a in ("u32", "s32") for b in ("u32", "s32")]
        + [Try(f"dp2a.{h}.{a}.{b}", 32, (32,) * 3)
           for h in ("lo", "hi") for a in ("u32", "s32") for b in ("u32", "s32")],
    }  # fmt: skip


def _real(name: str, count: int, kinds: str, *modifiers: str) -> list[Try]:
    return [
        Try(".".join((name, *modifiers, kind)), oracle.width(kind), (oracle.width(kind),) * count)
        for kind in kinds.split()
    ]


def _reals() -> dict[str, list[Try]]:
    modes = ("rn", "rz", "rm", "rp")
    both = "f32 f64"
    return {
        "sums": [t for m in modes for n in ("add", "sub") for t in _real(n, 2, both, m)],
        "products": [t for m in modes for t in _real("mul", 2, "f32", m)]
        + _real("mul", 2, "f64", "rn"),
        "fused": [t for m in modes for t in _real("fma", 3, "f32", m)]
        + _real("fma", 3, "f64", "rn"),
        "quotients": [t for m in modes for n, c in (("div", 2), ("rcp", 1))
                      for t in _real(n, c, "f32", m)] + _real("div", 2, "f64", "rn"),
        "roots": [t for m in modes for t in _real("sqrt", 1, "f32", m)]
        + _real("sqrt", 1, "f64", "rn"),
        "flushed": [t for n, c in (("add", 2), ("mul", 2), ("fma", 3), ("div", 2), ("sqrt", 1))
                    for t in _real(n, c, "f32", "rn", "ftz")],
        "limited": [t for n, c in (("add", 2), ("mul", 2), ("fma", 3))
                    for t in _real(n, c, "f32", "rn", "sat")],
        "extremes": [t for n in ("min", "max") for t in
                     _real(n, 2, "f16 bf16 f32 f64") + _real(n, 2, "f16 bf16 f32", "NaN")],
        "halves": [t for n, c in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3))
                   for t in _real(n, c, "f16 bf16", "rn") ]
        + _real("fma", 3, "f16 bf16", "rn", "relu") + _real("fma", 3, "f16", "rn", "sat")
        + _real("add", 2, "f16", "rn", "ftz"),
    }  # fmt: skip


def _conversions() -> dict[str, list[Try]]:
    integers = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]

    def one(target: str, source: str, *modifiers: str) -> Try:
        opcode = ".".join(("cvt", *modifiers, target, source))
        return Try(opcode, max(oracle.width(target), 16), (max(oracle.width(source), 16),))

    return {
        "integers": [one(t, s, *m) for t in integers for s in integers for m in ((), ("sat",))],
        "to integers": [one(t, s, m) for t in integers[2:] for s in ("f16", "f32", "f64")
                        for m in ("rni", "rzi", "rmi", "rpi")],
        "from integers": [one(t, s, m) for s in integers[2:] for t in ("f32", "f64")
                          for m in ("rn", "rz", "rm", "rp")]
        + [one("f16", s, "rn") for s in integers[2:]],
        "floats": [one(t, s, m) for t, s in (("f32", "f64"), ("f16", "f32"), ("f16", "f64"))
                   for m in ("rn", "rz", "rm", "rp")]
        + [one("bf16", "f32", "rn"), one("bf16", "f32", "rz"), one("f32", "f16"),
           one("f64", "f16"), one("f64", "f32"), one("f32", "bf16"), one("f32", "f32", "ftz"),
           one("f32", "f64", "rn", "ftz"), one("f32", "f64", "rn", "sat")],
        "to whole floats": [one(k, k, m) for k in ("f32", "f64")
                            for m in ("rni", "rzi", "rmi", "rpi")],
    }  # fmt: skip


@cache
def _unit(family: str, name: str) -> Unit:
    return Unit(_FAMILIES[family][name])


_FAMILIES = {"integer": _integers(), "real": _reals(), "convert": _conversions()}
_EDGES = {16: [0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x3C00, 0x7C00, 0xFC00, 0x7E00, 0x0400, 0x03FF, 0x7BFF,
               0x3F80, 0x7F80, 0x7F7F, 0x0080],
          32: [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x3F800000, 0xBF800000, 0x7F800000,
               0xFF800000, 0x7FC00000, 0x00800000, 0x007FFFFF, 0x7F7FFFFF, 0x80000001, 0x4B000001,
               0x3F000000, 0xC0200000, 0x5F000000, 31, 32, 33, 64, 0x477FF000, 0x33000001],
          64: [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 0x3FF << 52, 0xBFF << 52, 0x7FF << 52,
               0xFFF << 52, 0x7FF8 << 48, 1 << 52, (1 << 52) - 1, (0x7FF << 52) - 1, (1 << 63) | 1,
               0x47EFFFFFF0000000, 0x36A0000000000001, 0x3FE << 52, 31, 32, 63, 64, 65,
               0x0010000000000001, 0x43E << 52, 0xC004 << 48]}  # fmt: skip


def _operand(draw: Random, bits: int) -> int:
    """Half of the operands awkward, some small, the rest anything."""
    kind = draw.random()
    if kind < 0.5:
        return draw.choice(_EDGES[bits])
    return draw.getrandbits(bits) if kind < 0.85 else draw.randrange(100)


def _expected(family: str, one: Try, operands: list[int]) -> oracle.Result:
    constants = [int(c) for c in one.constants]
    if family == "integer":
        return oracle.integer(one.opcode.removesuffix(""), *operands, *constants)
    if family == "real":
        return oracle.real(one.opcode, *operands)
    return oracle.convert(one.opcode, operands[0])


def _same(one: Try, found: int, wanted: oracle.Result) -> bool:
    kind = one.opcode.split(".")[-2 if one.opcode.startswith("cvt") else -1]
    if wanted == NAN:
        form = FORMS[kind]
        return is_nan(found & ((1 << form.bits) - 1), form)
    assert isinstance(wanted, int)
    if one.opcode.startswith("cvt") and kind[0] == "s":  # extended to the register
        wanted = oracle.signed(wanted, oracle.width(kind)) & ((1 << one.result) - 1)
    return found == wanted


@pytest.mark.parametrize(
    ("family", "name"), [(f, n) for f, families in _FAMILIES.items() for n in families]
)
def test_instructions_do_what_the_oracle_says(family: str, name: str) -> None:
    unit = _unit(family, name)

    @settings(max_examples=4, deadline=None)
    @given(st.integers(0, 1 << 32))
    @example(7883)
    def check(seed: int) -> None:
        draw = Random(seed)
        columns = [
            [[_operand(draw, bits) for _ in range(_LANES)] for bits in one.widths]
            for one in unit.tries
        ]
        for one, operands, found in zip(unit.tries, columns, unit.run(columns), strict=True):
            for lane, result in enumerate(found):
                given_ = [column[lane] for column in operands]
                wanted = _expected(family, one, given_)
                assert _same(one, result, wanted), (
                    one.opcode, [hex(x) for x in given_], hex(result), wanted if isinstance(
                        wanted, str) else hex(wanted),
                )  # fmt: skip

    check()
