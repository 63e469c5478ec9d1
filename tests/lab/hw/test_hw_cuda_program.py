"""The program that is recorded on real hardware, on a library that only pretends to be CUDA's."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import pytest

from lab.hw import cuda_program
from tests.support.nvidia import cluster_kernel


class ToyCuda:
    """Keeps what it is asked; computes `scale` as the kernel would when the work is waited for."""

    def __init__(self, *, fails: str = "", wrong: bool = False, capability: int = 9) -> None:
        self.fails = fails
        self.capability = capability
        self.cluster = (0, 0, 0)
        self.wrong = wrong
        self.asked: list[str] = []
        self.launches = 0
        self.ptx = b""

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.asked.append(name)
            if name == "cuDeviceGetAttribute":
                arguments[0]._obj.value = {75: self.capability, 76: 0}[arguments[1]]
            elif name == "cuModuleLoadData":
                self.ptx = arguments[1]
            elif name == "cuLaunchKernel":
                _, *sizes, _stream, pointers, extra = arguments
                assert sizes == [1, 1, 1, 64, 1, 1, 0] and extra is None
                count = ctypes.cast(pointers[2], ctypes.POINTER(ctypes.c_uint32))[0]
                assert count == 64
                self.launches += 1
            elif name == "cuLaunchKernelEx":
                config, _kernel, pointers, extra = arguments
                self.clusters(bytes(config._obj), pointers, extra)
            elif name == "cuMemcpyDtoH_v2" and not self.wrong:
                found = [3 * number for number in range(64)]
                if self.cluster[0]:
                    found = cluster_kernel.expected((8, 4), self.cluster).ravel().tolist()
                arguments[0][:] = found
            return 700 if name == self.fails else 0

        return call

    def clusters(self, config: bytes, pointers: Any, extra: object) -> None:
        """Read the structures as a C compiler lays them out, by offset."""
        *sizes, shared, _, stream, attributes, count, _ = struct.unpack("<7IIQQII", config)
        assert sizes == [8, 4, 1, 32, 1, 1] and (shared, stream, count) == (0, 0, 1)
        assert len(pointers) == 1 and extra is None
        number, *dimensions = struct.unpack("<IxxxxIII52x", ctypes.string_at(attributes, 72))
        assert number == 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        self.cluster = tuple(dimensions)
        self.launches += 1


@pytest.mark.parametrize(
    ("what", "launches", "asked"),
    [
        ("launch", 1, "cuMemcpyDtoH_v2"),
        ("copy", 0, "cuMemcpyHtoD_v2"),
        ("graph", 4, "cuGraphLaunch"),
        ("cluster", 1, "cuLaunchKernelEx"),
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
    assert cuda_program.main(["cluster"], ToyCuda(wrong=True)) == 1
    assert "clusters computed wrongly" in capsys.readouterr().err
    assert cuda_program.main(["nothing"], ToyCuda()) == 2
    assert cuda_program.main([], ToyCuda()) == 2


def test_a_gpu_without_clusters_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    toy = ToyCuda(capability=8)
    assert cuda_program.main(["cluster"], toy) == cuda_program.NO_CUDA
    assert "capability 8.0 has no clusters" in capsys.readouterr().err
    assert not toy.launches


def test_without_cuda_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert cuda_program.main(["copy"]) == cuda_program.NO_CUDA
