"""A forked child does not inherit devices: its copies of descriptors and mappings are dropped.

Else the child would keep the kernel from taking the device back, and could write its registers.
"""

from __future__ import annotations

import functools
import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """What can be dropped."""

    def abandon(self) -> None:
        """Drop this process' copies without touching the device; later use raises Closed."""
        ...


_open: weakref.WeakSet[Forkable] = weakref.WeakSet()


def drop_in_child(transport: Forkable) -> None:
    """From now on a fork abandons `transport` in the child."""
    _register()
    _open.add(transport)


@functools.cache
def _register() -> None:
    os.register_at_fork(after_in_child=_abandon_all)


def _abandon_all() -> None:
    for transport in list(_open):
        transport.abandon()
    _open.clear()
