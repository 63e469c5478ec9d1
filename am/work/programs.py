"""Programs: code objects placed in device memory, and the scratch memory their kernels need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ugpu.am.packets.dispatch import (
    LaunchDetails,
    Scratch,
    ShaderRegisters,
    check_supported,
    encode_setup,
    null_pointers,
)
from ugpu.am.work.queues import Queues, QueuesHolder
from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.hcq.objects.code_object import CodeObject, KernelImage, parse_amdhsa
from ugpu.hcq.objects.source_lines import has_lines, lines_of, source_of
from ugpu.hcq.objects.source_types import with_kinds
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.program import Kernel, Program

_SCRATCH_LEAST = 1024  # bytes per wave
_SCRATCH_WAVE_MOST = 4 << 20  # per wave: the largest power of two of COMPUTE_TMPRING_SIZE.WAVESIZE
_SCRATCH_MOST = 256 << 20  # bytes for one class of kernels; fewer waves run beyond that
_WAVES_PER_GROUP = 32  # the fewest slots per shader engine: one full group must fit


class ProgramsHolder(QueuesHolder):
    """A holder whose queues run programs."""

    queues: Queues


class Programs:
    """All programs of a device; keeps their code, to write it again after VRAM was lost."""

    def __init__(self, driver: ProgramsHolder) -> None:
        self.driver = driver
        self.registers = ShaderRegisters(driver.chip.gc)
        self._code: list[tuple[Mapping, bytes]] = []
        # mapping's address -> entry point -> name and details. Kernels are not kept here: a
        # kernel's program frees its memory when the caller drops it.
        self._entries: dict[int, dict[int, tuple[str, LaunchDetails]]] = {}
        self._sources: dict[int, tuple[bytes, CodeObject]] = {}  # by mapping, with line tables
        self._scratch: dict[int, Scratch] = {}
        self._scratch_memory: list[Mapping] = []

    def load(self, image: bytes) -> Program:
        """Check a code object and place it; see Device.load."""
        driver = self.driver
        code = parse_amdhsa(image)
        if code.target != driver.facts.isa:
            raise BadCodeObject(
                "the code object is built for another processor",
                found=code.target,
                expected=driver.facts.isa,
            )
        for kernel in code.kernels.values():
            check_supported(kernel)
        # A stray write to code faults, and so does a jump into data.
        mapping = None
        try:
            mapping = driver.map(code.size, Placement.DEVICE, code=True)
            program = self._program(image, code, mapping)
            linked = code.link(int(mapping.address))
            # Kernels may read their code's last page, which was another holder's.
            self.keep(mapping, linked + bytes(mapping.size - len(linked)))
            if has_lines(image):
                self._sources[mapping.address] = image, code
            self._entries[mapping.address] = {
                kernel.address: (kernel.name, kernel.details) for kernel in program.kernels.values()
            }
            return program
        except BaseException:
            if mapping is not None:
                self.forget(mapping)
                driver.unmap(mapping)
            raise

    def _program(self, file: bytes, code: CodeObject, mapping: Mapping) -> Program:
        program = Program(self.driver.core, self.driver.wrap(mapping))
        base = int(mapping.address)
        kernels = code.kernels
        typed = with_kinds(file, {name: kernel.arguments for name, kernel in kernels.items()})
        for name, image in kernels.items():
            known = replace(image, arguments=typed[name])
            program.kernels[name] = self._kernel(program, name, known, base)
        return program

    def _kernel(self, program: Program, name: str, image: KernelImage, base: int) -> Kernel:
        descriptor = image.descriptor
        private = descriptor.private_size
        if descriptor.uses_dynamic_stack:
            private += self.driver.dynamic_stack
        scratch = self.scratch(private, 32 if descriptor.is_wave32 else 64)
        code = base + image.entry
        return Kernel(
            name=name,
            program=program,
            address=code,
            kernarg_size=image.kernarg_size,
            arguments=image.arguments,
            local_size=descriptor.local_size,
            private_size=private,
            details=LaunchDetails(
                image=image,
                descriptor=base + image.descriptor_at,
                threads_limit=self.driver.chip.generation.max_threads_per_group,
                setup=encode_setup(descriptor, code, scratch, self.registers),
                private_size=private,
            ),
        )

    def forget(self, mapping: Mapping) -> None:
        """Forget the program in `mapping`, which was closed."""
        self._entries.pop(mapping.address, None)
        self._sources.pop(mapping.address, None)
        self._code = [entry for entry in self._code if entry[0] is not mapping]

    def find(self, pc: int) -> tuple[str, int] | None:
        """Return the kernel that contains `pc`, and the offset from its entry. Functions that it
        calls count to the kernel before them. None outside all programs."""
        for mapping, _ in self._code:
            if mapping.address <= pc < mapping.address + mapping.size:
                entries = self._entries.get(mapping.address, {})
                start = max((entry for entry in entries if entry <= pc), default=None)
                return None if start is None else (entries[start][0], pc - start)
        return None

    def code_at(self, pc: int) -> tuple[int, bytes]:
        """Return the program that contains `pc`: its address, and its bytes as they were written.
        LookupError if there is none."""
        for mapping, code in self._code:
            if mapping.address <= pc < mapping.address + mapping.size:
                return int(mapping.address), code
        raise LookupError(f"expected a program at {pc:#x}, found none")

    def source_of(self, pc: int) -> str:
        """Return the "file:line" of the instruction at `pc`, or "" if its program lacks it."""
        for mapping, _ in self._code:
            known = self._sources.get(mapping.address)
            if known is not None and mapping.address <= pc < mapping.address + mapping.size:
                image, code = known
                return source_of(image, code.layout.offsets, pc - mapping.address)
        return ""

    def lines(self, pc: int) -> list[tuple[int, int, str]]:
        """Return the code of the program that contains `pc` by lines of source: start, end,
        "file:line". Empty if the program does not have them."""
        for mapping, _ in self._code:
            known = self._sources.get(mapping.address)
            if known is not None and mapping.address <= pc < mapping.address + mapping.size:
                image, code = known
                base = int(mapping.address)
                rows = lines_of(image, code.layout.offsets)
                return [(base + start, base + end, place) for start, end, place in rows]
        return []

    def null_pointers(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the null pointers that the kernels of these names declare."""
        kernels = [kernel for entries in self._entries.values() for kernel in entries.values()]
        found = [details.image for name, details in kernels if name in names]
        return tuple(dict.fromkeys(what for image in found for what in null_pointers(image)))

    def stacks(self, names: Sequence[str]) -> tuple[str, ...]:
        """Describe the private memory of those kernels of these names that have a stack."""
        kernels = [kernel for entries in self._entries.values() for kernel in entries.values()]
        return tuple(
            f"{name} has a stack of {details.private_size:,} bytes a thread"
            for name, details in kernels
            if name in names and details.image.descriptor.uses_dynamic_stack
        )

    def keep(self, mapping: Mapping, code: bytes) -> None:
        """Write code into its memory, and again whenever the chip has lost it."""
        self.write(mapping, code)
        self._code.append((mapping, code))

    def rewrite(self) -> None:
        """Write all code again: the chip has lost its memory."""
        for mapping, code in self._code:
            self.write(mapping, code)

    def write(self, mapping: Mapping, code: bytes) -> None:
        """Write code into its memory through the host's window. This needs no queue, so it works
        while a graph is captured."""
        units = self.driver.units
        position = 0
        for start, length in mapping.pieces:
            part = code[position : position + length]
            units.chip.vram.write(start, part + bytes(-len(part) % 4))
            position += length
        units.nbio.flush_hdp()

    def clear_scratch(self) -> None:
        """Clear all scratch memory again: a reset may have come before it was cleared."""
        for mapping in self._scratch_memory:
            self.driver.queues.clear(mapping)

    def scratch(self, private_size: int, lanes: int = 32) -> Scratch | None:
        """Return scratch memory for kernels with `private_size` bytes per thread, in waves of
        `lanes` lanes.

        Kernels share it by size class; it is kept as long as the device is open, so that encoded
        launches stay valid. Its size is for as many waves as the chip can hold.
        """
        if not private_size:
            return None
        wave_size = max(_SCRATCH_LEAST, 1 << (private_size * lanes - 1).bit_length())
        if wave_size > _SCRATCH_WAVE_MOST:
            raise NotSupported(
                f"private memory of a thread must be at most {_SCRATCH_WAVE_MOST // lanes} bytes, "
                f"got {private_size}", private_size=private_size,
            )  # fmt: skip
        if wave_size not in self._scratch:
            driver = self.driver
            info = driver.chip.discovery.gc
            assert info is not None
            engines = info.shader_engines
            per_cu = driver.chip.generation.scratch_waves_per_cu
            slots = -(-driver.target.compute_units // engines) * per_cu
            waves = max(_WAVES_PER_GROUP, min(slots, _SCRATCH_MOST // (wave_size * engines)))
            mapping = driver.map(waves * engines * wave_size, Placement.DEVICE)
            try:
                driver.queues.clear(mapping)
            except BaseException:
                driver.unmap(mapping)
                raise
            self._scratch_memory.append(mapping)
            self._scratch[wave_size] = Scratch(int(mapping.address), wave_size, waves)
        return self._scratch[wave_size]
