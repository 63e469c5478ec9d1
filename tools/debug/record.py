"""`ugpu record`: record everything that a driver does to a device, inspect it, compare two of them.

ugpu record pci:0000:03:00.0 boot.txt                      the boot, and closing again
ugpu record virtual:CHIP work.txt -- python work.py        whatever device the program opens
ugpu record replay boot.txt                                the same again, without the device
ugpu record show boot.txt                                  what is in it
ugpu record compare good.txt bad.txt                       the first difference
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ugpu import hcq
from ugpu.hcq import outfile
from ugpu.hcq.errors import BadArgument, DeviceNotFound, TransportError, UgpuError, UsageError
from ugpu.hcq.find.catalogue import ENDPOINTS, pci_drivers, virtual_chips
from ugpu.hcq.find.node_drivers import NODE_DRIVERS
from ugpu.hcq.transport.recorded.accesses import Access
from ugpu.hcq.transport.recorded.format import (
    BOOTED,
    RECORDING,
    Allocation,
    Content,
    Entry,
    LongWrite,
    Look,
    Mark,
    Recording,
    Reset,
    Stage,
    driven,
)
from ugpu.hcq.transport.recorded.replay import ReplayTransport
from ugpu.hcq.transport.recorded.state import failed_stage
from ugpu.tools.base.console import Output, human_size
from ugpu.tools.base.device_files import cut_note, recording_of
from ugpu.tools.base.progress import shown
from ugpu.tools.base.recorded import Steps, first_difference, names_of

BUSIEST = 8  # registers in a summary


@dataclass(frozen=True)
class RecordOptions:
    """device: a name of `ugpu ls`; "": any that the program opens. command: a program to run;
    without one the device is opened and closed. states: record the states of its units after each
    stage too."""

    device: str
    path: Path
    command: Sequence[str] = ()
    states: bool = False


def run(options: RecordOptions, out: Output, *, hints: bool = True) -> int:
    """Record, and show the summary; return the command's exit code. Fails before a device is opened
    if the file cannot be written. If the device does not come up, the recording shows how far it
    came, and the error is raised. hints: print what can be done with the recording."""
    path = options.path.absolute()
    _check_recordable(options.device)
    if not os.path.isdir(path.parent):
        raise UsageError(f"folder {path.parent} does not exist")
    outfile.check_file(path, RECORDING)
    start = time.perf_counter()
    code = 0
    if options.command:
        code = _record_command(options, path)
    else:
        try:
            with (
                shown(out, f"record {options.device}"),
                hcq.open(options.device, record=path, record_states=options.states) as device,
            ):
                out.say(f"{device.name} was opened ({device.info().get('start', 'start')})")
        except UgpuError:
            if os.path.isfile(path) and path.stat().st_size:
                _say_summary(summary(load(path)), out)
                out.say(f"kept in {path}")
            raise
    with shown(out, f"read {path}"):
        recording = load(path)
    seconds = time.perf_counter() - start
    out.say(f"recorded in {seconds:.1f} s into {path} ({human_size(path.stat().st_size)})", "bold")
    report = summary(recording)
    _say_summary(report, out)
    if hints:
        out.say()
        out.say(f"replay it:   ugpu record replay {path}")
        out.say(f"compare it:  ugpu record compare {path} OTHER")
    out.result({"path": str(path), "seconds": round(seconds, 3), "exit": code, **report})
    return code


def replay(path: Path, out: Output) -> int:
    """Repeat the recorded work without the device: the program, or opening and closing.
    TransportError if the driver deviates from the recording. Return the program's own exit code."""
    recording = load(path)
    if recording.command:
        out.say(f"running {' '.join(recording.command)}")
        code = _run(recording.command, {"UGPU_DEVICE": f"recording:{path.absolute()}"})
        out.say(f"the program ended with exit code {code}, on the recording alone")
        out.result({"entries": len(recording.entries), "exit": code})
        return code
    with shown(out, "replay"):
        device = hcq.open(f"recording:{path}")
    transport = getattr(device, "transport", None)
    assert isinstance(transport, ReplayTransport)
    try:
        device.close()
        transport.finish()
    except TransportError as error:
        raise TransportError(
            "the device opened as recorded; the remaining accesses belong to a program "
            "that the recording does not identify: run that program with "
            f"UGPU_DEVICE=recording:{path}",
            **error.facts,
        ) from None
    out.say(f"replayed: all {len(recording.entries)} entries, as recorded")
    out.result({"entries": len(recording.entries)})
    return 0


def show(path: Path, out: Output, *, everything: bool = False) -> int:
    """Show the summary, or each entry with the register's name."""
    recording = load(path, partial=out)
    if everything:
        for line in Steps(recording).lines():
            out.say(line)
            if out.lost:
                break
    else:
        _say_summary(summary(recording), out)
    out.result(summary(recording))
    return 0


def compare(left: Path, right: Path, out: Output) -> int:
    """Show where two recordings first differ; return 1 if they do."""
    recordings = [load(left, partial=out), load(right, partial=out)]
    difference = first_difference(*map(Steps, recordings))
    failures = [_failure(recording) for recording in recordings]
    if difference is None:
        out.say("no difference: the same was done, and the device answered the same")
        out.result({"same": True})
        return 0
    where = f", in stage {difference.stage}" if difference.stage else ""
    out.say(
        f"the first {difference.same} steps are the same; then{where}, {difference.what}:", "bold"
    )
    for line in difference.before:
        out.say(f"      {line}")
    out.say(f"  <   {difference.left}    ({left.name})", "red")
    out.say(f"  >   {difference.right}    ({right.name})", "green")
    for line in difference.fields:
        out.say(f"      {line}")
    for path, failure, loaded in zip((left, right), failures, recordings, strict=True):
        came_up = cut_note(loaded) or "the device came up"
        out.say(f"{path.name}: {failure or came_up}")
    out.result(
        {
            "same": False,
            "steps": difference.same,
            "stage": difference.stage,
            "what": difference.what,
            "before": difference.before,
            "left": difference.left,
            "right": difference.right,
            "fields": difference.fields,
            "failures": failures,
        }
    )
    return 1


def load(path: Path, partial: Output | None = None) -> Recording:
    """Read a recording. DeviceNotFound for a missing file, BadArgument for another kind of file or
    one that was cut off. With `partial`, a recording that was cut off is accepted and reported
    there."""
    try:
        text = path.read_text("ascii")
        if partial is None:
            return Recording.load(text)
        recording = recording_of(text, path)
        if recording.cut:
            partial.say(f"{path}: {cut_note(recording)}", "yellow")
        return recording
    except OSError as error:
        raise DeviceNotFound(f"cannot open {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadArgument(f"{path} is not a recording") from error


def _stages(recording: Recording) -> list[str]:
    names = [entry.name for entry in recording.entries if isinstance(entry, Stage)]
    return [name for name in names if name != BOOTED]


def _failure(recording: Recording) -> str | None:
    """Return where and how the boot failed; None if it did not fail."""
    failed = failed_stage(recording)
    if failed is None:
        return None
    stage, failure = failed
    where = f"failed in stage {stage}" if stage else "failed"
    return f"{where}: {failure.kind}: {failure.message}"


def summary(recording: Recording) -> dict[str, object]:
    """Return counts of a recording's entries."""
    names, entries = names_of(recording), driven(recording.entries)
    kinds = Counter(_kind(e) for e in entries if not isinstance(e, Mark))
    kinds += Counter(looks=recording.entries.count(Look(True)))
    used = Counter(
        names(entry.window, entry.offset)
        for entry in entries
        if isinstance(entry, Access) and entry.value is not None
    )
    drivers = pci_drivers().get((recording.identity.vendor, recording.identity.device))
    memory = [entry.size for entry in recording.entries if isinstance(entry, Allocation)]
    return {
        "device": str(recording.identity),
        "driver": drivers.description if drivers is not None else None,
        "command": list(recording.command),
        "stages": _stages(recording),
        "failure": _failure(recording),
        "firmware": sorted(recording.firmware),
        "entries": len(entries),
        "kinds": dict(kinds.most_common()),
        "shared_memory_bytes": sum(memory),
        "busiest": dict(used.most_common(BUSIEST)),
        "refused_resets": [
            entry.refusal
            for entry in recording.entries
            if isinstance(entry, Reset) and entry.refusal
        ],
    }


def _say_summary(report: Mapping[str, object], out: Output) -> None:
    kinds, busiest = report["kinds"], report["busiest"]
    assert isinstance(kinds, dict) and isinstance(busiest, dict)
    out.say(f"  {report['device']} ({report['driver'] or 'no ugpu driver'})")
    stages, command = report["stages"], report["command"]
    assert isinstance(stages, list) and isinstance(command, list)
    if command:
        out.say(f"  of {' '.join(command)}")
    if stages:
        out.say(f"  stages: {', '.join(stages)}")
    if report["failure"]:
        out.say(f"  {report['failure']}", "red")
    out.say(f"  {report['entries']} entries: " + ", ".join(f"{n} {k}" for k, n in kinds.items()))
    size = report["shared_memory_bytes"]
    assert isinstance(size, int)
    out.say(f"  {human_size(size)} of shared memory")
    for name, count in busiest.items():
        out.say(f"  {count:6d}  {name}")


def _kind(entry: Entry) -> str:
    if isinstance(entry, Access):
        what = "block " if entry.value is None else ""
        return f"{what}{'writes' if entry.is_write else 'reads'}"
    if isinstance(entry, LongWrite):
        return "block writes"
    if isinstance(entry, Content):
        return "changes of memory"
    return f"{type(entry).__name__.lower()}s"


def _check_recordable(device: str) -> None:
    """Raise UsageError for a device without a PCI transport: there is nothing to record."""
    virtual = {f"virtual:{chip}": vendor for chip, vendor in virtual_chips().items()}
    through_pci = [name for name, vendor in virtual.items() if vendor in ENDPOINTS]
    through_nodes = [name for name in virtual if name not in through_pci]
    if device in ("cpu", "auto"):
        why, instead = "there is no PCI device behind it", ""
    elif device in through_nodes or device.partition(":")[0] in NODE_DRIVERS:
        why = "it is driven through the calls of a kernel driver, not by registers"
        instead = f"; its calls: ugpu sniff device {device}"
    else:
        return
    names = ", ".join(("pci:ADDRESS", "vfio-user:PATH", *through_pci))
    raise UsageError(f"{device} cannot be recorded: {why}{instead}; expected one of {names}")


def _record_command(options: RecordOptions, path: Path) -> int:
    """Run the program. The recording names it, so that it can be replayed."""
    try:
        path.open("wb").close()
        path.unlink()
    except OSError as error:
        raise BadArgument(f"cannot write a recording to {path}: {error.strerror}") from None
    settings = {"UGPU_RECORD": str(path)}
    if options.device:
        settings["UGPU_DEVICE"] = options.device
    if options.states:
        settings["UGPU_RECORD_STATES"] = "1"
    code = _run(options.command, settings)
    if not path.exists():
        raise BadArgument(
            "the command did not open a device with a PCI transport; nothing was recorded",
            command=" ".join(options.command),
        )
    recording = load(path)
    recording.command = tuple(options.command)
    path.write_text(recording.save(), "ascii")
    return code


def _run(command: Sequence[str], settings: Mapping[str, str]) -> int:
    words = [f"{name}={value}" for name, value in settings.items()]
    return subprocess.run(["env", *words, *command], check=False).returncode
