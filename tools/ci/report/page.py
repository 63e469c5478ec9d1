"""The page about a run's tests on GPUs: one HTML file without scripts or other files."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ugpu.hcq import outfile
from ugpu.hcq.errors import HostError
from ugpu.tools.ci.report.about import About

_STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; }
body { margin: 1.5rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8886; }
td { overflow-wrap: anywhere; vertical-align: top; }
pre { overflow-x: auto; max-width: 40rem; }
.test, .device, .failed { font-weight: 600; } .test, .failed { color: #c33; }
.device { color: #c60; } .flaky { color: #960; } .passed { color: #283; }
"""
_KINDS = ("passed", "flaky", "device", "test", "skipped")
_MOST_OUTPUT = 20_000  # characters of a test's output in the page; the end counts


@dataclass(frozen=True)
class Row:
    """A test's last run. devices: names separated by spaces. verdict: a value of `Verdict`, or
    "skipped", "xfailed", "error". bundle: paths, one a line. log: the file with the output.
    output: the output itself, where there is no file."""

    test: str
    devices: str
    seconds: float
    verdict: str
    reason: str = ""
    bundle: str = ""
    log: str = ""
    output: str = ""


KIND = outfile.Kind("a page of verdicts", rb"<!doctype html>.*<title>Tests on GPUs</title>")


def check(path: Path) -> None:
    """Raise BadArgument for an existing file that is not such a page."""
    outfile.check_file(path, KIND)


def write(
    path: Path, tests: Iterable[Row], about: About | None = None, excluded: Sequence[str] = ()
) -> None:
    """Write the page. excluded: devices that are not used any more, with reasons. HostError if it
    cannot be written."""
    rows = sorted(tests, key=lambda row: (row.verdict == "passed", row.test))
    about = about if about is not None else About(Path.cwd())
    verdicts = {row.verdict for row in rows}
    kinds = [*_KINDS, *sorted(verdicts - {*_KINDS})]
    counts = ", ".join(f"{sum(row.verdict == kind for row in rows)} {kind}" for kind in kinds)
    facts = [
        f"{about.started:%Y-%m-%d %H:%M:%S} UTC", f"host {about.host}",
        f"commit {about.commit or 'unknown'}", f"{about.seconds:.1f} s",
    ]  # fmt: skip
    lines = [
        "<!doctype html>", '<html lang="en">', '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        "<title>Tests on GPUs</title>", f"<style>{_STYLE}</style>", "<h1>Tests on GPUs</h1>",
        f"<p>{html.escape(', '.join(facts))}</p>", f"<p>{html.escape(counts)}</p>",
    ]  # fmt: skip
    if excluded:
        listed = "".join(f"<li>{html.escape(text)}" for text in excluded)
        lines.append(f"<p>Devices excluded from the run:</p><ul>{listed}</ul>")
    lines.append(
        "<table><thead><tr><th>Test<th>Devices<th>Time<th>Verdict<th>Reason<th>Output<th>Bundle"
        "</thead>"
    )
    lines += [_row(row, path.parent) for row in rows]
    lines.append("</table>")
    outfile.check_file(path, KIND)
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from None


def _row(row: Row, folder: Path) -> str:
    cells = [row.test, row.devices, f"{row.seconds:.2f} s", row.verdict, row.reason]
    shown = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
    output = _link(row.log, folder) if row.log else ""
    if not output and row.output:
        text = html.escape(row.output[-_MOST_OUTPUT:])
        output = f"<details><summary>show</summary><pre>{text}</pre></details>"
    bundles = "<br>".join(_link(path, folder) for path in row.bundle.split("\n") if path)
    kind = html.escape(row.verdict, quote=True)
    return f'<tr class="{kind}">{shown}<td>{output}</td><td>{bundles}</td></tr>'


def _link(path: str, folder: Path) -> str:
    """Return a link to a file that holds if both are moved together."""
    target = quote(os.path.relpath(path, folder.resolve()))
    return f'<a href="./{target}">{html.escape(path)}</a>'
