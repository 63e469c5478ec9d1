"""`ugpu record`: keep all that a driver does to a device, look into it, compare two of them.

ugpu record pci:0000:03:00.0 boot.txt                      the boot, and closing again
ugpu record virtual:navi31 work.txt -- python work.py      whatever device the program opens
ugpu record replay boot.txt                                the driver again, without the device
ugpu record show boot.txt                                  what is in it
ugpu record compare good.txt bad.txt                       the first difference
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import hcq
from hcq.errors import BadArgument, DeviceNotFound, UsageError
from hcq.registry import PCI_DRIVERS
from hcq.transport.recording import (
    Allocation,
    Content,
    Entry,
    LongWrite,
    Recording,
    Reset,
)
from hcq.transport.replay import ReplayTransport
from hcq.transport.trace import Access
from tools.console import Output, human_size
from tools.recorded import Steps, first_difference, names_of
from tools.serve import write_firmware

BUSIEST = 8  # registers in a summary


@dataclass(frozen=True)
class RecordOptions:
    """device: a name of `ugpu ls`. command: a program to run; none opens and closes the device."""

    device: str
    path: Path
    command: Sequence[str] = ()


def run(options: RecordOptions, out: Output) -> int:
    """Record, and show the summary; the command's exit code. Refused before anything is opened
    where the file cannot be written."""
    path = options.path.absolute()
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}")
    firmware = _images(options.device, path)
    start = time.perf_counter()
    code = 0
    if options.command:
        path.unlink(missing_ok=True)
        code = _run_command(options, path)
        if not path.exists():
            raise BadArgument(
                "the command opened no device behind a PCI transport: nothing was recorded",
                command=" ".join(options.command),
            )
    else:
        extra: dict[str, object] = {} if firmware is None else {"firmware": firmware}
        with hcq.open(options.device, record=path, **extra) as device:
            out.say(f"{device.name} was opened ({device.info().get('start', 'start')})")
    recording = load(path)
    seconds = time.perf_counter() - start
    out.say(f"recorded in {seconds:.1f} s into {path} ({human_size(path.stat().st_size)})", "bold")
    report = summary(recording)
    _say_summary(report, out)
    out.say()
    if options.command:
        settings = f"UGPU_DEVICE=recording:{path}"
        if firmware is not None:
            settings += f" UGPU_FIRMWARE={firmware}"
        out.say(f"replay it:   {settings} {' '.join(options.command)}")
    else:
        out.say(f"replay it:   ugpu record replay {path}")
    out.say(f"compare it:  ugpu record compare {path} OTHER")
    out.result({"path": str(path), "seconds": round(seconds, 3), "exit": code, **report})
    return code


def replay(path: Path, out: Output) -> int:
    """Open the recorded device and close it again, without the device; TransportError where the
    driver strays from the recording."""
    recording = load(path)
    images = _images_folder(path)
    extra: dict[str, object] = {"firmware": images} if images.is_dir() else {}
    with hcq.open(f"recording:{path}", **extra) as device:
        transport = getattr(device, "transport", None)
    assert isinstance(transport, ReplayTransport)
    transport.finish()
    out.say(f"replayed: all {len(recording.entries)} entries, as recorded")
    out.result({"entries": len(recording.entries)})
    return 0


def show(path: Path, out: Output, *, everything: bool = False) -> int:
    """The summary, or each entry with the register's name."""
    recording = load(path)
    if everything:
        for line in Steps(recording).lines():
            out.say(line)
    else:
        _say_summary(summary(recording), out)
    out.result(summary(recording))
    return 0


def compare(left: Path, right: Path, out: Output) -> int:
    """Say where two recordings first differ; 1 if they do."""
    found = first_difference(Steps(load(left)), Steps(load(right)))
    if found is None:
        out.say("no difference: the same was done, and the device answered the same")
        out.result({"same": True})
        return 0
    out.say(f"the first {found.same} steps are the same; then {found.what}:", "bold")
    for line in found.before:
        out.say(f"      {line}")
    out.say(f"  <   {found.left}    ({left.name})", "red")
    out.say(f"  >   {found.right}    ({right.name})", "green")
    for line in found.fields:
        out.say(f"      {line}")
    out.result(
        {"same": False, "steps": found.same, "what": found.what, "before": found.before,
         "left": found.left, "right": found.right, "fields": found.fields}
    )  # fmt: skip
    return 1


def load(path: Path) -> Recording:
    """Read a recording; DeviceNotFound for no file, BadArgument for one that is something else."""
    try:
        return Recording.load(path.read_text("ascii"))
    except OSError as error:
        raise DeviceNotFound(f"{path} does not open: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadArgument(f"{path} is no recording") from error


def summary(recording: Recording) -> dict[str, object]:
    """What is in it, as numbers."""
    names = names_of(recording)
    kinds = Counter(_kind(entry) for entry in recording.entries)
    used = Counter(
        names(entry.window, entry.offset)
        for entry in recording.entries
        if isinstance(entry, Access) and entry.value is not None
    )
    drivers = PCI_DRIVERS.get((recording.identity.vendor, recording.identity.device))
    memory = [entry.size for entry in recording.entries if isinstance(entry, Allocation)]
    return {
        "device": str(recording.identity),
        "driver": drivers.description if drivers is not None else None,
        "entries": len(recording.entries),
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
    out.say(f"  {report['device']} ({report['driver'] or 'no driver of ours'})")
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


def _images(device: str, path: Path) -> Path | None:
    """A virtual chip's images, beside its recording: a replay has no chip to get them from."""
    if not device.startswith("virtual:"):
        return None
    write_firmware(_images_folder(path))
    return _images_folder(path)


def _images_folder(path: Path) -> Path:
    return path.with_name(path.name + ".firmware")


def _run_command(options: RecordOptions, path: Path) -> int:
    settings = [f"UGPU_DEVICE={options.device}", f"UGPU_RECORD={path}"]
    return subprocess.run(["env", *settings, *options.command], check=False).returncode
