"""One worker thread's native state: its context, TLB, local memory, constants and wave states."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.adreno.shader import Accessing, Dispatch, ShaderMemory
from ugpu.virtual.adreno.sp.images import Images
from ugpu.virtual.adreno.sp.operands import Op
from ugpu.virtual.adreno.sp.program import INSTRUCTION, Program
from ugpu.virtual.adreno.sp.runtime import layout
from ugpu.virtual.adreno.sp.runtime.launch import MOST_THREADS, Launch
from ugpu.virtual.shader.memory import DELTA, READ_TAG, WRITE_TAG, Abort, Access, place_of, tlb_set
from ugpu.virtual.shader.threads import worker as threads
from ugpu.virtual.shader.tlb import PAGE

_IMAGES = ctypes.CFUNCTYPE(None, ctypes.c_uint32)
_MXCSR = 0x1F80  # all exceptions masked, round to nearest even, subnormal numbers kept
_WIDEST = 16  # bytes of an access
_WORD = (1 << 64) - 1


class Run(threads.Run[ShaderMemory]):
    """State shared by all workers of one dispatch."""

    def __init__(
        self, dispatch: Dispatch, launch: Launch, program: Program, memory: ShaderMemory,
        abort: Abort,
    ) -> None:  # fmt: skip
        super().__init__(memory, abort)
        self.dispatch, self.launch, self.program = dispatch, launch, program


class RegisterFile:
    """Contents of registers between dispatches, whose waves lay them out differently in their
    states. Waves are stored in sequence; values that are not per lane stay with the wave's
    number."""

    def __init__(self) -> None:
        self._lanes = np.full(MOST_THREADS * 48 * 4, layout.UNDEFINED, np.uint32).view(np.uint8)
        self._others = np.zeros(
            (MOST_THREADS // 64, layout.REGISTERS - layout.PREDICATES), np.uint8
        )
        self._last: NDArray[np.uint8] | None = None

    def fill(self, states: NDArray[np.uint8]) -> None:
        """Save the states of the last call, and fill others from them: [waves][bytes]."""
        before, self._last = self._last, states
        if before is not None:
            found = before[:, layout.REGISTERS :].reshape(-1)
            self._lanes[: found.size] = found
            self._others[: len(before)] = before[:, layout.PREDICATES : layout.REGISTERS]
        waves, stride = states.shape
        size = stride - layout.REGISTERS
        states[:, layout.REGISTERS :] = self._lanes[: waves * size].reshape(waves, size)
        states[:, layout.PREDICATES : layout.REGISTERS] = self._others[:waves]


class Worker(threads.WaveWorker[Run]):
    """A worker of the shader processors. keep: see Processors."""

    def __init__(self, keep: bool = False) -> None:
        super().__init__(layout.SIZE, filling=0x5A)
        words = layout.IMMEDIATES + layout.IMMEDIATE_WORDS
        self._constants = threads.aligned(4 * words).view(np.uint32)
        self._file = RegisterFile() if keep else None
        self._ops: dict[int, Op] = {}
        self._callback = _IMAGES(self._image)
        self._quads[layout.CONSTANTS // 8] = place_of(self._constants)
        self._quads[layout.IMAGES // 8] = ctypes.cast(self._callback, ctypes.c_void_p).value or 0

    def translate(self, address: int, access: Access) -> int:
        """Return the host address of a GPU address that is not in the TLB."""
        assert self._run is not None and self._tlb is not None
        page = address // PAGE
        return self._run.memory.refill(self._tlb, address, access, lambda: self._accessing(page))

    def _accessing(self, page: int) -> Accessing:
        """Describe the access that touches a page."""
        assert self._run is not None
        index = self.word(layout.ACCESS)
        pc = self._run.dispatch.code_address + INSTRUCTION * index
        text = ""
        if index in self._ops:
            text = self._ops[index].text
        group, wave = self.running()
        return Accessing(pc, text, self._lane_of(page), group, wave)

    def running(self) -> tuple[tuple[int, int, int], int]:
        """Return the group and the number of the wave that is running, or ran last."""
        at = self.quad(layout.RUNNING) - place_of(self._states)
        x, y, z, wave = struct.unpack_from("<4I", self._states.data, at + layout.GROUP_X)
        return (x, y, z), wave

    def _lane_of(self, page: int) -> int:
        data = self.context.data
        low = np.frombuffer(data, np.uint32, 128, layout.ACCESSED).astype(np.uint64)
        high = np.frombuffer(data, np.uint32, 128, layout.ACCESSED + 4 * 128).astype(np.uint64)
        address = (high << np.uint64(32) | low) + np.uint64(self.quad(layout.ACCESSED_BASE))
        active = self.mask(layout.ACCESSING)
        for lane in range(128):
            first = int(address[lane])
            if active >> lane & 1 and first // PAGE <= page <= (first + _WIDEST - 1) // PAGE:
                return lane
        return -1

    # ---- images --------------------------------------------------------------------------------

    def _image(self, index: int) -> None:
        """Execute an image instruction for the active lanes; called by native code."""
        try:
            self._execute_image(index)
        except Exception as error:  # raised again by the thread that started the launch
            self.error = error
            self.failed(0)

    def _execute_image(self, index: int) -> None:
        assert self._run is not None
        active = self.mask(layout.ACCESSING)
        lanes = [lane for lane in range(self._run.launch.lanes) if active >> lane & 1]
        words = self.context.view(np.uint32)
        given = words[layout.IMAGE_IN // 4 : layout.IMAGE_OUT // 4].reshape(-1, 128)[:, lanes]
        images = Images(self._move, int(self._run.launch.tables[layout.BORDERS // 8]))
        found = images.run(
            self._ops[index], self.quad(layout.TEXTURE), self.quad(layout.SAMPLER),
            np.ascontiguousarray(given), len(lanes),
        )  # fmt: skip
        out = words[layout.IMAGE_OUT // 4 : layout.SIZE // 4].reshape(4, 128)
        out[: len(found), lanes] = found

    def _host(self, address: int, access: Access) -> int:
        """Return the host address of a GPU address."""
        assert self._tlb is not None
        page = address // PAGE
        row = self._tlb[tlb_set(page)]
        if int(row[WRITE_TAG if access is Access.WRITE else READ_TAG]) == page:
            return (address + int(row[DELTA])) & _WORD
        return self.translate(address, access)

    def _move(
        self, addresses: NDArray[Any], size: int, access: Access, data: NDArray[Any] | None
    ) -> NDArray[Any]:
        """Read or write `size` bytes at each address."""
        found = np.zeros((len(addresses), size), np.uint8)
        for k, address in enumerate(addresses.tolist()):
            done = 0
            while done < size:
                here = address + done & _WORD
                count = min(size - done, PAGE - here % PAGE)
                host = self._host(here, access)
                if data is None:
                    piece = ctypes.string_at(host, count)
                    found[k, done : done + count] = np.frombuffer(piece, np.uint8)
                else:
                    ctypes.memmove(host, data[k, done : done + count].tobytes(), count)
                done += count
        return found

    @property
    def constants(self) -> NDArray[np.uint32]:
        """Return the constant file."""
        return self._constants

    def prepare(self, run: Run, number: int) -> None:
        """Fill the context for a dispatch. number: the index of this worker among those of the
        dispatch."""
        dispatch, launch = run.dispatch, run.launch
        stride = layout.state_size(launch.words, launch.lanes)
        tlb = self.tlb_for(run.memory)
        self._begin(
            run, tlb, dispatch.groups, launch.waves, stride, dispatch.local_size, _MXCSR
        )  # fmt: skip
        if self._file is not None:
            states = self._states[: stride * launch.waves]
            self._file.fill(states.reshape(launch.waves, stride))
        self._ops = run.program.by_index
        self._constants[: layout.CONSTANT_WORDS] = launch.constants
        given = dispatch.immediates
        self._constants[layout.IMMEDIATES : layout.IMMEDIATES + len(given)] = given
        quads, words = self._quads, self._words
        quads[layout.IDS // 8] = place_of(launch.ids)
        quads[layout.EXECS // 8] = place_of(launch.execs)
        quads[layout.TABLES // 8] = place_of(launch.tables)
        quads[layout.RUNNING // 8] = place_of(self._states)
        quads[layout.PRIVATE // 8] = dispatch.private_base + number * dispatch.private_stride
        words[layout.PREAMBLE // 4] = 0
        words[layout.PRIVATE_SIZE // 4] = dispatch.private_size

    def mask(self, offset: int) -> int:
        """Read a lane mask of 128 bits."""
        return self.quad(offset) | self.quad(offset + 8) << 64
