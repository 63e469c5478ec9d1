"""AMD's pseudocode against the shader core: every ALU instruction of gfx11 or gfx12.

    python -m tests.foreign.pseudocode.pseudocode TARGET SEED GROUPS [NAME ...] RESULT

TARGET: gfx11 or gfx12; gfx11-ieee runs in IEEE mode, gfx11-omod without denormal results, so that
output modifiers take effect (of which alone it is the judge), and gfx12-text takes the texts as
they are, without the corrections of pseudocode_corrections.py. GROUPS of 32 lanes run each vector
instruction, 32 times as many each scalar one. NAME: instructions ("v_add_f32"), all without one.
RESULT is the JSON file to write: what was compared, what was not and why, and for each form of an
instruction that deviates how often and the first example. What the text leaves open is not
compared: which quiet NaN arithmetic gives, and the last bits of functions that hardware
approximates.
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

from tests.foreign.pseudocode.pseudocode_cases import OTHER, Document, Judged, Maker
from tests.foreign.pseudocode.pseudocode_expected import Expected, Result
from tests.foreign.pseudocode.pseudocode_inputs import Inputs
from tests.support.amd.isa.gfx_cases import NotTranslated, Registers, run_core
from tests.support.pcode import numbers
from tests.support.pcode.numbers import FORMATS
from tests.support.pcode.operators import Unsupported
from tests.support.pcode.values import NEAR, OPEN, Marks
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.decoder.decode import decode_all
from ugpu.virtual.amd.isa.decoder.formats import UnknownInstruction
from ugpu.virtual.amd.isa.targets.target import target

BATCH = 64
_UNITS = 2  # in the last place, of functions that hardware approximates
_RSRC1 = {"gfx11": 3 | 0xF0 << 12 | 1 << 21, "gfx12": 3 | 0xF0 << 12}  # denormals, DX10_CLAMP
_IEEE, _DENORMAL_RESULTS = 1 << 23, 0xA << 16


def _agrees(judged: Judged, wanted: int, got: int, marks: Marks) -> bool:
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
    if wanted == got or mark & OPEN:
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


def _wide(words: NDArray[np.uint32], first: int, count: int) -> int:
    """Return registers that lie side by side as one number."""
    return sum(int(words[first + n]) << 32 * n for n in range(count))


def _sources(judged: Judged, words: NDArray[np.uint32]) -> str:
    counts = [max(1, operand.width // 32) for operand in judged.sources]
    return " ".join(f"{_wide(words, 2 * n, count):#x}" for n, count in enumerate(counts))


def _differences(
    judged: Judged, given: Registers, wanted: Result, got: Registers, group: int
) -> Iterator[str]:
    """Describe what differs in one group."""
    before, after = given.vectors[group], got.vectors[group]
    wide = max(1, judged.target.width // 32) if judged.target.kind != "m64" else 1
    odd = set(zip(*np.nonzero(wanted.vectors != after), strict=True))
    for register, lane in sorted((int(r), int(n)) for r, n in odd):
        first, count = (8, wide) if register >= 8 and wide > 1 else (register, 1)
        marks = wanted.marks.get((first, lane), ())
        one = _wide(wanted.vectors[:, lane], first, count)
        two = _wide(after[:, lane], first, count)
        if not _agrees(judged, one, two, marks):
            yield (
                f"v{8 + register} lane {lane}: document {one:#x}, core {two:#x}; sources "
                f"{_sources(judged, before[:, lane])}, before {int(before[register, lane]):#x}"
            )
    for place in np.nonzero(wanted.scalars != got.scalars[group])[0]:
        marks = wanted.scalar_marks.get(int(place), ())
        one, two = int(wanted.scalars[place]), int(got.scalars[group, place])
        if not _agrees(judged, one, two, marks):
            name = f"s{40 + place}" if place < 8 else ("vcc", "exec", "scc")[place - 8]
            lane = (one ^ two).bit_length() - 1
            yield (
                f"{name}: document {one:#x}, core {two:#x}; scalar sources "
                f"{_sources(judged, given.scalars[group])}, those of lane {lane} "
                f"{_sources(judged, before[:, lane])}"
            )


class Judge:
    """Compares the instructions of a target."""

    def __init__(self, name: str, seed: int, groups: int) -> None:
        target_name, _, mode = name.partition("-")
        self.document = Document(target_name, as_it_is=mode == "text")
        self.scaled_alone = mode == "omod"
        self.expected = Expected(
            self.document, mode == "ieee", scales=self.scaled_alone or target_name == "gfx12"
        )
        self.core_target = target(target_name)
        self.core = GfxCore(workers=1, target=self.core_target)
        self.rsrc1 = _RSRC1[target_name] | (_IEEE if mode == "ieee" else 0)
        if self.scaled_alone:
            self.rsrc1 &= ~_DENORMAL_RESULTS
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
            cases += [one for one in made if one.omod or not self.scaled_alone]
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
        except Unsupported as trouble:
            count, example = 1, f"not compiled: {trouble}"
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
    report = {
        "compared": judge.compared,
        "left": judge.left,
        "wrong": judge.wrong,
        "keys": len(keys),
    }
    Path(result).write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
