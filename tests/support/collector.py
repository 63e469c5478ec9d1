"""Python's garbage collector during a run of the tests: a process that has collected or run
thousands of tests holds millions of objects, which it need not look at again and again."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Collector:
    """What is alive between two modules is left out. All is looked at as often as a fortieth of
    the time allows."""

    SHARE = 40

    def __init__(self) -> None:
        self.module: object = None
        self.due = 0.0
        self.frozen = False

    def enter(self, module: object) -> None:
        """A test of this module begins."""
        if module is self.module:
            return
        self.module = module
        began = time.perf_counter()
        if began >= self.due:
            gc.unfreeze()
            gc.collect()
            self.due = began + (1 + self.SHARE) * (time.perf_counter() - began)
            self.frozen = False
        if not self.frozen:  # gc.get_freeze_count would walk along all objects
            gc.freeze()
            self.frozen = True

    @contextmanager
    def off(self) -> Iterator[None]:
        """Collect nothing meanwhile."""
        gc.disable()
        try:
            yield
        finally:
            gc.enable()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave what is there already out of counts and of collections, then have all looked at.
        What is garbage already stays until after."""
        gc.freeze()
        try:
            yield
        finally:
            gc.unfreeze()
            self.frozen = False


COLLECTOR = Collector()
apart = COLLECTOR.apart
