"""The table of rules: from the gradient of an operation's result to those of its sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ugpu.compiler.gradients.values import Values

# (gradient of the result, the result, the sources, the operation's arg) -> a gradient for each
# source, None where there is none. Gradients have the shapes of their values; types are converted.
Rule = Callable[[Values, Values, Sequence[Values], Any], Sequence[Values | None]]

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule for operations of the graph, or for methods with a rule of their own."""

    def enter(function: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = function
        return function

    return enter
