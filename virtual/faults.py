"""Faults that tests plant in a model, by kind, and those that have occurred."""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

from ugpu.hcq.errors import BadArgument

K = TypeVar("K")
E = TypeVar("E", bound=enum.Enum)


class Titled(enum.Enum):
    """A kind of fault. title: its name in documents. effect: its description."""

    def __init__(self, title: str, effect: str) -> None:
        self.title = title
        self.effect = effect


def named(kinds: type[E], name: E | str) -> E:
    """Return a kind of fault by its name in lower or upper case, or its title. BadArgument for
    another name."""
    for kind in kinds:
        names = [kind.name, kind.name.lower(), *([kind.title] if isinstance(kind, Titled) else [])]
        if name is kind or name in names:
            return kind
    known = ", ".join(kind.name for kind in kinds)
    raise BadArgument(f"fault must be one of {known}, got {name!r}")


class Plan(Generic[K]):
    """Planted faults, for one GPU or any (None). The caller holds the machine's lock.

    struck: those that have occurred, in their order.
    """

    def __init__(self) -> None:
        self._planted: dict[tuple[K, int | None], int] = {}
        self.struck: list[K] = []

    def plant(self, kind: K, count: int = 1, *, gpu: int | None = None) -> None:
        """Plan a fault. Raises BadArgument unless `count` is positive."""
        if count < 1:
            raise BadArgument("count must be at least 1", count=count)
        self._planted[kind, gpu] = self._planted.get((kind, gpu), 0) + count

    def take(self, kind: K, gpu: int | None = None) -> bool:
        """Return whether a fault occurs now, and remove it from the plan if so."""
        if not self._planted:
            return False
        for key in ((kind, gpu), (kind, None)):
            left = self._planted.get(key, 0)
            if left:
                self._planted[key] = left - 1
                if left == 1:
                    del self._planted[key]
                self.struck.append(kind)
                return True
        return False

    def take_any(self, kinds: tuple[K, ...], gpu: int | None = None) -> K | None:
        """Return the first of `kinds` that occurs now, or None."""
        if not self._planted:
            return None
        return next((kind for kind in kinds if self.take(kind, gpu)), None)

    def holds(self, kind: K) -> bool:
        """Return whether a fault that lasts is planted."""
        return (kind, None) in self._planted

    @property
    def pending(self) -> list[K]:
        """Return the faults that have not occurred yet."""
        return [kind for kind, _ in self._planted]

    def clear(self) -> None:
        """Remove all planted faults."""
        self._planted.clear()
