"""The virtual streaming multiprocessors: run grids by translating their PTX to native code once."""

from __future__ import annotations

import hashlib
import math
import re
import struct
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.device.debugging import Debugger
from ugpu.hcq.errors import NotSupported
from ugpu.hcq.objects import jit, stack
from ugpu.virtual import shader as emu
from ugpu.virtual.nvidia.sm.endings import faulted, violations
from ugpu.virtual.nvidia.sm.ptx.module import Function, Module
from ugpu.virtual.nvidia.sm.ptx.parser import parse
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.launch.grid import BadLaunch, Grid
from ugpu.virtual.nvidia.sm.runtime.launch.stepping import SteppedCode, Stepping
from ugpu.virtual.nvidia.sm.runtime.launch.worker import Run, Worker
from ugpu.virtual.nvidia.sm.runtime.library import flight_hooks, launchers
from ugpu.virtual.nvidia.sm.translator.access import functions
from ugpu.virtual.nvidia.sm.translator.access.variables import Places
from ugpu.virtual.nvidia.sm.translator.control.flatten import Flat
from ugpu.virtual.nvidia.sm.translator.control.stepping import StepPlaces
from ugpu.virtual.nvidia.sm.translator.targets import runs_on
from ugpu.virtual.nvidia.sm.translator.translate import (
    NAME,
    Translation,
    flies,
    meets_clusters,
    prepare,
    translate,
)
from ugpu.virtual.nvidia.sm_contract import GridLaunch, GridSpace, SmEnding, SmOutcome
from ugpu.virtual.shader.memory import Abort, LaneMemory
from ugpu.virtual.shader.threads.executor import Executor, Recent
from ugpu.virtual.shader.threads.worker import aligned

_SOURCES = (Path(__file__).parent, emu.PACKAGE)
# A kernel is first compiled quickly. It is compiled with optimisation once it has run for this many
# times its compile time, which few kernels do. Optimised code takes about six times as long to make
# and is up to five times as fast.
_HOT = 8.0
_QUICK, _CAREFUL = 0, 1  # levels of code generation
# The statements in which a module names its chip. They decide whether the module runs (`targets`),
# not what its kernels do, so chips can share native code.
_FOR_A_CHIP = re.compile(r"\.version\s+[\d.]+|\.target\s+\w+")
# Header of stored code: size of a warp state, compile time in microseconds, bytes of stack.
_HEAD = struct.Struct("<QQQ")


@dataclass
class _Source:
    """A kernel before translation. images: the module window, by address space. flies: whether it
    has asynchronous copies or products. clustered: whether it has cluster barriers."""

    module: Module
    entry: Function
    flat: Flat
    places: Places
    digest: str
    flies: bool
    clustered: bool
    images: weakref.WeakKeyDictionary[LaneMemory, NDArray[np.uint8]] = field(
        default_factory=weakref.WeakKeyDictionary
    )

    def image(self, memory: LaneMemory, parameters: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the window's bytes for a launch. An address space runs one grid at a time."""
        image = self.images.get(memory)
        if image is None:
            image = self.images[memory] = aligned(len(self.places.image), 4096)
            image[:] = np.frombuffer(self.places.image, np.uint8)
        image[: self.places.parameter_size] = parameters[: self.places.parameter_size]
        return image


@dataclass
class _Kernel:
    """A kernel translated for one kind of block. hot_s: seconds of work after which optimised code
    is worthwhile; infinite if it already is. frame: bytes of stack. spent_s: seconds worked so far.
    stepped: where a debugger finds registers, for code that it can halt."""

    code: jit.Loaded
    address: int
    state_size: int
    frame: int
    hot_s: float
    spent_s: float = 0.0
    stepped: StepPlaces | None = None


class VirtualMultiprocessors(Executor[Worker, SmOutcome]):
    """All multiprocessors of a chip; a `Multiprocessors`. Its parameters are those of Executor."""

    name = "multiprocessor"
    severity = (
        *(ending for ending in SmEnding if ending not in (SmEnding.DONE, SmEnding.ABORTED)),
        SmEnding.ABORTED, SmEnding.DONE,
    )  # fmt: skip

    def __init__(
        self, workers: int | None = None, cache: Path | None = None,
        debugger: Debugger | None = None,
    ) -> None:  # fmt: skip
        super().__init__(workers, cache, debugger)
        self._sources: Recent[tuple[str, str], _Source] = Recent()
        self._kernels: Recent[tuple[str, str, bool, bool], _Kernel] = Recent()
        self._launch, self._launch_clusters = launchers(cache)
        functions.offer(cache)
        self._cache = cache

    def run(self, launch: GridLaunch, memory: GridSpace, abort: Abort) -> SmOutcome:
        """Run a grid to its end.

        Several threads may call, each with its own address space.

        Raises BadCodeObject for text that is not PTX. Raises NotSupported, with instruction and
        line, for unsupported features. Both are raised before anything has run.
        """
        try:
            with abort.translation(), self._lock:
                source = self._source(launch)
            grid = Grid.of(launch, source.entry, source.places)
        except BadLaunch as bad:
            return SmOutcome(SmEnding.BAD_LAUNCH, str(bad))
        if grid.groups == 0:
            return SmOutcome(SmEnding.DONE)
        parameters = aligned(max(len(launch.parameters), 64))
        parameters[: len(launch.parameters)] = np.frombuffer(launch.parameters, np.uint8)
        with abort.translation(), self._lock:
            hooks = flight_hooks(self._cache) if source.flies else ()
            kernel = self._kernel(launch, source, grid)
            image = source.image(memory, parameters)
        run = Run(grid, memory, abort, image, parameters, kernel.state_size, hooks,
                  source.places.listed(launch.variables))  # fmt: skip
        return self._run(kernel, source, run, self._stepping(launch, kernel, source, run))

    # -- running ---------------------------------------------------------------------------------

    def _worker(self, number: int) -> Worker:
        return Worker(number)

    def _stepping(
        self, launch: GridLaunch, kernel: _Kernel, source: _Source, run: Run
    ) -> Stepping | None:
        if self._debugger is None or kernel.stepped is None:
            return None
        code = SteppedCode(launch, source.flat.code, source.digest)
        return Stepping(self._debugger, code, kernel.stepped, run)

    def _run(
        self, kernel: _Kernel, source: _Source, run: Run, stepping: Stepping | None
    ) -> SmOutcome:
        def prepare(workers: Sequence[Worker]) -> None:
            run.counters[1] = len(workers)
            for worker in workers:
                worker.prepare(run, len(workers))
                if stepping is not None:
                    stepping.enter(worker)

        worst, spent = self._execute(
            run, lambda worker, _: self._work(worker, kernel, source, run), kernel.address,
            run.grid.groups, self._worker_count(run.grid, kernel),
            here=kernel.frame <= stack.USUAL, prepare=prepare,
        )  # fmt: skip
        kernel.spent_s += spent
        if not run.violations:
            return worst
        return replace(worst, violations=violations(source.flat.code, run))

    def _worker_count(self, grid: Grid, kernel: _Kernel) -> int:
        if self._alone(kernel.address, grid.groups, grid.warps):
            return 1
        x, y, z = grid.clusters
        return min(self._size, x * y * z, grid.resident)

    def _work(self, worker: Worker, kernel: _Kernel, source: _Source, run: Run) -> SmOutcome:
        """Run groups on this thread until none is left or a warp cannot continue."""
        launch = self._launch_clusters if source.clustered else self._launch
        if run.grid.launch.cluster is not None:
            launch = self._launch_clusters
        code = launch(worker.context, kernel.address)
        if code == layout.FINISHED:
            return SmOutcome(SmEnding.DONE)
        if code == layout.ABORTED:
            return SmOutcome(SmEnding.ABORTED)
        return faulted(worker, source.flat.code, run)

    # -- translating -----------------------------------------------------------------------------

    def _source(self, launch: GridLaunch) -> _Source:
        key = launch.ptx, launch.entry
        known = self._sources.get(key)
        if known is None:
            module = parse(launch.ptx)
            entry = module.functions.get(launch.entry)
            if entry is None or not entry.entry or not entry.defined:
                raise BadLaunch(f"the PTX has no entry {launch.entry!r}")
            flat, places = prepare(module, launch.entry)
            digest = hashlib.sha256(_FOR_A_CHIP.sub("", launch.ptx).encode()).hexdigest()
            known = _Source(module, entry, flat, places, digest, flies(flat.code),
                            meets_clusters(flat.code))  # fmt: skip
            self._sources.put(key, known)
        if not runs_on(known.module.target, launch.target):
            raise BadLaunch(f"PTX for {known.module.target} on a chip of {launch.target}")
        return known

    def _kernel(self, launch: GridLaunch, source: _Source, grid: Grid) -> _Kernel:
        mark = source.digest, launch.entry, grid.full, grid.rows
        known = self._kernels.get(mark)
        if known is not None and known.spent_s < known.hot_s:
            return known
        stepped = None
        if self._debugger is None:
            level, stored = self._compiled(launch, source, grid, hot=known is not None)
        else:
            level, stored, stepped = self._stepped(launch, source, grid)
        code = jit.Loaded(stored[_HEAD.size :], quick=level == _QUICK and not stepped)
        state_size, microseconds, frame = _HEAD.unpack_from(stored)
        if frame > stack.DEEPEST:
            raise NotSupported(
                "the kernel has too much code for the virtual multiprocessors",
                kernel=launch.entry, stack=frame, limit=stack.DEEPEST,
            )  # fmt: skip
        hot_s = math.inf if level == _CAREFUL or stepped else _HOT * 1e-6 * microseconds
        kernel = _Kernel(code, code.address(NAME), state_size, frame, hot_s, stepped=stepped)
        return self._kernels.put(mark, kernel)

    def _compiled(
        self, launch: GridLaunch, source: _Source, grid: Grid, *, hot: bool
    ) -> tuple[int, bytes]:
        """Return the level of code, and the code. Optimised code is preferred if it is cached."""
        parts = "kernel", source.digest, launch.entry, int(grid.full), int(grid.rows)
        keys = [jit.key_of(_SOURCES, *parts, level) for level in (_QUICK, _CAREFUL)]
        for level in (_CAREFUL,) if hot else (_CAREFUL, _QUICK):
            stored = self._objects.get(keys[level])
            if stored is not None:
                return level, stored
        level = _CAREFUL if hot else _QUICK
        start = time.perf_counter()
        made = translate(source.flat, source.places, grid.full, grid.rows, quick=level == _QUICK)
        stored = _object_of(made, level, start)
        self._objects.put(keys[level], stored)
        return level, stored

    def _stepped(
        self, launch: GridLaunch, source: _Source, grid: Grid
    ) -> tuple[int, bytes, StepPlaces | None]:
        """Return the level, code that a debugger can halt, and where its registers are."""
        start = time.perf_counter()
        made = translate(source.flat, source.places, grid.full, grid.rows, stepped=True)
        parts = "stepped", source.digest, launch.entry, int(grid.full), int(grid.rows)
        key = jit.key_of(_SOURCES, *parts, _QUICK)
        stored = self._objects.made(key, lambda: _object_of(made, _QUICK, start))
        return _QUICK, stored, made.stepped


def _object_of(made: Translation, level: int, start: float) -> bytes:
    """Compile a kernel whose translation began at `start`. Registers of a first version are values
    within their blocks already: as values in all blocks they would be spilled at each edge."""
    passes = jit.LIMITED if level else jit.NO_PASSES
    image = jit.compile_object(made.ir, passes, level)
    microseconds = int((time.perf_counter() - start) * 1e6)
    return _HEAD.pack(made.state_size, microseconds, stack.frame_of(image, NAME)) + image
