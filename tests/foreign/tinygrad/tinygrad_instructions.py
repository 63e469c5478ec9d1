"""tinygrad's instruction tests of RDNA3 and RDNA4 on our shader cores in place of its emulator.

    python -m tests.foreign.tinygrad.tinygrad_instructions SOURCE RESULT [NAME ...]

SOURCE is a checkout of tinygrad: its wheel and its sdist do not contain test/amd/hw. Those tests
run machine code by one function, `run_asm` of test/mockgpu/amd/emu.py; their authors compare it
with boards (USE_HW=1). Here a module with that function alone takes the place of the emulator: it
runs the code on the core of the virtual Navi31 or Navi48, in one workgroup. RESULT is the JSON file
to write: "ok" or the trouble of each test. NAME: modules ("test_vop1"), all without one.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import unittest
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from tests.support.amd.isa.gfx_run import PRIVATE_APERTURE, SHARED_APERTURE
from tests.support.shader_memory import ArrayMemory
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.targets.target import target
from ugpu.virtual.amd.shader import Dispatch, Ending
from ugpu.virtual.shader.memory import Abort

CODE, ARGUMENTS, OUT, SCRATCH = (0x7E00_0000_0000 + (n << 36) for n in range(4))
OUT_BYTES = 1 << 16  # what a test may write; its own buffer is as large as `needed` says
WIDE = ("test_dpp",)  # its runner has waves of 64, and dumps one register
CODE_BYTES, SCRATCH_BYTES = 1 << 16, 4 << 20
REGISTERS = 16  # of each file, that the tests dump
# COMPUTE_PGM_RSRC1 of .amdhsa_kernel's defaults with 256 VGPRs: denormals of f16 and f64 alone,
# DX10_CLAMP, IEEE_MODE (LLVM AMDGPUUsage).
RSRC1 = 31 | 0xC0 << 12 | 1 << 21 | 1 << 23
# gfx12 has neither DX10_CLAMP nor IEEE_MODE.
RSRC1_GFX12 = RSRC1 & ~(1 << 21 | 1 << 23)
CORES = {
    arch: GfxCore(workers=1, target=target(name))
    for arch, name in (("rdna3", "gfx11"), ("rdna4", "gfx12"))
}


class Pages:
    """Memory of all tests."""

    def __init__(self) -> None:
        self.memory = ArrayMemory()
        self.wide = False  # waves of 64
        self.code = self._mapped(CODE, CODE_BYTES, executable=True)
        self.out, self.scratch = self._mapped(OUT, OUT_BYTES), self._mapped(SCRATCH, SCRATCH_BYTES)
        self.memory.map(ARGUMENTS, np.array([OUT], np.uint64), False)

    def _mapped(self, address: int, size: int, executable: bool = False) -> NDArray[np.uint8]:
        return self.memory.map(address, np.zeros(size, np.uint8), not executable, executable)


PAGES = Pages()


def needed(lanes: int) -> int:
    """Bytes of a test's own buffer: registers of all lanes, scalars, VCC, SCC, EXEC; or one
    register of a wave of 64."""
    if PAGES.wide:
        return 4 * lanes
    return max(REGISTERS * lanes, REGISTERS * 32) * 4 + REGISTERS * 4 + 12


def run_asm(
    lib: int, size: int, gx: int, gy: int, gz: int, lx: int, ly: int, lz: int, args: int,
    rsrc2: int = 0x19C, scratch: int = 0, arch: str = "rdna3",
) -> int:  # fmt: skip
    """Run code at a host address; its one argument is the address of the output."""
    if arch not in CORES:
        raise unittest.SkipTest(f"code of {arch}")
    lanes, host = lx * ly * lz, ctypes.c_uint64.from_address(args).value
    lane_count = 64 if PAGES.wide else 32
    waves = -(-lanes // lane_count)
    if size > CODE_BYTES or waves * lane_count * scratch > SCRATCH_BYTES:
        raise AssertionError(f"{size} bytes of code, {waves} waves with {scratch} of scratch")
    PAGES.code[:size] = np.frombuffer(ctypes.string_at(lib, size), np.uint8)
    PAGES.out[:] = 0
    size_out = needed(lanes) if arch == "rdna3" else 4 * lanes  # those of RDNA4 dump one register
    PAGES.out[:size_out] = np.frombuffer(ctypes.string_at(host, size_out), np.uint8)
    PAGES.scratch[:] = 0
    PAGES.memory.faults.clear()
    outcome = CORES[arch].run(
        Dispatch(
            code_address=CODE, groups=(gx, gy, gz), threads=(lx, ly, lz),
            rsrc1=(RSRC1 if arch == "rdna3" else RSRC1_GFX12) | 63 * PAGES.wide,
            rsrc2=rsrc2 | bool(scratch), rsrc3=0,
            user_data=[ARGUMENTS & 0xFFFF_FFFF, ARGUMENTS >> 32, *[0] * 14], wave32=not PAGES.wide,
            scratch_base=SCRATCH, scratch_wave_size=lane_count * scratch, scratch_waves=waves,
            shared_aperture=SHARED_APERTURE, private_aperture=PRIVATE_APERTURE,
        ),
        PAGES.memory, Abort(),
    )  # fmt: skip
    if outcome.ending is not Ending.DONE or PAGES.memory.faults:
        raise AssertionError(f"{outcome} {PAGES.memory.faults}")
    ctypes.memmove(host, PAGES.out.ctypes.data, size_out)
    return 0


class Recorder(unittest.TestResult):
    """Keeps what came of each test."""

    def __init__(self) -> None:
        super().__init__()
        self.tests: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.tests[_name(test)] = "ok"

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        for kind in (self.failures, self.errors):
            if kind and kind[-1][0] is test:
                self.tests[_name(test)] = kind[-1][1].strip().splitlines()[-1]
        if self.skipped and self.skipped[-1][0] is test:
            self.tests[_name(test)] = f"skipped: {self.skipped[-1][1]}"


def _name(test: unittest.TestCase) -> str:
    return test.id().removeprefix("test.amd.hw.")


def main(source: str, result: str, *names: str) -> None:
    """Run the tests and write what came of them."""
    emulator = ModuleType("test.mockgpu.amd.emu")
    vars(emulator)["run_asm"] = run_asm
    package = ModuleType("test")  # not Python's own package of that name
    package.__path__ = [str(Path(source, "test"))]
    sys.modules |= {"test": package, "test.mockgpu.amd.emu": emulator}
    folder = Path(source, "test/amd/hw")
    found = names or sorted(path.stem for path in folder.glob("test_*.py"))
    recorder, loader = Recorder(), unittest.TestLoader()
    for name in found:
        suite = loader.loadTestsFromModule(importlib.import_module(f"test.amd.hw.{name}"))
        PAGES.wide = name in WIDE
        suite.run(recorder)
        Path(result).write_text(json.dumps(recorder.tests, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
