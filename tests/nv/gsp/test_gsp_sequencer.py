"""The CPU sequencer: what each operation does, and programs that are refused before they run."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ugpu.hcq.errors import FirmwareSilent, UnitTimeout
from ugpu.nv.abi.firmware import firmware, firmware_versions
from ugpu.nv.gsp.rpc.sequencer import BadProgram, parse, run


class Machine:
    """Registers, and a log of everything else."""

    def __init__(self) -> None:
        self.registers: dict[int, int] = {}
        self.log: list[object] = []

    def read(self, address: int) -> int:
        return self.registers.get(address, 0)

    def write(self, address: int, value: int) -> None:
        self.registers[address] = value

    def poll(self, address: int, mask: int, value: int, limit_s: float) -> None:
        self.log.append((address, mask, value, limit_s))
        if self.read(address) & mask != value:
            raise UnitTimeout("never", unit="x", waiting_for="y", limit_s=limit_s, state=None)

    def delay(self, seconds: float) -> None:
        self.log.append(seconds)

    def reset_core(self) -> None:
        self.log.append("reset")

    def start_core(self) -> None:
        self.log.append("start")

    def await_halt(self) -> None:
        self.log.append("halt")

    def resume_core(self) -> None:
        self.log.append("resume")


def message(*words: int, count: int | None = None) -> bytes:
    """The event's payload: 8 words of saved registers, then the program."""
    size = len(words) if count is None else count
    return struct.pack("<2I32x", 64, size) + struct.pack(f"<{len(words)}I", *words)


@pytest.mark.parametrize("release", firmware_versions())
def test_every_operation(release: str) -> None:
    machine = Machine()
    machine.registers[0x20] = 0xFF5F
    program = message(
        0, 0x10, 0x1234,  # write
        1, 0x20, 0x00F0, 0xAB0,  # modify: address, mask, value; the value is not masked
        4, 0x20, 7,  # store
        3, 1500,  # delay
        2, 0x10, 0xFF, 0x34, 0, 0x55,  # poll, with the default limit
        2, 0x10, 0xFF, 0x34, 2_000_000, 0x55,
        2, 0x10, 0xFF, 0x34, 0xFFFF_FFFF, 0x55,  # more than an hour
        5, 6, 7, 8,
    )  # fmt: skip
    run(parse(firmware(release), program), machine)
    assert machine.registers == {0x10: 0x1234, 0x20: 0xFF0F | 0xAB0}
    assert machine.log == [
        0.0015, (0x10, 0xFF, 0x34, 4.0), (0x10, 0xFF, 0x34, 2.0), (0x10, 0xFF, 0x34, 30.0),
        "reset", "start", "halt", "resume",
    ]  # fmt: skip


def test_an_error_names_the_operation() -> None:
    program = message(0, 0x10, 1, 2, 0x10, 0xFF, 2, 0, 0)
    with pytest.raises(FirmwareSilent, match="timed out: operation 1 of 2, REG_POLL"):
        run(parse(firmware("570.144"), program), Machine())


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (b"\0" * 39, "header is cut short"),
        (message(0, 1, 2, count=4), "longer than its message"),
        (message(9), "unknown operation"),
        (message(0, 0x10), "cut short"),
    ],
)
def test_a_program_that_is_not_well_formed_is_refused(program: bytes, text: str) -> None:
    with pytest.raises(BadProgram, match=text):
        parse(firmware("570.144"), program)


def test_a_register_is_saved_inside_of_the_area() -> None:
    with pytest.raises(BadProgram, match="outside of the area"):
        run(parse(firmware("570.144"), message(4, 0x10, 8)), Machine())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 9), st.integers(0, 0xFFFFFFFF)), max_size=40))
def test_no_program_breaks_the_sequencer(words: list[int]) -> None:
    try:
        run(parse(firmware("535.113.01"), message(*words)), Machine())
    except (BadProgram, FirmwareSilent):
        return
