"""What a block of the translated function knows of registers: values read or written before in it.

Within a block of LLVM's a register is read from memory once, and not stored where it is overwritten
unread. For registers in the wave state LLVM would not find that, and for others it takes longer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.shader.text import Text, constant

SCC = 128  # its number among scalar registers, whose encodings are below
_CONSTANT = re.compile(r"splat \(i\d+ (\d+)\)")


class BlockText(Text):
    """IR text of instructions. resident: all registers are in the wave state, between blocks.
    stepped: a debugger reads and changes them there between instructions, so that nothing is known
    of them."""

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes)
        self.stepped = False
        self.resident = False
        self._vectors: dict[int, tuple[str, str]] = {}  # element and value
        self._scalars: dict[int, str] = {}
        self._once: dict[str, str] = {}  # results by expression
        self._in_place: set[int] = set()  # vector registers that the instruction writes in memory
        # Lines that store registers ("v0", "s0") which nothing has read from memory since; and
        # lines, with their texts, that the current instruction has made superfluous.
        self._unread: dict[str, list[int]] = {}
        self._dropped: list[tuple[int, str]] = []

    def begin(self, label: str) -> None:
        """Start the block `label`."""
        super().begin(label)
        self.forget()

    def forget(self) -> None:
        """Read registers from memory again, after code that writes them there; keep what was
        stored, before code that reads it there."""
        self._vectors.clear()
        self._scalars.clear()
        self._once.clear()
        self._unread.clear()

    def end_instruction(self) -> None:
        """Forget the registers that the instruction has written in memory."""
        for number in self._in_place:
            self._vectors.pop(number, None)
        self._in_place.clear()
        self._dropped.clear()

    def take_back(self, mark: int) -> None:
        """Remove the current instruction's lines, from `mark` on, and what they have changed."""
        del self.lines[mark:]
        for line, text in self._dropped:
            if line < mark:
                self.lines[line] = text
        self.forget()
        self.end_instruction()

    def once(self, expression: str) -> str:
        """Return the result of an instruction that gives the same in all of the block."""
        known = self._once.get(expression)
        if known is None:
            known = self._once[expression] = self.value(expression)
        return known

    def binary(self, operation: str, element: str, a: str, b: str) -> str:
        """Apply a two-operand instruction to vectors."""
        x, y = _CONSTANT.fullmatch(a), _CONSTANT.fullmatch(b)
        if operation == "and" and x is not None and y is not None:
            return constant(element, int(x[1]) & int(y[1]))
        return super().binary(operation, element, a, b)

    # -- registers -------------------------------------------------------------------------------

    def scalar_at(self, number: int) -> str:
        """Return the address of a scalar register.

        In the wave state it is computed once a block: an address in an access costs nothing, one
        of the whole function would be a value to spill.
        """
        if self.resident:
            return self.once(f"getelementptr i32, ptr %wave, i32 {number}")
        return f"%s{number}"

    def scc_at(self) -> str:
        """Return the address of SCC."""
        if self.resident:
            return self.once(f"getelementptr i8, ptr %wave, i64 {layout.STATE_SCC}")
        return "%scc"

    def known_vector(self, number: int) -> tuple[str, str] | None:
        """Return element and value of a vector register; None if the caller must read it from
        memory."""
        known = self._vectors.get(number) if number not in self._in_place else None
        if known is None:
            self._unread.pop(f"v{number}", None)
        return known

    def know_vector(self, number: int, element: str, value: str) -> None:
        """Note what was read from a vector register, or written to it."""
        if not self.stepped:
            self._vectors[number] = element, value

    def known_scalar(self, number: int) -> str:
        """Return the value of a scalar register; "" if the caller must read it from memory."""
        known = self._scalars.get(number, "")
        if not known:
            self._unread.pop(f"s{number}", None)
        return known

    def know_scalar(self, number: int, value: str) -> None:
        """Note what was read from a scalar register, or written to it."""
        if not self.stepped:
            self._scalars[number] = value

    def store(self, register: str, lines: Sequence[str]) -> None:
        """Store a register ("v0", "s0"); what was stored before and not read is dropped."""
        if not self.stepped:
            for line in self._unread.get(register, ()):
                self._dropped.append((line, self.lines[line]))
                self.lines[line] = ""
            self._unread[register] = list(range(len(self.lines), len(self.lines) + len(lines)))
        for text in lines:
            self.do(text)

    def used_in_memory(self, numbers: Iterable[int], written: bool) -> None:
        """Note vector registers that the instruction reads in memory, or writes there."""
        for number in numbers:
            self._unread.pop(f"v{number}", None)
        if written:
            self._in_place.update(numbers)
