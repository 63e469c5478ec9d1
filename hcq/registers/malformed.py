"""One error for all table lines that violate their table's format."""

from __future__ import annotations

from types import TracebackType

from ugpu.hcq.errors import BadArgument, UgpuError

_DAMAGE = (ValueError, IndexError, KeyError, TypeError, RecursionError)


class Line:
    """`with Line(table, name):` around the parsing of a line; BadArgument names both if the line is
    damaged. A name that the line refers to but the table lacks counts as damage."""

    __slots__ = ("entry", "table")

    def __init__(self, table: str, entry: str) -> None:
        self.table = table
        self.entry = entry

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, _DAMAGE) and not isinstance(error, UgpuError):
            raise BadArgument(
                f"{self.table}: malformed line for {self.entry}: {type(error).__name__}: {error}"
            ) from error
