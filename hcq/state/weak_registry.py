"""Weakly referenced objects that threads add, remove and list at the same time."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakRegistry(Generic[T]):
    """A set of objects, by identity, that does not keep them alive. Thread-safe without a lock,
    also in finalizers; iterating yields the objects of one moment. A WeakSet raises RuntimeError
    where another thread adds to it during an iteration."""

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}

    def add(self, thing: T) -> None:
        """Add an object, if it is not there."""
        key, references = id(thing), self._references

        def died(reference: weakref.ref[T]) -> None:
            if references.get(key) is reference:
                references.pop(key, None)

        references[key] = weakref.ref(thing, died)

    def discard(self, thing: T) -> None:
        """Remove an object, if it is there."""
        self._references.pop(id(thing), None)

    def clear(self) -> None:
        """Remove all objects."""
        self._references.clear()

    def __contains__(self, thing: T) -> bool:
        return id(thing) in self._references

    def __iter__(self) -> Iterator[T]:
        for reference in list(self._references.values()):  # one step of the interpreter
            thing = reference()
            if thing is not None:
                yield thing
