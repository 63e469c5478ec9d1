"""Waves that a debugger halts: their registers, and the table that their code checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.device.debugging import WaveState
from ugpu.virtual.amd.isa.decoder.disassembly import text
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.translator.program import Program
from ugpu.virtual.shader import context
from ugpu.virtual.shader.stepping import KernelCode, StepCall
from ugpu.virtual.shader.text import PASS

if TYPE_CHECKING:
    from ugpu.virtual.amd.isa.runtime.worker import Run, Worker

_SPECIAL = {
    "vcc_lo": layout.SGPR_VCC, "vcc_hi": layout.SGPR_VCC + 1, "m0": layout.SGPR_M0,
    "exec_lo": layout.SGPR_EXEC, "exec_hi": layout.SGPR_EXEC + 1,
}  # fmt: skip
_PAIRS = {"vcc": layout.SGPR_VCC, "exec": layout.SGPR_EXEC}


class SteppedCode(KernelCode):
    """A program for a debugger."""

    def __init__(self, program: Program) -> None:
        self.program = program
        end = max((block.end for block in program.blocks.values()), default=0)
        super().__init__(
            program.base + program.entry, program.digest, program.base, end // 4, 4
        )  # fmt: skip

    def listing(self) -> list[tuple[int, str, int]]:
        """See Code."""
        base, blocks = self.program.base, self.program.blocks
        return [
            (base + one.pc, text(one), 0)
            for start in sorted(blocks)
            for one in blocks[start].instructions
        ]


class SteppedWave:
    """A halted wave; a `hcq.device.debugging.Halted`."""

    def __init__(self, worker: Worker, run: Run, code: SteppedCode, offset: int) -> None:
        self._worker, self._run = worker, run
        self.code = code
        self.pc = code.program.base + offset
        self.wave = worker.word(context.HALT_WAVE)
        self.lanes = run.launch.lanes
        number, (x, y, _) = worker.quad(context.HALT_GROUP), run.dispatch.groups
        self.group = (number % x, number // x % y, number // (x * y))

    @property
    def execute(self) -> int:
        """See Halted."""
        return self._execute(self.wave)

    def _execute(self, wave: int) -> int:
        value = self.read("exec", wave)
        assert isinstance(value, int)
        return value

    def _state(self, wave: int) -> NDArray[np.uint32]:
        if not 0 <= wave < self._run.launch.waves:
            raise KeyError(f"wave {wave} of {self._run.launch.waves}")
        return self._worker.state(wave).view(np.uint32)

    def waves(self) -> list[WaveState]:
        """See Halted."""
        found = []
        for number in range(self._run.launch.waves):
            state, pc = self._state(number), self.code.entry
            resume = int(state[layout.STATE_RESUME // 4])
            if number == self.wave:
                what, pc = "halted", self.pc
            elif state[layout.STATE_DONE // 4]:
                what, pc = "ended", 0
            elif resume:
                what, pc = "waits at a barrier", self.code.program.base + resume - 1
            else:
                what = "not begun"
            found.append(WaveState(number, what, pc, self._execute(number)))
        return found

    def names(self, wave: int) -> tuple[list[str], list[str]]:
        """See Halted."""
        scalars = [*(f"s{k}" for k in range(layout.SGPR_VCC)), *_PAIRS, "m0", "scc"]
        return scalars, [f"v{k}" for k in range(self._run.launch.vgprs)]

    def bits(self, name: str) -> int:
        """See Halted."""
        return self.lanes if name in _PAIRS else 32

    def _place(self, name: str) -> tuple[str, int]:
        """Return what kind of register a name is ("s", "v", "scc", "pair"), and its number."""
        if name in _PAIRS:
            return "pair", _PAIRS[name]
        if name in _SPECIAL:
            return "s", _SPECIAL[name]
        if name == "scc":
            return name, layout.STATE_SCC // 4
        kind, number = name[:1], name[1:]
        limits = {"s": layout.SGPR_VCC, "v": self._run.launch.vgprs}
        if kind in limits and number.isdecimal() and int(number) < limits[kind]:
            return kind, int(number)
        raise KeyError(name)

    def _vector(self, wave: int, number: int) -> list[NDArray[np.uint32]]:
        """Return the lanes of a vector register in the wave state, pass by pass."""
        state, launch = self._state(wave), self._run.launch
        places = (
            layout.register_at(number, n, launch.vgprs) // 4 for n in range(self.lanes // PASS)
        )
        return [state[at : at + PASS] for at in places]

    def read(self, name: str, wave: int) -> int | list[int]:
        """See Halted."""
        kind, number = self._place(name)
        if kind == "v":
            return [int(value) for part in self._vector(wave, number) for value in part]
        state = self._state(wave)
        low = int(state[number])
        return low | int(state[number + 1]) << 32 if kind == "pair" and self.lanes > PASS else low

    def write(self, name: str, value: int, wave: int, lane: int | None = None) -> None:
        """See Halted."""
        kind, number = self._place(name)
        state = self._state(wave)
        if kind == "v":
            parts = self._vector(wave, number)
            if lane is not None and not 0 <= lane < self.lanes:
                raise KeyError(f"lane {lane} of {self.lanes}")
            for part in parts if lane is None else ():
                part[:] = value & 0xFFFF_FFFF
            if lane is not None:
                parts[lane // PASS][lane % PASS] = value & 0xFFFF_FFFF
            return
        if kind == "scc":
            value = int(value != 0)
        state[number] = value & 0xFFFF_FFFF
        if kind == "pair" and self.lanes > PASS:
            state[number + 1] = value >> 32 & 0xFFFF_FFFF

    def memory(self, address: int, size: int) -> bytes | None:
        """See Halted."""
        return self._run.memory.peek(address, size)

    def shared(self) -> bytes:
        """See Halted."""
        return self._worker.local(self._run.launch.lds_bytes)


class Stepping(StepCall["Worker", "Run", SteppedCode]):
    """Run a core's waves under a debugger."""

    def enter(self, worker: Worker, run: Run, program: Program) -> None:
        """Make the worker's waves halt in a program where the debugger requests it."""
        code = SteppedCode(program)
        self.begin(worker, run, code)
        worker.set_quad(context.STEPS, code.stops.address)
        worker.set_quad(context.STEP, self.address)

    def wave(self, context: int, wave: int, place: int) -> SteppedWave:
        """See StepCall."""
        return SteppedWave(*self.entered, place)
