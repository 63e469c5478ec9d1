"""One error for all table lines that violate their table's format.

    try:
        ...  # parse a line, or a loop over all lines
    except DAMAGE as error:
        refuse(table, entry, error)

A line that is well formed costs no call: tables have ten thousand lines.
"""

from __future__ import annotations

from typing import NoReturn

from ugpu.hcq.errors import BadArgument, UgpuError

DAMAGE = (ValueError, IndexError, KeyError, TypeError, RecursionError)


def refuse(table: str, entry: str, error: Exception) -> NoReturn:
    """Raise BadArgument that names the table and the line's entry. A name that the line refers to
    but the table lacks counts as damage; an error of the UgpuError tree is raised as it is."""
    if isinstance(error, UgpuError):
        raise error
    raise BadArgument(
        f"{table}: malformed line for {entry}: {type(error).__name__}: {error}"
    ) from error


def lines_of(text: str) -> list[str]:
    """Return the lines of a table without its comments."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def rows_of(text: str) -> dict[str, str]:
    """Return the lines of a table by their first word."""
    return {line.partition(" ")[0]: line for line in lines_of(text)}
