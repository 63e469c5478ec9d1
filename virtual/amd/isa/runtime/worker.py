"""One worker thread's native state: its context, TLB, local memory and wave states."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.amd.isa.decoder.decode import LONGEST, decode
from ugpu.virtual.amd.isa.decoder.disassembly import text
from ugpu.virtual.amd.isa.decoder.formats import UnknownInstruction
from ugpu.virtual.amd.isa.runtime import layout, races
from ugpu.virtual.amd.isa.runtime.launch import Launch
from ugpu.virtual.amd.isa.targets.target import Target
from ugpu.virtual.amd.shader import Dispatch, ShaderMemory, ShaderWave
from ugpu.virtual.shader import context
from ugpu.virtual.shader.memory import Abort, Access, place_of
from ugpu.virtual.shader.text import PASS
from ugpu.virtual.shader.threads import worker as threads
from ugpu.virtual.shader.tlb import PAGE

_SLOTS = (layout.SLOT_X, layout.SLOT_Y, layout.SLOT_Z, layout.SLOT_INFO, layout.SLOT_WAVE)


Shown = Callable[[int], Iterable[int]]  # code offset -> vector registers stored by a snapshot there


def _nothing(offset: int) -> Iterable[int]:
    return ()


class _Image(NamedTuple):
    """The part of a worker's context that a launch determines."""

    first_wave: int
    code_base: int
    quads: memoryview  # up to LOOK_PC
    look_pc: int


class Run(threads.Run[ShaderMemory]):
    """State shared by all workers of one dispatch.

    violations: see Outcome. places: (offset of a context field, address of the array that it points
    to). images: of each worker that has prepared it, what its context then holds.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        launch: Launch,
        memory: ShaderMemory,
        abort: Abort,
        target: Target,
    ) -> None:
        super().__init__(memory, abort)
        self.target = target
        self.dispatch = dispatch
        self.launch = launch
        self.violations: dict[str, None] = {}  # in the order of their first occurrence
        self.images: dict[Worker, _Image] = {}
        self.places = (
            (layout.SGPR_TEMPLATE, place_of(launch.scalars)),
            (layout.VGPR_TEMPLATE, place_of(launch.ids)),
            (layout.EXEC_TEMPLATE, place_of(launch.execs)),
        )

    def restart(self) -> None:
        """See threads.Run."""
        super().restart()
        self.violations.clear()

    def note(self, violations: Iterable[str]) -> None:
        """Add what a program does that a chip does not check; any thread may call."""
        self.violations.update(dict.fromkeys(violations))


class Worker(threads.WaveWorker[Run]):
    """A worker of the shader cores. watched: its kernels note their accesses of local memory."""

    def __init__(self, *, watched: bool = False) -> None:
        super().__init__(context.SIZE)
        self._shadow = races.shadow() if watched else None
        if self._shadow is not None:
            self.set_quad(layout.RACES, place_of(self._shadow))
        self._guard = threading.Lock()  # held where a launch begins or ends, and during `looked`
        self.shown: Shown = _nothing

    def translate(self, address: int, access: Access) -> int:
        """Return the host address of an address that is not in the TLB."""
        assert self._run is not None and self._tlb is not None
        return self._run.memory.refill(self._tlb, address, access, self._accessing)

    def _accessing(self) -> tuple[int, str]:
        """Return the GPU address and the text of the instruction that accesses memory."""
        assert self._run is not None
        pc = self.quad(layout.CODE_BASE) + self.word(layout.ACCESS_PC)
        # The next page may not be mapped: fetch from it only if the instruction needs it.
        for size in (min(LONGEST, PAGE - pc % PAGE), LONGEST):
            code = self._run.memory.fetch(pc, size)
            if code is None:
                break
            with contextlib.suppress(UnknownInstruction):
                return pc, text(decode(code, 0, self._run.launch.lanes, self._run.target))
        return pc, ""

    def prepare(self, run: Run, first_wave: int, code_base: int) -> None:
        """Fill the context for a dispatch. first_wave: this worker's first scratch slot."""
        tlb = self.tlb_for(run.memory)  # may wait for a thread that takes a snapshot
        with self._guard:
            self._prepare(run, first_wave, code_base, tlb)

    def _prepare(self, run: Run, first_wave: int, code_base: int, tlb: NDArray[np.uint64]) -> None:
        self.shown = _nothing
        if self._shadow is not None:
            races.clear(self._shadow, run.launch.lds_bytes)
        image = run.images.get(self)
        if image is not None and (image.first_wave, image.code_base) == (first_wave, code_base):
            self._quads[: len(image.quads)] = image.quads
            self._words[layout.LOOK_PC // 4] = image.look_pc
            self._quads[context.STATES // 8] = self._states_at  # may have moved since
            self._enter(run, tlb)
            return
        self._fill(run, first_wave, code_base, tlb)
        quads = memoryview(self._quads[: layout.LOOK_PC // 8].tobytes()).cast("Q")
        run.images[self] = _Image(first_wave, code_base, quads, self.word(layout.LOOK_PC))

    def _fill(self, run: Run, first_wave: int, code_base: int, tlb: NDArray[np.uint64]) -> None:
        dispatch, launch = run.dispatch, run.launch
        stride = layout.STATE_VGPR + layout.REGISTER * launch.vgprs * (launch.lanes // PASS)
        self._begin(
            run, tlb, dispatch.groups, launch.waves, stride, launch.lds_bytes, launch.mxcsr
        )  # fmt: skip
        wave_size = dispatch.scratch_wave_size if launch.scratch else 0
        quads, words = self._quads, self._words
        for field, place in run.places:
            quads[field // 8] = place
        quads[layout.SCRATCH // 8] = dispatch.scratch_base + first_wave * wave_size
        quads[layout.SCRATCH_WAVE // 8] = wave_size
        quads[layout.SHARED_HIGH // 8] = dispatch.shared_aperture >> 32
        quads[layout.PRIVATE_HIGH // 8] = dispatch.private_aperture >> 32
        quads[layout.CODE_BASE // 8] = code_base
        quads[layout.FIRST_LANE // 8] = 0
        quads[layout.WAVE_SHIFT // 8] = launch.lanes.bit_length() - 1
        for field, slot in zip(_SLOTS, launch.slots, strict=True):
            words[field // 4] = slot
        words[layout.LOOK_PC // 4] = dispatch.code_address - code_base & 0xFFFF_FFFF

    def races(self) -> list[races.Race]:
        """Return the races in local memory since `prepare`; none if the worker is not watched."""
        return [] if self._shadow is None else list(races.races(self._shadow))

    @property
    def busy(self) -> bool:
        """Return whether a launch is in progress on this thread."""
        return self._run is not None

    def rest(self) -> None:
        """Mark that the launch has ended on this thread; snapshots find no waves from now on."""
        with self._guard:
            self._run = None

    def looked(self) -> list[ShaderWave]:
        """Return the running wave at its last snapshot, and waves of its group at a barrier.

        Called by another thread: values that change meanwhile are read once.
        """
        with self._guard:
            run = self._run
            if run is None or self.quad(context.HALT_GROUP) == context.NO_GROUP:
                return []  # no wave has started: the states belong to an earlier launch
            return self._seen(run, self.word(context.HALT_WAVE))

    def halted(self, wave: int, pc: int) -> ShaderWave:
        """Return the wave that has halted at byte offset `pc`, with all its registers.

        Called by the thread that ran it, before `rest`.
        """
        assert self._run is not None
        return self._wave(self._run, wave, pc, range(self._run.launch.vgprs))

    def _seen(self, run: Run, current: int) -> list[ShaderWave]:
        stored = self.shown(self.word(layout.LOOK_PC))
        found = [self._wave(run, current, self.word(layout.LOOK_PC), stored)]
        for wave in range(run.launch.waves):
            at = wave * self.quad(context.STATE_STRIDE)
            (resume, done) = struct.unpack_from("<2I", self._states.data, at + layout.STATE_RESUME)
            if wave != current and resume and not done:
                every = range(run.launch.vgprs)
                found.append(self._wave(run, wave, resume - 1, every, waits=True))
        return found

    def _wave(
        self, run: Run, wave: int, pc: int, vectors: Iterable[int], *, waits: bool = False
    ) -> ShaderWave:
        state, launch = wave * self.quad(context.STATE_STRIDE), run.launch
        scalars = struct.unpack_from("<128I", self._states.data, state)
        (scc,) = struct.unpack_from("<I", self._states.data, state + layout.STATE_SCC)
        number, (x, y, _) = self.quad(context.HALT_GROUP), run.dispatch.groups
        return ShaderWave(
            dispatch=run.dispatch,
            pc=self.quad(layout.CODE_BASE) + pc,
            group=(number % x, number // x % y, number // (x * y)),
            wave=wave,
            scalars=scalars,
            scc=bool(scc),
            vectors={n: self._vector(state, n, launch) for n in vectors if n < launch.vgprs},
            vgprs=launch.vgprs,
            lds_bytes=launch.lds_bytes,
            waits=waits,
        )

    def _vector(self, state: int, number: int, launch: Launch) -> tuple[int, ...]:
        """Return all lanes of a vector register in the wave state at byte `state`."""
        found: tuple[int, ...] = ()
        for turn in range(launch.lanes // PASS):
            at = state + layout.register_at(number, turn, launch.vgprs)
            found += struct.unpack_from(f"<{PASS}I", self._states.data, at)
        return found

    def resume_here(self, moved: int, waves: int) -> None:
        """Make the next launch resume the group that stopped.

        moved: bytes by which the base of code offsets has changed meanwhile.
        """
        group = self.quad(context.HALT_GROUP)
        struct.pack_into("<Q", self.context.data, context.RESUME_GROUP, group)
        if not moved:
            return
        base = self.quad(layout.CODE_BASE) + moved
        struct.pack_into("<Q", self.context.data, layout.CODE_BASE, base)
        stride = self.quad(context.STATE_STRIDE)
        for at in range(layout.STATE_RESUME, stride * waves, stride):
            (resume,) = struct.unpack_from("<I", self._states.data, at)
            if resume:
                struct.pack_into("<I", self._states.data, at, (resume - moved) & 0xFFFF_FFFF)
