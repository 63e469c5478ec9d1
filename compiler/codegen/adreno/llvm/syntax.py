"""Types, operands and instructions of LLVM IR that kernels for Adreno use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# A kernel's attribute in our own modules: nothing needs inlining, and variables are loaded and
# stored whole.
PLAIN = '"adreno-plain"'


class Type(NamedTuple):
    """A type. kind: "i", "f", "p" or "v", a pointer to a variable; bits: of an element, of a
    pointer 64 or 32; lanes."""

    kind: str
    bits: int
    lanes: int = 1

    @property
    def bytes(self) -> int:
        """Bytes of an array's element of this type."""
        return self.lanes * max(self.bits, 8) // 8


class Operand(NamedTuple):
    """A value: a name, or the bits of each lane (None: undefined)."""

    type: Type
    name: str = ""
    lanes: tuple[int | None, ...] = ()


@dataclass(slots=True)
class Instruction:
    """One instruction. loose: the float operation may be reordered and contracted. Further facts
    by operation: `kind` is the predicate of a comparison, the callee of a call, the operation of an
    atomicrmw; `targets` the labels of a br and of a phi; `align` bytes of a load or store."""

    operation: str
    result: str = ""
    type: Type | None = None
    operands: tuple[Operand, ...] = ()
    kind: str = ""
    targets: tuple[str, ...] = ()
    align: int = 0
    loose: bool = False
    invariant: bool = False
    texel: bool = False  # a load that may read a texture
    ordering: str = ""  # of an atomic load: monotonic, acquire or seq_cst
    line: str = ""
