"""The verb `ci`: run a suite of commands, show which devices are free, and the history."""

from __future__ import annotations

import argparse
import os
import sqlite3
from pathlib import Path

from ugpu.hcq import outfile
from ugpu.hcq.errors import HostError, UsageError
from ugpu.tools.base.console import Output
from ugpu.tools.verbs.verb import register


def _ci(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    run = actions.add_parser("run", help="run a suite of commands on devices, with verdicts")
    run.add_argument("suite", type=Path, metavar="SUITE", help="TOML file: docs/testing.md")
    run.add_argument("--out", type=Path, metavar="DIR", help="folder for output and crash bundles")
    run.add_argument("--junit", type=Path, metavar="FILE", help="JUnit report")
    run.add_argument("--html", type=Path, metavar="FILE", help="page with the verdicts")
    run.add_argument("--history", type=Path, metavar="FILE", help="SQLite file of all verdicts")
    run.add_argument(
        "--variable", default="UGPU_DEVICE", metavar="NAME",
        help="environment variable with the name of a case's device; default: %(default)s",
    )  # fmt: skip
    run.add_argument(
        "--wait", type=float, default=600.0, metavar="S",
        help="time limit for a case to wait for devices; default: %(default)g",
    )  # fmt: skip
    run.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    devices = actions.add_parser("devices", help="show which devices are free")
    devices.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    for each in (run, devices):
        each.add_argument(
            "--devices", nargs="+", metavar="NAME", default=[],
            help="names as for ugpu.open; default: UGPU_TEST_DEVICES",
        )  # fmt: skip
    extend = actions.add_parser(
        "extend", help=("extend the time limit of the calling command of a suite")
    )
    extend.add_argument("seconds", type=float)
    history = actions.add_parser("history", help="name flaky tests and weak devices")
    history.add_argument("file", type=Path, help="file written by `pytest --gpu-history`")


@register("run", "hardware CI: run a suite of commands, show devices and history", _ci)
def ci(arguments: argparse.Namespace, out: Output) -> int:
    if arguments.action == "run":
        return _run(arguments, out)
    if arguments.action == "devices":
        return _devices(arguments, out)
    if arguments.action == "extend":
        from ugpu.tools.ci.command import extend

        extend(os.environ, arguments.seconds)
        return 0
    return _history(arguments.file, out)


def _names(arguments: argparse.Namespace) -> list[str]:
    names = arguments.devices or os.environ.get("UGPU_TEST_DEVICES", "").split()
    if not names:
        raise UsageError("no devices: pass --devices or set UGPU_TEST_DEVICES")
    return list(names)


def _run(arguments: argparse.Namespace, out: Output) -> int:
    import uuid

    from ugpu.tools.ci import suite
    from ugpu.tools.ci.bench import Bench, results_folder
    from ugpu.tools.ci.pool import Pool, lock_folder
    from ugpu.tools.ci.report import junit, page
    from ugpu.tools.ci.report.about import About
    from ugpu.tools.ci.report.history import History

    cases = suite.read(arguments.suite)
    names = _names(arguments)
    for report, kind in ((arguments.junit, junit.KIND), (arguments.html, page.KIND)):
        if report:
            outfile.check_file(report, kind)
    for fault in cases.faults:
        fault.check(names)
    pool = Pool(names, lock_folder(os.environ), uuid.uuid4().hex[:12])
    folder = results_folder(arguments.out)
    history = History(arguments.history) if arguments.history else None
    bench = Bench(
        pool, cases, folder, os.environ, arguments.variable, history, arguments.wait, out.say
    )
    results, about = [], About(cases.folder)
    try:
        for case in cases.cases:
            results.append(bench.run(case))
    finally:
        pool.end()
        if arguments.junit:
            junit.write(arguments.junit, arguments.suite.stem, results, about)
        if arguments.html:
            excluded = dict.fromkeys(text for one in results for text in one.excluded)
            page.write(arguments.html, [one.row for one in results], about, [*excluded])
    skipped = sum(one.skipped for one in results)
    passed = sum(one.passed for one in results) - skipped
    counts = f"{passed} of {len(results)} cases passed"
    if skipped:
        counts += f", {skipped} skipped"
    out.say(f"{counts}; output and bundles: {folder}")
    out.result([vars(one.row) for one in results])
    return 0 if all(one.passed for one in results) else 1


def _devices(arguments: argparse.Namespace, out: Output) -> int:
    from ugpu.tools.ci.pool import Pool, lock_folder

    found = Pool(_names(arguments), lock_folder(os.environ), "none").available()
    out.table(("device", "state", ""), [(one.name, one.state, one.detail) for one in found])
    out.result([vars(one) for one in found])
    return 0


def _history(path: Path, out: Output) -> int:
    from ugpu.tools.ci.report.history import History

    if not path.is_file():
        raise UsageError(
            f"no history at {path}; `pytest --gpu-history FILE` or `ugpu ci run --history FILE` "
            "writes one"
        )
    history = History(path)
    try:
        flaky, weak = history.flaky(), history.weak()
    except sqlite3.DatabaseError as error:
        raise HostError(f"{path}: not a history: {error}") from None
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
