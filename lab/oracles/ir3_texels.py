"""Fetches of texels from buffers, as the text of isam and isaml says; for lab.oracles.ir3.

Source: Mesa's src/freedreno/isa/ir3-cat5.xml. A buffer has one row and one level; beyond its end a
texel is zero. An alias puts another source in a register's place for the next instruction of this
category.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from lab.oracles.ir3_operations import U16, U32

_TARGET = re.compile(r"^\((\w)(\d+)\)\(([xyzw]+)\)(h?r\d+)\.([xyzw])$")


@dataclass(frozen=True)
class Buffer:
    """Texels of `components` unsigned integers of `bits` from an address on."""

    address: int
    bits: int
    components: int
    texels: int


class Machine(Protocol):
    """Registers, memory and textures of the threads. aliases: registers, and what stands for them
    in the next fetch."""

    aliases: dict[str, str]
    textures: Any  # of Buffer, by number
    memory: Any

    def read(self, operand: str, kind: Any) -> Any:
        """Return the elements of an operand, one for each thread."""

    def write(self, operand: str, value: Any, step: int = 0) -> None:
        """Set a register of the active threads."""


def alias(machine: Machine, operands: Sequence[str]) -> None:
    """Note what stands for a register."""
    machine.aliases[operands[0]] = operands[1].strip("()")


def fetch(machine: Machine, name: str, operands: Sequence[str]) -> None:
    """One texel for each active thread."""
    target, at, *rest = operands
    found = _TARGET.match(target)
    assert found is not None and "s#0" in rest, operands
    buffer = machine.textures[int(rest[-1].removeprefix("t#"))]
    assert int(found[2]) == buffer.bits, "a descriptor of other components"
    x, y = _source(machine, at), _source(machine, _next(at))
    assert not y.any(), "a buffer has one row"
    if name == "isaml":
        assert not _source(machine, rest[0]).any(), "a buffer has one level"
    size = buffer.bits // 8
    inside = x < buffer.texels
    base = np.where(inside, x, 0).astype(np.uint64) * np.uint64(size * buffer.components)
    for k, component in enumerate("xyzw"[: buffer.components]):
        if component not in found[3]:
            continue
        addresses = base + np.uint64(buffer.address + k * size)
        places = machine.memory.at(addresses, size)
        data = np.ascontiguousarray(machine.memory.bytes[places])
        value = data.view(U16 if size == 2 else U32)[:, 0] * inside
        register = f"{found[4]}.{found[5]}"
        machine.write(register, value.astype(U16 if size == 2 else U32), k)
    assert max("xyzw".index(one) for one in found[3]) < buffer.components, "constants of a swizzle"
    machine.aliases.clear()


def _source(machine: Machine, register: str) -> Any:  # an array of words
    return machine.read(machine.aliases.get(register, register), U32)


def _next(register: str) -> str:
    stem, component = register.split(".")
    place = "xyzw".index(component) + 1
    return f"{stem}.{'xyzw'[place]}" if place < 4 else f"r{int(stem[1:]) + 1}.x"
