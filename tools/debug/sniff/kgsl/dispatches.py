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
    first, second = left[-1], right[-1]
    yield "the last launch of each"
    ours, theirs = packets.text(first.packet), packets.text(second.packet)
    yield f"{' ' if ours == theirs else '~'} {ours} | {theirs}"
    yield "registers"
    for offset in sorted({*first.registers, *second.registers}):
        yield _line(packets.register(offset), *(
            _shown(packets, offset, launch.registers) for launch in (first, second)))  # fmt: skip
    yield "words of the constant file"
    for word in sorted({*first.constants, *second.constants}):
        name = f"c{word // 4}.{'xyzw'[word % 4]}"
        yield _line(name, *(
            f"{launch[word]:#x}" if word in launch else "not loaded"
            for launch in (first.constants, second.constants)))  # fmt: skip


def _shown(packets: Packets, offset: int, registers: Mapping[int, int]) -> str:
    return packets.value(offset, registers[offset]) if offset in registers else "not written"


def _line(name: str, ours: str, theirs: str) -> str:
    return f"  {name}: {ours}" if ours == theirs else f"~ {name}: {ours} | {theirs}"
