"""Verbs of `ugpu`, and the registry of all verbs."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from ugpu.tools.base.console import Output

#: groups of `ugpu --help`, in its order, by the reader's purpose
GROUPS = ("run", "look", "debug", "hand over")
TITLES = {
    "run": "Run kernels",
    "look": "Look at devices",
    "debug": "Debug",
    "hand over": "Hand devices over",
}

Arguments = Callable[[argparse.ArgumentParser], object]
Run = Callable[[argparse.Namespace, Output], int]


@dataclass(frozen=True)
class Verb:
    """help: a line for `ugpu --help`. arguments: adds the verb's arguments to its parser. run: does
    the work and returns the exit code. usage, epilog: as argparse takes them. source_at: the number
    of words before the source that the verb reads, which `--from SOURCE` can name instead; None: it
    reads none."""

    name: str
    group: str
    help: str
    run: Run
    arguments: Arguments
    usage: str | None = None
    epilog: str | None = None
    source_at: int | None = None


REGISTERED: dict[str, Verb] = {}


def register(
    group: str,
    help: str,
    arguments: Arguments = lambda parser: None,
    *,
    name: str = "",
    usage: str | None = None,
    epilog: str | None = None,
    source_at: int | None = None,
) -> Callable[[Run], Run]:
    """Decorator: make a function a verb, by default of its own name."""
    assert group in GROUPS, group

    def registered(run: Run) -> Run:
        verb = Verb(name or run.__name__, group, help, run, arguments, usage, epilog,
                    source_at)  # fmt: skip
        assert verb.name not in REGISTERED, verb.name
        REGISTERED[verb.name] = verb
        return run

    return registered


def load() -> dict[str, Verb]:
    """Return every verb by name; imports the modules of this folder, which load nothing heavy."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
    return REGISTERED


def overview() -> str:
    """Return the list of verbs, a line each, by group."""
    lines = []
    for group in GROUPS:
        lines.append(f"{TITLES[group]}:")
        verbs = [verb for verb in REGISTERED.values() if verb.group == group]
        lines += [f"  {verb.name:<10}{verb.help}" for verb in verbs]
        lines.append("")
    return "\n".join(lines).rstrip()
