"""Programs: loads PTX or cubins as code into GPU memory and allocates the kernels' local memory."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ugpu.hcq.errors import BadCodeObject, UgpuError
from ugpu.hcq.objects.argument import Argument
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.config import config
from ugpu.hcq.state.instruction import Culprit
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.transport.node import code_of
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Command, Copy, Fill, Signal
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.hcq.work.program import Kernel, Program
from ugpu.nv.code import ptx_lines as ptxlines
from ugpu.nv.code.assemble import QUICK, assemble
from ugpu.nv.code.cubin import Cubin, KernelCode
from ugpu.nv.code.heap import Heap
from ugpu.nv.code.image import Image, lay_out
from ugpu.nv.code.output import Output
from ugpu.nv.code.source import assemble_together, read_source
from ugpu.nv.packets.families import STACK_RESERVED, Family
from ugpu.nv.packets.launch import prepare, shared_size
from ugpu.nv.packets.pushbuffer import COMPUTE, header, method
from ugpu.nv.rm.memory import Memory, allocate
from ugpu.nv.rm.session import Region
from ugpu.nv.work.queue import ChannelQueue, QueueHolder

log = logging.getLogger(__name__)

Wait = Callable[[ChannelQueue, int], None]  # for a value of the queue's timeline
Way = tuple[ChannelQueue, Wait]  # the queue that copies code in, and how to wait for its end

_LOCAL_GRANULE = 32  # bytes per thread
_WARP_GRANULE, _TPC_GRANULE = 0x200, 0x8000  # bytes of local memory per warp and per TPC
# SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C: no limit in MAX_SM_COUNT, 0 in the GPC counts that
# Hopper's class adds, as Mesa's NVK (nvk_queue.c) and tinygrad's ops_nv.py set it on boards.
_ALL_SMS = 0xFF
_LONGEST = 1 << 20  # most bytes of PTX that are assembled again to find a line
_NEEDS_PTX = (
    "virtual GPUs execute PTX, not machine code; load the PTX text, as built by `nvcc -ptx` or "
    "`clang -S --cuda-device-only`"
)


@dataclass(frozen=True)
class _Loaded:
    """Data of a loaded program.

    It has no reference to the program, which frees its memory when the caller drops it. kernels:
    name, entry address and code bytes of each. ptx: the text that was assembled for `target`; empty
    for a cubin. content: the linked image, where a reset of the GPU loses it; else empty.
    """

    kernels: tuple[tuple[str, int, int], ...]
    ptx: bytes
    target: str
    content: bytes


def _wait(queue: ChannelQueue, value: int) -> None:
    queue.timeline.wait(value)


class ProgramsHolder(QueueHolder):
    """A holder that loads programs."""

    family: Family
    clock: Clock
    carveouts: tuple[int, ...]  # bytes of shared memory that a multiprocessor can set aside
    dynamic_stack: int  # bytes per thread for recursion and alloca, in programs loaded from now on

    @property
    @abstractmethod
    def compute_queue(self) -> ChannelQueue: ...

    @property
    @abstractmethod
    def copy_queue(self) -> ChannelQueue: ...


class Programs:
    """All programs of a device, and one block of local memory for the kernel that needs most."""

    def __init__(self, driver: ProgramsHolder) -> None:
        self.driver = driver
        self.output = Output(driver)
        self.heap = Heap(driver)
        self.local: Memory | None = None
        self.local_size = 0  # bytes per thread that `local` is for
        self._loaded: dict[Memory, _Loaded] = {}
        self._together: dict[bytes, Cubin] = {}  # texts that `foresee` has assembled

    def load(self, data: bytes, way: Way | None = None) -> Program:
        """Assemble PTX text, check the cubin and load it into GPU memory; see Device.load.

        way: for use in a reset, when copy queues may contain other work and the device's own wait
        cannot be used.
        """
        driver = self.driver
        source = read_source(data, driver.gpu.capability, self._options(), self._together)
        self._together.pop(source.ptx, None)
        cubin, ptx, target = source.cubin, source.ptx, source.target
        if not ptx and code_of(driver.session.source) == "PTX":
            raise BadCodeObject(_NEEDS_PTX, found=f"a cubin for {cubin.target}")
        image = lay_out(cubin, ptx)
        memory = None
        try:
            memory = allocate(driver.gpu, image.size, Placement.DEVICE, Region.DEVICE)
            self._make_room(cubin)
            buffer = Buffer(
                driver.core, VirtAddr(memory.address), memory.size, Placement.DEVICE, handle=memory
            )
            program = Program(driver.core, buffer)
            for name, code in cubin.kernels.items():
                program.kernels[name] = self._kernel(
                    program, image, code, memory, source.arguments(name)
                )
            linked = self.heap.connect(image, image.link(memory.address))
            linked = self.output.connect(image, memory, linked)
            self._write(memory, linked, way)
            memory.protect(image.fixed if image.fixed < image.size else memory.size)
            kernels = tuple(
                (kernel.name, kernel.address, kernel.details.code.code_size)
                for kernel in program.kernels.values()
            )
            content = linked if driver.gpu.loses_memory else b""
            self._loaded[memory] = _Loaded(kernels, ptx, target, content)
            return program
        except BaseException:
            driver.core.settle()  # the copy may still run; if this raises too, the memory stays
            if memory is not None:
                self.forget(memory)
                memory.close()
            raise

    def foresee(self, images: Sequence[bytes]) -> None:
        """See Driver. Takes effect on models, which run the PTX: the time of a board's assembler
        passes in the optimisation of each kernel."""
        options = self._options()
        if options:
            self._together = assemble_together(images, self.driver.gpu.capability, options)

    def _options(self) -> tuple[str, ...]:
        """Return the assembler's options: what a model does not run is not optimised."""
        return QUICK if self.driver.clock.of_model and config().tiers else ()

    def _kernel(
        self,
        program: Program,
        image: Image,
        code: KernelCode,
        memory: Memory,
        arguments: tuple[Argument, ...] | None,
    ) -> Kernel:
        driver = self.driver
        family, cubin = driver.family, image.cubin
        sections = {
            bank: (memory.address + image.offsets[index], cubin.sections[index].size)
            for bank, index in code.constants.items()
            if bank
        }
        details = prepare(
            driver.gpu,
            family,
            driver.compute_class,
            code,
            address=memory.address + image.entry(code.name),
            constants=sections,
            local_size=self._local_need(code),
            counts_reserved=cubin.counts_reserved,
            carveouts=driver.carveouts,
        )
        return Kernel(
            name=code.name,
            program=program,
            address=memory.address + image.entry(code.name),
            kernarg_size=code.parameters_size,
            arguments=arguments,
            local_size=shared_size(code, family, counts_reserved=cubin.counts_reserved)
            - family.reserved_shared,
            private_size=code.stack_size,
            details=details,
        )

    def _write(self, memory: Memory, data: bytes, way: Way | None) -> None:
        """Copy code to GPU memory with a copy engine. A graph capture does not record the copy."""
        driver = self.driver
        queue, wait = way or (driver.copy_queue, _wait)
        staging = None
        try:
            staging = allocate(driver.gpu, len(data), Placement.HOST, Region.HOST)
            staging.view[: len(data)] = data
            driver.core.complete()
            value = queue.timeline.last + 1
            source = Symbol.constant(staging.address)
            copy = Copy(Symbol.constant(memory.address), source, len(data))
            encoded = queue.encode([copy, Signal(queue.timeline, Symbol.constant(value))])
            values = np.zeros(len(encoded.symbols), np.uint64)
            for position, symbol in enumerate(encoded.symbols):
                if symbol.buffer is not None:
                    values[position] = int(symbol.buffer.address)
            queue.submit(encoded, values, staging)
            wait(queue, value)
            queue.reclaim()
        except BaseException:
            if staging is not None and not queue.keeps(staging):
                staging.close()
            raise

    def forget(self, memory: Memory) -> None:
        """Forget the program in `memory`, which was closed."""
        self._loaded.pop(memory, None)
        self.output.forget(memory)

    def contents(self) -> list[tuple[Memory, bytes]]:
        """Return each program's memory and linked image, which a reset of the GPU has lost."""
        return [(memory, loaded.content) for memory, loaded in self._loaded.items()]

    def find(self, address: int) -> tuple[str, int] | None:
        """The kernel whose code contains an address, and the offset in it; None if none does."""
        found = self._at(address)
        return None if found is None else found[:2]

    def culprit(self, address: int) -> Culprit | None:
        """The PTX instruction that the code at an address was assembled from. Never raises."""
        found = self._at(address)
        if found is None or not 0 < len(found[2].ptx) <= _LONGEST:
            return None
        name, offset, loaded = found
        try:
            cubin = assemble(loaded.ptx, loaded.target, options=ptxlines.OPTIONS)
        except UgpuError as problem:
            log.warning("no line of PTX for %s: %s", name, problem)
            return None
        line = ptxlines.line_of(cubin, name, offset)
        lines = loaded.ptx.decode().split("\n")
        if not 0 < line <= len(lines):
            return None
        return Culprit(0, address, " ".join(lines[line - 1].split()), line=line)

    def _at(self, address: int) -> tuple[str, int, _Loaded] | None:
        for loaded in self._loaded.values():
            for name, start, size in loaded.kernels:
                if start <= address < start + size:
                    return name, address - start, loaded
        return None

    # ---- local memory ------------------------------------------------------------------------

    def _local_need(self, code: KernelCode) -> int:
        """Bytes of local memory per thread: the stack, and the system's share above it."""
        need = code.stack_size + STACK_RESERVED
        if code.dynamic_stack:
            need += self.driver.dynamic_stack
        return -(-need // _LOCAL_GRANULE) * _LOCAL_GRANULE

    def _make_room(self, cubin: Cubin) -> None:
        """Grow local memory, if necessary, for the kernel of `cubin` that needs most."""
        need = max(self._local_need(code) for code in cubin.kernels.values())
        if need <= self.local_size:
            return
        driver, gpu = self.driver, self.driver.gpu
        total = self._per_tpc(need) * gpu.tpcs_per_gpc * gpu.gpcs
        queue, old, old_size = driver.compute_queue, self.local, self.local_size
        driver.core.complete()
        before, fresh = queue.timeline.last, None
        try:
            fresh = allocate(gpu, total, Placement.DEVICE, Region.DEVICE)
            self.local, self.local_size = fresh, need
            queue.run_setup(self.setup_words())
        except BaseException:
            driver.core.complete()
            if queue.timeline.last == before:  # the engine has not got the new address
                self.local, self.local_size = old, old_size
                old = fresh
            if old is not None:
                driver.core.retired.drop(old.close)
            raise
        if old is not None:
            old.close()

    def clear_memory(self) -> list[Command]:
        """Commands that zero local memory and the heap of the kernels."""
        commands = self.heap.clear()
        if self.local is not None:
            commands.append(Fill(Symbol.constant(self.local.address), 0, self.local.size))
        return commands

    def _per_tpc(self, size: int) -> int:
        gpu = self.driver.gpu
        per_warp = -(-size * 32 // _WARP_GRANULE) * _WARP_GRANULE
        per_tpc = per_warp * gpu.warps_per_sm * gpu.sms_per_tpc
        return -(-per_tpc // _TPC_GRANULE) * _TPC_GRANULE

    def setup_words(self) -> list[int]:
        """Methods that set the compute engine's local memory; empty if there is none."""
        if self.local is None:
            return []
        number = self.driver.compute_class
        size = self._per_tpc(self.local_size)
        address = self.local.address
        return [
            header(COMPUTE, method(number, "SET_SHADER_LOCAL_MEMORY_A"), 2),
            address >> 32,
            address & 0xFFFF_FFFF,
            header(COMPUTE, method(number, "SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A"), 3),
            size >> 32,
            size & 0xFFFF_FFFF,
            _ALL_SMS,
        ]
