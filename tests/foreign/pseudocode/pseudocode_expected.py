"""What an instruction does to registers according to AMD's pseudocode."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.foreign.pseudocode.pseudocode_cases import LITERAL, Document, Judged, Operand
from tests.support.amd.isa.gfx_cases import FIRST_SCALAR, FIRST_VECTOR, SCALARS, Registers
from tests.support.pcode import numbers
from tests.support.pcode.grammar import parse
from tests.support.pcode.machine import State, Statement
from tests.support.pcode.numbers import FORMATS
from tests.support.pcode.operators import Unsupported
from tests.support.pcode.values import ANY_NAN, OPEN, Marks, Value, cut, put, seen

_VCC, _EXEC, _SCC, _M0 = range(SCALARS, SCALARS + 4)
_TABLE = [n / 16 if n < 8 else (n - 16) / 16 for n in range(16)]  # of v_cvt_off_f32_i4
_LANES = 32


@dataclass
class Result:
    """Registers after an instruction in one group, and marks of vector words by (register, lane)
    and of scalar words."""

    vectors: NDArray[np.uint32]
    scalars: NDArray[np.uint32]
    marks: dict[tuple[int, int], Marks] = field(default_factory=dict)
    scalar_marks: dict[int, Marks] = field(default_factory=dict)


def _value(words: Any, width: int) -> Value:
    number = 0
    for place in range(max(1, width // 32)):
        number |= int(words[place]) << 32 * place
    return Value("b", max(32, width), number)


class Expected:
    """Evaluates the instructions of a document."""

    def __init__(self, document: Document, ieee: bool, scales: bool) -> None:
        """scales: the mode has OMOD take effect."""
        self.document, self.ieee, self.scales = document, ieee, scales
        self._parsed: dict[str, Statement] = {}

    def _body(self, text: str) -> Statement:
        if text not in self._parsed:
            self._parsed[text] = parse(text)
        return self._parsed[text]

    def _called(self, name: str, given: list[Value], state: State) -> Value:
        """Another instruction as a function of its sources; its type is its name's end."""
        texts = self.document.by_name
        upper = name.upper()
        text = texts.get(upper) or texts.get(f"{upper}_E64")
        if text is None:
            raise Unsupported(f"the instruction {name}")
        kind = "u32" if name.endswith("sad_u8") else name.rpartition("_")[2]
        inner = State(
            {**self._constants(), "D0": Value("b", 32, 0)}, {"D0": 32}, state.mode,
            call=self._called,
        )  # fmt: skip
        inner.names |= {f"S{n}": Value("b", max(value.width, 32), value.raw(max(value.width, 32)),
                                       value.marks) for n, value in enumerate(given)}  # fmt: skip
        self._body(text)(inner)
        result = inner.names["D0"]
        return seen(result, kind[0], int(kind[1:]))

    def _constants(self) -> dict[str, Any]:
        return {
            "WAVE_MODE.IEEE": Value("u", 1, int(self.ieee)), "WAVE32": Value("u", 1, 1),
            "WAVE64": Value("u", 1, 0), "wave32": Value("u", 1, 1), "D1": Value("b", 64, 0),
            "SIMM32": Value("b", 32, LITERAL),
            "CVT_OFF_TABLE": [
                Value("f", 32, numbers.from_float(FORMATS["f", 32], x)) for x in _TABLE
            ],
        }  # fmt: skip

    def of(self, judged: Judged, given: Registers, group: int) -> Result:
        """Evaluate in one group."""
        result = Result(given.vectors[group].copy(), given.scalars[group].copy())
        if judged.scalar:
            self._scalar(judged, result)
        elif "VGPR[" in judged.text and "laneId" not in judged.text:
            self._wave(judged, result)
        else:
            self._lanes(judged, result)
        result.scalars[SCALARS + 3 :] = 0
        return result

    # The scalar unit

    def _scalar(self, judged: Judged, result: Result) -> None:
        words, width = result.scalars, max(32, judged.target.width)
        at = 4 if "S_MOVREL" in judged.name else 6
        names: dict[str, Any] = {
            **self._constants(),
            "D0": _value(words[at : at + 2], width), "SCC": Value("u", 1, int(words[_SCC])),
            "EXEC": Value("b", 64, int(words[_EXEC])), "VCC": Value("b", 64, int(words[_VCC])),
            "M0": Value("b", 32, int(words[_M0])), "SRC0": Value("u", 32, FIRST_SCALAR),
            "DST": Value("u", 32, FIRST_SCALAR + at),
            "SIMM16": Value("b", 16, judged.immediate), "S0": _value(words[0:2], 64),
            "S1": _value(words[2:4], 64),
        }  # fmt: skip
        if judged.form == "SOPK" and "CMPK" not in judged.name:
            names["S0"] = names["SIMM16"]
        state = State(
            names, {"D0": width, "EXEC": 64}, call=self._called,
            scalars={FIRST_SCALAR + n: _value(words[n : n + 2], 64) for n in range(SCALARS)},
        )  # fmt: skip
        before = dict(state.scalars)
        self._body(judged.text)(state)
        for place, value in state.scalars.items():
            if value is not before.get(place):
                for n in range(max(1, value.width // 32) if "B64" in judged.name else 1):
                    words[place - FIRST_SCALAR + n] = value.number >> 32 * n & 0xFFFFFFFF
        target = state.names["D0"]
        if "D0" in judged.text:
            words[at] = target.number & 0xFFFFFFFF
            if width == 64:
                words[at + 1] = target.number >> 32 & 0xFFFFFFFF
            result.scalar_marks[at] = target.marks
        words[_EXEC] = state.names["EXEC"].number & 0xFFFFFFFF
        words[_SCC] = state.names["SCC"].number & 1

    # The vector unit

    def _source(
        self, judged: Judged, number: int, operand: Operand, result: Result, lane: int
    ) -> Value:
        scalar = operand.scalar or operand.kind == "m64" or judged.name.startswith("V_S_")
        if scalar:
            words = result.scalars[2 * number :]
        else:
            words = result.vectors[2 * number :, lane]
        value = _value(words[: max(1, operand.width // 32)], operand.width)
        raw, bit = value.number, 1 << number
        if judged.form == "VOP3P":
            return Value("b", value.width, _packed(judged, operand, raw, number))
        if operand.width == 16 and judged.opsel & bit and "OPSEL" not in judged.text:
            raw >>= 16
        if operand.floating:
            sign = 1 << (operand.width - 1)
            raw = raw & ~sign if judged.abs & bit else raw
            raw = raw ^ sign if judged.neg & bit else raw
        return Value("b", value.width, raw)

    def _names(self, judged: Judged, result: Result, lane: int) -> dict[str, Any]:
        names = self._constants()
        for number, operand in enumerate(judged.sources):
            names[f"S{number}"] = self._source(judged, number, operand, result, lane)
        names["S"] = [names.get(f"S{n}") for n in range(3)]
        masked = len(judged.sources) == 3 and judged.sources[2].kind == "m64"
        names |= {
            "laneId": Value("u", 32, lane), "EXEC": Value("b", 64, int(result.scalars[_EXEC])),
            "EXEC_LO": Value("b", 32, int(result.scalars[_EXEC])),
            "VCC": Value("b", 64, int(result.scalars[4 if masked else _VCC])),
            "M0": Value("b", 32, int(result.scalars[_M0])),
            "OPSEL": Value("b", 4, judged.opsel), "OPSEL_HI": Value("b", 3, judged.opsel_hi),
            "NEG": Value("b", 3, judged.neg), "SRC0": Value("u", 32, FIRST_VECTOR),
            "SRC1": Value("u", 32, FIRST_VECTOR + 2), "DST": Value("u", 32, FIRST_VECTOR + 8),
            "VDST": Value("u", 32, FIRST_VECTOR + 8),
        }  # fmt: skip
        return names

    def _lanes(self, judged: Judged, result: Result) -> None:
        before = Result(result.vectors.copy(), result.scalars.copy())
        executed = int(before.scalars[_EXEC])
        carries = judged.form == "VOP2" and "VCC" in judged.text and "CNDMASK" not in judged.name
        masked = judged.target.kind == "m64" or judged.form in ("VOP3SD", "VOPC") or carries
        mask = 0
        if judged.name.startswith("V_S_"):
            executed = 1
        for lane in range(_LANES):
            if executed >> lane & 1:
                mask |= self._lane(judged, before, result, lane) << lane
        if not masked:
            return
        if "CMPX" in judged.name:
            place = _EXEC
        else:
            place = _VCC if judged.form in ("VOPC", "VOP2") else 6
        result.scalars[place] = mask

    def _lane(self, judged: Judged, before: Result, result: Result, lane: int) -> int:
        """Evaluate a lane; return its bit of a mask."""
        names = self._names(judged, before, lane)
        target, masks = judged.target, judged.target.kind == "m64"
        width = 64 if masks else max(32, target.width)
        count, high = width // 32, judged.opsel & 8 and target.width == 16
        high = high and "OPSEL" not in judged.text
        start = Value("b", 64, 0) if masks else _value(before.vectors[8:, lane][:count], width)
        names["D0"] = Value("b", width, start.number >> 16) if high else start
        state = State(
            names, {"D0": width, "D1": 64, "S0": 32}, clamp=judged.clamp and not _floats(target),
            call=self._called,
        )  # fmt: skip
        if "VGPR[" in judged.text:
            state.vectors = {
                (lane, FIRST_VECTOR + n): Value("b", 32, int(before.vectors[n, lane]))
                for n in range(len(before.vectors))
            }
        if "DIV_SCALE" in judged.name:  # the text leaves out what happens otherwise
            names["D0"] = names["S0"]
        if "FMAC" in judged.name:  # which the text of v_fmac_dx9_zero calls S2
            names["S2"] = start
        swapped = names.get("S0")
        self._body(judged.text)(state)
        found: Value = names["D0"]
        if judged.omod and self.scales:
            found = _scaled(found, target, judged.omod)
        if judged.clamp and _floats(target):
            low = 16 if "MIXHI" in judged.name else 0
            found = put(found, width - 1, low, _clamped(cut(found, width - 1, low), target))
        if "EXEC.u64[laneId] =" in judged.text:
            return names["EXEC"].number >> lane & 1 if isinstance(names["EXEC"], Value) else 0
        if masks:
            return int(found.number >> lane & 1)
        if state.vectors:
            for (_, register), value in state.vectors.items():
                result.vectors[register - FIRST_VECTOR, lane] = value.number
                if value.marks:
                    result.marks[register - FIRST_VECTOR, lane] = value.marks
        if "D0" not in judged.text:
            return 0
        if judged.name.startswith("V_S_"):
            result.scalars[6] = found.number & 0xFFFFFFFF
            result.scalar_marks[6] = found.marks
            return 0
        if high:
            found = put(_value(before.vectors[8:9, lane], 32), 31, 16, cut(found, 15, 0))
        for place in range(count):
            part = cut(found, 32 * place + 31, 32 * place) if count > 1 else found
            result.vectors[8 + place, lane] = part.number & 0xFFFFFFFF
        if found.marks:
            result.marks[8, lane] = found.marks
        if "SWAP_B" in judged.name and swapped is not names["S0"]:
            result.vectors[0, lane] = names["S0"].number & 0xFFFFFFFF
        if judged.name.startswith("V_DIV_SCALE"):
            return names["VCC"].number & 1
        if "D1" in judged.text:
            return names["D1"].number & 1
        return int(names["VCC"].number >> lane & 1)

    def _wave(self, judged: Judged, result: Result) -> None:
        """Evaluate an instruction that works on all lanes at once."""
        names = self._names(judged, result, 0)
        names["D0"] = Value("b", 32, int(result.scalars[6]))
        rows = {
            (lane, FIRST_VECTOR + n): Value("b", 32, int(result.vectors[n, lane]))
            for lane in range(_LANES)
            for n in range(len(result.vectors))
        }
        state = State(names, {"D0": 32}, call=self._called, vectors=rows)
        self._body(judged.text)(state)
        for (lane, register), value in state.vectors.items():
            result.vectors[register - FIRST_VECTOR, lane] = value.number & 0xFFFFFFFF
        if judged.target.scalar:
            result.scalars[6] = names["D0"].number & 0xFFFFFFFF


def _floats(target: Operand) -> bool:
    return target.kind in ("f16", "f32", "f64", "pk2_f16", "bf16")


def _packed(judged: Judged, operand: Operand, raw: int, number: int) -> int:
    """Return a source of VOP3P: halves as op_sel says, signs as neg says."""
    bit = 1 << number
    if "MIX" in judged.name:
        if judged.neg_hi & bit:  # the absolute value
            raw &= ~(0x80008000 if judged.opsel_hi & bit else 1 << 31)
        if judged.neg & bit:
            raw ^= 0x80008000 if judged.opsel_hi & bit else 1 << 31
        return raw
    if "_IU" in judged.name:
        return raw
    if operand.kind.startswith("pk2"):
        low, high = raw & 0xFFFF, raw >> 16
        raw = (high if judged.opsel & bit else low) | (high if judged.opsel_hi & bit else low) << 16
        if "f16" in operand.kind:
            raw ^= (0x8000 if judged.neg & bit else 0) | (1 << 31 if judged.neg_hi & bit else 0)
    elif operand.kind == "f32":
        raw = raw & ~(1 << 31) if judged.neg_hi & bit else raw
        raw ^= 1 << 31 if judged.neg & bit else 0
    return raw


def _scaled(value: Value, target: Operand, omod: int) -> Value:
    """Scale a float; -0 and denormals become +0 (RDNA3 and RDNA4 ISA documents, 7.2.3.1). What
    becomes of a denormal that is scaled is open, and which NaN a NaN becomes."""
    form, marks = FORMATS["f", target.width], value.marks
    ones = 2 * form.sign - 1
    bits = value.number & ones
    field, sign = numbers.exponent(form, bits), bits & form.sign
    if numbers.is_nan(form, bits):
        marks = ((0, target.width, ANY_NAN),)
    elif not field:
        marks = ((0, target.width, OPEN),) if bits != sign else ()
        bits = 0
    elif field != form.exponents:
        field += (0, 1, 2, -1)[omod]
        if field < 1:
            bits = 0
        elif field >= form.exponents:
            bits = sign | form.infinity
        else:
            bits = bits & ~(form.exponents << form.fraction) | field << form.fraction
    return Value(value.kind, value.width, value.number & ~ones | bits, marks)


def _clamped(value: Value, target: Operand) -> Value:
    """Limit floats to 0 to 1; a NaN becomes 0."""
    kind, width = (
        ("bf", 16) if target.kind == "bf16" else ("f", 16 if "16" in target.kind else target.width)
    )
    form, number, marks = FORMATS[kind, width], value.number, value.marks
    one = numbers.from_int(form, 1)
    for low in range(0, 32 if target.kind == "pk2_f16" else width, width):
        bits = number >> low & ((1 << width) - 1)
        limited = 0 if numbers.is_nan(form, bits) or bits & form.sign else min(bits, one)
        number = number & ~(((1 << width) - 1) << low) | limited << low
        if numbers.is_nan(form, bits):
            marks = tuple(mark for mark in marks if mark[0] != low)
    return Value(value.kind, value.width, number, marks)
