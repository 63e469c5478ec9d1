"""Compare two recordings by meaning. Handles, files and addresses differ in each run, so they get
names by their role.

The name of a handle is the class of its object and its place below its parent
(`client1.NV01_DEVICE_0#1`). A file is named by its path. An address, another large number or a
GPU's identity is named by the order of first appearance. Any difference that remains is behaviour.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ugpu.tools.debug.sniff.decode import Decoded, Value, Values, shown

_HANDLE = re.compile(r"(?:^|\.)h[A-Z]\w*$")
_DESCRIPTOR = re.compile(r"(?:^|\.)(?:fd|ctl_fd|\w+Fd)$")
_LARGE = 1 << 32
#: pointers to blocks that are compared themselves
_POINTERS = {"pAllocParms", "params", "pMemory", "pLinearAddress", "ptr"}
_INVALID = 0xFFFF_FFFF


@dataclass(frozen=True)
class Step:
    """One call under names that do not depend on the run. key: the operation; members: its
    operands."""

    key: str
    members: tuple[tuple[str, str], ...]


@dataclass
class Names:
    """The names assigned so far in one recording."""

    handles: dict[tuple[int, int], str] = field(default_factory=dict)
    files: dict[tuple[int, int], str] = field(default_factory=dict)
    large: dict[int | bytes, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def _next(self, stem: str) -> str:
        self.counts[stem] = self.counts.get(stem, 0) + 1
        return f"{stem}#{self.counts[stem]}"

    def new_object(self, decoded: Decoded, values: Values) -> None:
        """Name the object that a call created."""
        names = ("hRoot", "hObjectParent", "hObjectNew")
        client, parent, created = (_number(values, name) for name in names)
        kind = decoded.title.rpartition(" ")[2]
        if created == client or kind.startswith("NV01_ROOT"):
            self.handles[created, created] = self._next("client")
            return
        above = self.handles.get((client, parent), "?")
        self.handles[client, created] = self._next(f"{above}.{kind}")

    def handle(self, client: int, number: int) -> str:
        """Return the name of a handle within a client; a client's own handle is known in all of
        them."""
        if number in (0, _INVALID):
            return shown(number)
        named = self.handles.get((client, number)) or self.handles.get((number, number))
        if named is None:
            named = self.handles[client, number] = self._next("handle")
        return named

    def named(self, kind: str, value: int | bytes) -> str:
        """Return the name of an address or of a GPU's identity, by first appearance."""
        if value not in self.large:
            self.large[value] = self._next(kind)
        return self.large[value]


def _number(values: Values, name: str) -> int:
    value = values.get(name, 0)
    return value if isinstance(value, int) else 0


def _client(values: Values) -> int:
    return _number(values, "hRoot") or _number(values, "hClient")


def _member(names: Names, decoded: Decoded, client: int, name: str, value: Value) -> str | None:
    """Return a member under its name; None if it has no meaning of its own."""
    if name in _POINTERS or value in (0, b"", ()):
        return None
    if isinstance(value, int):
        if _HANDLE.search(name) and name != "hClass":
            return names.handle(client, value)
        if _DESCRIPTOR.search(name):
            return names.files.get((decoded.call.pid, value), f"fd {value}")
        if value >= _LARGE:
            return names.named("address", value)
    if isinstance(value, bytes) and name.lower().endswith("uuid"):
        return names.named("gpu", value)
    return shown(value)


def _members(names: Names, decoded: Decoded) -> Iterator[tuple[str, str]]:
    own = decoded.own
    if own is None:
        return
    client = _client(own.before or {}) or _client(own.after or {})
    for block in (own, *decoded.blocks):
        for side, values in (("in", block.before), ("out", block.after)):
            if values is None:
                yield f"{side} {block.struct or 'block'}", "not readable"
                continue
            for name, value in values.items():
                if side == "out" and block.before and block.before.get(name) == value:
                    continue
                text = _member(names, decoded, client, name, value)
                if text is not None:
                    yield f"{side} {block.struct or 'block'}.{name}", text


def steps(decoded: Sequence[Decoded]) -> list[Step]:
    """Return all calls of a recording under names; open and close are steps too."""
    names = Names()
    compared = []
    for request in decoded:
        call = request.call
        if call.kind in ("doorbell", "memory"):
            continue  # `show` prints what a program writes
        node = call.path.rpartition("/")[2]
        key = f"{node}: {request.title}"
        members: list[tuple[str, str]] = []
        if call.kind == "open" and call.result >= 0:
            names.files[call.pid, call.result] = node
        elif call.kind == "mmap":
            members = [("length", shown(call.length)), ("access", shown(call.access))]
        elif request.own is not None:
            if request.title.startswith("RM_ALLOC ") and request.own.after:
                names.new_object(request, request.own.after)
            members = list(_members(names, request))
        if call.errno:
            members.append(("errno", str(call.errno)))
        compared.append(Step(key, tuple(members)))
    return compared


def _changes(left: Step, right: Step) -> Iterator[str]:
    ours, theirs = dict(left.members), dict(right.members)
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if ours.get(name) != theirs.get(name):
            yield f"      {name}: {ours.get(name, 'zero')} | {theirs.get(name, 'zero')}"


def differences(left: Sequence[Step], right: Sequence[Step]) -> Iterator[str]:
    """Yield the differences of two runs: `-` only left, `+` only right, `~` in both with other
    members."""
    matcher = difflib.SequenceMatcher(
        None, [step.key for step in left], [step.key for step in right], autojunk=False
    )
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            for ours, theirs in zip(left[a:b], right[c:d], strict=True):
                changed = list(_changes(ours, theirs))
                if changed:
                    yield f"  ~ {ours.key}"
                    yield from changed
            continue
        yield from (f"  - {step.key}" for step in left[a:b])
        yield from (f"  + {step.key}" for step in right[c:d])
