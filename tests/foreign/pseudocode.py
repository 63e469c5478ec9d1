"""AMD's pseudocode against the shader core: every ALU instruction of gfx11 or gfx12.

    python -m tests.foreign.pseudocode TARGET SEED GROUPS [NAME ...] RESULT

TARGET: gfx11 or gfx12; gfx11-ieee runs in IEEE mode, and gfx12-text takes the texts as they are,
without the corrections of pseudocode_corrections.py. GROUPS of 32 lanes run each vector instruction, 32 times as many
each scalar one. NAME: instructions ("v_add_f32"), all without one. RESULT is the JSON file to write:
what was compared, what was not and why, and for each form of an instruction that deviates how often
and the first example. What the text leaves open is not compared: which quiet NaN arithmetic gives,
and the last bits of functions that hardware approximates.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.foreign.pseudocode_cases import OTHER, Document, Judged, Maker, Operand
from tests.foreign.pseudocode_expected import Expected, Result
from tests.support.gfx_cases import LANES, SCALARS, VECTORS, NotTranslated, Registers, run_core
from tests.support.pcode import numbers
from tests.support.pcode.numbers import FORMATS
from tests.support.pcode.operators import Unsupported
from tests.support.pcode.values import ANY_NAN, NEAR, Marks
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.decoder.decode import decode_all
from ugpu.virtual.amd.isa.decoder.formats import UnknownInstruction
from ugpu.virtual.amd.isa.targets.target import target

BATCH = 64
_UNITS = 2  # in the last place, of functions that hardware approximates
_RSRC1 = {"gfx11": 3 | 0xF0 << 12 | 1 << 21, "gfx12": 3 | 0xF0 << 12}  # denormals, DX10_CLAMP
_IEEE = 1 << 23
_FLOATS = {
    16: (0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x83FF, 0x3C00, 0xBC00, 0x3BFF, 0x3C01, 0x3800, 0xB800,
         0x3E00, 0x4100, 0xC100, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0x7DFF, 0xFD00, 0x7E00,
         0xFE01, 0x7FFF, 0x4900, 0x5BFF, 0x77FF, 0x7800, 0x0800, 0x64FF),
    32: (0, 1 << 31, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x807FFFFF, 0x3F800000, 0xBF800000,
         0x3F7FFFFF, 0x3F800001, 0x3F000000, 0xBF000000, 0x3FC00000, 0x40200000, 0xC0200000,
         0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FBFFFFF, 0xFFA00000,
         0x7FC00000, 0xFFC00001, 0x7FFFFFFF, 0x4B000001, 0x4B7FFFFF, 0x4F000000, 0xCF000000,
         0x4EFFFFFF, 0x4F800000, 0x477FE000, 0x477FF000, 0x477FEFFF, 0x33000000, 0x33000001,
         0x387FC000, 0x37800000, 0x43E00000, 0x43E80000, 0x43E7FFFF, 0x3EFFFFFF, 0x42FE0000,
         0x43000000, 0x437F0000, 0x46FFFE00, 0x47000000, 0x477FFF00, 0x47800000, 0x00200000),
    64: (0, 1 << 63, 1, 1 << 63 | 1, 0xFFFFF << 32, 1 << 52, 0x3FF0 << 48, 0xBFF0 << 48, 0x3FE0 << 48,
         0x3FF8 << 48, 0xC004 << 48, (0x7FF0 << 48) - 1, (0xFFF0 << 48) - 1, 0x7FF0 << 48, 0xFFF0 << 48,
         0x7FF0 << 48 | 1, 0xFFF4 << 48, 0x7FF8 << 48, 0xFFF8 << 48 | 1, 0x41DFFFFF_FFC00000,
         0x41E0 << 48, 0xC1E0 << 48, 0x41EFFFFF_FFE00000, 0x47EFFFFF_E0000000, 0x47F0 << 48,
         0x36A0 << 48, 0x3690 << 48, 0x4330 << 48 | 1, 0x3FDFFFFF_FFFFFFFF, 0x4350 << 48),
}  # fmt: skip


def _integers(width: int) -> list[int]:
    top = 1 << (width - 1)
    small = [0, 1, 2, 3, 5, 7, 8, 12, 13, 15, 16, 23, 24, 31, 32, 33, 63, 64, 127, 128, 255, 256]
    edges = [top - 1, top, top + 1, 2 * top - 1, 2 * top - 2, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFF,
             0x800000, 0xFFFFFF, 0x80008000, 0x7FFF7FFF, 0x10001, 0x01010101, 0xF0F0F0F0]  # fmt: skip
    return [value & (2 * top - 1) for value in small + edges]


class Inputs:
    """Makes registers for the operands of an instruction."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def _values(self, operand: Operand, count: int) -> list[int]:
        """Return values of an operand: special ones, numbers of like size, any bits."""
        width = max(operand.width, 16)
        whole = width if width in (16, 32, 64) else 32
        floating = "f" in operand.kind and operand.width >= 16
        part = 16 if operand.kind.startswith("pk2") and operand.width == 32 else whole
        special = _FLOATS[part] if floating else tuple(_integers(part))
        values = []
        for _ in range(count):
            number = 0
            for low in range(0, max(width, 32), part):
                number |= self._one(special, part, floating) << low
            values.append(number)
        return values

    def _one(self, special: Sequence[int], width: int, floating: bool) -> int:
        draw = self.random.random()
        if draw < 0.55:
            return special[int(self.random.integers(len(special)))]
        bits = int.from_bytes(self.random.bytes(width // 8), "little")
        if draw < 0.85 and floating:  # numbers near one, whose sums cancel
            form = FORMATS["f", width]
            field = form.bias - 4 + int(self.random.integers(9))
            return bits & (form.sign | (1 << form.fraction) - 1) | field << form.fraction
        return bits

    def of(self, judged: Judged, groups: int) -> Registers:
        """Make registers."""
        vectors = self.random.integers(0, 1 << 32, (groups, VECTORS, LANES), np.uint32)
        scalars = self.random.integers(0, 1 << 32, (groups, 16), np.uint32)
        for number, operand in enumerate(judged.sources):
            if operand.kind == "m64":
                continue
            words = max(1, operand.width // 32)
            mask = 0xFFFFFFFF
            for group in range(groups):
                values = self._values(operand, LANES)
                for word in range(words):
                    row = [value >> 32 * word & mask for value in values]
                    vectors[group, 2 * number + word] = row
                    scalars[group, 2 * number + word] = row[0]
        if judged.name.startswith("V_DIV_SCALE"):  # it scales one of the operands of a division
            chosen = self.random.random((groups, 1, LANES)) < 0.5
            for word in range(max(1, judged.target.width // 32)):
                one, two = vectors[:, 2 + word : 3 + word], vectors[:, 4 + word : 5 + word]
                vectors[:, word : word + 1] = np.where(chosen, one, two)
        scalars[:, SCALARS + 1] |= 1  # EXEC
        if "PERMLANE" in judged.name:
            scalars[:, SCALARS + 1] = 0xFFFFFFFF
        scalars[0, SCALARS + 1] = 0xFFFFFFFF
        scalars[:, SCALARS + 2] &= 1
        scalars[:, SCALARS + 3] &= 0x10001 if "_2_" in judged.name or "REL_" in judged.name else 2
        return Registers(vectors, scalars)


def _agrees(judged: Judged, wanted: int, got: int, width: int, marks: Marks) -> bool:
    """Compare a register's bits; marks say what is open."""
    for low, size, mark in marks:
        ones = (1 << size) - 1
        first, second = wanted >> low & ones, got >> low & ones
        if not _close(judged, first, second, size, mark):
            return False
        wanted, got = wanted & ~(ones << low), got & ~(ones << low)
    return wanted == got


def _close(judged: Judged, wanted: int, got: int, size: int, mark: int) -> bool:
    kind = "f" if size > 16 else "bf" if f"BF{size}" in judged.name else "f" if size == 16 else "fp"
    form = FORMATS[kind, size]
    if wanted == got:
        return True
    if numbers.is_nan(form, wanted):
        return numbers.is_nan(form, got) and not numbers.is_signalling(form, got)
    if not mark & NEAR:
        return False
    small = 1 << form.fraction
    low, high = (bits & ~form.sign for bits in (wanted, got))
    if low < small and high < small:  # the transcendental unit flushes denormals
        return True
    if "SIN" in judged.name or "COS" in judged.name:
        difference = numbers.to_float(form, wanted) - numbers.to_float(form, got)
        return abs(difference) < 2.0 ** -(10 if size == 16 else 20)
    return (wanted ^ got) & form.sign == 0 and abs(low - high) <= _UNITS


def _differences(judged: Judged, given: Registers, wanted: Result, got: Registers, group: int) -> Iterator[str]:
    """Describe what differs in one group."""
    vectors, scalars = got.vectors[group], got.scalars[group]
    wide = max(1, judged.target.width // 32) if judged.target.kind != "m64" else 1
    odd = set(zip(*np.nonzero(wanted.vectors != vectors), strict=True))
    for register, lane in sorted((int(r), int(n)) for r, n in odd):
        base = 8 if register >= 8 and wide > 1 else register
        marks = wanted.marks.get((base, lane), ())
        pair = [
            sum(int(rows[base + n, lane]) << 32 * n for n in range(wide if base == 8 else 1))
            for rows in (wanted.vectors, vectors)
        ]
        if not _agrees(judged, pair[0], pair[1], 32 * wide, marks):
            sources = " ".join(
                f"{sum(int(given.vectors[group, 2 * n + w, lane]) << 32 * w for w in range(max(1, o.width // 32))):#x}"
                for n, o in enumerate(judged.sources)
            )
            yield (
                f"v{8 + register} lane {lane}: document {pair[0]:#x}, core {pair[1]:#x}; sources "
                f"{sources}, before {int(given.vectors[group, register, lane]):#x}"
            )
    for place in np.nonzero(wanted.scalars != scalars)[0]:
        marks = wanted.scalar_marks.get(int(place), ())
        one, two = int(wanted.scalars[place]), int(scalars[place])
        if not _agrees(judged, one, two, 32, marks):
            name = f"s{40 + place}" if place < 8 else ("vcc", "exec", "scc")[place - 8]
            detail = ""
            if judged.target.kind == "m64" and place in (6, 8, 9):
                lane = (one ^ two).bit_length() - 1
                detail = " lane " + str(lane) + " of " + " ".join(
                    f"{sum(int(given.vectors[group, 2 * n + w, lane]) << 32 * w for w in range(max(1, o.width // 32))):#x}"
                    for n, o in enumerate(judged.sources)
                )
            yield f"{name}: document {one:#x}, core {two:#x}; s {[hex(x) for x in given.scalars[group, :8]]}{detail}"


class Judge:
    """Compares the instructions of a target."""

    def __init__(self, name: str, seed: int, groups: int) -> None:
        target_name, _, mode = name.partition("-")
        self.document = Document(target_name, as_it_is=mode == "text")
        self.expected = Expected(self.document, mode == "ieee")
        self.core_target = target(target_name)
        self.core = GfxCore(workers=1, target=self.core_target)
        self.rsrc1 = _RSRC1[target_name] | (_IEEE if mode == "ieee" else 0)
        self.maker, self.inputs, self.groups = Maker(self.document, seed), Inputs(seed), groups
        self.compared: dict[str, int] = {}
        self.left: dict[str, str] = {}
        self.wrong: dict[str, Any] = {}

    def run(self, keys: Sequence[Enum]) -> None:
        """Compare instructions."""
        cases: list[Judged] = []
        for key in keys:
            made = list(self.maker.cases(key))
            if not made:
                other = any(part in key.name for part in OTHER)
                self.left[f"{type(key).__name__}.{key.name}"] = (
                    "computes nothing, or has no pseudocode" if other else "no text"
                )
            cases += made
        for scalar in (False, True):
            chosen = [judged for judged in cases if judged.scalar == scalar]
            for start in range(0, len(chosen), BATCH):
                self._batch(chosen[start : start + BATCH], self.groups * (32 if scalar else 1))

    def _batch(self, cases: list[Judged], groups: int) -> None:
        given = [self.inputs.of(judged, groups) for judged in cases]
        while cases:
            try:
                found = run_core(
                    self.core, [judged.case for judged in cases], given, self.rsrc1,
                    self.document.program,
                )  # fmt: skip
            except NotTranslated as stop:
                place = [judged.case for judged in cases].index(stop.case)
                self._refused(cases[place])
                del cases[place], given[place]
                continue
            for judged, before, after in zip(cases, given, found, strict=True):
                self._compare(judged, before, after, groups)
            return

    def _refused(self, judged: Judged) -> None:
        """Note a form that the core does not execute, and whether it decodes."""
        code = np.array(judged.words, np.uint32).tobytes()
        try:
            decode_all(code, target=self.core_target)
        except UnknownInstruction:
            self.left[judged.label] = "LLVM's disassembler refuses this form"
            return
        self._note(judged, 1, "not executed by the core")

    def _note(self, judged: Judged, count: int, text: str) -> None:
        words = " ".join(f"{word:#x}" for word in judged.words)
        self.wrong[judged.label] = {"count": count, "example": f"{text} [{words}]"}

    def _compare(self, judged: Judged, given: Registers, found: Registers, groups: int) -> None:
        count, example = 0, ""
        try:
            for group in range(groups):
                wanted = self.expected.of(judged, given, group)
                for text in _differences(judged, given, wanted, found, group):
                    count, example = count + 1, example or f"group {group} {text}"
        except Exception as trouble:
            count, example = 1, f"not compiled: {type(trouble).__name__} {trouble}"
        self.compared[judged.name] = self.compared.get(judged.name, 0) + 1
        if count:
            self._note(judged, count, example)


def main(name: str, seed: str, groups: str, *rest: str) -> None:
    """Compare, and write what came of it."""
    *names, result = rest
    judge = Judge(name, int(seed), int(groups))
    wanted = {text.upper() for text in names}
    keys = [
        key
        for key in judge.document.instructions()
        if not wanted or key.name.removesuffix("_E32").removesuffix("_E64") in wanted
    ]
    judge.run(keys)
    report = {"compared": judge.compared, "left": judge.left, "wrong": judge.wrong, "keys": len(keys)}
    Path(result).write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
