"""Functions that run once for each object, as recognisers that several passes ask."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Owner = TypeVar("Owner", bound="Answers")
Answer = TypeVar("Answer")


class Answers:
    """Base of immutable classes: keeps the answers of functions made by `once`."""

    @cached_property
    def answers(self) -> dict[Hashable, Any]:  # of the function's type
        return {}


def once(
    function: Callable[Concatenate[Owner, Arguments], Answer],
) -> Callable[Concatenate[Owner, Arguments], Answer]:
    """Let a function run once for each object and other arguments; the object keeps the answer."""

    @wraps(function)
    def answer(owner: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        key = (function, args, *kwargs.items())
        if key not in owner.answers:
            owner.answers[key] = function(owner, *args, **kwargs)
        kept: Answer = owner.answers[key]
        return kept

    return answer
