"""PM4 packets of generations 6 and 7 by name: type 4 writes registers, type 7 has an opcode.

Headers as in Mesa's freedreno_pm4.h; names and fields by the tables in qcom.regs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ugpu.qcom.regs import constants, load

_TYPE4, _TYPE7 = 4, 7
_FRAGMENT = "_FRAG"


@dataclass(frozen=True)
class Packet:
    """One packet. writes: registers in order, as (dword offset, value); only for type 4."""

    name: str
    body: tuple[int, ...]
    writes: tuple[tuple[int, int], ...] = ()


class Packets:
    """Decode packets of one generation."""

    def __init__(self, generation: int) -> None:
        self._registers = {
            table[name].offset: (name, table[name])
            for table in (load(f"a{generation}xx"),)
            for name in table
        }
        self._bodies = load(f"a{generation}xx_packets")
        self._codes: dict[int, str] = {}
        opcodes = constants(f"a{generation}xx").enumeration("adreno_pm4_type3_packets")
        for name, code in opcodes.items():
            self._codes.setdefault(code, name)

    def read(self, words: Sequence[int]) -> Iterator[Packet]:
        """Yield the packets in a list of words. A word that is not a packet header ends the list,
        as a packet named "not a packet"."""
        at = 0
        while at < len(words):
            head = words[at]
            kind = head >> 28
            count = head & (0x7F if kind == _TYPE4 else 0x3FFF)
            body = tuple(words[at + 1 : at + 1 + count])
            if kind not in (_TYPE4, _TYPE7) or len(body) != count:
                yield Packet("not a packet", tuple(words[at:]))
                return
            at += 1 + count
            if kind == _TYPE4:
                first = head >> 8 & 0x3FFFF
                yield Packet("write", body, tuple((first + n, v) for n, v in enumerate(body)))
            else:
                code = head >> 16 & 0x7F
                yield Packet(self._codes.get(code, f"opcode {code:#x}"), body)

    def register(self, offset: int) -> str:
        """Return a register's name, or its number if no table has it."""
        entry = self._registers.get(offset)
        return entry[0] if entry else f"register {offset:#06x}"

    def fields(self, offset: int, value: int) -> dict[str, int]:
        """Return the fields of a register's value; empty if no table has them."""
        entry = self._registers.get(offset)
        if entry is None:
            return {}
        return {name: field.extract(value) for name, field in entry[1].fields.items()}

    def value(self, offset: int, value: int) -> str:
        """Return a register's value with the fields that are not 0."""
        parts = self.fields(offset, value)
        if len(parts) < 2:
            return f"{value:#x}"
        shown = " ".join(f"{name}:{part:#x}" for name, part in parts.items() if part)
        return f"{value:#x} ({shown})" if shown else f"{value:#x}"

    def word(self, name: str, value: int) -> dict[str, int]:
        """Return the fields of a packet's word, by the word's name."""
        fields = self._bodies[name].fields
        return {field: place.extract(value) for field, place in fields.items()}

    def text(self, packet: Packet) -> str:
        """Return one line for a packet."""
        if packet.writes:
            texts = (f"{self.register(o)}={self.value(o, v)}" for o, v in packet.writes)
            return f"write {' '.join(texts)}"
        stem = packet.name.replace(_FRAGMENT, "")
        words = []
        for place, word in enumerate(packet.body):
            shown = f"{word:#x}"
            if f"{stem}_{place}" in self._bodies:
                parts = self.word(f"{stem}_{place}", word)
                if len(parts) > 1:
                    shown += "".join(f" {name}:{part:#x}" for name, part in parts.items() if part)
            words.append(shown)
        return f"{packet.name} {', '.join(words)}".rstrip()
