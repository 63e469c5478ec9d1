"""The last register accesses of a chip as text, for the evidence of a failure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from ugpu.hcq.registers.fields import Register, RegisterBlock

Access = tuple[bool, int, int]  # whether it writes, the register's index, the value


def described(accesses: Iterable[Access], blocks: Sequence[RegisterBlock]) -> list[str]:
    """Return accesses by name, with the fields that are not 0. An access repeated in a row is one
    line with its count."""
    lines: list[str] = []
    known: dict[Access, str] = {}  # polls repeat the same few
    registers: dict[int, Register | None] = {}
    for access, repeated in itertools.groupby(accesses):
        line = known.get(access)
        if line is None:
            index = access[1]
            if index not in registers:
                place = next(filter(None, (block.find(index) for block in blocks)), None)
                registers[index] = None if place is None else place.register
            line = known[access] = _described(access, registers[index])
        times = sum(1 for _ in repeated)
        lines.append(line + (f" ({times} times)" if times > 1 else ""))
    return lines


def _described(access: Access, register: Register | None) -> str:
    is_write, index, value = access
    what = "write" if is_write else "read"
    if register is None:
        return f"{what} register {index:#x} {value:#x}"
    parts = []
    for name, field in register.fields.items() if value else ():
        part = value >> field.lsb & ((1 << field.width) - 1)
        if part:
            parts.append(f"{name} {part:#x}")
    return f"{what} {register.name} {value:#x}" + (f"  [{', '.join(parts)}]" if parts else "")
