"""Facts per Adreno GPU, one folder each."""

from __future__ import annotations

import importlib
import pkgutil

from qcom.chips.facts import ChipFacts


def names() -> tuple[str, ...]:
    """The chips we know, in order."""
    return tuple(sorted(entry.name for entry in pkgutil.iter_modules(__path__) if entry.ispkg))


def facts(name: str) -> ChipFacts:
    """The facts of a chip. KeyError lists those we know."""
    if name not in names():
        raise KeyError(f"expected one of {', '.join(names())}, got {name!r}")
    found: ChipFacts = importlib.import_module(f"{__name__}.{name}.facts").FACTS
    return found
