"""Damaged kernels: what the parser lets pass becomes sound IR, or is refused with its line."""

from __future__ import annotations

import contextlib
import re
from random import Random

import llvmlite.binding as llvm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nvidia.sm.sm_families import FAMILIES
from tests.support.nvidia.sm.sm_run import HEAD, body
from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.virtual.nvidia.sm.ptx.parser import parse
from ugpu.virtual.nvidia.sm.translator.translate import prepare, translate

_WORK = """
mul.wide.u32 %at, %t, 4; add.s64 %rd3, %at, %rd0;
ld.global.nc.v2.f32 {%f1, %f2}, [%rd3+8];
fma.rn.ftz.f32 %f3, %f1, %f2, 0f3F800000;
div.rz.f64 %d1, %d2, %d3; cvt.rni.s32.f32 %r1, %f3; cvt.rn.f16x2.f32 %r2, %f1, %f2;
setp.lt.and.u32 %p1|%p2, %r1, %r2, !%p3;
@%p1 bra ELSE;
shfl.sync.bfly.b32 %r3|%p4, %r1, 16, 31, -1; vote.sync.ballot.b32 %r4, %p1, -1;
atom.shared.cas.b32 %r5, [part+4], %r3, %r4; red.global.add.f32 [%rd3], %f3;
ELSE: bar.sync 0;
mad.hi.s32 %r6, %r5, %r4, %r3; prmt.b32 %r7, %r6, %r5, 0x5410; lop3.b32 %r8, %r7, %r6, %r5, 0x96;
add.cc.u32 %r9, %r8, %r7; addc.u32 %r9, %r9, 0; mov.b64 %rd4, {%r8, %r9};
mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32
  {%f1,%f2,%f3,%f4}, {%r1,%r2}, {%r3}, {%f5,%f6,%f7,%f8};
ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r9];
mbarrier.arrive.shared.b64 %rd5, [part];
cp.async.ca.shared.global [%r9], [%rd3], 8; cp.async.commit_group; cp.async.wait_group 1;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [part], %r9; fence.proxy.async.shared::cta;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r9], [%rd3], 64, [part];
cp.async.bulk.global.shared::cta.bulk_group [%rd3], [part+64], %r9;
cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p6, [part], 1; @!%p6 bra WAIT;
mapa.shared::cluster.u32 %r9, %r8, 0; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f11, %f12, %f13, %f14}, %rd4, %rd5, %p5, 1, -1,
  0, 1;
wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32
  {%f11, %f12, %f13, %f14, %f15, %f16, %f17, %f18}, {%r11, %r12, %r13, %r14}, %rd5, 1, 1, 1;
wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; add.f32 %f11, %f12, %f18;
st.shared.v4.b32 [part+16], {%r1, %r2, %r3, %r4};
LOOP: add.u32 %r10, %r10, 1; setp.lt.u32 %p5, %r10, %t; @%p5 bra LOOP;
brx.idx %r10, TABLE;
TABLE: .branchtargets ELSE, LOOP, OUT;
OUT: selp.b32 %r11, %r10, %r9, %p5; st.global.b32 [%rd3], %r11;
"""
_TEXT = HEAD.format(target="sm_90a") + body(1, _WORK, ".shared .align 16 .b8 part[256];")
_SHORT = _TEXT.replace(_WORK, "OUT: EXIT @%p1 bra OUT;")
_EXTREME = [
    "9" * 5000, "0x" + "f" * 5000, "0" * 5000, "0b" + "1" * 5000, "%r" + "9" * 5000, "1e99999",
    "-1", "18446744073709551616", ".param .b8 x[99999999999999]", ".shared .b8 y[999999999999999];",
    ".b" + "1" * 5000, ".align 0", "/*", "\0", "\xe9", "wmma.load", "<", "|", "~",
]  # fmt: skip
_PART = re.compile(r"(%\w+|\.\w+|\b\d+\b|[{}\[\];,])")


def _damaged(seed: int) -> str:
    draw = Random(seed)
    pool = _PART.findall(_TEXT) + 2 * _EXTREME
    lines = _TEXT.split("\n")
    for _ in range(draw.randrange(1, 4)):
        number = draw.randrange(4, len(lines))
        parts = _PART.split(lines[number])
        place, kind = draw.randrange(len(parts)), draw.random()
        if kind < 0.6:
            parts[place] = draw.choice(pool)
        elif kind < 0.8:
            parts[place] = ""
        else:
            parts.insert(place, draw.choice(pool))
        lines[number] = "".join(parts)
    return "\n".join(lines)


def _translate(text: str) -> None:
    module = parse(text)
    flat, places = prepare(module, "k")
    for full in (True, False):
        llvm.parse_assembly(translate(flat, places, full, full).ir).verify()


def test_the_whole_kernel_is_translated() -> None:
    _translate(_TEXT)


@pytest.mark.parametrize("number", [text for text in _EXTREME if len(text) > 1000])
@pytest.mark.parametrize(
    "line", ["mov.u32 %r1, {};", "add.u32 %r{0}, %r1, %r1;", ".reg .b32 %q<{}>;", ".align {}"]
)
def test_numbers_of_thousands_of_digits_are_refused(number: str, line: str) -> None:
    """Python's own limit of digits is not what a caller hears of."""
    text = _TEXT.replace("bar.sync 0;", f"bar.sync 0; {line.format(number)}")
    with pytest.raises(BadCodeObject, match="PTX line"):
        _translate(text)
    with pytest.raises(BadCodeObject, match="PTX line"):
        parse(_TEXT.replace(".version ", f".version {number}.", 1))


@pytest.mark.parametrize(
    "line",
    ["add.u32 %r1, , %r2;", "add.u32 %r1, %r2,;", "mov.b64 %rd4, {, %r9};", "mov.b64 %rd4, {%r1,};",
     "mov.b64 %rd4, {};", "@%p1 mov.b64 %rd4, { };", "mov.b64 %rd4, {%r1|%r2,};", "exit ,;",
     "ld.global.b32 %r1, [];"],
)  # fmt: skip
def test_an_operand_that_is_left_out_is_refused(line: str) -> None:
    with pytest.raises(BadCodeObject, match="PTX line 20: expected"):
        parse(_TEXT.replace("bar.sync 0;", line))


@pytest.mark.parametrize(
    "line",
    ["mov.u32 ;", "wmma.load.sync.aligned.row.m16n16k16.global.f16 ;", "wgmma.mma_async ;",
     "alloca.u64 %rd2;", "alloca.u64 %rd2, %rd1, %r1|%p1;", "mov.b64 %rd1, { };",
     "set.u32.b32 %r22, part;", "add.s64 %rd4, %rd1, !%p1;", "and.f32 %r6, %t, 1;",
     "mov.f32 %f1, 1e200;", "mov.u32 %r1\u00b2, %r2;", "move.u32 %r1, %r2;", "push k, 1;",
     "pop k, 1;", "stack_take.u32 %r4, 10, 0, %p2;", "call_target %r1, %rd1, (k);",
     "ld_wide.b128 %q1, [%rd1];", "bar_result %r1;", "mov.b64 %rd1, " + "{" * 3000,
     "mov.b64 %rd1, " + "(" * 3000],
)  # fmt: skip
def test_an_instruction_that_is_none_is_refused(line: str) -> None:
    with pytest.raises((BadCodeObject, NotSupported), match="PTX line 20: "):
        _translate(_TEXT.replace("bar.sync 0;", line))


@pytest.mark.parametrize(
    "line", ["mov.u8 %h1, %laneid; selp.s8 %r2, 1, %tid.x, %p2;", "selp.f32 %f2, %tid.x, %f1, %p2;"]
)
def test_a_predefined_register_has_the_type_of_the_instruction(line: str) -> None:
    with contextlib.suppress(NotSupported):
        _translate(_TEXT.replace("bar.sync 0;", line))


def _calls(depth: int, body: str, last: str) -> str:
    functions = (f".func f{n} () {{ {body.format(f'call f{n + 1}, ();')} }}" for n in range(depth))
    end = f".func f{depth} () {{ {last} }}\n.entry k() {{ call f0, (); ret; }}"
    return "\n".join((HEAD.format(target="sm_90"), *functions, end))


@pytest.mark.parametrize(
    ("text", "limit"),
    [(_calls(500, "{0} ret;", "ret;"), "100 calls inside each other"),
     (_calls(30, "{0} {0}", ""), "200000 instructions")],
)  # fmt: skip
def test_calls_are_inlined_up_to_a_limit(text: str, limit: str) -> None:
    with pytest.raises(NotSupported, match=limit):
        _translate(text)


_OPERANDS = (
    "%r1", "%rd1", "%p1", "%f1", "%d1", "%h1", "%t", "5", "-1", "0f3F800000", "1e200", "[%rd1]",
    "[part]", "[p0]", "part", "OUT", "k", "{%r1, %r2}", "{%r1}", "{1, 2}", "{_, %r1}", "_", "%tid",
    "%tid.x", "%clock64", "!%p1", "!%r1", "%r1|%p1", "-%r1", "%r1.b0", "%r1.x", "(%r1)", "()",
)  # fmt: skip
_INSTRUCTION = re.compile(r"(@!?%\w+ )?(?:\w+:)?\s*([a-z]\w*(?:\.[\w:]+)*)\s+([^;]+)")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*")
_INSTRUCTIONS = sorted(
    {found.groups("") for found in map(_INSTRUCTION.match, re.split(r";\s*", _WORK)) if found}
    | {("", opcode, "%r1, %r2, %r3") for family in FAMILIES.values() for opcode in family}
)


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 1 << 40))
def test_operands_and_modifiers_that_do_not_fit(seed: int) -> None:
    draw = Random(seed)
    guard, opcode, listed = draw.choice(_INSTRUCTIONS)
    name, *modifiers = opcode.split(".")
    operands: list[str] = _OPERAND.findall(listed)
    for _ in range(draw.randrange(1, 4)):
        parts, pool = draw.choice(
            ((operands, _OPERANDS), (modifiers, draw.choice(_INSTRUCTIONS)[1].split(".")[1:]))
        )
        place = draw.randrange(len(parts) + 1)
        end = place + draw.randrange(3) if draw.random() < 0.8 else len(parts)
        parts[place:end] = draw.sample(pool, min(len(pool), draw.randrange(2)))
    line = f"{guard}{'.'.join((name, *modifiers))} {', '.join(operands)};"
    with contextlib.suppress(BadCodeObject, NotSupported):
        _translate(_SHORT.replace("EXIT", line))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 40))
def test_damaged_kernels_are_translated_or_refused(seed: int) -> None:
    try:
        _translate(_damaged(seed))
    except (BadCodeObject, NotSupported) as error:
        assert "PTX" in str(error)
    except KeyError as error:
        assert error.args == ("k",)  # the kernel's own name was hit
