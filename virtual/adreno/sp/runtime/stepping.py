"""Waves that a debugger halts: their registers, and the halt table that their code checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.device.debugging import WaveState
from ugpu.virtual.adreno.sp.operands import A0, A1, P0, SHARED, SHARED_END
from ugpu.virtual.adreno.sp.program import INSTRUCTION
from ugpu.virtual.adreno.sp.runtime import layout
from ugpu.virtual.shader import context
from ugpu.virtual.shader.stepping import KernelCode, StepCall

if TYPE_CHECKING:
    from ugpu.virtual.adreno.sp.runtime.worker import Run, Worker

_PARTS = "xyzw"


class SteppedCode(KernelCode):
    """A program for a debugger."""

    def __init__(self, run: Run, digest: str) -> None:
        self.program = run.program
        count = max(block.end for block in run.program.blocks.values()) + 1
        entry = run.dispatch.code_address
        super().__init__(entry, digest, entry, count, INSTRUCTION)

    def listing(self) -> list[tuple[int, str, int]]:
        """See Code."""
        ops = sorted(self.program.by_index.items())
        return [(self.address(index), op.text, 0) for index, op in ops]


class SteppedWave:
    """A halted wave; a `hcq.device.debugging.Halted`.

    Its registers: per lane r0.x and so on, with hr0.x and so on as their halves or, without
    MERGEDREGS, registers of their own, and a0.x; per wave
    r48.x and so on, a1.x, and p0.x to p0.w with a bit for each lane; and the constant file, c0.x
    and so on, which `names` omits.
    """

    def __init__(self, worker: Worker, run: Run, code: SteppedCode, index: int) -> None:
        self._worker, self._run = worker, run
        self.code = code
        self.pc = code.address(index)
        self.wave = worker.word(context.HALT_WAVE)
        self.lanes = run.launch.lanes
        self.group = worker.running()[0]

    @property
    def execute(self) -> int:
        """See Halted."""
        return self._execute(self.wave, begun=True)

    def _execute(self, wave: int, *, begun: bool) -> int:
        state = self._state(wave)
        active = _number(state, layout.EXEC, 16)
        if begun:
            active &= _number(state, layout.PREDICATED, 16)
        return active & (1 << self.lanes) - 1

    def _state(self, wave: int) -> NDArray[np.uint8]:
        if not 0 <= wave < self._run.launch.waves:
            raise KeyError(f"wave {wave} of {self._run.launch.waves}")
        return self._worker.state(wave)

    def waves(self) -> list[WaveState]:
        """See Halted."""
        found = []
        for number in range(self._run.launch.waves):
            state, pc = self._state(number), self.code.entry
            resume, begun = _number(state, layout.RESUME, 4), True
            if number == self.wave:
                what, pc = "halted", self.pc
            elif _number(state, layout.DONE, 4):
                what, pc = "ended", 0
            elif resume:
                what, pc = "waits at a barrier", self.code.address(resume - 1)
            else:
                what, begun = "not begun", False
            active = 0 if what == "ended" else self._execute(number, begun=begun)
            found.append(WaveState(number, what, pc, active))
        return found

    def names(self, wave: int) -> tuple[list[str], list[str]]:
        """See Halted."""
        scalars = [f"p0.{part}" for part in _PARTS] + ["a1.x"]
        scalars += [_named(number) for number in range(SHARED, SHARED_END)]
        launch = self._run.launch
        if not launch.separate:
            return scalars, [*(_named(number) for number in range(launch.words)), "a0.x"]
        lanes = [_named(number) for number in range(launch.separate)]
        lanes += ["h" + _named(number) for number in range(2 * (launch.words - launch.separate))]
        return scalars, [*lanes, "a0.x"]

    def bits(self, name: str) -> int:
        """See Halted."""
        number, half = _numbered(name)
        if P0 <= number < P0 + 4 and not half and not name.startswith("c"):
            return self.lanes
        return 16 if half or number == A0 else 32

    def _place(self, name: str, wave: int) -> tuple[NDArray[np.uint32] | NDArray[np.uint16], bool]:
        """Return the storage of a register, and whether it holds a single number."""
        state = self._state(wave)
        number, half = _numbered(name)
        if name.startswith("c"):
            return self._worker.constants[number : number + 1], True
        if not half and P0 <= number < P0 + 4:
            at = layout.PREDICATES + 16 * (number - P0)
            return state[at : at + self.lanes // 8].view(np.uint32), True
        if not half and number == A1:
            return state[layout.A1 : layout.A1 + 4].view(np.uint32), True
        if number == A0:
            return state[layout.A0 : layout.A0 + 2 * self.lanes].view(np.uint16), False
        if not half and SHARED <= number < SHARED_END:
            at = layout.SHARED + 4 * (number - SHARED)
            return state[at : at + 4].view(np.uint32), True
        launch = self._run.launch
        where = launch.separate + number // 2 if half else number
        if where >= (launch.words if half else launch.separate or launch.words):
            raise KeyError(name)
        at = layout.register_at(where, self.lanes)
        words = state[at : at + 4 * self.lanes].view(np.uint32)
        return (words.view(np.uint16)[number % 2 :: 2] if half else words), False

    def read(self, name: str, wave: int) -> int | list[int]:
        """See Halted."""
        words, whole = self._place(name, wave)
        if whole:
            return int.from_bytes(words.tobytes(), "little")
        return [int(value) for value in words]

    def write(self, name: str, value: int, wave: int, lane: int | None = None) -> None:
        """See Halted."""
        words, whole = self._place(name, wave)
        if lane is not None and (whole or not 0 <= lane < self.lanes):
            raise KeyError(f"lane {lane}")
        if whole:
            size = words.nbytes
            cut = value & (1 << 8 * size) - 1
            words[:] = np.frombuffer(cut.to_bytes(size, "little"), words.dtype)
            return
        words[slice(None) if lane is None else lane] = value & (1 << 8 * words.itemsize) - 1

    def memory(self, address: int, size: int) -> bytes | None:
        """See Halted."""
        return self._run.memory.peek(address, size)

    def shared(self) -> bytes:
        """See Halted."""
        return self._worker.local(self._run.dispatch.local_size)


def _number(state: NDArray[np.uint8], offset: int, size: int) -> int:
    return int.from_bytes(state[offset : offset + size].tobytes(), "little")


def _named(number: int) -> str:
    return f"r{number >> 2}.{_PARTS[number & 3]}"


def _numbered(name: str) -> tuple[int, bool]:
    """Return a register's number, and whether it is a half register. KeyError for an unknown
    name."""
    stem, _, part = name.partition(".")
    kind = stem.rstrip("0123456789")
    first: Callable[[int], int] | None = {
        "r": lambda k: 4 * k, "hr": lambda k: 4 * k, "c": lambda k: 4 * k,
        "p": lambda k: P0 + 4 * k, "a": lambda k: A0 + k,
    }.get(kind)  # fmt: skip
    digits = stem[len(kind) :]
    if first is None or not digits or len(part) != 1 or part not in _PARTS:
        raise KeyError(name)
    number, component = first(int(digits)), _PARTS.index(part)
    bounds = {
        "r": SHARED_END, "hr": 2 * SHARED, "c": layout.CONSTANT_WORDS, "p": P0 + 4, "a": A1 + 1,
    }  # fmt: skip
    if number >= bounds[kind] or (kind == "a" and component):
        raise KeyError(name)
    return number + component, kind == "hr"


class Stepping(StepCall["Worker", "Run", SteppedCode]):
    """Runs the waves of all shader processors under a debugger."""

    def enter(self, worker: Worker, run: Run, digest: str) -> None:
        """Make the worker's waves halt in a program where the debugger requests it."""
        code = SteppedCode(run, digest)
        self.begin(worker, run, code)
        worker.set_quad(context.STEPS, code.stops.address)
        worker.set_quad(context.STEP, self.address)

    def wave(self, context: int, wave: int, place: int) -> SteppedWave:
        """See StepCall."""
        return SteppedWave(*self.entered, place)
