"""How a failing program is made smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Program = TypeVar("Program")
Part = TypeVar("Part")


def least(
    failing: Program,
    shorter: Callable[[Program], Iterable[Program]],
    difference: Callable[[Program], str | None],
    refused: tuple[type[Exception], ...],
) -> Program:
    """Return a program that fails and of which no shorter form does.

    shorter: yields forms of a program that lack one part, the first to be tried first. difference:
    returns how a program fails, None if it does not. refused: what it raises for forms that are not
    programs.
    """

    def fails(tried: Program) -> bool:
        try:
            return difference(tried) is not None
        except refused:
            return False

    while (smaller := next(filter(fails, shorter(failing)), None)) is not None:
        failing = smaller
    return failing


def without(listed: tuple[Part, ...], place: int) -> tuple[Part, ...]:
    """Return a tuple without one entry."""
    return (*listed[:place], *listed[place + 1 :])
