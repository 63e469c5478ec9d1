"""`ugpu trace`: the accesses of a program to a device, with names, fields and times.

ugpu trace -- python work.py                      record what the program does to its device
ugpu trace show ugpu-trace.txt                    every access, in order
ugpu trace filter ugpu-trace.txt 'CP_HQD_*'       some of them: by register, field, stage, time
ugpu trace diff good.txt bad.txt                  the first difference
ugpu trace export ugpu-trace.txt trace.json       for https://ui.perfetto.dev and chrome://tracing

A trace is a recording (hcq.transport.recorded.format). `ugpu record replay` and `ugpu reg --from`
accept it too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ugpu.hcq import outfile
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.transport.recorded.accesses import Access
from ugpu.hcq.transport.recorded.format import (
    Content,
    Entry,
    Failure,
    LongWrite,
    Look,
    Moment,
    Recording,
    Stage,
    Wait,
)
from ugpu.tools.base.console import Output
from ugpu.tools.base.recorded import Step, Steps, fields_of
from ugpu.tools.debug import record

DEFAULT = "ugpu-trace.txt"
EVENTS = outfile.Kind("a trace for Perfetto", rb'\s*\{\s*"traceEvents"')
LOOK = "look"  # the stage of an observer's accesses
_MICRO = 1e6
# Tracks of an exported trace.
_STAGES, _REGISTERS, _MEMORY = 1, 2, 3


@dataclass(frozen=True)
class Traced:
    """An entry of a trace. number: of an access, from 1; for another entry, that of the last
    access. time: seconds since the start. stage: the boot stage; "" before and after the boot.
    step: the entry by names; None if it is not a step."""

    number: int
    time: float
    stage: str
    entry: Entry
    step: Step | None

    @property
    def fields(self) -> dict[str, int]:
        """The fields of the accessed register, by name."""
        return fields_of(self.step)

    def __str__(self) -> str:
        shown = ", ".join(f"{name} {value:#x}" for name, value in self.fields.items() if value)
        what = str(self.step) if self.step is not None else _memory(self.entry)
        number = self.number if isinstance(self.entry, Access | LongWrite) else ""
        return f"{number:>6} {self.time:>10.6f}  {what}" + (f"  [{shown}]" if shown else "")

    def as_json(self) -> dict[str, object]:
        step = self.step
        if step is None:
            return {
                "access": self.number,
                "time_s": self.time,
                "stage": self.stage,
                "what": _memory(self.entry),
            }
        return {
            "access": self.number, "time_s": self.time, "stage": self.stage,
            "what": step.verb, "place": step.place,
            "value": step.value, "fields": self.fields, "repeated": step.repeated,
        }  # fmt: skip


@dataclass(frozen=True)
class Filter:
    """Selection of accesses; an empty member accepts all. registers: patterns of names, of which
    one must match. fields: NAME, which must not be zero, or NAME=VALUE; all must match. verb:
    "read" or "write"."""

    registers: Sequence[str] = ()
    fields: Sequence[str] = ()
    verb: str = ""
    stage: str = ""
    since_s: float = 0.0
    until_s: float = float("inf")

    def takes(self, traced: Traced) -> bool:
        """Return whether the filter accepts an entry."""
        step = traced.step
        if step is None or not self.since_s <= traced.time <= self.until_s:
            return False
        if step.window is None:
            return not (self.registers or self.fields or self.verb or self.stage)
        return (
            (not self.verb or step.verb == self.verb)
            and (not self.stage or fnmatchcase(traced.stage, self.stage))
            and (not self.registers or any(fnmatchcase(step.place, p) for p in self.registers))
            and all(_has(traced.fields, condition) for condition in self.fields)
        )


def _has(fields: dict[str, int], condition: str) -> bool:
    name, equals, value = condition.partition("=")
    if not equals:
        return bool(fields.get(name))
    try:
        return fields.get(name) == int(value, 0)
    except ValueError:
        raise BadArgument(f"a field's value must be a number, got {condition!r}") from None


def traced(recording: Recording) -> Iterator[Traced]:
    """Yield every entry with its time and stage; an observer's accesses have the stage "look"."""
    steps, number, seconds, stage, looking = Steps(recording), 0, 0.0, "", False
    for entry in recording.entries:
        if isinstance(entry, Look):
            looking = entry.begins
            continue
        if isinstance(entry, Moment):
            seconds = entry.seconds
            continue
        if isinstance(entry, Stage):
            stage = entry.name
        number += isinstance(entry, Access | LongWrite)
        yield Traced(number, seconds, LOOK if looking else stage, entry, steps.step(entry))


def folded(accesses: Iterator[Traced]) -> Iterator[Traced]:
    """Merge successive accesses with the same value into one, which has their count. Its number is
    the last one's, its time the first one's."""
    held: Traced | None = None
    for access in accesses:
        if isinstance(access.entry, Wait):
            continue
        before = held.step if held is not None else None
        if before is not None and before == access.step and before.window is not None:
            assert held is not None
            again = Step(**{**vars(before), "repeated": before.repeated + 1})
            held = Traced(access.number, held.time, held.stage, held.entry, again)
            continue
        if held is not None:
            yield held
        held = access
    if held is not None:
        yield held


def run(path: Path, command: Sequence[str], device: str, out: Output) -> int:
    """Run a program and record everything that it does to its device; return the program's exit
    code."""
    code = record.run(record.RecordOptions(device, path, command), out, hints=False)
    out.say(f"look at it:  ugpu trace show {path}")
    out.say(f"export it:   ugpu trace export {path} {path.with_suffix('.json')}")
    return code


def show(path: Path, out: Output, meant: Filter | None = None) -> int:
    """Print the selected accesses, one a line; return 1 if there are none."""
    meant = meant or Filter()
    every = meant == Filter()
    entries = folded(traced(record.load(path, partial=out)))
    selected = [access for access in entries if every or meant.takes(access)]
    stage = ""
    for access in selected:
        if access.stage != stage and not isinstance(access.entry, Stage):
            out.say(f"-- {access.stage}", style="bold")
        stage = access.stage
        out.say(f"-- {access.stage}" if isinstance(access.entry, Stage) else str(access),
                style="bold" if isinstance(access.entry, Stage) else "")  # fmt: skip
        if out.lost:
            break
    if not selected:
        out.say("no access fits")
    out.result([access.as_json() for access in selected])
    return int(not selected)


def export(path: Path, target: Path, out: Output) -> int:
    """Write a trace for Perfetto and Chrome (Trace Event Format, JSON). BadArgument if the file
    cannot be written."""
    outfile.check_file(target, EVENTS)
    events = trace_events(record.load(path, partial=out))
    try:
        with target.open("w", encoding="utf-8") as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ns"}, file)
    except OSError as error:
        raise BadArgument(f"cannot write {target}: {error.strerror}") from None
    out.say(f"{len(events)} events in {target}; open it in https://ui.perfetto.dev")
    out.result({"path": str(target), "events": len(events)})
    return 0


def trace_events(recording: Recording) -> list[dict[str, object]]:
    """Return a recording as events of the Trace Event Format: stages as slices, accesses and
    changes of memory as instants, each kind on a track of its own. Times in microseconds.

    Source: "Trace Event Format", Google, 2016 (phases X, i and M), which Perfetto imports.
    """
    tracks = {_STAGES: "stages", _REGISTERS: "registers", _MEMORY: "shared memory"}
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": 1, "tid": 0, "name": "process_name",
         "args": {"name": f"device {recording.identity}"}},
        *({"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}}
          for tid, name in tracks.items()),
    ]  # fmt: skip
    accesses = list(traced(recording))
    end = accesses[-1].time if accesses else 0.0
    begins = [access for access in accesses if isinstance(access.entry, Stage)]
    ends = [*(access.time for access in begins[1:]), _came_up(accesses, begins, end)]
    for access, over in zip(begins, ends, strict=False):
        events.append({
            "ph": "X", "pid": 1, "tid": _STAGES, "name": access.stage, "cat": "stage",
            "ts": access.time * _MICRO, "dur": max(0.0, over - access.time) * _MICRO,
        })  # fmt: skip
    events += [
        _instant(access) for access in accesses if not isinstance(access.entry, Stage | Wait)
    ]
    return events


def _came_up(accesses: Sequence[Traced], begins: Sequence[Traced], end: float) -> float:
    """Return when the last stage ended: at its failure; if that is unknown, at the trace's end."""
    failed = (access.time for access in accesses if isinstance(access.entry, Failure))
    return next(failed, end) if begins else end


def _instant(traced: Traced) -> dict[str, object]:
    step = traced.step
    access = step is not None and step.window is not None
    arguments: dict[str, object] = {}
    if access and step is not None:
        name = f"{step.verb} {step.place}"
        if step.value is not None:
            arguments["value"] = f"{step.value:#x}"
        arguments |= {field: value for field, value in traced.fields.items() if value}
    else:
        name = str(step) if step is not None else _memory(traced.entry)
    track = _MEMORY if isinstance(traced.entry, Content) else _REGISTERS
    return {
        "ph": "i", "s": "t", "pid": 1, "tid": track, "name": name, "args": arguments,
        "cat": step.verb if access and step is not None else "device", "ts": traced.time * _MICRO,
    }  # fmt: skip


def _memory(entry: Entry) -> str:
    if isinstance(entry, Content):
        who = "the device wrote" if entry.at_once else "changed:"
        return f"memory {entry.number} {who} {len(entry.data)} bytes at {entry.offset:#x}"
    return type(entry).__name__.lower()
