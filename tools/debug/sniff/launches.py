"""Compare two launches: descriptor field by field, constant bank 0 word by word.

Addresses and sizes of the launched work differ between any two runs. Any other difference shows
knowledge about the hardware that one driver has and the other may lack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ugpu.nv import abi
from ugpu.tools.debug.sniff.memory import Launch

_WORD = 4


def descriptor_lines(left: Launch, right: Launch) -> Iterator[str]:
    """Yield every field that is not 0 in both; `~` precedes those that differ."""
    if left.table.name != right.table.name or left.table.size != right.table.size:
        yield f"~ descriptors of different versions: {left.table!r} | {right.table!r}"
    ours, theirs = _fields(left.table, left.raw), _fields(right.table, right.raw)
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        our, their = ours.get(name), theirs.get(name)
        if our or their:
            yield f"{' ' if our == their else '~'} {name}: {_told(our)} | {_told(their)}"


def _fields(table: abi.Descriptor, raw: bytes) -> dict[str, int]:
    fields: dict[str, int] = {}
    for name, value in table.decode(raw).items():
        if isinstance(value, list):
            fields |= {f"{name}({index})": element for index, element in enumerate(value)}
        else:
            fields[name] = value
    fields["bits without a name"] = table.undefined(raw)
    return fields


def _told(value: int | None) -> str:
    return "no such field" if value is None else f"{value:#x}"


def bank_lines(
    left: Sequence[int], right: Sequence[int], names: Mapping[int, str] | None = None
) -> Iterator[str]:
    """Yield the words of two constant banks that are not 0 in both; `~` precedes those that differ.

    names: known meanings of words, by offset in bytes.
    """
    for index in range(max(len(left), len(right))):
        our = left[index] if index < len(left) else None
        their = right[index] if index < len(right) else None
        if not our and not their:
            continue
        offset = _WORD * index
        name = (names or {}).get(offset, "")
        yield (
            f"{' ' if our == their else '~'} {offset:#05x}: {_word(our)} | {_word(their)}"
            f"{'  ' + name if name else ''}"
        )


def _word(value: int | None) -> str:
    return "   (none)" if value is None else f"{value:#010x}"


def words(raw: bytes) -> list[int]:
    """Return the 32-bit words of a bank."""
    return [int.from_bytes(raw[at : at + _WORD], "little") for at in range(0, len(raw), _WORD)]


def differences(left: Sequence[Launch], right: Sequence[Launch]) -> Iterator[str]:
    """Compare the last launch of each of two recordings, side by side; empty if one has none."""
    if not left or not right:
        return
    first, second = left[-1], right[-1]
    yield "the last launch of each: descriptor"
    yield from (f"  {line}" for line in descriptor_lines(first, second))
    if first.bank is None or second.bank is None:
        yield "the last launch of each: constant bank 0 was not recorded of both"
        return
    yield "the last launch of each: constant bank 0"
    yield from (f"  {line}" for line in bank_lines(words(first.bank), words(second.bank)))
