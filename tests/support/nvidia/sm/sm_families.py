"""Families of PTX instructions to compare with the oracle, each compiled as one kernel."""

from __future__ import annotations

from lab.oracles import ptx as oracle
from tests.support.nvidia.sm.sm_unit import Try


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
        "chosen bits": [Try("fns.b32", 32, (32, 32, 32))],
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
        "integers": [one(t, s) for t in integers for s in integers]
        + [one(t, s, "sat") for t in integers for s in integers if _may_leave(t, s)],
        "to integers": [one(t, s, m) for t in integers[2:] for s in ("f16", "bf16", "f32", "f64")
                        for m in ("rni", "rzi", "rmi", "rpi")],
        "from integers": [one(t, s, m) for s in integers[2:] for t in ("f32", "f64")
                          for m in ("rn", "rz", "rm", "rp")]
        + [one(t, s, m) for t in ("f16", "bf16") for s in integers[2:] for m in ("rn", "rp")],
        "floats": [one(t, s, m) for t, s in (("f32", "f64"), ("f16", "f32"), ("f16", "f64"),
                                             ("f16", "bf16"), ("bf16", "f32"), ("bf16", "f64"),
                                             ("bf16", "f16"))
                   for m in ("rn", "rz", "rm", "rp")]
        + [one("f32", "f16"),
           one("f64", "f16"), one("f64", "f32"), one("f32", "bf16"), one("f32", "f32", "ftz"),
           one("f32", "f64", "rn", "ftz"), one("f32", "f64", "rn", "sat")],
        "to whole floats": [one(k, k, m) for k in ("f32", "f64")
                            for m in ("rni", "rzi", "rmi", "rpi")],
    }  # fmt: skip


def _may_leave(target: str, source: str) -> bool:
    """Return whether a number of one integer type may not fit in another."""
    wide, narrow = oracle.width(target), oracle.width(source)
    if target[0] == source[0]:
        return narrow > wide
    return source[0] == "s" or narrow >= wide


FAMILIES = {"integer": _integers(), "real": _reals(), "convert": _conversions()}
