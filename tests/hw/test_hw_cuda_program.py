"""The program that is recorded on real hardware, on a library that only pretends to be CUDA's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from tests.hw import cuda_program


class ToyCuda:
    """Keeps what it is asked; computes `scale` as the kernel would when the work is waited for."""

    def __init__(self, *, fails: str = "", wrong: bool = False) -> None:
        self.fails = fails
        self.wrong = wrong
        self.asked: list[str] = []
        self.launches = 0
        self.ptx = b""

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.asked.append(name)
            if name == "cuDeviceGetAttribute":
                arguments[0]._obj.value = {75: 9, 76: 0}[arguments[1]]
            elif name == "cuModuleLoadData":
                self.ptx = arguments[1]
            elif name == "cuLaunchKernel":
                _, *sizes, _stream, pointers, extra = arguments
                assert sizes == [1, 1, 1, 64, 1, 1, 0] and extra is None
                count = ctypes.cast(pointers[2], ctypes.POINTER(ctypes.c_uint32))[0]
                assert count == 64
                self.launches += 1
            elif name == "cuMemcpyDtoH_v2" and not self.wrong:
                arguments[0][:] = [3 * number for number in range(64)]
            return 700 if name == self.fails else 0

        return call


@pytest.mark.parametrize(
    ("what", "launches", "asked"),
    [
        ("launch", 1, "cuMemcpyDtoH_v2"),
        ("copy", 0, "cuMemcpyHtoD_v2"),
        ("graph", 1, "cuGraphLaunch"),
    ],
)
def test_each_work_asks_for_what_it_is_about(what: str, launches: int, asked: str) -> None:
    toy = ToyCuda()
    assert cuda_program.main([what], toy) == 0
    assert toy.launches == launches
    assert asked in toy.asked
    assert b".target sm_90\n" in toy.ptx and toy.ptx.endswith(b"\0")


def test_what_fails_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cuda_program.main(["launch"], ToyCuda(fails="cuCtxSynchronize")) == 1
    assert "cuCtxSynchronize: CUresult 700" in capsys.readouterr().err
    assert cuda_program.main(["launch"], ToyCuda(wrong=True)) == 1
    assert "computed wrongly" in capsys.readouterr().err
    assert cuda_program.main(["nothing"], ToyCuda()) == 2
    assert cuda_program.main([], ToyCuda()) == 2


def test_without_cuda_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert cuda_program.main(["copy"]) == cuda_program.NO_CUDA
