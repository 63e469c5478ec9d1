"""Cleaner: overwrites what a holder's kernels left in the shader processors, outside of memory.

Mesa's drivers clear neither local memory nor registers nor the constant file at a dispatch, and
never make the GPU do so (25.0.7, src/freedreno/vulkan/tu_shader.cc and tu_cmd_buffer.cc; a shader
that needs zeroed local memory stores the zeros itself, nir_zero_initialize_shared_memory). Private
memory is memory of the driver's own.

A group occupies a whole shader processor: all its local memory and all wave slots with waves of the
single size; each wave has an equal part of the register file. All waves reach the barrier before
the first one ends, so that no wave reuses the registers of another one. Before the launch the
constant file is loaded with zeros.

Encodings: Mesa 25.0.7, src/freedreno/isa/ir3-cat0.xml to ir3-cat7.xml; Mesa disassembles the same
text (tests/qcom/work/test_qcom_cleaner.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ugpu.hcq.objects.ir3_object import CODE_ALIGN, INSTRUCTION, NO_REGISTER, Ir3Kernel, pack_ir3
from ugpu.hcq.rings import proof as rings
from ugpu.hcq.work.command import Barrier, Command, Launch
from ugpu.qcom.chips.facts import ChipFacts

if TYPE_CHECKING:
    from ugpu.hcq.work.program import Program
    from ugpu.qcom.work.holder import WorkHolder
    from ugpu.qcom.work.queue import AdrenoQueue

NAME = "ugpu.cleaner"
# Groups for each shader processor. UNSURE: that the hardware spreads groups evenly while all
# processors are idle, so that one each would do; and that each half of a processor that has two
# takes groups of its own (fibers counts both). Counters of groups on a board would settle it.
_ROUNDS = 2
_VEC4 = 16  # bytes
_STORE = 16  # bytes that an instruction stores for each thread
_SHARED = range(48 * 4, 56 * 4)  # r48.x to r55.w, per wave rather than per thread
_PREDICATES = range(4)  # p0.x to p0.w


class Cleaner(rings.Cleaner):
    """The cleaner of one holder: private memory, local memory, registers and constants. A processor
    occupied by another holder's waves is cleaned only if these end while groups of the cleaner are
    still waiting."""

    def __init__(self, driver: WorkHolder) -> None:
        self._driver = driver
        self._program: Program | None = None

    @property
    def queue(self) -> AdrenoQueue:
        """See proof.Cleaner."""
        return self._driver.all_queues()[0]

    def commands(self) -> Sequence[Command]:
        """See proof.Cleaner."""
        driver, facts = self._driver, self._driver.facts
        if self._program is None:
            self._program = driver.programs.load(pack_ir3([kernel(facts)]))
        grid, block = (groups(facts), 1, 1), (threads(facts), 1, 1)
        launch = Launch(self._program[NAME], grid, block, bytes(_VEC4 * facts.constants))
        return [*driver.programs.clear_private(), Barrier(), launch]


def threads(facts: ChipFacts) -> int:
    """Return the number of threads in all wave slots of a shader processor."""
    return facts.wave_base * facts.max_waves


def groups(facts: ChipFacts) -> int:
    """Return the number of groups that reaches all shader processors."""
    halves = facts.fibers // (2 * threads(facts))  # `fibers` counts waves of the double size
    return _ROUNDS * facts.shader_processors * halves


def kernel(facts: ChipFacts) -> Ir3Kernel:
    """Return the kernel for a chip."""
    count = facts.registers * facts.wave_granularity // facts.max_waves  # vec4 of a thread
    words = list(_words(count, facts.local_memory // threads(facts)))
    words += [0] * (-len(words) % (CODE_ALIGN // INSTRUCTION))  # nop
    return Ir3Kernel(
        name=NAME, chip_id=facts.chip_ids[0], generation=facts.generation, threads=threads(facts),
        parameters=(), instructions=len(words), full_registers=count, half_registers=0,
        merged_registers=True, constants=facts.constants, immediates=(), immediates_at=0,
        local_size=facts.local_memory, private_size=0, private_per_wave=False, branch_stack=0,
        double_wave=False, early_preamble=False, barrier=True, group_register=NO_REGISTER,
        thread_register=0, code=struct.pack(f"<{len(words)}Q", *words),
    )  # fmt: skip


def _words(count: int, size: int) -> Iterator[int]:
    """Yield machine code that clears `count` vec4 of registers, and `size` bytes of local memory
    for each thread, whose number is in r0.x. size: a power of two."""
    yield 0x46D0_0000_2000_0000 | (size.bit_length() - 1) << 16  # shl.b r0.x, r0.x, ...
    yield _clear(1)
    yield 0x0000_0500_0000_0000  # (rpt5)nop
    for offset in range(0, size, _STORE):
        yield 0xC106_0100_0480_0008 | offset << 32  # stl.u32 l[r0.x+...], r1.x, 4
    yield from (_clear(number) for number in range(2, count))
    yield _clear(0) | 1 << 44  # (ss): the stores have read r0.x
    yield 0x2051_00F4_0000_0000  # mova a0.x, 0
    yield 0x2048_80F5_0000_0000  # mova1 a1.x, 0
    for part in _PREDICATES:
        yield 0x4295_00F8_0008_0008 | part << 32  # cmps.u.ne p0..., r2.x, r2.x
    for number in _SHARED:
        yield 0x200C_C000_0000_0008 | number << 32  # mov.u32u32 r..., r2.x
    yield 0x0000_1000_0000_0000  # (ss)nop
    yield 0xF042_0000_0000_0000  # (sy)bar.g
    yield 0x0300_0000_0000_0000  # end


def _clear(number: int) -> int:
    return 0x204C_C300_0000_0000 | 4 * number << 32  # (rpt3)mov.u32u32 r..., 0
