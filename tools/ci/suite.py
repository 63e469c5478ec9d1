"""A suite of commands for `ugpu ci run`: a TOML file.

    limit_s = 600                  # of a run of each case; a case may set its own
    before = ["./power", "on"]     # runs before each lease
    after = ["./power", "off"]     # runs after each lease, whatever the result of the case
    hook_limit_s = 60

    [[case]]
    name = "copy"
    command = ["./bench", "--copies"]
    arch = "gfx11*"                # and bus, count, memory, reset: as for @pytest.mark.gpu

    [[fault]]
    device = "virtual:<chip>"
    fault = "mec_crashed"          # planted while a case has the device (hcq.find.planting)
    case = "copy"                  # a pattern; without one, all cases

Commands are lists of words and are not run by a shell.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ugpu.hcq.errors import BadArgument, UsageError
from ugpu.tools.ci.demand import Demand
from ugpu.tools.ci.plants import Plant

LIMIT_S = 600.0
HOOK_LIMIT_S = 60.0
_SUITE = ("limit_s", "before", "after", "hook_limit_s", "case", "fault")
_FAULT = ("device", "fault", "case")
_CASE = ("name", "command", "limit_s", *Demand.__dataclass_fields__)


@dataclass(frozen=True)
class Case:
    """A command that tests devices. limit_s: of one run."""

    name: str
    command: tuple[str, ...]
    demand: Demand = field(default_factory=Demand)
    limit_s: float = LIMIT_S


@dataclass(frozen=True)
class Suite:
    """Cases in order. before, after: hooks of a lease; empty: none. folder: the commands' working
    directory. faults: planted while cases have devices."""

    cases: tuple[Case, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    hook_limit_s: float = HOOK_LIMIT_S
    folder: Path = Path(".")
    faults: tuple[Plant, ...] = ()


def read(path: Path) -> Suite:
    """Read a suite's file; UsageError names the fault in it."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    try:
        return _suite(table, path.resolve().parent)
    except BadArgument as error:
        raise UsageError(f"{path}: {error.message}") from None


def _suite(table: Mapping[str, object], folder: Path) -> Suite:
    _known(table, _SUITE, "the suite")
    limit_s = _seconds(table, "limit_s", LIMIT_S)
    listed = table.get("case")
    if not isinstance(listed, list) or not listed:
        raise BadArgument("expected at least one [[case]]")
    cases = tuple(_case(row, limit_s) for row in listed)
    names = [row.name for row in cases]
    for name in names:
        if names.count(name) > 1:
            raise BadArgument(f"names of cases must differ, got two cases named {name!r}")
    return Suite(
        cases,
        _words(table, "before"),
        _words(table, "after"),
        _seconds(table, "hook_limit_s", HOOK_LIMIT_S),
        folder,
        _faults(table),
    )


def _faults(table: Mapping[str, object]) -> tuple[Plant, ...]:
    listed = table.get("fault", [])
    if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
        raise BadArgument("fault must be a list of tables: [[fault]]")
    plants = []
    for row in listed:
        _known(row, _FAULT, "a fault")
        words = {key: row.get(key, "*" if key == "case" else "") for key in _FAULT}
        if not all(isinstance(word, str) and word for word in words.values()):
            raise BadArgument(f"a fault needs device and fault, as strings, got {row!r}")
        plants.append(Plant(words["device"], words["fault"], words["case"]))
    return tuple(plants)


def _case(table: object, limit_s: float) -> Case:
    if not isinstance(table, dict):
        raise BadArgument(f"case must be a table, got {table!r}")
    name = table.get("name")
    if not isinstance(name, str) or not name:
        raise BadArgument(f"name of a case must be a string, got {name!r}")
    try:
        _known(table, _CASE, "a case")
        command = _words(table, "command")
        if not command:
            raise BadArgument("command is missing")
        demand = Demand.from_words(
            **{key: value for key, value in table.items() if key in Demand.__dataclass_fields__}
        )
        return Case(name, command, demand, _seconds(table, "limit_s", limit_s))
    except BadArgument as error:
        raise BadArgument(f"case {name!r}: {error.message}") from None


def _known(table: Mapping[str, object], keys: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in keys:
            raise BadArgument(f"{where} has no key {key!r}; it takes {', '.join(keys)}")


def _words(table: Mapping[str, object], key: str) -> tuple[str, ...]:
    words = table.get(key, [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise BadArgument(f"{key} must be a list of strings, got {words!r}")
    return tuple(words)


def _seconds(table: Mapping[str, object], key: str, default: float) -> float:
    seconds = table.get(key, default)
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not 0 < seconds < math.inf:  # type: ignore[operator]
        raise BadArgument(f"{key} must be a positive number of seconds, got {seconds!r}")
    return float(seconds)  # type: ignore[arg-type]
