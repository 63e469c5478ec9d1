"""Read headers of DRF macros: methods of a class, and descriptors defined bit by bit.

NVIDIA spells a field as a macro whose body is two numbers and a colon (`31:2`, `MW(94:64)`,
`(1*32+7):(1*32+4)`). The macro's name begins with that of its method or descriptor, and the names
of its values begin with that of the field. The order in the header determines what belongs
together. Macros with an argument are arrays.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ugpu.hcq.errors import UsageError
from ugpu.tools.clang2py.directives import macros

_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


class DrfError(UsageError):
    """A header contains something that is not a method, field or value."""


@dataclass
class Bits:
    """A field of `width` bits from bit `lsb`; element i is at `i * stride` bits beyond that."""

    lsb: int
    width: int
    stride: int = 0
    values: dict[str, int] = field(default_factory=dict)


@dataclass
class Group:
    """A method at `offset`, or a descriptor (offset None); `stride` is in bytes."""

    offset: int | None
    stride: int = 0
    fields: dict[str, Bits] = field(default_factory=dict)
    size: int = 0


@dataclass(frozen=True)
class _Macro:
    name: str
    argument: str
    body: str


def _compute(text: str, argument: str = "", value: int = 0) -> int | None:
    """Compute a sum of products; None for any other expression."""
    text = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\b", r"\1", text.strip())
    text = re.sub(r"\b0+(\d)", r"\1", text) if not text.lower().startswith("0x") else text
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None

    def walk(node: ast.expr) -> int | None:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name) and node.id == argument:
            return value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            left, right = walk(node.left), walk(node.right)
            if left is None or right is None:
                return None
            return int(_OPERATIONS[type(node.op)](left, right))
        return None

    return walk(tree)


def _linear(text: str, argument: str) -> tuple[int, int] | None:
    """Return (base, stride) of an expression; the stride is 0 without an argument."""
    first = _compute(text, argument, 0)
    if first is None:
        return None
    second = _compute(text, argument, 1) if argument else first
    assert second is not None
    return first, second - first


def _halves(body: str) -> tuple[str, str] | None:
    """Return the two sides of a range, without `MW()` and outer parentheses."""
    body = body.strip()
    match = re.fullmatch(r"(?:MW)?\((.*)\)", body)
    if match and body.startswith("MW"):
        body = match[1]
    depth = 0
    for place, letter in enumerate(body):
        depth += (letter == "(") - (letter == ")")
        if letter == ":" and depth == 0:
            return body[:place], body[place + 1 :]
        if letter == "?":
            return None
    return None


def _macros(text: str) -> Iterator[_Macro]:
    for name, macro in macros(text).items():
        argument = macro.argument
        if argument is None or argument.strip().isidentifier():
            yield _Macro(name, (argument or "").strip(), macro.body)


def _field(macro: _Macro) -> Bits | None:
    halves = _halves(macro.body)
    if halves is None:
        return None
    high, low = (_linear(half, macro.argument) for half in halves)
    if high is None or low is None:
        return None
    width = high[0] - low[0] + 1
    if width <= 0 or high[1] != low[1]:
        raise DrfError(f"{macro.name}: {macro.body} is not a range of bits")
    return Bits(low[0], width, low[1])


def _owner(name: str, names: Iterable[str]) -> str | None:
    """Return the longest known name that `name` extends."""
    prefixes = [prefix for prefix in names if name.startswith(f"{prefix}_")]
    return max(prefixes, key=len) if prefixes else None


def read_methods(text: str, prefix: str, descriptors: Sequence[str] = ()) -> dict[str, Group]:
    """Read the methods of a class, and the descriptors with the given names."""
    groups: dict[str, Group] = {name: Group(None) for name in descriptors}
    current = ""
    for macro in _macros(text):
        if not macro.name.startswith(prefix) or not macro.body:
            continue
        name = macro.name.removeprefix(prefix)
        place = _owner(name, descriptors) or current
        bits = _field(macro)
        if bits is not None:
            if not name.startswith(f"{place}_"):
                continue  # a field of something that is not a method here
            groups[place].fields[name.removeprefix(f"{place}_")] = bits
            continue
        number = _linear(macro.body, macro.argument)
        if number is None:
            continue
        group = groups.get(place)
        short = name.removeprefix(f"{place}_")
        owner = _owner(short, group.fields) if group and short != name else None
        short_hex = re.fullmatch(r"0x[0-9A-Fa-f]{4}", macro.body) is not None
        if owner is not None and group is not None and not short_hex and not macro.argument:
            group.fields[owner].values[short.removeprefix(f"{owner}_")] = number[0]
        elif short_hex or (macro.body.startswith("(0x") and place not in descriptors):
            current = name
            groups[name] = Group(number[0], number[1])
    return {
        name: content
        for name, content in groups.items()
        if content.offset is not None or content.fields
    }


def read_descriptor(text: str, prefix: str) -> Group:
    """Read one descriptor: every macro whose name begins with `prefix` is a field or a value."""
    group = Group(None)
    for macro in _macros(text):
        name = macro.name.removeprefix(prefix)
        if name == macro.name or not macro.body:
            continue
        bits = _field(macro)
        if bits is not None:
            group.fields[name] = bits
            continue
        number = _linear(macro.body, "")
        if number is None or macro.argument:
            continue
        if name == "_SIZE":
            group.size = number[0]
            continue
        owner = _owner(name, group.fields)
        if owner is not None and not name.endswith("_SHIFT"):
            group.fields[owner].values[name.removeprefix(f"{owner}_")] = number[0]
    if not group.fields:
        raise DrfError(f"no field begins with {prefix}")
    return group


def counts(group: Group, fixed: Mapping[str, int]) -> dict[str, int]:
    """Return the number of elements of each array of a descriptor, which the headers do not state.

    `fixed` holds known numbers, by the start of the name. Any other array has as many elements as
    fit before the next field. Arrays of one subject (the same first two words) all have the
    smallest of their numbers.
    """
    starts = sorted(bits.lsb for bits in group.fields.values())
    fitting = {}
    for name, bits in group.fields.items():
        if bits.stride:
            after = [lsb for lsb in starts if lsb >= bits.lsb + bits.stride]
            end = min(after, default=group.size * 8)
            fitting[name] = max(1, (end - bits.lsb + bits.stride - bits.width) // bits.stride)
    subjects: dict[str, int] = {}
    for name, count in fitting.items():
        subject = "_".join(name.split("_")[:2])
        stated = next((fixed[start] for start in fixed if name.startswith(start)), None)
        subjects[subject] = stated or min(count, subjects.get(subject, count))
    return {name: subjects["_".join(name.split("_")[:2])] for name in fitting}


def group_text(name: str, group: Group, fixed: Mapping[str, int] | None = None) -> str:
    """Return one line of a table, as nv/abi/bits.py reads it."""
    many = counts(group, fixed or {}) if group.offset is None else {}
    for member, count in many.items():
        bits = group.fields[member]
        if bits.lsb + (count - 1) * bits.stride + bits.width > group.size * 8:
            raise DrfError(f"{name}: {member} has {count} elements and does not fit")
    if group.offset is None:
        head = f":{group.size}"
    else:
        head = hex(group.offset) + (f"+{group.stride}" if group.stride else "")
    words = [name, head]
    for member, bits in group.fields.items():
        word = f"{member}:{bits.lsb}:{bits.width}"
        if bits.stride:
            word += f"+{bits.stride}*{many.get(member, 0)}"
        if bits.values:
            word += "=" + ",".join(f"{key}:{value:#x}" for key, value in bits.values.items())
        words.append(word)
    return " ".join(words)


def sized(group: Group, size: int) -> Group:
    """Give a descriptor its size in bytes; DrfError if a field lies outside of it."""
    reach = max(bits.lsb + bits.width for bits in group.fields.values())
    if reach > size * 8 or group.size not in (0, size):
        raise DrfError(f"{size} bytes are too few or differ from the size in the header")
    group.size = size
    return group


def merged(base: Mapping[str, Group], newer: Mapping[str, Group]) -> dict[str, Group]:
    """Merge an excerpt of a newer class's methods into those of its predecessor."""
    result = dict(base)
    for name, group in newer.items():
        older = base.get(name)
        if older is None or older.offset != group.offset:
            result[name] = group
            continue
        fields = dict(older.fields)
        for member, bits in group.fields.items():
            before = fields.get(member)
            if before and (before.lsb, before.width) == (bits.lsb, bits.width):
                bits = Bits(bits.lsb, bits.width, bits.stride, {**before.values, **bits.values})
            fields[member] = bits
        result[name] = Group(group.offset, group.stride, fields, group.size)
    return result
