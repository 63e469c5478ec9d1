"""Compare two launches: registers by name, words of the constant file, the grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ugpu.tools.debug.sniff.kgsl.packets import Packets
from ugpu.tools.debug.sniff.kgsl.streams import Dispatch


def differences(
    left: Sequence[Dispatch], right: Sequence[Dispatch], packets: Packets
) -> Iterator[str]:
    """Compare the last launch of each of two recordings, side by side; `~` precedes differences.
    Empty if a recording has none."""
    if not left or not right:
        return
    one, other = left[-1], right[-1]
    yield "the last launch of each"
    ours, theirs = packets.text(one.packet), packets.text(other.packet)
    yield f"{' ' if ours == theirs else '~'} {ours} | {theirs}"
    yield "registers"
    for offset in sorted({*one.registers, *other.registers}):
        yield _line(packets.register(offset), *(
            _shown(packets, offset, each.registers) for each in (one, other)))  # fmt: skip
    yield "words of the constant file"
    for word in sorted({*one.constants, *other.constants}):
        name = f"c{word // 4}.{'xyzw'[word % 4]}"
        yield _line(name, *(
            f"{each[word]:#x}" if word in each else "not loaded"
            for each in (one.constants, other.constants)))  # fmt: skip


def _shown(packets: Packets, offset: int, registers: Mapping[int, int]) -> str:
    return packets.value(offset, registers[offset]) if offset in registers else "not written"


def _line(name: str, ours: str, theirs: str) -> str:
    return f"  {name}: {ours}" if ours == theirs else f"~ {name}: {ours} | {theirs}"
