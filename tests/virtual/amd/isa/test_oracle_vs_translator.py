"""The translating core against the oracle, instruction by instruction, on all kinds of values.

Results are compared bit by bit; which NaN a result is stays open. Transcendental operations may
differ by one unit in the last place, and by the flushing of denormals, which the ISA document
leaves open. Sums of products of small whole numbers are exact in any order, and compared as such.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.oracles.gfx11.execute import WaveState, execute
from tests.support.amd.isa.float_compare import both_nan, close
from tests.support.amd.isa.gfx_case_makers import (
    TRANSCENDENTAL,
    dual_cases,
    global_cases,
    lane_cases,
    packed_cases,
    registers,
    scalar_cases,
    share_cases,
    small_registers,
    vector_cases,
    without_denormals,
)
from tests.support.amd.isa.gfx_cases import Case, NotTranslated, Registers, run_core, run_oracle
from tests.support.amd.isa.gfx_run import FIRST, SECOND, version_alone
from ugpu.hcq.errors import NotSupported
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.decoder.decode import decode
from ugpu.virtual.amd.isa.decoder.formats import UnknownInstruction
from ugpu.virtual.amd.isa.translator.translate import handlers

ENCODINGS = (
    0x7E, 0x7C, 0x00, 0x45, 0x60, 0xD4, 0xD5, 0xD6, 0xD7, 0xCC, 0xC8, 0xC9, 0xD8, 0xDB, 0xDC, 0xDE,
    0xE0, 0xE1, 0xF4, 0xBE, 0xB0, 0x80, 0x90, 0xBF,
)  # fmt: skip
BATCH = 40
PARTS = 4


class Zeros:
    """A memory of zeros that takes anything."""

    def load(self, address: int, size: int) -> bytes:
        return bytes(size)

    def store(self, address: int, data: bytes) -> None:
        pass


@pytest.fixture(scope="module", params=[FIRST, SECOND])
def core(request: pytest.FixtureRequest) -> Iterator[GfxCore]:
    with version_alone(request.param):
        made = GfxCore(workers=1)
        yield made
        made.close()


def _same(name: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    equal = (first == second) | both_nan(first, second)
    parts = name.split("_")
    if parts[1] in TRANSCENDENTAL:
        equal |= close(first, second, 1, parts[-1])
    return equal


def _differences(case: Case, expected: Registers, found: Registers) -> list[str]:
    name = case.label.split()[0]
    lines = []
    for group in range(len(expected.vectors)):
        # Registers side by side, so that the halves of an f64 are neighbours.
        wanted = expected.vectors[group].T.reshape(-1)
        got = found.vectors[group].T.reshape(-1)
        for place in np.nonzero(~_same(name, wanted, got))[0][:2]:
            lane, register = divmod(int(place), expected.vectors.shape[1])
            lines.append(
                f"{case.label} {[hex(word) for word in case.words]} group {group} v{register + 8} "
                f"lane {lane}: oracle {wanted[place]:#x}, core {got[place]:#x}"
            )
        for number in np.nonzero(expected.scalars[group] != found.scalars[group])[0][:2]:
            lines.append(
                f"{case.label} {[hex(word) for word in case.words]} group {group} scalar {number}: "
                f"oracle {expected.scalars[group, number]:#x}, "
                f"core {found.scalars[group, number]:#x}"
            )
    return lines


def _compare(core: GfxCore, cases: Sequence[Case], data: Sequence[Registers]) -> None:
    wrong = []
    refused = []
    for start in range(0, len(cases), BATCH):
        batch, inputs = list(cases[start : start + BATCH]), list(data[start : start + BATCH])
        while True:
            try:
                results = run_core(core, batch, inputs)
                break
            except NotTranslated as stop:
                refused.append(stop.case.label)
                place = batch.index(stop.case)
                del batch[place], inputs[place]
        for case, before, found in zip(batch, inputs, results, strict=True):
            wrong += _differences(case, run_oracle(case, before), found)
    assert not refused, f"not translated: {refused}\n" + "\n".join(wrong[:60])
    assert not wrong, f"{len(wrong)} differences\n" + "\n".join(wrong[:60])


def _supported(cases: Iterator[Case]) -> list[Case]:
    return [case for case in cases if case.label.split()[0] in handlers()]


def _data(case: Case, seed: int) -> Registers:
    """Make a case's registers: no f32 denormals for the transcendental unit, which drops them."""
    name = case.label.split()[0]
    given = registers(seed)
    transcendental = name.split("_")[1] in TRANSCENDENTAL and name.endswith("f32")
    return without_denormals(given) if transcendental else given


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("encoding", ["VOP1", "VOP2", "VOPC", "VOP3"])
def test_vector_operations(core: GfxCore, encoding: str, part: int) -> None:
    cases = [
        case for case in _supported(vector_cases(encoding, seed=11)) if "v_dot2" not in case.label
    ]
    assert len(cases) > 100
    data = [_data(case, number) for number, case in enumerate(cases)]
    _compare(core, cases[part::PARTS], data[part::PARTS])


def test_packed_operations(core: GfxCore) -> None:
    cases = [case for case in _supported(packed_cases(seed=12)) if "v_dot2" not in case.label]
    assert len(cases) > 40
    _compare(core, cases, [registers(number) for number in range(len(cases))])


def test_scalar_operations(core: GfxCore) -> None:
    cases = _supported(scalar_cases(seed=13))
    assert len(cases) > 200
    _compare(core, cases, [registers(number) for number in range(len(cases))])


def test_traffic_between_lanes(core: GfxCore) -> None:
    cases = _supported(lane_cases(seed=14))
    assert len(cases) > 12
    _compare(core, cases, [registers(number) for number in range(len(cases))])


def test_dual_operations(core: GfxCore) -> None:
    cases = [case for case in dual_cases(15, 60) if "dot2" not in case.label]
    _compare(core, cases, [registers(number) for number in range(len(cases))])


def test_sums_of_exact_products(core: GfxCore) -> None:
    cases = [
        case
        for maker in (vector_cases("VOP2", 16), vector_cases("VOP3", 16), packed_cases(16))
        for case in _supported(maker)
        if "v_dot2" in case.label and "bf16" not in case.label
    ]
    assert len(cases) >= 5
    _compare(core, cases, [small_registers(number) for number in range(len(cases))])


@pytest.mark.slow
def test_data_share(core: GfxCore) -> None:
    cases = list(share_cases(seed=17))
    assert len(cases) > 100
    _compare(core, cases, [registers(number) for number in range(len(cases))])


@pytest.mark.slow
def test_global_memory(core: GfxCore) -> None:
    cases = list(global_cases(seed=18))
    assert len(cases) > 60
    _compare(core, cases, [registers(number) for number in range(len(cases))])


@given(st.sampled_from(ENCODINGS), st.binary(min_size=15, max_size=15), st.integers(0, 2**32 - 1))
def test_the_oracle_executes_or_refuses_whatever_decodes(top: int, rest: bytes, mask: int) -> None:
    try:
        instruction = decode(rest[:3] + bytes([top]) + rest[3:])
    except UnknownInstruction:
        return
    state = WaveState(exec=mask, memory=Zeros(), scratch=np.zeros((32, 64), np.uint8))
    state.vgprs[:] = np.frombuffer(rest.ljust(16, b"\x5a") * 2, np.uint32)[0]
    try:
        execute(instruction, state)
    except NotSupported:
        return
    assert 0 <= state.exec < 1 << 32
    assert 0 <= state.vcc < 1 << 32
