"""Video instructions with selectors, masks, second operations, against their pseudocode."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from lab.oracles.video import Video, compute
from tests.support.nvidia.sm.sm_run import HEAD, Bench, body
from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.nv.code.assemble import assemble, find_library

_TYPES = ("u32", "s32")
_PARTS = ("", "b0", "b1", "b2", "b3", "h0", "h1")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
          0x80008000, 0x7F807F80, 31, 32, 33)  # fmt: skip


def _scalars(draw: Random) -> list[Video]:
    found = []
    for name in ("add", "sub", "absdiff", "min", "max", "shl", "shr"):
        for second in ("", "add", "min", "max", "part"):
            for sat in ("", "sat"):
                types = [draw.choice(_TYPES) for _ in range(3)]
                mode = []
                if name in ("shl", "shr"):
                    types[2], mode = "u32", [draw.choice(("clamp", "wrap"))]
                flags = [*([sat] if sat else []), *mode]
                flags += [second] if second not in ("", "part") else []
                part = draw.choice(_PARTS[1:]) if second == "part" else ""
                found.append(Video(".".join((f"v{name}", *types, *flags)),
                                   (part, draw.choice(_PARTS), draw.choice(_PARTS)),
                                   third=second != ""))  # fmt: skip
    for comparison in _COMPARISONS:
        for second in ("", "add", "max", "part"):
            flags = [second] if second in ("add", "max") else []
            part = draw.choice(_PARTS[1:]) if second == "part" else ""
            opcode = ".".join(
                ("vset", draw.choice(_TYPES), draw.choice(_TYPES), comparison, *flags)
            )
            found.append(Video(opcode, (part, draw.choice(_PARTS), draw.choice(_PARTS)),
                               third=second != ""))  # fmt: skip
    return found


def _multiplied(draw: Random) -> list[Video]:
    found = []
    for a in _TYPES:
        for b in _TYPES:
            for minus in ((False, False, False), (True, False, False), (False, True, False),
                          (False, False, True)):  # fmt: skip
                for scale in ("", "shr7", "shr15"):
                    signed = "s32" in (a, b) or any(minus)
                    flags = [*(["sat"] if draw.random() < 0.5 else []), *([scale] if scale else [])]
                    opcode = ".".join(("vmad", "s32" if signed else "u32", a, b, *flags))
                    picks = ("", draw.choice(_PARTS), draw.choice(_PARTS))
                    found.append(Video(opcode, picks, minus))
            po = ".".join(("vmad", "s32" if "s32" in (a, b) else "u32", a, b, "po", "shr7"))
            found.append(Video(po, ("", draw.choice(_PARTS), "")))
    return found


def _packed(draw: Random) -> list[Video]:
    found = []
    for count, letter in ((2, "h"), (4, "b")):
        masks = ["", *(
            letter + "".join(str(n) for n in reversed(range(count)) if bits >> n & 1)
            for bits in range(1, 1 << count)
        )]  # fmt: skip
        for name in ("add", "sub", "avrg", "absdiff", "min", "max", "set"):
            for flag in ("", "sat", "add"):
                for _ in range(2):
                    types = [draw.choice(_TYPES) for _ in range(3)]
                    picks = [
                        draw.choice(("", letter + "".join(
                            str(draw.randrange(2 * count)) for _ in range(count))))
                        for _ in range(2)
                    ]  # fmt: skip
                    flags = [flag] if flag else []
                    if name == "set":
                        types = [*types[1:], draw.choice(_COMPARISONS)]
                        flags = [] if flag == "sat" else flags
                    opcode = ".".join((f"v{name}{count}", *types, *flags))
                    found.append(Video(opcode, (draw.choice(masks), picks[0], picks[1])))
    return found


FAMILIES = {"scalars": _scalars, "multiplied": _multiplied, "packed": _packed}


def _kernel(tries: list[Video]) -> str:
    lines = ["mul.wide.u32 %rd40, %t, 4; add.s64 %rd41, %rd0, %rd40; add.s64 %rd42, %rd1, %rd40;",
             ".reg .b32 %a, %b, %c, %x;"]  # fmt: skip
    for number, one in enumerate(tries):
        for place, name in enumerate("abc"):
            lines.append(f"ld.global.b32 %{name}, [%rd41+{128 * (3 * (number % 8) + place)}];")
        lines += [one.text("%x", "%a", "%b", "%c"), f"st.global.b32 [%rd42+{128 * number}], %x;"]
    return body(2, "\n".join(lines))


@pytest.mark.parametrize("family", FAMILIES)
def test_video_instructions_do_what_the_pseudocode_says(family: str) -> None:
    draw = Random(77)
    tries = FAMILIES[family](draw)
    given = [
        [draw.choice(_EDGES) if draw.random() < 0.5 else draw.getrandbits(32) for _ in range(32)]
        for _ in range(24)
    ]
    bench = Bench()
    source, _ = bench.array(np.array(given, np.uint32))
    target, out = bench.array(np.zeros((len(tries), 32), np.uint32))
    bench.good(_kernel(tries), source, target)
    for number, one in enumerate(tries):
        a, b, c = given[3 * (number % 8) : 3 * (number % 8) + 3]
        for lane in range(32):
            wanted = compute(one, a[lane], b[lane], c[lane])
            assert int(out[number, lane]) == wanted, (
                one, hex(a[lane]), hex(b[lane]), hex(c[lane]), hex(out[number, lane]), hex(wanted),
            )  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernels_of_these_tests_are_ptx_that_assembles(family: str) -> None:
    if find_library() is None:
        pytest.skip("needs the nvidia-nvjitlink package")
    text = HEAD.format(target="sm_90") + _kernel(FAMILIES[family](Random(77)))
    assert assemble(text.encode(), "sm_90")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("vadd2.u32.u32.u32 %r1, %r2.h41, %r3, %r4;", BadCodeObject),
        ("vadd4.u32.u32.u32 %r1.b4, %r2, %r3, %r4;", BadCodeObject),
        ("vadd.u32.u32.u32 %r1.b0, %r2, %r3;", BadCodeObject),
        ("vmad.s32.s32.s32 %r1, -%r2, %r3, -%r4;", BadCodeObject),
        ("vset.u32.u32.num %r1, %r2, %r3;", NotSupported),
        ("add.u32 %r1, %r2.b0, %r3;", BadCodeObject),
        ("mov.u32 %r1, -%p1;", BadCodeObject),
    ],
)
def test_what_is_no_video_instruction_is_named(text: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"PTX line \d+"):
        Bench().launch(body(1, text), 0x1000)
