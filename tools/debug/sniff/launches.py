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
        one, other = ours.get(name), theirs.get(name)
        if one or other:
            yield f"{' ' if one == other else '~'} {name}: {_told(one)} | {_told(other)}"


def _fields(table: abi.Descriptor, raw: bytes) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in table.decode(raw).items():
        if isinstance(value, list):
            found |= {f"{name}({index})": each for index, each in enumerate(value)}
        else:
            found[name] = value
    found["bits without a name"] = table.undefined(raw)
    return found


def _told(value: int | None) -> str:
    return "no such field" if value is None else f"{value:#x}"


def bank_lines(
    left: Sequence[int], right: Sequence[int], names: Mapping[int, str] | None = None
) -> Iterator[str]:
    """Yield the words of two constant banks that are not 0 in both; `~` precedes those that differ.

    names: known meanings of words, by offset in bytes.
    """
    for index in range(max(len(left), len(right))):
        one = left[index] if index < len(left) else None
        other = right[index] if index < len(right) else None
        if not one and not other:
            continue
        offset = _WORD * index
        name = (names or {}).get(offset, "")
        yield (
            f"{' ' if one == other else '~'} {offset:#05x}: {_word(one)} | {_word(other)}"
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
    one, other = left[-1], right[-1]
    yield "the last launch of each: descriptor"
    yield from (f"  {line}" for line in descriptor_lines(one, other))
    if one.bank is None or other.bank is None:
        yield "the last launch of each: constant bank 0 was not recorded of both"
        return
    yield "the last launch of each: constant bank 0"
    yield from (f"  {line}" for line in bank_lines(words(one.bank), words(other.bank)))
