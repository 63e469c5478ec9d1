"""`ugpu smi`: the sensor readings of every GPU, as one table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from ugpu import hcq
from ugpu.hcq.device import observe
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.config import config
from ugpu.tools.base.console import Output
from ugpu.tools.base.progress import shown
from ugpu.tools.base.readings import Reading, read_sensors
from ugpu.tools.inspect.devices import listed

#: prefixes of names that are not GPUs of this machine
NOT_GPUS = ("cpu", "virtual:")
#: column -> prefixes of the sensors' names that belong there; the others come last
COLUMNS = (
    ("temperature", ("temperature",)),
    ("power", ("power",)),
    ("clocks", ("clock",)),
    ("memory", ("memory",)),
    ("load", ("usage", "utilisation")),
    ("fans", ("fan",)),
)


def gpus() -> list[str]:
    """Return the names of this machine's own GPUs."""
    return [entry.name for entry in listed() if not entry.name.startswith(NOT_GPUS)]


def _cell(readings: Iterable[Reading], beginnings: Sequence[str]) -> str:
    return ", ".join(
        f"{_which(reading, beginnings)} {reading}".strip()
        for reading in readings
        if reading.name.startswith(tuple(beginnings)) and reading.unit != "flag"
    )


def _which(reading: Reading, beginnings: Sequence[str]) -> str:
    """Return the reading's words without those in the column's heading."""
    return next(
        reading.words.removeprefix(beginning).strip()
        for beginning in beginnings
        if reading.name.startswith(beginning)
    )


def _row(name: str, readings: Sequence[Reading]) -> list[str]:
    shown = tuple(beginning for _, beginnings in COLUMNS for beginning in beginnings)
    rest = [f"{r.words} {r}" for r in readings if not r.name.startswith(shown)]
    rest += [r.words for r in readings if r.unit == "flag" and r.value]
    cells = [_cell(readings, beginnings) for _, beginnings in COLUMNS]
    return [name, *cells, ", ".join(rest)]


def run(names: Sequence[str], out: Output) -> int:
    """Read the sensors of the named devices, or else of every GPU; return 1 if one could not be
    opened. A device that a process of this user has open is read through that process."""
    rows: list[list[str]] = []
    results: list[dict[str, object]] = []
    failed = False
    for name in names or gpus():
        owner = None if name.startswith(NOT_GPUS) else observe.find(name, config().observe_folder)
        if owner is not None:  # never mapped a second time
            samples = [Reading(s.name, s.label, s.unit, s.value) for s in owner.samples]
            rows.append(_row(name, samples))
            process = {"pid": owner.pid, "command": owner.command}
            sensors = [asdict(reading) for reading in samples]
            results.append({"device": name, "owner": process, "sensors": sensors})
            continue
        try:
            with shown(out, f"smi {name}"), hcq.open(name) as device:
                readings = read_sensors(device)
        except UgpuError as error:
            failed = True
            rows.append([name, f"{type(error).__name__}: {error}"])
            results.append({"device": name, "error": type(error).__name__, "message": str(error)})
            continue
        rows.append(_row(name, readings))
        results.append({"device": name, "sensors": [asdict(reading) for reading in readings]})
    if not rows:
        out.say("no GPU of this machine can be opened; `ugpu doctor` shows what is missing")
    headings = ("device", *(title for title, _ in COLUMNS), "more")
    width = len(headings)
    out.table(headings, [row + [""] * (width - len(row)) for row in rows])
    out.result(results)
    return 1 if failed else 0
