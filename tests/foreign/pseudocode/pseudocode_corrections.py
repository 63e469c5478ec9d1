"""Where the pseudocode of AMD's ISA documents is not what boards or compilers count on, and why.

A correction rewrites the text of instructions by name; with the target `gfx12-text` of
tests/foreign/pseudocode/pseudocode.py the texts are taken as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

BOARD = "boards do otherwise: tinygrad's fixes of the pseudocode, test/mockgpu/amd/emu.py"


@dataclass(frozen=True)
class Correction:
    """names: a pattern. rewrite: of the text. source: who says so."""

    names: str
    rewrite: Callable[[str], str]
    source: str


def _replaced(pattern: str, text: str) -> Callable[[str], str]:
    return lambda old: re.sub(pattern, text, old)


def _kind(text: str) -> str:
    match = re.search(r"D0\.(f\d+)", text)
    assert match is not None
    return match[1]


def _rounded(text: str) -> str:
    kind = _kind(text)
    return f"D0.{kind} = roundeven(S0.{kind})"


def _fraction(text: str) -> str:
    kind = _kind(text)
    one, below = {
        "f16": ("16'1.0", "D0.u16 = 16'0x3bff"), "f32": ("1.0F", "D0.u32 = 0x3f7fffffU"),
        "f64": ("1.0", "D0.u64 = 0x3fefffffffffffffULL"),
    }[kind]  # fmt: skip
    return f"{text};\nif D0.{kind} >= {one} then\n{below}\nendif"


def _scale(text: str) -> str:
    kind = _kind(text)
    far, step, low, bias = (96, 64, 23, 127) if kind == "f32" else (768, 128, 53, 1023)
    return f"""
VCC = 0x0LL;
gap = exponent(S2.{kind}) - exponent(S1.{kind});
finite = exponent(S1.{kind}) <= {2 * bias};
inverse = ((exponent(S1.{kind}) >= {2 * bias - 1}) && finite);
quotient = (((gap <= {1 - bias}) && finite) || (S2.{kind} / S1.{kind} == DENORM.{kind}));
if ((S2.{kind} == 0.0) || (S1.{kind} == 0.0)) then
VCC = 0x1LL; D0.{kind} = NAN.{kind}
elsif gap >= {far} then
VCC = 0x1LL;
if S0.{kind} == S1.{kind} then D0.{kind} = ldexp(S0.{kind}, {step}) endif
elsif S1.{kind} == DENORM.{kind} then D0.{kind} = ldexp(S0.{kind}, {step})
elsif (inverse && quotient) then
VCC = 0x1LL;
if S0.{kind} == S1.{kind} then D0.{kind} = ldexp(S0.{kind}, -{step}) endif
elsif inverse then D0.{kind} = ldexp(S0.{kind}, -{step})
elsif quotient then
VCC = 0x1LL;
if S0.{kind} == S2.{kind} then D0.{kind} = ldexp(S0.{kind}, {step}) endif
elsif exponent(S2.{kind}) <= {low} then D0.{kind} = ldexp(S0.{kind}, {step})
endif
"""


def _fused(text: str) -> str:
    bias, step = (127, 64) if "f32" in text else (1023, 128)
    kind = _kind(text)
    return re.sub(
        r"2\.0F? \*\* \d+ \* fma\(([^)]*)\)",
        rf"scaled_fma(\1, exponent(S2.{kind}) > {bias} ? {step} : -{step})",
        text,
    )


CORRECTIONS = (
    Correction(
        r"[VS]_RNDNE_", _rounded,
        "floor(x + 0.5) rounds twice and loses -0; LLVM selects it for llvm.rint",
    ),
    Correction(
        r"V_FRACT_", _fraction,
        "never 1: LLVM's matchFractPat takes it for min(x - floor(x), just below 1)",
    ),
    Correction(
        r"V_FREXP_EXP_", _replaced(r"exponent\((S0\.f\d+)\) - \d+ \+ 1", r"frexp_exponent(\1)"),
        "the field of a denormal or zero is not its exponent; LLVM selects it for llvm.frexp",
    ),
    Correction(
        r"V_FREXP_MANT_", _replaced(r"= (S0\.f\d+)\nelse", r"= quieted(\1)\nelse"),
        "a signalling NaN becomes quiet: LLVM's isCanonicalized counts on it",
    ),
    Correction(
        r"V_MULLIT_F32",
        _replaced(
            r"S0\.f32 \* S1\.f32",
            "((S0.f32 == 0.0F) || (S1.f32 == 0.0F)) ? 0.0F : S0.f32 * S1.f32",
        ),
        "0 times anything is 0, by the document's words about V_MULLIT_F32",
    ),
    Correction(
        r"V_CVT_PK_U8_F32", _replaced("f32_to_u8", "f32_to_nearest_u8"),
        "open: the text names no rounding; the core takes MODE's, to nearest even",
    ),
    Correction(
        r"V_DIV_FIXUP_",
        _replaced(
            r"sign_out \? -abs\(S0\.(f\d+)\)",
            r"isNAN(S0.\1) ? (sign_out ? -INF.\1 : +INF.\1) : sign_out ? -abs(S0.\1)",
        ),
        "a quotient that is NaN by overflow becomes infinity: " + BOARD,
    ),
    Correction(
        r"V_DIV_FMAS_", _fused,
        "2^64 or 2^-64 by the quotient's exponent, of f64 2^128: " + BOARD + "; open: rounded "
        "once, though a sum of f64 that overflows stays infinite",
    ),
    Correction(
        r"V_DIV_SCALE_", _scale,
        "zeros set VCC, denormal quotients are told by exponents, and a denominator whose quotient "
        "is tiny is scaled down: tinygrad's TestDivScale, confirmed on boards, and right quotients",
    ),
    Correction(
        r"V_TRIG_PREOP_F64",
        _replaced(r"(scale = -53 - shift)", r"if shift >= 1120 then\nresult = 0.0\nendif;\n\1"),
        "no bits behind the first 37 words: LLVM's AMDGPUInstCombineIntrinsic",
    ),
    Correction(
        r"S_((?!CVT_)\w+_F16|CVT_F16_F32)$", lambda text: f"{text};\nD0[31 : 16] = 16'0x0",
        "open: the text leaves out the upper half of a scalar destination, which v_s_* clear by "
        "name; the core clears it",
    ),
)  # fmt: skip


def corrected(name: str, text: str) -> str:
    """Return the text of an instruction, corrected; AssertionError if a correction fits nothing."""
    for correction in CORRECTIONS:
        if re.match(correction.names, name) and not name.startswith("S_CMP"):
            changed = correction.rewrite(text)
            assert changed != text, f"the text of {name} has changed: {text}"
            text = changed
    return text
