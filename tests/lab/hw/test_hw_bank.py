"""Constant bank 0 and launch descriptors of two drivers side by side."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.hw import bank, cuda_program, our_launch
from ugpu.nv import abi
from ugpu.nv.code.assemble import assemble
from ugpu.nv.code.cubin import parse_cubin
from ugpu.tools.debug.sniff import launches, recording
from ugpu.tools.debug.sniff.command import _decoded, _launches, compare, show
from ugpu.tools.debug.sniff.memory import Launch

CAPABILITIES = ((7, 5), (8, 6), (8, 9), (9, 0), (12, 0))
_LDC, _NO_REGISTER = 0xB82, 255


class BankCuda:
    """A CUDA library whose kernel finds the numbers 0, 1, 2... in bank 0."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if name == "cuDeviceGetAttribute":
                arguments[0]._obj.value = {75: 9, 76: 0}[arguments[1]]
            elif name == "cuLaunchKernel":
                _, *sizes, _stream, pointers, _extra = arguments
                assert sizes == [1, 1, 1, 132, 1, 1, 0] and len(pointers) == 2
            elif name == "cuMemcpyDtoH_v2":
                arguments[0][:] = list(range(len(arguments[0])))
            return 0

        return call


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_kernel_reads_bank_0_from_its_start(
    capability: tuple[int, int], tmp_path: Path
) -> None:
    """The one load with a register has no other offset: word i is at 4 * i of the bank. Fields of
    LDC: bits 0 to 11 the operation, 24 to 31 the register, 38 to 53 the offset."""
    target = "sm_{}{}".format(*capability)
    cubin = parse_cubin(assemble(bank.text(capability), target, tmp_path))
    kernel = cubin.kernels[bank.KERNEL]
    assert kernel.parameters_at == 4 * bank.words_of(capability)
    code = cubin.sections[kernel.text].data
    found = []
    for at in range(0, len(code), 16):
        word = int.from_bytes(code[at : at + 16], "little")
        if word & 0xFFF == _LDC and word >> 24 & 0xFF != _NO_REGISTER:
            found.append(word >> 38 & 0xFFFF)
    assert found == [0]


def test_what_cuda_has_is_told_beside_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cuda_program.main(["bank"], BankCuda()) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"capability": [9, 0], "words": list(range(132))}
    (tmp_path / "bank.json").write_text(printed)
    assert bank.main([str(tmp_path / "bank.json")]) == 1
    told = capsys.readouterr().out.splitlines()
    assert "sm_90" in told[0]
    assert "~ 0x000:    (none) | " not in told
    assert "  0x004: 0x00000001 | 0x00000001  block" in told
    assert "~ 0x028: 0x0000000a | 0x00fffdc0  stack" in told
    assert "~ 0x208: 0x00000082 | 0x00000000" in told


def test_launches_are_compared_field_by_field() -> None:
    table = abi.qmd("4.0")
    left, right = table.new(REGISTER_COUNT=8, GRID_WIDTH=2), table.new(REGISTER_COUNT=9)
    right[3] |= 0x80
    one = Launch(table, bytes(left), bytes(4) + b"\x05\0\0\0")
    other = Launch(table, bytes(right), bytes(8))
    told = list(launches.differences([one], [other]))
    assert "  ~ REGISTER_COUNT: 0x8 | 0x9" in told
    assert "  ~ GRID_WIDTH: 0x2 | 0x0" in told
    assert "  ~ 0x004: 0x00000005 | 0x00000000" in told
    assert list(launches.differences([one], [])) == []
    blind = Launch(table, bytes(left), None)
    assert "not recorded of both" in list(launches.differences([one], [blind]))[-1]


class Said:
    """An output that keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str, style: str = "") -> None:
        self.lines.append(line)

    def result(self, found: object) -> None:
        self.found = found


@pytest.mark.parametrize("chip", ["tu102", "gh100", "gb202"])
def test_our_launch_is_recorded_with_its_descriptor(chip: str, tmp_path: Path) -> None:
    path = tmp_path / "ours.jsonl"
    assert our_launch.main([f"virtual:{chip}", str(path)]) == 0
    assert recording.read(path).calls
    (launch,) = _launches(*_decoded(path))
    assert launch.table.get(launch.raw, "CTA_THREAD_DIMENSION0") == 64
    assert launch.bank is not None
    said: Any = Said()
    assert compare(path, path, said) == 0
    assert any("the last launch of each: constant bank 0" in line for line in said.lines)


@pytest.mark.parametrize("chip", ["gh100", "gb202"])
def test_clusters_of_ours_are_recorded_with_their_descriptor(chip: str, tmp_path: Path) -> None:
    path = tmp_path / "ours.jsonl"
    assert our_launch.main([f"virtual:{chip}", str(path), "--work", "cluster"]) == 0
    (launch,) = _launches(*_decoded(path))
    assert [
        launch.table.get(launch.raw, f"GPC_CGA_{name}") for name in ("WIDTH", "HEIGHT", "DEPTH")
    ] == [2, 2, 1]
    said: Any = Said()
    show(path, said)
    compare(path, path, said)
    told = "\n".join(said.lines)
    for name in ("GPC_CGA_WIDTH = 0x2", "QMD_TYPE = ", "bank 0: ", "  GPC_CGA_HEIGHT: 0x2 | 0x2"):
        assert name in told
    assert "constant bank 0\n" in told


def test_clusters_of_a_device_without_them_are_absent(tmp_path: Path) -> None:
    path = tmp_path / "ours.jsonl"
    assert our_launch.main(["virtual:tu102", str(path), "--work", "cluster"]) == our_launch.NO_CUDA


def test_a_library_that_is_not_there_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert cuda_program.main(["bank"]) == cuda_program.NO_CUDA
