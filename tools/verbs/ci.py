"""The verb `ci`: what the history of tests on GPUs shows."""

from __future__ import annotations

import argparse
import sqlite3
from pathlib import Path

from hcq.errors import HostError, UsageError

from ..ci.history import History
from ..console import Output
from .verb import register


def _ci(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    history = actions.add_parser("history", help="name flaky tests and weak devices")
    history.add_argument("file", type=Path, help="what `pytest --gpu-history` has written")


@register("run", "hardware CI: what its history shows", _ci)
def ci(arguments: argparse.Namespace, out: Output) -> int:
    if not arguments.file.is_file():
        raise UsageError(f"no history at {arguments.file}; `pytest --gpu-history FILE` writes one")
    history = History(arguments.file)
    try:
        flaky, weak = history.flaky(), history.weak()
    except sqlite3.DatabaseError as error:
        raise HostError(f"{arguments.file}: not a history: {error}") from None
    if out.as_json:
        out.console.print_json(
            data={"flaky": [vars(one) for one in flaky], "weak": [vars(one) for one in weak]}
        )
        return 0
    for title, lines, word in (("flaky tests", flaky, "flaky"), ("weak devices", weak, "sick")):
        out.console.print(f"{title}: {len(lines) or 'none'}", highlight=False)
        for line in lines:
            out.console.print(f"  {line.bad} of {line.runs} runs {word}  {line.name}",
                              highlight=False, markup=False)  # fmt: skip
    return 0
