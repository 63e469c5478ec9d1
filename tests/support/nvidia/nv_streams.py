"""What the channels of a virtual NVIDIA GPU fetch, as text: methods, launch descriptors, constant
banks, fields by the names of NVIDIA's headers.

Of the driver's code nothing is used but those tables; the encoding of a header by hand from
open-gpu-doc clc56f.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.support.corpus.workloads import Places
from ugpu.nv import abi
from ugpu.virtual.nvidia.host.channel import Channel
from ugpu.virtual.nvidia.memory.faults import Client

ONE_WORD, MANY = 4, 1
LATCHED = {"SEM_ADDR_LO": "SEM_ADDR_HI", "SEM_PAYLOAD_LO": "SEM_PAYLOAD_HI"}
UPPER_FIRST = {"OFFSET_IN_UPPER": "OFFSET_IN_LOWER", "OFFSET_OUT_UPPER": "OFFSET_OUT_LOWER"}
#: fields of a descriptor that depend on the assembler's version
ASSEMBLED = ("REGISTER_COUNT", "REGISTER_COUNT_V")


def qmd_lines(
    table: abi.Descriptor, raw: bytes, places: Places, leave_out: tuple[str, ...] = ()
) -> Iterator[str]:
    """Every field that is not zero, addresses joined and named."""
    fields = table.decode(raw)
    assert table.undefined(raw) == 0
    for name, value in fields.items():
        if name in leave_out or ("_UPPER" in name and name.replace("_UPPER", "_LOWER") in fields):
            continue
        many = value if isinstance(value, list) else [value]
        for number, each in enumerate(many):
            which = f"({number})" if isinstance(value, list) else ""
            if "_LOWER" in name:
                upper = fields[name.replace("_LOWER", "_UPPER")]
                each |= (upper[number] if isinstance(upper, list) else upper) << 32
                shift = int(name.rpartition("SHIFTED")[2] or 0) if "SHIFTED" in name else 0
                if each:
                    yield f"{name}{which} = {places.shown(each << shift)}"
            elif each and name.startswith("DEPENDENT") and name.endswith("POINTER"):
                yield f"{name}{which} = {places.shown(each << 8)}>>8"
            elif each:
                named = table.field(name).name_of(each)
                yield f"{name}{which} = {each:#x}{f' {named}' if named else ''}"


class Text:
    """Lines for the words of one channel."""

    def __init__(self, channel: Channel, places: Places) -> None:
        self.channel = channel
        self.places = places
        facts = channel.gpu.facts
        self.descriptor = abi.qmd(f"{facts.qmd[0]}.{facts.qmd[1]}")
        self.before: list[str] = []  # what the launch before was
        self.classes = {0: channel.class_id}
        for number in channel.engines:
            self.classes[4 if number & 0xFF == 0xB5 else 1] = number

    def entry(self, address: int, words: Sequence[int]) -> Iterator[str]:
        """One entry of the ring."""
        yield f"  entry: {len(words)} words at {self.places.shown(address)}"
        at = 0
        while at < len(words):
            head = words[at]
            operation, count = head >> 29, head >> 16 & 0x1FFF
            subchannel, offset = head >> 13 & 7, (head & 0xFFF) << 2
            assert operation == MANY, f"{head:#x}"
            body = words[at + 1 : at + 1 + count]
            assert len(body) == count
            at += 1 + count
            yield from (f"    {line}" for line in self._methods(subchannel, offset, body))

    def _methods(self, subchannel: int, offset: int, body: Sequence[int]) -> Iterator[str]:
        # What is below 0x100 is the host's on every subchannel.
        table = abi.methods(self.classes[0 if offset < 0x100 else subchannel])
        values: list[tuple[str, int]] = []
        for number, value in enumerate(body):
            found = table.find(offset + 4 * number)
            assert found is not None, f"{offset + 4 * number:#x}"
            method, index = found
            assert not method.fields or not method.undefined(value), (method, hex(value))
            values.append((method.name if not index else f"{method.name}[{index}]", value))
        words = dict(values)
        shown = []
        for name, value in values:
            if name in LATCHED.values() or name in UPPER_FIRST.values():
                continue
            if name in LATCHED:
                both = value | words[LATCHED[name]] << 32
                is_address = name == "SEM_ADDR_LO"
                shown.append(f"{name}={self.places.shown(both) if is_address else f'{both:#x}'}")
            elif name in UPPER_FIRST:
                both = value << 32 | words[UPPER_FIRST[name]]
                shown.append(f"{name}={self.places.shown(both)}")
            elif name == "SEND_PCAS_A":
                shown.append(f"{name}={self.places.shown(value << 8)}>>8")
            else:
                shown.append(f"{name}={self._value(table.method(name.split('[')[0]), value)}")
        yield f"{subchannel}: {' '.join(shown)}"
        address = words.get("SEND_PCAS_A", 0) << 8
        while address:
            now = list(self._launch(address))
            if self.before:
                yield "    (the rest as in the launch before)"
            yield from (f"    {line}" for line in now if line not in self.before)
            self.before = now
            address = self._successor(address)
            if address:
                yield f"    then {self.places.shown(address)}"

    def _value(self, method: abi.Method, value: int) -> str:
        parts: Mapping[str, int] = method.decode(value) if len(method.fields) > 1 else {}
        named = []
        for name, part in parts.items():
            if part:
                text = method.field(name).name_of(part)
                named.append(f"{name}:{text or hex(part)}")
        return f"{value:#x}{f' ({chr(32).join(named)})' if named else ''}"

    def _successor(self, descriptor: int) -> int:
        """Address of the descriptor that starts behind one; 0 where there is none."""
        table = self.descriptor
        raw = self.channel.space.read(descriptor, table.size, Client.HOST)
        first = "DEPENDENT_QMD0_POINTER"
        return table.get(raw, first if first in table.fields else "DEPENDENT_QMD_POINTER", 0) << 8

    def _launch(self, address: int) -> Iterator[str]:
        """A descriptor and its constant bank 0."""
        read = self.channel.space.read
        raw = read(address, self.descriptor.size, Client.HOST)
        yield from qmd_lines(self.descriptor, raw, self.places, ASSEMBLED)
        shift = 6 if "CONSTANT_BUFFER_ADDR_LOWER_SHIFTED6" in self.descriptor.fields else 0
        names = [f"CONSTANT_BUFFER_ADDR_{half}" + "_SHIFTED6" * (shift > 0)
                 for half in ("LOWER", "UPPER")]  # fmt: skip
        low, high = (self.descriptor.get(raw, name, 0) for name in names)
        size = self.descriptor.get(raw, "CONSTANT_BUFFER_SIZE_SHIFTED4", 0) << 4
        bank = read((low | high << 32) << shift, size, Client.HOST)
        words = struct.unpack(f"<{size // 4}I", bank)
        shown, at = [], 0
        while at < len(words):
            pair = words[at] | (words[at + 1] << 32 if at + 1 < len(words) else 0)
            named = self.places.shown(pair)
            if at % 2 == 0 and not named.startswith("0x"):
                shown.append(f"{4 * at:#x}: {named}")
                at += 2
                continue
            if words[at]:
                shown.append(f"{4 * at:#x}: {words[at]:#x}")
            at += 1
        yield f"bank 0 {', '.join(shown)}"


class Streams:
    """Notes what channels fetch; `take` gives what was noted since the last call. A channel is
    named after the memory of its first entry."""

    def __init__(self, patch: pytest.MonkeyPatch, places: Places) -> None:
        self.places = places
        self.names: dict[Channel, str] = {}
        self.texts: dict[str, Text] = {}
        self.lines: dict[str, list[str]] = {}
        original = Channel._entry
        streams = self

        def noted(channel: Channel, low: int, high: int) -> Any:  # a generator of the model's
            streams._note(channel, low, high)
            return original(channel, low, high)

        patch.setattr(Channel, "_entry", noted)

    def _note(self, channel: Channel, low: int, high: int) -> None:
        length = high >> 10 & 0x1F_FFFF
        address = (high & 0xFF) << 32 | low & ~3
        raw = channel.space.read(address, 4 * length, Client.HOST)
        place = self.places.shown(address)
        name = self.names.setdefault(channel, place.partition(".")[0])
        if place.startswith("0x"):
            self.places.add(f"{name}.graph", address, 4096)
        text = self.texts.setdefault(name, Text(channel, self.places))
        lines = self.lines.setdefault(name, [])
        lines += text.entry(address, struct.unpack(f"<{length}I", raw))

    def take(self) -> list[str]:
        """The text of what was fetched, channel by channel."""
        found = []
        for name in sorted(self.lines):
            classes = ", ".join(f"{each:04x}" for each in self.texts[name].classes.values())
            found += [f"{name} ({classes}):", *self.lines.pop(name)]
        for text in self.texts.values():
            text.before = []
        return found
