"""What the command processor of a virtual Adreno is given, as text: one packet a line, by name.

Headers by hand from Mesa's freedreno_pm4.h; of the driver's code nothing is used but the tables of
registers and packets. Constants and descriptors that a packet points to are shown below it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support.corpus.workloads import Places
from ugpu.qcom.regs import constants, load
from ugpu.virtual.adreno.engine import Engine

LOADS = ("CP_LOAD_STATE6_FRAG",)
CONSTANTS, UBOS, INDIRECT = 1, 2, 2  # STATE_TYPE, STATE_TYPE, STATE_SRC
UNIT_WORDS = {CONSTANTS: 4, UBOS: 2}
TYPE4, TYPE7 = 4, 7


class Decoder:
    """Text of the packets of one generation."""

    def __init__(self, generation: int, places: Places) -> None:
        self.places = places
        self.packets = load(f"a{generation}xx_packets")
        table = load(f"a{generation}xx")
        self.registers = {table[name].offset: (name, table[name]) for name in table}
        known = constants(f"a{generation}xx")
        self.codes: dict[int, str] = {}
        for name, code in known.enumeration("adreno_pm4_type3_packets").items():
            self.codes.setdefault(code, name)

    def text(self, words: Sequence[int], space: Any) -> Iterator[str]:
        """Lines for the words of an indirect buffer. space: what addresses in them mean; None: what
        they point to is not shown."""
        at = 0
        while at < len(words):
            head = words[at]
            kind = head >> 28
            count = head & (0x7F if kind == TYPE4 else 0x3FFF)
            body = words[at + 1 : at + 1 + count]
            assert kind in (TYPE4, TYPE7) and len(body) == count, f"{head:#x}"
            at += 1 + count
            if kind == TYPE4:
                yield f"write {self._writes(head >> 8 & 0x3FFFF, body)}"
                continue
            name = self.codes[head >> 16 & 0x7F]
            yield f"{name} {self._words(name, body)}".rstrip()
            if name in LOADS and space is not None:
                yield from self._block(body, space)

    def _writes(self, first: int, body: Sequence[int]) -> str:
        found, at = [], 0
        while at < len(body):
            name, register = self.registers[first + at]
            shown, taken = self._address(body, at)
            if taken == 1:
                parts = {n: f.extract(body[at]) for n, f in register.fields.items()}
                fields = " ".join(f"{n}:{v:#x}" for n, v in parts.items() if v)
                shown += f" ({fields})" if len(parts) > 1 and fields else ""
            found.append(f"{name}={shown}")
            at += taken
        return " ".join(found)

    def _words(self, name: str, body: Sequence[int]) -> str:
        found, at = [], 0
        while at < len(body):
            shown, taken = self._address(body, at)
            place = f"{name.replace('_FRAG', '')}_{at}"
            if taken == 1 and place in self.packets:
                fields = self.packets[place].fields
                parts = {n: f.extract(body[at]) for n, f in fields.items()}
                shown += "".join(f" {n}:{v:#x}" for n, v in parts.items() if v and len(parts) > 1)
            found.append(shown)
            at += taken
        return ", ".join(found)

    def _address(self, body: Sequence[int], at: int) -> tuple[str, int]:
        """A word as it is shown, and how many words that is: two for an address with a name."""
        if at + 1 < len(body):
            both = body[at] | body[at + 1] << 32
            name = self.places.shown(both)
            if not name.startswith("0x"):
                return name, 2
        return f"{body[at]:#x}", 1

    def _block(self, body: Sequence[int], space: Any) -> Iterator[str]:
        """What a packet that loads state points to: constants, descriptors of buffers."""
        head = self.packets["CP_LOAD_STATE6_0"].decode(body[0])
        width = UNIT_WORDS.get(head.STATE_TYPE)
        if head.STATE_SRC != INDIRECT or width is None:
            return
        size = 4 * width * head.NUM_UNIT
        words = struct.unpack(f"<{size // 4}I", space.read(body[1] & ~3 | body[2] << 32, size))
        at = 0
        shown = []
        while at < len(words):
            text, taken = self._address(words, at)
            shown.append(text)
            at += taken
        yield f"    there: {', '.join(shown)}"


class Streams:
    """Notes what the engine of a machine runs; `take` gives what came since the last call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, machine: Any, places: Places) -> None:
        self.lines: list[str] = []
        decoder = Decoder(machine.facts.generation, places)
        run = Engine._run

        def noted(engine: Engine, submission: Any) -> Any:
            if engine.machine is machine:
                space = submission.context.node.space
                self.lines.append(f"submission of {len(submission.buffers)}")
                for address, size in submission.buffers:
                    words = struct.unpack(f"<{size // 4}I", space.read(address, size))
                    if places.shown(address).startswith("0x"):
                        places.add("graph", address, size)
                    self.lines.append(f"  {size // 4} words at {places.shown(address)}")
                    self.lines += (f"    {line}" for line in decoder.text(words, space))
            return run(engine, submission)

        monkeypatch.setattr(Engine, "_run", noted)

    def take(self) -> list[str]:
        lines, self.lines[:] = list(self.lines), []
        return lines
