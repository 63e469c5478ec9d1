"""The virtual shader cores: run dispatches by translating gfx1100 code to native code once."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from ugpu.hcq.device.debugging import Debugger
from ugpu.hcq.objects import jit
from ugpu.virtual import shader as emu
from ugpu.virtual.amd.isa.decoder.decode import GFX11
from ugpu.virtual.amd.isa.runtime import flat, layout, matrix, races, scratch, wave
from ugpu.virtual.amd.isa.runtime.launch import BadDispatch, Launch
from ugpu.virtual.amd.isa.runtime.stepping import Stepping
from ugpu.virtual.amd.isa.runtime.worker import Run, Worker
from ugpu.virtual.amd.isa.targets.target import Memory, Target
from ugpu.virtual.amd.isa.translator.modes import modes_of
from ugpu.virtual.amd.isa.translator.needed import needed, numbers
from ugpu.virtual.amd.isa.translator.program import Program, Stop, load, mark_full_blocks
from ugpu.virtual.amd.isa.translator.translate import translate
from ugpu.virtual.amd.isa.waits import check
from ugpu.virtual.amd.shader import Dispatch, Ending, Outcome, ShaderMemory, ShaderWave
from ugpu.virtual.shader import atomics, context
from ugpu.virtual.shader import math as emu_math
from ugpu.virtual.shader.entry import Entry
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.lanes.functions import LANE_MEMORY
from ugpu.virtual.shader.library import Library
from ugpu.virtual.shader.memory import Abort
from ugpu.virtual.shader.threads import waves
from ugpu.virtual.shader.threads.executor import Executor, Recent
from ugpu.virtual.shader.versions import Code, Versions

_SOURCES = (Path(__file__).parent, emu.PACKAGE)
_KERNEL = "ugpu_kernel"
_AT = re.compile(r"\bat (0x[0-9a-f]+)\b")  # addresses of instructions in violations
_LOOK_S = 1e-4  # interval of checks whether waves have stored their snapshots
_Key = tuple[int, int, int, bool, int]  # address, registers, lanes, whole waves, output modifiers


@dataclass(frozen=True)
class Kernel:
    """A program translated for one number of vector registers."""

    program: Program
    code: Code
    violations: tuple[str, ...] = ()

    def shown(self, offset: int) -> list[int]:
        """Return the vector registers that a wave's snapshot there stores (flow.poll_abort)."""
        return numbers(needed(self.program).get(offset, 0))


@cache
def _runtime(folder: Path | None) -> Library:
    """Return the functions that all kernels share, and offer them to the linker."""
    return Library(_SOURCES, folder, "runtime", (
        *LANE_MEMORY, atomics.part(PREFIX, context.IO, flat.ATOMIC_SIZES),
        (flat.flat_ir, flat.names()), (scratch.scratch_ir, scratch.names()),
        (matrix.matrix_ir, matrix.names()), emu_math.part(PREFIX),
        (races.races_ir, races.names()),
        (partial(wave.wave_launcher_ir, jit.on_x86()), ()),
    ))  # fmt: skip


class GfxCore(Executor[Worker, Outcome]):
    """All compute units of the chip; a `ShaderCore`.

    workers, cache, debugger: see Executor. keep_registers: a wave's vector registers start with the
    values that earlier waves left, as in hardware, which is slower; otherwise with zeros. LDS
    always keeps its content. check_waits: outcomes name each use of a register before the wait for
    its load, and races between waves in LDS. target: the instruction set.
    """

    name = "shader-core"
    severity = (
        Ending.FETCH_FAULT, Ending.ILLEGAL_INSTRUCTION, Ending.HALTED, Ending.ABORTED,
        Ending.BAD_DISPATCH, Ending.DONE,
    )  # fmt: skip

    def __init__(
        self,
        workers: int | None = None,
        cache: Path | None = None,
        debugger: Debugger | None = None,
        *,
        keep_registers: bool = False,
        check_waits: bool = False,
        target: Target = GFX11,
    ) -> None:
        self._check_waits = check_waits  # workers are made with it
        super().__init__(workers, cache, debugger)
        self._stepping = None if debugger is None else Stepping(debugger)
        self._keep = keep_registers
        self._target = target
        self._gfx12 = target.memory is Memory.GFX12
        # Repeated launches by their dispatches, which a run keeps. One repeats if the command
        # processor found the registers unchanged; its code is compared each time.
        self._runs: Recent[int, Run] = Recent()
        self._kernels: Recent[_Key, Kernel] = Recent()
        self._compiled: Recent[tuple[str, int, bool, int], Code] = Recent()
        self._races: Recent[tuple[str, int, int], str] = Recent()
        self._extending = threading.Lock()
        functions = _runtime(cache)
        self._versions = Versions(_SOURCES, self._objects, _KERNEL, functions)
        self._launch = Entry(functions, wave.NAME)

    def _worker(self, number: int) -> Worker:
        return Worker(watched=self._check_waits)

    def run(self, dispatch: Dispatch, memory: ShaderMemory, abort: Abort) -> Outcome:
        """Run a dispatch to completion. Called by one thread at a time."""
        run = self._runs.get(id(dispatch))
        if run is not None and run.memory is memory and run.abort is abort:
            run.restart()
        else:
            try:
                launch = Launch.of(dispatch, gfx12=self._gfx12)
            except BadDispatch as bad:
                return Outcome(Ending.BAD_DISPATCH, detail=str(bad))
            run = Run(dispatch, launch, memory, abort, self._target)
            if dispatch.repeats:
                self._runs.put(id(dispatch), run)
        launch = run.launch
        if launch.total_groups == 0:
            return Outcome(Ending.DONE)
        kernel = self._kernel(dispatch.code_address, launch, memory, abort)
        worst, spent = self._execute(
            run, partial(self._work, kernel=kernel, run=run), kernel.code.mark,
            launch.total_groups, self._worker_count(dispatch, launch, kernel),
        )  # fmt: skip
        kernel.code.launched(spent)
        return replace(worst, violations=tuple(run.violations)) if run.violations else worst

    def look(self, abort: Abort, limit_s: float) -> list[ShaderWave]:
        """See ShaderCore."""
        all_workers = [worker for crew in self._crews for worker in crew.workers]
        workers = [worker for worker in all_workers if worker.busy]
        waiting = {worker: worker.word(layout.LOOKS) for worker in workers}
        end = time.monotonic() + limit_s
        with abort.look():
            while waiting and time.monotonic() < end:
                time.sleep(_LOOK_S)
                waiting = {
                    worker: count for worker, count in waiting.items()
                    if worker.busy and worker.word(layout.LOOKS) == count
                }  # fmt: skip
        return [wave for worker in all_workers for wave in worker.looked()]

    def _worker_count(self, dispatch: Dispatch, launch: Launch, kernel: Kernel) -> int:
        """Return how many threads to use; the scratch size limits the number of waves."""
        if self._alone(kernel.code.mark, launch.total_groups, launch.waves):
            return 1
        count = min(self._size, launch.total_groups)
        if launch.scratch:
            count = min(count, dispatch.scratch_waves // launch.waves)
        return count

    def _work(self, worker: Worker, number: int, kernel: Kernel, run: Run) -> Outcome:
        """Run workgroups on this thread until none is left or a wave cannot continue."""
        try:
            worker.prepare(run, number * run.launch.waves, kernel.program.base)
            worker.shown = kernel.shown
            if self._stepping is not None:
                self._stepping.enter(worker, run, kernel.program)
            return self._run_groups(worker, kernel, run)
        finally:
            worker.rest()

    def _run_groups(self, worker: Worker, kernel: Kernel, run: Run) -> Outcome:
        run.note(self._placed(kernel.violations))
        while True:
            code = self._launch(worker.place, kernel.code.address)
            run.note(self._placed([self._raced(kernel.program, r) for r in worker.races()]))
            if code == waves.FINISHED:
                return Outcome(Ending.DONE)
            if code == waves.ABORTED:
                return Outcome(Ending.ABORTED)
            offset = _signed(worker.quad(layout.HALT_PC))
            root = kernel.program.base + offset
            if code == layout.FAR_CODE:
                if run.memory.fetch(root, 4) is None:
                    code = layout.NO_CODE
                break
            if code != layout.UNKNOWN_CODE:
                break
            if run.memory.fetch(root, 4) is None:
                code = layout.NO_CODE
                break
            with run.abort.translation():
                longer = self._extended(kernel, root, run.launch, run.memory)
            worker.resume_here(longer.program.base - kernel.program.base, run.launch.waves)
            kernel = longer
            worker.shown = kernel.shown
            if self._stepping is not None:
                self._stepping.enter(worker, run, kernel.program)
            run.note(self._placed(kernel.violations))
        return _halted(worker, kernel.program, code, run.dispatch)

    def _placed(self, violations: Sequence[str]) -> Iterator[str]:
        """Add to the addresses of instructions their source lines, as far as a debugger knows."""
        for text in violations:
            yield text if self._stepping is None else _AT.sub(self._with_line, text)

    def _with_line(self, match: re.Match[str]) -> str:
        assert self._stepping is not None
        line = self._stepping.debugger.place(int(match[1], 16))
        return f"{match[0]} ({line})" if line else match[0]

    def _raced(self, program: Program, race: races.Race) -> str:
        """Describe a race; each two instructions once, by the first waves for which they were."""
        mark = (program.digest, race.first, race.second)
        known = self._races.get(mark)
        if known is None:
            known = race.text(program)
            self._races.put(mark, known)
        return known

    def _kernel(self, address: int, launch: Launch, memory: ShaderMemory, abort: Abort) -> Kernel:
        key = _key(address, launch)
        known = self._kernels.get(key)
        if known is not None and known.program.unchanged(memory):
            return known
        with abort.translation():
            program = load(memory, address, lanes=launch.lanes, target=self._target)
            kernel = self._translated(program, launch)
        self._remember(key, kernel)
        return kernel

    def _remember(self, key: _Key, kernel: Kernel) -> None:
        whole = all(block.stop is not Stop.NO_CODE for block in kernel.program.blocks.values())
        if whole:
            self._kernels.put(key, kernel)

    def _extended(self, kernel: Kernel, root: int, launch: Launch, memory: ShaderMemory) -> Kernel:
        """Return the kernel extended by the code at an indirect jump's target."""
        program = kernel.program
        with self._extending:
            roots = frozenset({root, *(program.base + offset for offset in program.roots)})
            address = program.base + program.entry
            longer = self._translated(
                load(memory, address, roots, launch.lanes, self._target), launch
            )
            self._remember(_key(address, launch), longer)
            return longer

    def _translated(self, program: Program, launch: Launch) -> Kernel:
        modes = modes_of(program, launch.modes)
        stepped = self._stepping is not None
        mark = (program.digest, launch.vgprs, launch.full, modes)
        code = self._compiled.get(mark)
        if code is None:
            kind = "stepped" if stepped else "kept" if self._keep else "kernel"
            ir = partial(self._ir, program, launch.vgprs, launch.full, modes)
            code = self._versions.code(
                ir, kind, program.digest, launch.vgprs, int(launch.full), modes,
                int(self._check_waits), both=not stepped,
                first=None if stepped else partial(ir, quick=True),
            )  # fmt: skip
            self._compiled.put(mark, code)
        violations = tuple(check(program)) if self._check_waits else ()
        return Kernel(program, code, violations)

    def _ir(
        self, program: Program, vgprs: int, full: bool, modes: int, *, quick: bool = False
    ) -> str:
        stepped = self._stepping is not None
        if not stepped:
            mark_full_blocks(program, full)
        return translate(
            program, vgprs, _KERNEL, modes,
            stepped=stepped, keep=self._keep, races=self._check_waits, quick=quick,
        )  # fmt: skip


def _key(address: int, launch: Launch) -> _Key:
    return address, launch.vgprs, launch.lanes, launch.full, launch.modes


_ENDINGS = {layout.NO_CODE: Ending.FETCH_FAULT, layout.SET_HALT: Ending.HALTED}


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _halted(worker: Worker, program: Program, code: int, dispatch: Dispatch) -> Outcome:
    """Describe a wave that could not continue."""
    offset = _signed(worker.quad(layout.HALT_PC))
    group = worker.quad(context.HALT_GROUP)
    x, y, _ = dispatch.groups
    where = (group % x, group // x % y, group // (x * y))
    words, detail = program.words_at(offset)
    if code == layout.FAR_CODE:
        detail = "code more than 2 GB away from its kernel is not executed by these cores"
    ending = _ENDINGS.get(code, Ending.ILLEGAL_INSTRUCTION)
    if ending is Ending.HALTED:
        detail = "by s_sethalt"
    wave_number = worker.word(context.HALT_WAVE)
    state = worker.halted(wave_number, offset)
    return Outcome(ending, program.base + offset, words, detail, where, wave_number, state)
