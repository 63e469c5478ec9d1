"""The page about a run's tests on GPUs: one HTML file without scripts or other files."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hcq.errors import HostError

_STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; }
body { margin: 1.5rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #8886; }
td { overflow-wrap: anywhere; }
.test, .device { font-weight: 600; } .test { color: #c33; } .device { color: #c60; }
.flaky { color: #960; } .passed { color: #283; }
"""


@dataclass(frozen=True)
class Row:
    """A test's last run. devices: names separated by spaces. verdict: a value of `Verdict`, or
    "skipped"."""

    test: str
    devices: str
    seconds: float
    verdict: str
    reason: str = ""
    bundle: str = ""


def write(path: Path, tests: Iterable[Row]) -> None:
    """Write the page. HostError if it cannot be written."""
    rows = [
        (one.verdict, (one.test, one.devices, f"{one.seconds:.2f} s", one.verdict, one.reason,
                       one.bundle))
        for one in tests
    ]  # fmt: skip
    counts = {kind: sum(verdict == kind for verdict, _ in rows)
              for kind in ("passed", "flaky", "device", "test")}  # fmt: skip
    lines = [
        "<!doctype html>", '<html lang="en">', '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        "<title>Tests on GPUs</title>", f"<style>{_STYLE}</style>", "<h1>Tests on GPUs</h1>",
        f"<p>{', '.join(f'{count} {kind}' for kind, count in counts.items())}</p>",
        "<table><thead><tr><th>Test<th>Devices<th>Time<th>Verdict<th>Reason<th>Bundle</thead>",
    ]  # fmt: skip
    for verdict, cells in sorted(rows, key=lambda row: (row[0] == "passed", row[1])):
        shown = "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells)
        lines.append(f'<tr class="{html.escape(verdict)}">{shown}</tr>')
    lines.append("</table>")
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise HostError(f"cannot write {path}: {error.strerror}") from None
