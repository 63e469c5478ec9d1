"""The virtual shader processors: translate ir3 to native code once and run dispatches with it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ugpu.hcq.device.debugging import Debugger
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.objects import stack
from ugpu.virtual.adreno.isa.decoder.table import table
from ugpu.virtual.adreno.shader import Dispatch, Ending, Outcome, ShaderMemory
from ugpu.virtual.adreno.sp.delays import behind_predication
from ugpu.virtual.adreno.sp.hazards import violations
from ugpu.virtual.adreno.sp.program import INSTRUCTION, Program, fetched, load
from ugpu.virtual.adreno.sp.runtime import layout
from ugpu.virtual.adreno.sp.runtime.launch import BadDispatch, Launch
from ugpu.virtual.adreno.sp.runtime.library import LAUNCH, SOURCES, functions
from ugpu.virtual.adreno.sp.runtime.stepping import Stepping
from ugpu.virtual.adreno.sp.runtime.worker import Run, Worker
from ugpu.virtual.adreno.sp.translator.translate import Shape, translate
from ugpu.virtual.shader.entry import Entry
from ugpu.virtual.shader.memory import Abort, place_of
from ugpu.virtual.shader.threads import waves
from ugpu.virtual.shader.threads.executor import Executor, Recent
from ugpu.virtual.shader.versions import Code, Versions

_KERNEL = "ugpu_ir3_kernel"
_MOST_CAREFUL = 600  # most instructions of a kernel whose native code is optimised
_ENDINGS = {
    layout.ILLEGAL: Ending.ILLEGAL_INSTRUCTION, layout.NO_CODE: Ending.FETCH_FAULT,
    layout.NOT_IMPLEMENTED: Ending.NOT_IMPLEMENTED, layout.CODE_END: Ending.CODE_END,
    layout.MISSED_BARRIER: Ending.BARRIER,
}  # fmt: skip
_DETAILS = {
    Ending.ILLEGAL_INSTRUCTION: "no instruction of this GPU is encoded like this",
    Ending.FETCH_FAULT: "the code is not mapped there",
    Ending.CODE_END: "control left the code: the instruction length is too short",
    Ending.BARRIER: "a barrier that other lanes of the wave miss",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A decoded program. rules: the rules that it breaks, as texts."""

    program: Program
    digest: str
    rules: tuple[str, ...]


@dataclass(frozen=True)
class Kernel:
    """A program translated for one shape. here: whether a usual thread's stack is large enough for
    it."""

    code: Code
    shape: Shape
    here: bool


class Processors(Executor[Worker, Outcome]):
    """All shader processors of a GPU; a `ShaderProcessors`.

    workers, cache, debugger: see Executor. private_slots: number of shader processors for which the
    driver has private memory. keep_registers: a wave's registers initially hold what other waves
    left there, as in hardware, which is slower; otherwise they hold a value that marks them as
    undefined. Local memory always keeps its contents.
    """

    name = "ir3"
    severity = (
        Ending.FETCH_FAULT, Ending.ILLEGAL_INSTRUCTION, Ending.NOT_IMPLEMENTED, Ending.CODE_END,
        Ending.BARRIER, Ending.ABORTED, Ending.BAD_DISPATCH, Ending.DONE,
    )  # fmt: skip

    def __init__(
        self,
        workers: int | None = None,
        cache: Path | None = None,
        private_slots: int = 1,
        debugger: Debugger | None = None,
        keep_registers: bool = False,
    ) -> None:
        self._keep = keep_registers
        super().__init__(workers, cache, debugger)
        self._stepping = None if debugger is None else Stepping(debugger)
        self._private_slots = private_slots
        self._sources: Recent[tuple[object, ...], Source] = Recent()
        self._kernels: Recent[tuple[str, Shape], Kernel] = Recent()
        library = functions(cache)
        self._launch = Entry(library, LAUNCH)
        self._versions = Versions(SOURCES, self._objects, _KERNEL, library)

    def _worker(self, number: int) -> Worker:
        return Worker(self._keep)

    def launch(self, dispatch: Dispatch, memory: ShaderMemory, abort: Abort) -> Outcome:
        """Run a dispatch to its end. Called by one thread at a time.

        Raises the exceptions of the memory's callbacks, and NotSupported for kernels with too much
        code.
        """
        try:
            launch = Launch.of(dispatch)
        except BadDispatch as bad:
            return Outcome(Ending.BAD_DISPATCH, str(bad))
        if launch.groups == 0:
            return Outcome(Ending.DONE)
        with abort.translation(), self._lock:
            source = self._source(dispatch, memory)
            kernel = self._kernel(source, dispatch, launch)
        run = Run(dispatch, launch, source.program, memory, abort)
        work = partial(self._work, kernel=kernel, run=run, source=source)
        most = self._worker_count(dispatch, launch, kernel)
        mark = kernel.code.mark
        worst, spent = self._execute(run, work, mark, launch.groups, most, here=kernel.here)
        kernel.code.launched(spent)
        return worst

    def _worker_count(self, dispatch: Dispatch, launch: Launch, kernel: Kernel) -> int:
        if self._alone(kernel.code.mark, launch.groups, launch.waves):
            return 1
        count = min(self._size, launch.groups)
        return min(count, self._private_slots) if dispatch.private_size else count

    def _work(
        self, worker: Worker, number: int, kernel: Kernel, run: Run, source: Source
    ) -> Outcome:
        """Run workgroups on this thread until none is left or a wave cannot continue."""
        worker.prepare(run, number)
        if self._stepping is not None:
            self._stepping.enter(worker, run, source.digest)
        code = self._launch(place_of(worker.context), kernel.code.address)
        if code == waves.FINISHED:
            return Outcome(Ending.DONE, violations=source.rules)
        if code == waves.ABORTED:
            return Outcome(Ending.ABORTED, violations=source.rules)
        return _halted(worker, kernel, run, code, source.rules)

    # ---- translating ---------------------------------------------------------------------------

    def _source(self, dispatch: Dispatch, memory: ShaderMemory) -> Source:
        code, whole = fetched(memory, dispatch.code_address, dispatch.code_size)
        key = (
            dispatch.gpu_id, code, whole, dispatch.scalar_unit, dispatch.constant_limit,
            dispatch.shared_constants, dispatch.predication_nops, dispatch.merged_registers,
        )  # fmt: skip
        known = self._sources.get(key)
        if known is None:
            program = load(code, whole, table(dispatch.gpu_id), dispatch.merged_registers)
            end = max(block.end for block in program.blocks.values()) + 1
            digest = hashlib.sha256(code[: INSTRUCTION * end] + bytes([whole])).hexdigest()
            facts = dispatch.generation, dispatch.scalar_unit, dispatch.has_constant
            rules = violations(program, *facts)
            if dispatch.predication_nops:
                rules += tuple(behind_predication(program))
            known = Source(program, digest, rules)
            self._sources.put(key, known)
        return known

    def _kernel(self, source: Source, dispatch: Dispatch, launch: Launch) -> Kernel:
        shape = Shape(
            launch.lanes, launch.words, launch.separate, dispatch.generation,
            dispatch.private_per_wave, dispatch.group_register,
            dispatch.thread_register, dispatch.linear_register,
        )  # fmt: skip
        known = self._kernels.get((source.digest, shape))
        if known is not None:
            return known

        stepped = self._stepping is not None

        def ir() -> str:
            return translate(source.program, shape, _KERNEL, stepped=stepped, keep=self._keep)[0]

        kind = "stepped" if stepped else "kept" if self._keep else "kernel"
        both = not stepped and len(source.program.by_index) <= _MOST_CAREFUL
        code = self._versions.code(ir, kind, source.digest, repr(shape), both=both)
        if code.frame > stack.DEEPEST:
            raise NotSupported(
                "the kernel has too much code for the virtual shader processors",
                stack=code.frame, limit=stack.DEEPEST,
            )  # fmt: skip
        kernel = Kernel(code, shape, code.frame <= stack.USUAL)
        return self._kernels.put((source.digest, shape), kernel)


def _halted(worker: Worker, kernel: Kernel, run: Run, code: int, rules: tuple[str, ...]) -> Outcome:
    """Describe a wave that could not continue."""
    index = worker.quad(layout.HALT_AT)
    ending = _ENDINGS[code]
    words = run.program.words
    word = words[index] if index < len(words) else 0
    text = next((op.text for op in run.program.ops() if op.index == index), "")
    detail = _DETAILS.get(ending) or translate(run.program, kernel.shape, _KERNEL)[1].get(index, "")
    lanes = worker.mask(layout.HALT_LANES) & ((1 << run.launch.lanes) - 1)
    group, wave = worker.running()
    return Outcome(
        ending, detail, run.dispatch.code_address + INSTRUCTION * index, word, text, group, wave,
        (lanes & -lanes).bit_length() - 1, rules,
    )  # fmt: skip
