"""The version of a kernel's code that a debugger halts: same results, every register to see."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.amd.isa.float_compare import both_nan
from tests.support.amd.isa.gfx_case_makers import SPECIAL_WORDS
from tests.support.amd.isa.gfx_corpus import compile_ir, corpus
from tests.support.amd.isa.gfx_run import Machine
from tests.virtual.amd.isa.translator.test_wave64 import FEW, WAVE64
from ugpu.hcq.device.debugging import Code, Halted
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.shader import Ending, Outcome

WORDS, ARGUMENT = 2048, 9
CLOCKS = ("shader_cycles", "memtime", "realtime", "cycle", "clock")  # differ from run to run
EXCHANGE = """
define amdgpu_kernel void @k(ptr addrspace(1) %out, ptr addrspace(1) %a, ptr addrspace(1) %b,
                             i32 %n) #0 {
  %id = call i32 @llvm.amdgcn.workitem.id.x()
  %to = getelementptr i32, ptr addrspace(3) @l, i32 %id
  %tripled = mul i32 %id, 3
  store i32 %tripled, ptr addrspace(3) %to
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %other = sub i32 63, %id
  %from = getelementptr i32, ptr addrspace(3) @l, i32 %other
  %value = load i32, ptr addrspace(3) %from
  %p = getelementptr i32, ptr addrspace(1) %out, i32 %id
  store i32 %value, ptr addrspace(1) %p
  ret void
}
@l = internal addrspace(3) global [64 x i32] poison
declare i32 @llvm.amdgcn.workitem.id.x()
declare void @llvm.amdgcn.s.barrier()
attributes #0 = { "amdgpu-flat-work-group-size"="64,64" "amdgpu-no-implicitarg-ptr"
  "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" "amdgpu-no-dispatch-ptr" }
"""

Words = NDArray[np.uint32]


class Everywhere:
    """Halts in front of each instruction and reads registers; keeps what `look` returns."""

    active = True

    def __init__(self) -> None:
        self.halts = 0
        self.seen: list[tuple[str, list[str]]] = []
        self.texts: dict[int, str] = {}
        self.shared = b""

    def opened(self, device: object) -> None: ...

    def stops(self, code: Code) -> Collection[int] | None:
        self.texts = {pc: text for pc, text, _ in code.listing()}
        return None

    def halted(self, wave: Halted) -> bool:
        self.halts += 1
        assert isinstance(wave.read("v0", wave.wave), list)
        text = self.texts.get(wave.pc, "")
        states = [one.state for one in wave.waves()]
        self.seen.append((text, states))
        if "s_endpgm" in text:
            self.shared = wave.shared()
        return True


def run(core: GfxCore, ir: str, options: str, threads: int) -> tuple[Outcome, list[Words]]:
    machine = Machine(core)
    found = machine.load(compile_ir(ir, options).image)
    rng = np.random.default_rng(1)
    inputs = [np.zeros(WORDS, np.uint32)]
    for _ in range(2):
        words = rng.integers(0, 1 << 32, WORDS, np.uint32)
        special = rng.random(WORDS) < 0.3
        words[special] = rng.choice(SPECIAL_WORDS, int(special.sum()))
        inputs.append(words)
    arrays = [machine.place(words) for words in inputs]
    block = struct.pack("<QQQI", *(address for address, _ in arrays), ARGUMENT)
    arguments = block.ljust(found.kernarg_size, b"\0")
    dispatch = machine.dispatch(found, arguments, (2, 1, 1), (threads, 1, 1))
    machine.memory.invalidate()
    outcome = core.run(dispatch, machine.memory, machine.abort)
    return outcome, [view.copy() for _, view in arrays]


def same(first: Words, second: Words) -> bool:
    """Which NaN it is stays open: LLVM swaps factors to suit the host, x86 takes the first NaN."""
    return bool(((first == second) | both_nan(first, second)).all())


def compare(names: list[str], options: str) -> None:
    plain, stepped = GfxCore(1), GfxCore(1, debugger=Everywhere())
    wrong, ran = [], 0
    try:
        for name in names:
            threads = 64 if "wmma" in name else 40
            one, expected = run(plain, corpus()[name], options, threads)
            two, found = run(stepped, corpus()[name], options, threads)
            if one.ending is not two.ending:
                wrong.append(f"{name}: {one.ending}, stepped {two.ending}")
            ran += one.ending is Ending.DONE
            if any(part in name for part in CLOCKS):
                continue
            wrong += [
                f"{name}: array {number}"
                for number in range(len(expected))
                if not same(expected[number], found[number])
            ]
    finally:
        plain.close()
        stepped.close()
    assert not wrong, "\n".join(wrong[:20])
    assert ran > 0.8 * len(names)


@pytest.mark.parametrize("options", ["", WAVE64])
def test_results_are_those_of_ordinary_code(options: str) -> None:
    compare(FEW[::8] if options else list(corpus())[3::120], options)


@pytest.mark.slow
@pytest.mark.parametrize("group", range(6))
def test_more_results_are_those_of_ordinary_code(group: int) -> None:
    compare(list(corpus())[group::12], "")


def test_every_instruction_of_every_wave_halts_once() -> None:
    debugger = Everywhere()
    core = GfxCore(1, debugger=debugger)
    outcome, (out, *_) = run(core, EXCHANGE, "", 64)
    core.close()
    assert outcome.ending is Ending.DONE
    assert out[:64].tolist() == [3 * (63 - n) for n in range(64)]
    # No branches: two groups of two waves meet each instruction.
    counts = Counter(text for text, _ in debugger.seen)
    assert all(count % 4 == 0 for count in counts.values())
    assert debugger.halts == 4 * len(debugger.texts)
    assert debugger.shared[:256] == np.arange(0, 192, 3, dtype=np.uint32).tobytes()
    states = {tuple(each) for _, each in debugger.seen}
    assert states == {
        ("halted", "not begun"), ("waits at a barrier", "halted"),
        ("halted", "waits at a barrier"), ("ended", "halted"),
    }  # fmt: skip


class Once(Everywhere):
    """Changes lanes of v0, thread ids by LLVM's initial state of kernels, in the first halt."""

    def __init__(self, of: int) -> None:
        super().__init__()
        self.of = of

    def halted(self, wave: Halted) -> bool:
        ids = wave.read("v0", wave.wave)
        if self.texts.get(wave.pc) and wave.pc == wave.code.entry and wave.wave == self.of:
            assert isinstance(ids, list)
            assert ids == list(range(32 * self.of, 32 * self.of + 32))
            wave.write("v0", 32 * self.of, wave.wave, lane=1)
            wave.write("exec", 0x7FFF_FFFF, wave.wave)
        return True


@pytest.mark.parametrize("of", [0, 1])
def test_registers_can_be_changed(of: int) -> None:
    core = GfxCore(1, debugger=Once(of))
    _, (out, *_) = run(core, EXCHANGE, "", 64)
    core.close()
    first = 32 * of
    # Lane 1 does what lane 0 does; lane 31 does nothing: their words stay 0.
    assert out[first + 1] == 0 and out[first + 31] == 0
    assert out[first] == 3 * (63 - first) or out[first] == 0
    assert out[first + 2] == 3 * (61 - first)


def test_a_debugger_that_raises_ends_the_launch() -> None:
    class Broken(Everywhere):
        def halted(self, wave: Halted) -> bool:
            raise LookupError("of the debugger")

    core = GfxCore(1, debugger=Broken())
    with pytest.raises(LookupError, match="of the debugger"):
        run(core, EXCHANGE, "", 64)
    core.close()


def test_waves_can_be_ended() -> None:
    class Ends(Everywhere):
        def halted(self, wave: Halted) -> bool:
            return wave.wave == 1

    core = GfxCore(1, debugger=Ends())
    outcome, (out, *_) = run(core, EXCHANGE, "", 64)
    core.close()
    assert outcome.ending is Ending.DONE and not out[:32].any()


def test_registers_that_are_not_there() -> None:
    class Asks(Everywhere):
        def halted(self, wave: Halted) -> bool:
            for name in ("s106", "v256", "v", "x1", "", "s-1"):
                with pytest.raises(KeyError):
                    wave.read(name, wave.wave)
            with pytest.raises(KeyError):
                wave.read("v0", 2)
            with pytest.raises(KeyError):
                wave.write("v0", 1, 0, lane=32)
            assert wave.memory(1, 4) is None
            self.halts += 1
            return True

    debugger = Asks()
    core = GfxCore(1, debugger=debugger)
    run(core, EXCHANGE, "", 64)
    core.close()
    assert debugger.halts
