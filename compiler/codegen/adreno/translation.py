"""What the parts of a function's translation use of the whole: operands' lanes and the builder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ugpu.compiler.codegen.adreno.llvm.syntax import Instruction, Operand
from ugpu.compiler.codegen.adreno.llvm.text import Function
from ugpu.compiler.codegen.adreno.nir import Builder
from ugpu.compiler.codegen.adreno.variables import Lanes


@dataclass(frozen=True)
class Place:
    """An address in global memory: base (64 bits) + offset (32 bits, in bytes). words: the offset
    in dwords, if it is known; otherwise 0."""

    base: int
    offset: int
    words: int


class Translation(Protocol):
    """The translation of one function (compiler.codegen.adreno.select). made: by name, the
    instruction that defines it. lanes_used: whether the function uses lanes of its wave."""

    function: Function
    wide_atomics: bool
    build: Builder
    lanes_used: bool

    @property
    def made(self) -> Mapping[str, Instruction]: ...

    def lanes(self, operand: Operand) -> Lanes:
        """Return the definitions of an operand's lanes."""

    def each(self, name: str, bits: int, one: Instruction, exact: bool = True) -> Lanes:
        """Emit an operation on each lane of all operands."""
