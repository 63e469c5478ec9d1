"""Warps that a debugger halts: their registers, and the table that their code checks."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.device.debugging import Debugger, WaveState
from ugpu.hcq.errors import UsageError
from ugpu.virtual.nvidia.sm.ptx.module import Instruction
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.translator.control.stepping import Placed, StepPlaces
from ugpu.virtual.nvidia.sm_contract import INSTRUCTION_BYTES, GridLaunch
from ugpu.virtual.shader.stepping import KernelCode, StepCall

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.sm.runtime.launch.worker import Run, Worker


class SteppedCode(KernelCode):
    """A kernel as seen by a debugger. The model has no machine code: its addresses count PTX
    instructions."""

    def __init__(self, launch: GridLaunch, code: list[Instruction], digest: str) -> None:
        entry = launch.program_address
        super().__init__(entry, digest, entry, len(code), INSTRUCTION_BYTES)
        self.kernel = launch.entry
        self._lines = launch.ptx.split("\n")
        self._code = code

    def listing(self) -> list[tuple[int, str, int]]:
        """See Code."""
        return [(self.address(one.index), self._text(one), one.line) for one in self._code]

    def _text(self, i: Instruction) -> str:
        written = 0 < i.line <= len(self._lines)
        text = " ".join(self._lines[i.line - 1].split()) if written else ""
        # Internal instructions for calls and stacks are not in the text.
        return text if i.name in text else f"{i.opcode} (of: {text})"


class SteppedWarp:
    """A halted warp; a `hcq.device.debugging.Halted`. context: host address of its group's
    context."""

    def __init__(
        self, code: SteppedCode, places: StepPlaces, run: Run, context: int, index: int
    ) -> None:  # fmt: skip
        self.code = code
        self.pc = code.address(index)
        self.lanes = layout.LANES
        self._places, self._run, self._context = places, run, context
        self.wave = self._word(layout.WARP)
        self.group = (
            self._word(layout.GROUP_X), self._word(layout.GROUP_Y), self._word(layout.GROUP_Z)
        )  # fmt: skip

    def _word(self, offset: int) -> int:
        return ctypes.c_uint32.from_address(self._context + offset).value

    def _quad(self, offset: int) -> int:
        return ctypes.c_uint64.from_address(self._context + offset).value

    def _state(self, wave: int) -> NDArray[np.uint8]:
        if not 0 <= wave < self._run.grid.warps:
            raise KeyError(f"warp {wave} of {self._run.grid.warps}")
        size = self._run.state_size
        at = self._quad(layout.STATES) + wave * size
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(at))

    def _field(self, wave: int, offset: int) -> int:
        return int(self._state(wave)[offset : offset + 4].view(np.uint32)[0])

    def _begun(self, wave: int) -> bool:
        return (
            wave == self.wave
            or self._field(wave, layout.STATE_DONE) != 0
            or self._field(wave, layout.STATE_RESUME) != 0
        )

    @property
    def execute(self) -> int:
        """See Halted."""
        return self._execute(self.wave)

    def _execute(self, wave: int) -> int:
        if not self._begun(wave):
            return int(self._run.grid.masks[wave])
        return self._field(wave, self._places.active)

    def waves(self) -> list[WaveState]:
        """See Halted."""
        found = []
        for number in range(self._run.grid.warps):
            # For a waiting warp: the instruction after the barrier or the loop's branch.
            index = self._field(number, self._places.active + 4) + 1
            pc, execute = self.code.address(index), self._execute(number)
            if number == self.wave:
                what, pc = "halted", self.pc
            elif self._field(number, layout.STATE_DONE):
                what, pc, execute = "ended", 0, 0
            elif self._field(number, layout.STATE_WAITING):
                what = "waits at a barrier"
            elif self._field(number, layout.STATE_RESUME):
                what = "ready"
            else:
                what, pc = "not begun", self.code.entry
            found.append(WaveState(number, what, pc, execute))
        return found

    def names(self, wave: int) -> tuple[list[str], list[str]]:
        """See Halted."""
        uniform: list[str] = []
        varying: list[str] = []
        for name, one in self._places.registers.items():
            (uniform if one.uniform else varying).append(name)
        return uniform, varying

    def bits(self, name: str) -> int:
        """See Halted."""
        return self._places.registers[name].bits

    def _register(self, name: str, wave: int) -> tuple[Placed, NDArray[np.uint8]]:
        place, state = self._places.registers[name], self._state(wave)
        if not self._begun(wave):
            raise UsageError(f"expected a warp that has begun, got {wave}: its registers are empty")
        size = max(place.bits * (1 if place.uniform else layout.LANES), 8) // 8
        return place, state[place.offset : place.offset + size]

    def read(self, name: str, wave: int) -> int | list[int]:
        """See Halted."""
        place, data = self._register(name, wave)
        whole = int.from_bytes(data.tobytes(), "little")
        mask = (1 << place.bits) - 1
        if place.uniform:
            return whole & mask
        return [whole >> lane * place.bits & mask for lane in range(layout.LANES)]

    def write(self, name: str, value: int, wave: int, lane: int | None = None) -> None:
        """See Halted."""
        place, data = self._register(name, wave)
        mask = (1 << place.bits) - 1
        if lane is not None and (place.uniform or not 0 <= lane < layout.LANES):
            raise KeyError(f"lane {lane}")
        whole = int.from_bytes(data.tobytes(), "little")
        lanes = [lane] if lane is not None else range(1 if place.uniform else layout.LANES)
        for one in lanes:
            whole &= ~(mask << one * place.bits)
            whole |= (value & mask) << one * place.bits
        data[:] = np.frombuffer(whole.to_bytes(len(data), "little"), np.uint8)

    def memory(self, address: int, size: int) -> bytes | None:
        """See Halted."""
        return self._run.memory.peek(address, size)

    def shared(self) -> bytes:
        """See Halted."""
        return ctypes.string_at(self._quad(layout.SHARED), self._quad(layout.SHARED_SIZE))


class Stepping(StepCall["Worker", "Run", SteppedCode]):
    """Runs the warps of one grid under a debugger."""

    def __init__(
        self, debugger: Debugger, code: SteppedCode, places: StepPlaces, run: Run
    ) -> None:  # fmt: skip
        super().__init__(debugger)
        self._code, self._places, self._run = code, places, run
        run.steps = code.stops.address, self.address

    def enter(self, worker: Worker) -> None:
        """Make a worker's warps halt where the debugger requests it."""
        self.begin(worker, self._run, self._code)

    def wave(self, context: int, wave: int, place: int) -> SteppedWarp:
        """See StepCall."""
        return SteppedWarp(self._code, self._places, self._run, context, place)
