"""Programs: ir3 objects placed in the GPU's memory, and the private memory that kernels need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ugpu.hcq.errors import BadCodeObject
from ugpu.hcq.objects.argument import Argument
from ugpu.hcq.objects.ir3_object import CODE_ALIGN, Ir3Kernel, parse_ir3
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Command, Fill
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.hcq.work.program import Kernel, Program
from ugpu.qcom import chips
from ugpu.qcom.chips.facts import ChipFacts
from ugpu.qcom.kernel_driver.interface import Caching, Memory
from ugpu.qcom.packets import textures
from ugpu.qcom.packets.dispatch import NO_PRIVATE_MEMORY, Prepared, PrivateMemory, prepare

if TYPE_CHECKING:
    from ugpu.qcom.packets.holder import ChipHolder

_PRIVATE_UNIT = 512  # bytes of a thread that SP_CS_PVT_MEM_PARAM counts
_PAGE = 4096


class Programs:
    """All programs of a device. Each of the two layouts of private memory has one block, sized for
    the kernel that needs most. A block that became too small is kept, as captured graphs refer to
    it (each is twice as large as the one before: Mesa's tu_setup_pvtmem)."""

    def __init__(self, driver: ChipHolder) -> None:
        self.driver = driver
        self._private: dict[bool, PrivateMemory] = {}
        self._blocks: list[Memory] = []
        # Name, entry and bytes of each kernel; without the program, which the caller may drop.
        self._loaded: dict[Memory, list[tuple[str, int, int]]] = {}

    def load(self, image: bytes) -> Program:
        """Check an object and place its code; see Driver.load_program."""
        driver = self.driver
        kernels = parse_ir3(image)
        for kernel in kernels:
            check(kernel, driver.facts)
            textures.check(kernel, driver.encoder.tables)
        private = [self._private_for(kernel) for kernel in kernels]
        memory = None
        try:
            size = sum(len(kernel.code) for kernel in kernels)
            memory = driver.interface.allocate(size, Caching.COMBINED, read_only=True)
            buffer = Buffer(
                driver.core, VirtAddr(memory.address), memory.size, Placement.DEVICE, handle=memory
            )
            program = Program(driver.core, buffer)
            self._loaded[memory] = places = []
            start = 0
            for kernel, own in zip(kernels, private, strict=True):
                entry, size = memory.address + start, len(kernel.code)
                memory.view[start : start + size] = kernel.code
                places.append((kernel.name, entry, size))
                prepared = prepare(kernel, entry, own, driver.facts, driver.encoder.tables)
                program.kernels[kernel.name] = _loaded(program, prepared)
                start += size
            return program
        except BaseException:
            if memory is not None:
                self.forget(memory)
                memory.close()
            raise

    def forget(self, memory: Memory) -> None:
        """Remove the program in `memory`, which was closed."""
        self._loaded.pop(memory, None)

    def find(self, address: int) -> tuple[str, int] | None:
        """Return the kernel whose code contains an address, and the offset in it; None without
        one."""
        for kernels in list(self._loaded.values()):
            for name, start, size in kernels:
                if start <= address < start + size:
                    return name, address - start
        return None

    def lines(self, address: int) -> list[tuple[int, int, str]]:
        """Return the source lines of a kernel's instructions: none, as ir3 objects have no line
        table."""
        return []

    def _private_for(self, kernel: Ir3Kernel) -> PrivateMemory:
        if not kernel.private_size:
            return NO_PRIVATE_MEMORY
        present = self._private.get(kernel.private_per_wave)
        if present is not None and present.per_thread >= kernel.private_size:
            return present
        facts = self.driver.facts
        units = -(-kernel.private_size // _PRIVATE_UNIT)
        per_thread = _PRIVATE_UNIT << (units - 1).bit_length()
        per_processor = -(-per_thread * facts.fibers // _PAGE) * _PAGE
        memory = self.driver.interface.allocate(
            per_processor * facts.shader_processors, Caching.COMBINED
        )
        self._blocks.append(memory)
        private = PrivateMemory(memory.address, per_thread, per_processor, kernel.private_per_wave)
        self._private[kernel.private_per_wave] = private
        return private

    def clear_private(self) -> list[Command]:
        """Return commands that zero private memory."""
        blocks = ((Symbol.constant(memory.address), memory.size) for memory in self._blocks)
        return [Fill(address, 0, size) for address, size in blocks]

    def close(self) -> None:
        """Free private memory; idempotent."""
        self._private.clear()
        while self._blocks:
            self._blocks[-1].close()
            self._blocks.pop()


def _loaded(program: Program, prepared: Prepared) -> Kernel:
    kernel = prepared.kernel
    return Kernel(
        name=kernel.name,
        program=program,
        address=prepared.code,
        kernarg_size=kernel.kernarg_size,
        arguments=arguments_of(kernel),
        local_size=kernel.local_size,
        private_size=kernel.private_size,
        details=prepared,
    )


def arguments_of(kernel: Ir3Kernel) -> tuple[Argument, ...]:
    """Return a kernel's arguments as launches take them."""
    return tuple(
        Argument(declared.offset, declared.size, declared.name, declared.is_address, declared.kind)
        for declared in kernel.parameters
    )


def check(kernel: Ir3Kernel, facts: ChipFacts) -> None:
    """Raise BadCodeObject where a GPU cannot run a kernel."""
    name = kernel.name
    if kernel.generation != facts.generation:
        raise BadCodeObject(
            f"{name} was compiled for another generation",
            found=kernel.generation, expected=facts.generation,
        )  # fmt: skip
    made_for = chips.by_id(kernel.chip_id)
    if made_for is not None and made_for.step > facts.step:
        raise BadCodeObject(
            f"{name} was compiled for a newer GPU", found=made_for.name, expected=facts.name
        )
    for what, needed, most in (
        ("bytes of local memory", kernel.local_size, facts.local_memory),
        ("vec4 of constants", kernel.constants, facts.constants),
    ):
        if needed > most:
            raise BadCodeObject(f"{name} needs more {what} than {facts.name} has",
                                needs=needed, has=most)  # fmt: skip
    if len(kernel.code) % CODE_ALIGN:
        raise BadCodeObject(
            f"{name}: the code must be a multiple of {CODE_ALIGN} bytes", size=len(kernel.code)
        )
