"""The subcommands of `ugpu reg`: read, write, watch, lookup, diff."""

from __future__ import annotations

import contextlib
import fnmatch
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ugpu.hcq.errors import BadArgument, UsageError
from ugpu.hcq.find import offline as window
from ugpu.hcq.registers.fields import BoundRegister, RegisterBlock, RegisterValue
from ugpu.tools.base.console import Output
from ugpu.tools.inspect.registers.sources import (
    Live,
    Source,
    bare_name,
    matching,
    open_source,
    save,
)

_FOUND = 1 << 16  # most names that `lookup` shows for one pattern
Row = tuple[str, str, str]


def _row(name: str, value: RegisterValue) -> Row:
    fields = value.fields()
    text = " ".join(f"{field}={content:#x}" for field, content in fields.items() if content)
    return name, f"{int(value):#010x}", text


def _chosen(source: Source, patterns: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name for pattern in patterns for name in source.matching(pattern)))


def _parts(source: Source, pattern: str) -> list[tuple[str, str]]:
    """Return the registers and fields that a pattern names; the field is "" for a whole
    register."""
    head, dot, field = pattern.rpartition(".")
    names = []
    if dot and not any(sign in head for sign in "*?["):
        with contextlib.suppress(BadArgument):  # a block's name
            names = source.matching(head)
    if not names:
        return [(name, "") for name in source.matching(pattern)]
    parts = []
    for name in names:
        fields = source.read(name).fields()
        parts += [
            (name, field_name)
            for field_name in fields
            if fnmatch.fnmatchcase(field_name, field.upper())
        ]
    if not parts:
        choices = ", ".join(source.read(names[0]).fields()) or "none"
        raise BadArgument(f"{names[0]} has no field {field!r}, expected one of {choices}")
    return parts


def read(
    place: str, patterns: Sequence[str], out: Output, *, boot: bool = True,
    keep: Path | None = None, at: int | None = None,
) -> int:  # fmt: skip
    """Read each register once and show value and fields. keep: a file to write them to as well. at:
    of a recording, see tools.base.device_files."""
    with open_source(place, boot=boot, at=at) as source:
        if source.note:
            out.say(source.note, style="yellow")
        chosen = list(
            dict.fromkeys(part for pattern in patterns for part in _parts(source, pattern))
        )
        values = {name: source.read(name) for name in dict.fromkeys(name for name, _ in chosen)}
        if keep is not None:
            save(keep, source, values)
    out.table(
        ("register", "value", "fields that are not 0"),
        [
            (f"{name}.{field}", f"{values[name][field]:#x}", "") if field
            else _row(name, values[name])
            for name, field in chosen
        ],
    )  # fmt: skip
    out.result(
        [
            {"register": name, "value": int(value), "fields": value.fields()}
            for name, value in values.items()
        ]
    )
    return 0


@dataclass(frozen=True)
class Assignment:
    """Assignment of the form `NAME=VALUE` or `NAME.FIELD=VALUE`; field: "" for the whole
    register."""

    name: str
    field: str
    value: int


def parse_assignment(text: str, blocks: Mapping[str, RegisterBlock]) -> Assignment:
    """Parse an assignment: BadArgument unless it names a single register and a number."""
    left, sign, right = text.partition("=")
    try:
        value = int(right, 0)
    except ValueError:
        value = -1
    if not sign or value < 0:
        raise BadArgument(f"expected REGISTER=NUMBER or REGISTER.FIELD=NUMBER, got {text!r}")
    parts = left.split(".")
    field = ""
    if (len(parts) > 1 and parts[0].lower() not in blocks) or len(parts) > 2:
        field = parts.pop().upper()
    names = matching(blocks, ".".join(parts), 1)
    if len(names) != 1:
        raise BadArgument(f"{left!r} is in several blocks: {', '.join(names)}")
    return Assignment(names[0], field, value)


def write(
    device: str,
    texts: Sequence[str],
    out: Output,
    *,
    boot: bool = True,
    yes: bool = False,
    ask: Callable[[str], str] | None = None,
) -> int:
    """Write registers, after showing the changes and their risks. All assignments are checked
    before the first access. Without `yes` it asks on a terminal, and refuses elsewhere."""
    with open_source(device, boot=boot) as source:
        if not isinstance(source, Live):
            raise UsageError(f"{device} is a file: only registers of devices can be written")
        assignments = [parse_assignment(text, source.blocks) for text in texts]
        for assignment in assignments:
            register = _bound(source, assignment).register
            register.insert(0, {assignment.field: assignment.value} if assignment.field else {})
            register.insert(assignment.value if not assignment.field else 0, {})
        before = {assignment.name: source.read(assignment.name) for assignment in assignments}
        for assignment in assignments:
            new = _after(before[assignment.name], assignment)
            out.say(f"{assignment.name}: {int(before[assignment.name]):#010x} -> {int(new):#010x}")
            for text in _dangers(source, assignment.name):
                out.say(f"  {bare_name(assignment.name)} {text}", style="yellow")
        if not yes and not _agreed(ask):
            raise UsageError("nothing was written: repeat with --yes to write")
        done = []
        for assignment in assignments:
            new = _after(source.read(assignment.name), assignment)
            _bound(source, assignment).write(int(new))
            now = source.read(assignment.name)
            note = "" if now == new else f" (reads back as {int(now):#010x})"
            out.say(f"wrote {assignment.name} {int(new):#010x}{note}")
            done.append({"register": assignment.name, "before": int(before[assignment.name]),
                         "written": int(new), "reads": int(now)})  # fmt: skip
        out.result(done)
    return 0


def _after(before: RegisterValue, assignment: Assignment) -> RegisterValue:
    if assignment.field:
        return before.replace(**{assignment.field: assignment.value})
    return before.register.decode(assignment.value)


def _bound(source: Live, assignment: Assignment) -> BoundRegister:
    block, _, register = assignment.name.partition(".")
    return source.blocks[block][register]


def _dangers(source: Live, name: str) -> list[str]:
    if not source.chip:
        return []
    dangers = window.module_of_chip(source.chip).dangers()
    return [text for pattern, text in dangers if fnmatch.fnmatchcase(bare_name(name), pattern)]


def _agreed(ask: Callable[[str], str] | None) -> bool:
    if ask is None:
        if not sys.stdin.isatty():
            return False
        ask = input
    return ask("write? [y/N] ").strip().lower() in ("y", "yes")


def watch(
    device: str,
    patterns: Sequence[str],
    out: Output,
    *,
    boot: bool = True,
    every_s: float = 0.1,
    looks: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Show each register now and after each change, until Ctrl-C or after a number of looks."""
    with open_source(device, boot=boot) as source:
        if not isinstance(source, Live):
            raise UsageError(f"{device} is a file, whose registers do not change")
        names = _chosen(source, patterns)
        last: dict[str, RegisterValue] = {}
        changes = []
        start, look = time.monotonic(), 0
        while looks is None or look < looks:
            look += 1
            for name in names:
                value = source.read(name)
                if value == last.get(name):
                    continue
                at = time.monotonic() - start
                out.say(f"{at:9.3f} s  {_changed(name, last.get(name), value)}")
                changes.append({"seconds": round(at, 6), "register": name, "value": int(value)})
                last[name] = value
            if looks is None or look < looks:
                sleep(every_s)
    out.result(changes)
    return 0


def _changed(name: str, before: RegisterValue | None, value: RegisterValue) -> str:
    if before is None:
        return "  ".join(_row(name, value)).rstrip()
    old, new = before.fields(), value.fields()
    fields = [f"{key} {old[key]:#x} -> {new[key]:#x}" for key in new if old[key] != new[key]]
    return f"{name}  {int(before):#010x} -> {int(value):#010x}  {', '.join(fields)}".rstrip()


def lookup(chip: str, words: Sequence[str], out: Output) -> int:
    """Show the place and the fields of registers, without a device: by name or pattern, or by byte
    offset in the register BAR ("0x3780"). Places follow the usual bases of the chip."""
    blocks = window.module_of_chip(chip).usual_blocks(chip)
    names: list[str] = []
    for word in words:
        names += _at(blocks, int(word, 16)) if _is_number(word) else matching(blocks, word, _FOUND)
    rows, results = [], []
    for name in dict.fromkeys(names):
        block, _, register = name.partition(".")
        bound = blocks[block][register]
        places = [
            (field.name, field.lsb + field.width - 1, field.lsb)
            for field in bound.register.fields.values()
        ]
        text = " ".join(
            f"{field}[{high}:{low}]" if high > low else f"{field}[{low}]"
            for field, high, low in places
        )
        rows.append((name, f"{bound.index * 4:#x}", text))
        results.append({"register": name, "offset": bound.index * 4, "fields": {
            field: [high, low] for field, high, low in places}})  # fmt: skip
    out.table(("register", "byte offset", "fields"), rows)
    out.result(results)
    return 0


def _is_number(word: str) -> bool:
    return word.lower().startswith("0x")


def _at(blocks: Mapping[str, RegisterBlock], offset: int) -> list[str]:
    if offset % 4:
        raise BadArgument(f"the offset must be a multiple of 4, got {offset:#x}")
    registers = [(name, block.find(offset // 4)) for name, block in blocks.items()]
    names = [f"{name}.{bound.register.name}" for name, bound in registers if bound is not None]
    if not names:
        raise BadArgument(f"no register at byte offset {offset:#x}")
    return names


def diff(
    left: str, right: str, patterns: Sequence[str], out: Output, *, boot: bool = True,
    at: int | None = None,
) -> int:  # fmt: skip
    """Show the registers whose values differ, in the order of the first source; exit code 1 if one
    differs. Devices need patterns; for two files, all registers that both have are compared. at: of
    the first source, a recording, see tools.base.device_files."""
    left_values = _values(left, patterns, boot, at)
    right_values = _values(right, patterns, boot)
    by_bare = {bare_name(name): value for name, value in right_values.items()}
    rows, results, compared = [], [], 0
    for name, ours in left_values.items():
        theirs = right_values.get(name, by_bare.get(bare_name(name)))
        if theirs is None:
            continue
        compared += 1
        if ours == theirs:
            continue
        mine, other = ours.fields(), theirs.fields()
        fields = [
            f"{key} {mine[key]:#x} / {other[key]:#x}"
            for key in mine
            if key in other and mine[key] != other[key]
        ]
        rows.append((name, f"{int(ours):#010x}", f"{int(theirs):#010x}", ", ".join(fields)))
        results.append({"register": name, "left": int(ours), "right": int(theirs)})
    if not compared:
        raise BadArgument(f"{left} and {right} have no register in common")
    if rows:
        titles = (
            (left, right) if Path(left).name == Path(right).name else map(_title, (left, right))
        )
        out.table(("register", *titles, "fields that differ"), rows)
    out.say(f"{len(rows)} of {compared} registers differ")
    out.result({"compared": compared, "different": results})
    return 1 if rows else 0


def _title(place: str) -> str:
    """Return the title of a column: a file without its folder."""
    return Path(place).name if Path(place.partition("@")[0]).is_file() else place


def _values(
    place: str, patterns: Sequence[str], boot: bool, at: int | None = None
) -> dict[str, RegisterValue]:
    with open_source(place, boot=boot, at=at) as source:
        if isinstance(source, Live) and not patterns:
            raise UsageError(f"{place} is a device: pass the registers to read, such as 'gc.CP_*'")
        return {name: source.read(name) for name in _chosen(source, patterns or ["*"])}
