"""The verbs of `ugpu sniff`: record a program, show a recording, compare two."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ugpu.hcq import outfile
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, ChipError, NotSupported, UsageError
from ugpu.hcq.transport.node import NodeAttachment
from ugpu.nv import abi
from ugpu.tools.base.console import Output
from ugpu.tools.debug.sniff import launches, node, preload
from ugpu.tools.debug.sniff.compare import differences, steps
from ugpu.tools.debug.sniff.decode import Decoded, Decoder, lines
from ugpu.tools.debug.sniff.driver import rules_of
from ugpu.tools.debug.sniff.flags import Flags
from ugpu.tools.debug.sniff.kgsl import calls, dispatches, rd
from ugpu.tools.debug.sniff.kgsl.streams import Streams
from ugpu.tools.debug.sniff.memory import Image, Launch
from ugpu.tools.debug.sniff.recording import KIND, Recording, header, read

BACKENDS = ("auto", "preload", "ptrace")
_VERSION = re.compile(r"Kernel Module(?: for [\w ]+)?\s+(\d+(?:\.\d+)+)")


@dataclass(frozen=True)
class SniffOptions:
    """Options of a recording. prefix: the start of the paths to watch; empty: the driver's nodes.
    driver: NVIDIA's version, or "kgsl"; empty: that of the running driver.

    memory: the number of doorbells at which to search mapped memory for changes; only for the
    preload library.
    """

    output: Path
    cache: Path
    backend: str = "auto"
    prefix: str = ""
    memory: int = 0
    driver: str = ""
    proc: Path = Path("/proc")
    nodes: Path = Path("/dev")


def running_driver(proc: Path, nodes: Path = Path("/dev")) -> str:
    """Return the version of the running NVIDIA driver, "kgsl" if that is the driver, or an empty
    text. proc: the folder of /proc; nodes: that of /dev."""
    path = proc / "driver" / "nvidia" / "version"
    try:
        return version_in(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        has_kgsl = any(nodes.glob(f"{Path(calls.PREFIX).name}*"))
        return calls.DRIVER if has_kgsl else ""


def version_in(text: str) -> str:
    """Return the version in the text of /proc/driver/nvidia/version, or an empty text."""
    match = _VERSION.search(text)
    return match[1] if match else ""


def run(command: Sequence[str], options: SniffOptions, out: Output) -> int:
    """Record a run of a program; return the program's exit code, 1 if that is 0 and the program
    made no call. An existing recording is replaced."""
    if not command:
        raise UsageError("expected a program to record: ugpu sniff -- CMD")
    if options.backend not in BACKENDS:
        raise UsageError(f"backend must be one of {', '.join(BACKENDS)}", given=options.backend)
    driver = options.driver or running_driver(options.proc, options.nodes)
    if not driver:
        raise UsageError(
            "no NVIDIA driver is running, and no KGSL; name the driver: --driver 580.142, "
            "or --driver kgsl"
        )
    backend = options.backend
    if options.memory and backend == "ptrace":
        raise UsageError("memory can be recorded with the preload backend only")
    if backend == "auto":
        backend = "preload" if preload.compiler() else "ptrace"
    rules, start = rules_of(driver)
    table = None if calls.is_kgsl(driver) else abi.select(driver)
    if table is not None and not table.exact:
        out.say(f"driver {driver} is not known; decoded as branch {table.branch}", style="yellow")
    prefix = options.prefix or start
    outfile.check_file(options.output, KIND)
    try:
        options.output.write_text(header(driver, backend, prefix, command), encoding="utf-8")
    except OSError as error:
        raise BadArgument(f"{options.output}: {error.strerror}") from None
    if backend == "preload":
        code = preload.record(command, options.output, prefix, rules, options.cache, options.memory)
    else:
        code = _traced(command, options, prefix, driver)
    recording = read(options.output)
    out.say(
        f"{len(recording.calls)} calls recorded by {backend} in {options.output}; exit code {code}"
    )
    out.result({"calls": len(recording.calls), "backend": backend, "driver": driver, "exit": code})
    if not recording.calls:
        out.say(f"the program opened no file whose path begins with {prefix}", "yellow")
    return code or int(not recording.calls)


def _traced(command: Sequence[str], options: SniffOptions, prefix: str, driver: str) -> int:
    own = [sys.executable, "-m", f"{__package__}.tracer", "--log", str(options.output)]
    own += ["--prefix", prefix, "--driver", driver, "--", *command]
    return subprocess.run(own, check=False).returncode


def run_device(name: str, options: SniffOptions, out: Output) -> int:
    """Record the requests of ugpu's own driver when it opens a device, runs a kernel, copies and
    replays."""
    attachment = node.attach(name)
    driver = options.driver or _driver_of(attachment)
    if not driver:
        raise UsageError(
            "the driver does not report its version; pass it, such as --driver 580.142"
        )
    node.record_device(attachment, name, options.output, driver, exercise, options.memory)
    recording = read(options.output)
    out.say(f"{len(recording.calls)} calls recorded in {options.output}")
    out.result({"calls": len(recording.calls), "backend": "node", "driver": driver})
    return int(not recording.calls)


def _driver_of(attachment: NodeAttachment) -> str:
    if attachment.driver == calls.DRIVER:
        return calls.DRIVER
    if attachment.driver != "nvrm":
        raise NotSupported(f"calls of {attachment.driver} cannot be recorded")
    return version_in(attachment.node.read_text("/proc/driver/nvidia/version"))


def exercise(device: Device) -> None:
    """Launch a kernel, copy both ways, and replay a graph."""
    # Loads the compiler, which the other verbs do not need.
    from ugpu.compiler import Tensor, jit

    numbers = np.arange(1024, dtype=np.float32)
    operand = Tensor(numbers, device=device)
    result = (operand + 1).numpy()
    if not np.array_equal(result, numbers + 1):
        raise ChipError("the recorded kernel returned a wrong result")

    @jit
    def work(x: Tensor) -> Tensor:
        return ((x + 1).realize() * 2).realize()

    for _ in range(4):
        work(operand)
    device.synchronize()


def _decoded(path: Path) -> tuple[Recording, list[Decoded]]:
    recording = read(path)
    if calls.is_kgsl(recording.driver):
        return recording, calls.Decoder().all(recording)
    return recording, Decoder(abi.select(recording.driver)).all(recording)


def _flags(recording: Recording) -> Flags:
    if calls.is_kgsl(recording.driver):
        return calls.flags()
    return Flags(abi.select(recording.driver).constants)


def show(path: Path, out: Output) -> int:
    """Print a decoded recording."""
    recording, decoded = _decoded(path)
    out.say(f"{' '.join(recording.command)} (driver {recording.driver}, {recording.backend})")
    start = recording.calls[0].time if recording.calls else 0.0
    flags = _flags(recording)
    if calls.is_kgsl(recording.driver):
        _show_kgsl(decoded, start, flags, out)
    else:
        _show_nvidia(decoded, start, flags, out)
    out.result(
        {
            "driver": recording.driver,
            "calls": [
                {"title": call.title, "status": call.status, "errno": call.call.errno}
                for call in decoded
            ],
        }
    )
    return 0


def _show_kgsl(decoded: list[Decoded], start: float, flags: Flags, out: Output) -> None:
    seen = Streams()
    for call in decoded:
        if call.call.kind not in ("memory", "doorbell"):  # reported with the submission
            for line in lines(call, start, flags):
                out.say(line)
        for line in seen.take(call):
            out.say(f"           {line}")


def _show_nvidia(decoded: list[Decoded], start: float, flags: Flags, out: Output) -> None:
    seen = Image(decoded)
    for call in decoded:
        for line in seen.take(call.call):
            out.say(f"           {line}")
        if call.call.kind == "memory":
            continue  # reported after its doorbell
        for line in lines(call, start, flags):
            out.say(line)
    for line in seen.end():
        out.say(f"           {line}")


def streams_of(recording: Recording) -> Streams:
    """Return the command streams of a KGSL recording. BadArgument for another recording."""
    if not calls.is_kgsl(recording.driver):
        raise BadArgument(f"driver must be {calls.DRIVER}, got {recording.driver!r}")
    seen = Streams()
    for call in calls.Decoder().all(recording):
        for _ in seen.take(call):
            pass
    return seen


def export(path: Path, target: Path, out: Output) -> int:
    """Write the submissions of a KGSL recording for freedreno's tools, as an .rd file."""
    count = rd.write(streams_of(read(path)), target)
    out.say(f"{count} submissions written to {target}")
    out.result({"submissions": count})
    return 0


def _launches(recording: Recording, decoded: list[Decoded]) -> list[Launch]:
    seen = Image(decoded)
    for call in recording.calls:
        list(seen.take(call))
    list(seen.end())
    return seen.launches


def compare(left: Path, right: Path, out: Output) -> int:
    """Print where two recordings differ, and their last launches if memory was recorded. Return 1
    if they differ."""
    (left_one, ours), (other, theirs) = _decoded(left), _decoded(right)
    if calls.is_kgsl(left_one.driver) != calls.is_kgsl(other.driver):
        raise BadArgument(f"recordings of two kernel drivers: {left_one.driver} and {other.driver}")
    texts = list(differences(steps(ours), steps(theirs)))
    if calls.is_kgsl(left_one.driver):
        first, second = streams_of(left_one), streams_of(other)
        launched = list(dispatches.differences(first.dispatches, second.dispatches, first.packets))
    else:
        launched = list(launches.differences(_launches(left_one, ours), _launches(other, theirs)))
    for line in [*texts, *launched]:
        out.say(line)
    texts += [line for line in launched if line.lstrip().startswith("~")]
    if not texts:
        out.say("no difference but handles, files and addresses")
    out.result({"differences": texts})
    return 1 if texts else 0
