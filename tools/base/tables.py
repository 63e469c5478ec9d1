"""Tables for people: aligned where they fit the screen, a block a row where they do not."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PROSE = 30  # columns that the last column, whose text may be wrapped, must have
_INDENT = 4
_GAP = "  "
#: styles of cells that are one of these words, where the terminal has colours
STYLES = {
    **dict.fromkeys(("ok", "ready", "free", "passed", "PASS", "yes"), "green"),
    **dict.fromkeys(("failed", "quarantined", "missing", "FAIL"), "bold red"),
    **dict.fromkeys(("no answer", "leased", "busy", "flaky", "warning"), "yellow"),
    **dict.fromkeys(("not open", "no", "-"), "dim"),
}


def show(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. In a pipe its lines end with their last character."""
    table = _table(columns, rows)
    if not console.is_terminal:
        with console.capture() as captured:
            console.print(table)
        for text in captured.get().splitlines():
            console.out(text.rstrip(), highlight=False)
        return
    if _width(console, table) <= console.width or _fits(console, columns, rows):
        console.print(table)
        return
    for row in rows:
        for line in _block(columns, row, console.width):
            console.print(line, no_wrap=True, overflow="fold")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns, 1):
        table.add_column(column, no_wrap=number < len(columns))
    for row in rows:
        table.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    return table


def _width(console: Console, table: Table) -> int:
    return Measurement.get(console, console.options.update(width=1 << 16), table).maximum


def _fits(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether all columns but the last fit, and leave enough for its text."""
    others = _table(columns[:-1], [row[:-1] for row in rows])
    return _width(console, others) + len(_GAP) + PROSE <= console.width


def _block(columns: Sequence[str], row: Sequence[str], width: int) -> Iterator[Text]:
    """Yield a row's lines: its first cell, then each further cell behind its column's name."""
    line, used = Text().append(row[0], "bold"), cell_len(row[0])
    for column, cell in zip(columns[1:], row[1:], strict=False):
        words = " ".join(cell.split())
        if not words:
            continue
        name = f"{column} " if column else ""
        if used + len(_GAP) + cell_len(name + words) > width:
            yield line
            line, used = Text(" " * _INDENT), _INDENT
            first, *more = textwrap.wrap(name + words, width - _INDENT, break_on_hyphens=False)
        else:
            line.append(_GAP if used > _INDENT else "")
            first, more = name + words, []
        line.append(name, "dim").append(first.removeprefix(name), STYLES.get(words, ""))
        used = cell_len(line.plain)
        for text in more:
            yield line
            line, used = Text(" " * _INDENT + text), _INDENT + cell_len(text)
    yield line
