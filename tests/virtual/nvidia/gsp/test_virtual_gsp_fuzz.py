"""Whatever a host writes, a register-level card goes on or objects; it never ends with an error of
the model."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nvidia.gsp.gsp_script import ROOT, Script
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions
from ugpu.virtual.nvidia.gsp.rpc import calls
from ugpu.virtual.nvidia.gsp.rpc.queue import QueueError

CLIENT, DEVICE, SUBDEVICE, SPACE = 0xC1D00000, 0xDE1D0000, 0x5D1D0000, 0x90F10000
#: registers with an effect, of each unit
INTERESTING = (
    0x1700, 0x1704, 0x1714, 0x9400, 0x9410, 0x70000, 0x110C00, 0xB80F40, 0xB830A0, 0xB830A4,
    0xB830B0, 0xB81000, 0xB81200, 0xB81400, 0xB81608, 0xB81610, 0xB81640, 0xBB0090, 0x88004,
    0x88704, 0x1103C0, 0x110100, 0x110104, 0x110110, 0x110114, 0x110118, 0x11011C, 0x110180,
    0x110184, 0x110188, 0x1101C0, 0x1101C4, 0x110600, 0x110624, 0x111180, 0x111668, 0x840100,
    0x8403C0, 0x700000, 0x7FFFFC, 0x300000, 0x1468,
)  # fmt: skip
words = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from((0, 1, 2, 0xFF, 0x111, 0x614, 2**31)))


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    made = Script(build_card("ad102", CardOptions(memory=1 << 30)))
    yield made
    made.close()
    made.card.close()


@given(st.lists(st.tuples(st.sampled_from(INTERESTING), words, st.booleans()), max_size=40))
@settings(max_examples=80, deadline=None)
def test_any_register_accesses(script: Script, accesses: list[tuple[int, int, bool]]) -> None:
    script.transport.config_write(4, 6, 2)
    script.card.gpu.violations.clear()
    for offset, value, is_write in accesses:
        if is_write:
            script.write(offset, value)
        else:
            assert 0 <= script.read(offset) < 2**32
        script.transport.window(1).read32(value & 0xFFFFFC)
    script.card.function_reset()


@pytest.fixture(scope="module")
def booted() -> Iterator[Script]:
    made = Script(build_card("ad102", CardOptions(memory=1 << 30, notices=0)))
    made.boot()
    share = struct.pack("<II", 0, CLIENT).ljust(0x38, b"\0")
    for number, parent, handle, params in (
        (0, 0, CLIENT, bytes(ROOT["570.144"])), (0x80, CLIENT, DEVICE, share),
        (0x2080, DEVICE, SUBDEVICE, bytes(4)), (0x90F1, DEVICE, SPACE, bytes(0x30)),
    ):  # fmt: skip
        assert made.allocate(number, parent, handle, params)[0] == 0
    yield made
    made.close()
    made.card.close()


CONTROLS = (
    (0x20800A5C, 0x814), (0x20801112, 0xC8C), (0x2080012B, 0x230), (0x20800138, 8),
    (0x20800A32, 0x680), (0x20800A2A, 0xE80), (0x20801206, 0x28), (0x2080200A, 8),
)  # fmt: skip


@given(st.sampled_from(CONTROLS), st.binary(max_size=64), st.integers(0, 0x200))
@settings(max_examples=100, deadline=None)
def test_any_control_is_answered(
    booted: Script, control: tuple[int, int], content: bytes, at: int
) -> None:
    number, size = control
    params = bytearray(size)
    at = min(at, size)
    params[at : at + len(content)] = content[: size - at]
    status, reply = booted.control(number, SUBDEVICE, bytes(params))
    assert len(reply) == size and 0 <= status < 0x10000


@given(st.integers(0, 0x2F), st.binary(max_size=0x30))
@settings(max_examples=100, deadline=None)
def test_any_directory_and_channel_is_answered(booted: Script, at: int, content: bytes) -> None:
    for number, handle, size in ((0x90F10106, SPACE, 0xB8), (0x801813, DEVICE, 0x20)):
        params = bytearray(size)
        place = min(at, size - 1)
        params[place : place + len(content)] = content[: size - place]
        assert booted.control(number, handle, bytes(params[:size]))[0] < 0x10000
    params = bytearray(0x170)
    params[at * 4 : at * 4 + len(content)] = content
    if booted.allocate(0xC56F, DEVICE, 0x77, bytes(params[:0x170]))[0] == 0:
        assert booted.free(0x77) == 0


@given(st.sampled_from((1, 10, 21, 47, 54, 65, 70, 79, 99, 103, 76)), st.binary(max_size=80))
@settings(max_examples=100, deadline=None)
def test_any_call_is_answered(booted: Script, function: int, payload: bytes) -> None:
    if function == 47 or (function in (76, 103) and calls.expected_size(function, payload) > 80):
        return  # ends the firmware, or announces more that does not come
    assert booted.call(function, payload).function == function


@given(st.binary(max_size=120))
@settings(max_examples=200, deadline=None)
def test_any_registry_is_read_or_refused(payload: bytes) -> None:
    try:
        found = calls.registry(payload)
    except QueueError:
        return
    assert all(0 <= value < 2**32 for value in found.values())
