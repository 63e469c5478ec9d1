"""Decode recorded calls with the tables of the driver branch they were recorded on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ugpu.hcq.registers.layout import Array, Layout, Struct
from ugpu.nv import abi
from ugpu.tools.debug.sniff.flags import Flags
from ugpu.tools.debug.sniff.recording import BlockCopy, Call, Recording

#: a member's value: a number, raw bytes (arrays of bytes), or a row of numbers
Value = int | float | bytes | tuple[int | float, ...]
Values = Mapping[str, Value]
_STATUS = ("status", "rmStatus")
#: calls that take any number of their blocks in a row
_ARRAYS = ("NV_ESC_CARD_INFO",)


@dataclass(frozen=True)
class Block:
    """A block before and after the call, member by member; a nested member's name has dots.

    `struct` is empty if the tables do not name the structure; then the members are `bytes`.
    """

    struct: str
    before: Values | None
    after: Values | None


@dataclass(frozen=True)
class Decoded:
    """One call. title: the request; status: the resource manager's result."""

    call: Call
    title: str
    own: Block | None = None
    blocks: tuple[Block, ...] = ()
    status: int | None = None
    remarks: tuple[str, ...] = field(default=())


def _leaf(value: object, kind: str) -> Value:
    if isinstance(value, Array):
        if kind == "u8":
            return bytes(value)
        return tuple(number for number in _numbers(value))
    assert isinstance(value, (int, float))
    return value


def _numbers(array: Array) -> Iterator[int | float]:
    for element in array:
        if isinstance(element, Array):
            yield from _numbers(element)
        else:
            yield element


def members(structure: Struct, prefix: str = "") -> Iterator[tuple[str, Value]]:
    """Yield every member of a structure that is not a structure itself; elements have [numbers]."""
    for name, member in structure.layout.fields.items():
        value = structure[name]
        if member.layout is None:
            yield prefix + name, _leaf(value, member.kind)
        elif isinstance(value, Struct):
            yield from members(value, f"{prefix}{name}.")
        else:
            for index, inner in enumerate(_structures(value)):
                yield from members(inner, f"{prefix}{name}[{index}].")


def _structures(array: Array) -> Iterator[Struct]:
    for element in array:
        if isinstance(element, Struct):
            yield element
        else:
            yield from _structures(element)


def _values(layout: Layout[Struct] | None, raw: bytes | None) -> Values | None:
    if raw is None:
        return None
    if layout is None or len(raw) < layout.size:
        return {"bytes": raw}
    return dict(members(layout.view(raw)))


class Decoder:
    """Decode calls of one recording. Any bytes can be decoded; unknown ones are shown as bytes."""

    def __init__(self, table: abi.Abi) -> None:
        self.table = table

    def all(self, recording: Recording) -> list[Decoded]:
        """Decode every call of a recording."""
        return [self.decode(call) for call in recording.calls]

    def decode(self, call: Call) -> Decoded:
        """Decode one call."""
        if call.kind != "ioctl":
            return Decoded(call, call.kind)
        ioctl = self.table.ioctl_of(call.request)
        if ioctl is None:
            return Decoded(call, f"ioctl {call.request:#x}", _unknown(call.before, call.after))
        layout = self.table.structs.get(ioctl.struct)
        own = _block(layout, ioctl.struct, call.before, call.after)
        title = ioctl.name.removeprefix("NV_ESC_")
        remarks: list[str] = []
        if ioctl.name in _ARRAYS and layout is not None:
            own = Block(ioctl.struct, _elements(layout, call.before), _elements(layout, call.after))
            return Decoded(call, title, own)
        size = (call.request >> 16) & 0x3FFF if ioctl.node == "rm" else 0
        if layout is not None and size and size != layout.size:
            remarks.append(f"{size} bytes were passed, {ioctl.struct} has {layout.size}")
        subject, struct = self._subject(own)
        pointed = [self._pointed(copy, struct, remarks) for copy in call.blocks]
        words = " ".join(filter(None, (title, subject)))
        return Decoded(call, words, own, tuple(pointed), _status(own), tuple(remarks))

    def _subject(self, own: Block) -> tuple[str, str | None]:
        """Return the subject of an allocation or a control, and the block it points to."""
        values = own.before or {}
        if "hClass" in values:
            number = values["hClass"]
            assert isinstance(number, int)
            rule = self.table.classes.get(number)
            return rule.name if rule else f"class {number:#x}", rule.struct if rule else None
        if own.struct == "NVOS54_PARAMETERS" and "cmd" in values:
            number = values["cmd"]
            assert isinstance(number, int)
            name = self.table.control_name(number) or f"control {number:#x}"
            return name, self.table.parameters_of_control(number)
        return "", None

    def _pointed(self, copy: BlockCopy, struct: str | None, remarks: list[str]) -> Block:
        if copy.inside >= 0 or struct is None:
            return _unknown(copy.before, copy.after)
        layout = self.table.structs.get(struct)
        if layout is not None and copy.size != layout.size:
            remarks.append(f"{copy.size} bytes were passed, {struct} has {layout.size}")
        return _block(layout, struct, copy.before, copy.after)


def _block(
    layout: Layout[Struct] | None, struct: str, before: bytes | None, after: bytes | None
) -> Block:
    return Block(struct if layout else "", _values(layout, before), _values(layout, after))


def _elements(layout: Layout[Struct], raw: bytes | None) -> Values | None:
    """Return the elements that are not empty, under their numbers."""
    if raw is None:
        return None
    values: dict[str, Value] = {}
    for place in range(0, len(raw) - layout.size + 1, layout.size):
        if any(raw[place : place + layout.size]):
            values.update(members(layout.view(raw, place), f"[{place // layout.size}]."))
    return values


def _unknown(before: bytes | None, after: bytes | None) -> Block:
    return Block("", _values(None, before), _values(None, after))


def _status(own: Block) -> int | None:
    for name, value in (own.after or {}).items():
        if name.rpartition(".")[2] in _STATUS and isinstance(value, int):
            return value
    return None


def shown(value: Value) -> str:
    """Return a value as text: small numbers decimal, others hexadecimal, bytes as text if they are
    text."""
    if isinstance(value, bytes):
        text = value.rstrip(b"\0")
        if text and all(32 <= byte < 127 for byte in text):
            return repr(text.decode("ascii"))
        return f"{text.hex()}(+{len(value) - len(text)} zeros)" if text else f"{len(value)} zeros"
    if isinstance(value, tuple):
        if not any(value):
            return f"{len(value)} zeros"
        end = max(i for i, number in enumerate(value) if number) + 1
        rest = f" +{len(value) - end} zeros" if end < len(value) else ""
        return f"[{' '.join(map(shown, value[:end]))}{rest}]"
    return str(value) if isinstance(value, float) or -10 < value < 10 else f"{value:#x}"


def lines(decoded: Decoded, start: float, flags: Flags | None = None) -> Iterator[str]:
    """Yield one call as text: a line, then its blocks. Of the returned values only changes are
    shown.

    flags: explains flag words if given.
    """
    call = decoded.call
    node = call.path.rpartition("/")[2]
    result = abi.status_name(decoded.status) if decoded.status is not None else ""
    if call.errno:
        result = f"errno {call.errno}"
    elif call.kind in ("open", "mmap"):
        result = f"{call.result:#x}" if call.kind == "mmap" else f"fd {call.result}"
    detail = ""
    if call.kind == "mmap":
        detail = f" {call.length} bytes at {call.offset:#x}"
    yield f"{call.time - start:10.6f} {call.pid} {node}: {decoded.title}{detail} -> {result}"
    for remark in decoded.remarks:
        yield f"           ! {remark}"
    for block in filter(None, (decoded.own, *decoded.blocks)):
        yield f"           {block.struct or 'unknown block'}"
        if block.before is None:
            yield "             (not readable)"
            continue
        after = block.after or {}
        new = [name for name in after if name not in block.before]
        for name, value in [*block.before.items(), *((name, 0) for name in new)]:
            changed = name in after and after[name] != value
            if value in (0, b"", ()) and not changed:
                continue
            arrow = f" -> {shown(after[name])}" if changed else ""
            last = after[name] if changed else value
            told = flags.explain(block.struct, name, last) if flags and type(last) is int else ""
            yield f"             {name} = {shown(value)}{arrow}{f'  {told}' if told else ''}"
