"""Variables of a function (`alloca` in address space 5): registers of NIR, one for each lane.

Mesa makes SSA values of the registers.

    %v = alloca float; load %v; store a, %v   ->   decl_reg; load_reg; store_reg a
"""

from __future__ import annotations

from ugpu.compiler.codegen.adreno.llvm.syntax import Instruction, Operand, Type
from ugpu.compiler.codegen.adreno.nir import Builder
from ugpu.hcq.errors import CompileError

Lanes = tuple[int, ...]


class Variables:
    """The variables of one function, which are loaded and stored whole."""

    def __init__(self, build: Builder) -> None:
        self._build = build
        self._registers: dict[str, tuple[Type, Lanes]] = {}

    def registers(self, kind: Type) -> Lanes:
        """Return new registers for the lanes of a type."""
        return tuple(
            self._build.intrinsic("decl_reg", num_components=1, bit_size=kind.bits, divergent=1)
            for _ in range(kind.lanes)
        )

    def declare(self, one: Instruction) -> None:
        """Declare the registers of an alloca."""
        assert one.type is not None
        self._registers[one.result] = one.type, self.registers(one.type)

    def load(self, one: Instruction) -> Lanes:
        assert one.type is not None
        return self.loaded(self._of(one.operands[0], one.type, one), one.type.bits)

    def store(self, one: Instruction, value: Lanes) -> None:
        given, pointer = one.operands
        self.stored(value, self._of(pointer, given.type, one))

    def loaded(self, registers: Lanes, bits: int) -> Lanes:
        """Return the values of registers."""
        build = self._build
        return tuple([build.intrinsic("load_reg", (one,), 1, bits) for one in registers])

    def stored(self, value: Lanes, registers: Lanes) -> None:
        """Set registers."""
        for lane, register in zip(value, registers, strict=True):
            self._build.intrinsic("store_reg", (lane, register), write_mask=1)

    def _of(self, pointer: Operand, kind: Type, one: Instruction) -> Lanes:
        known = self._registers.get(pointer.name)
        if known is None or known[0] != kind:
            raise CompileError(
                "a variable must be loaded and stored whole, with its own type",
                code=one.line.strip(),
            )
        return known[1]
