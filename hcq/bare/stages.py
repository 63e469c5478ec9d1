"""Stages of a start: named, measured, and named in the errors that are raised in them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ugpu.hcq.errors import FirmwareSilent, UgpuError, UnitTimeout
from ugpu.hcq.state import trace

log = logging.getLogger(__name__)

StageHook = Callable[[str, float], None]


class Stages:
    """Runs stages, measures them, reports them to subscribers. done: (name, seconds) in order.

    An error raised in a stage gets the stage's name as the fact `stage`. Errors, the demo, the
    ladder of first contact and recordings use the same names.
    """

    def __init__(self, hook: StageHook | None = None) -> None:
        """hook(name, seconds) is called after each stage; an exception from it ends the start."""
        self.done: list[tuple[str, float]] = []
        self.hook = hook

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run the block as stage `name`. A stage that raises is not in `done`."""
        start = time.perf_counter()
        log.debug("stage %s", name)
        with trace.step("boot", stage=name):
            try:
                yield
            except UgpuError as error:
                error.add_facts(stage=name)
                raise
        seconds = time.perf_counter() - start
        self.done.append((name, seconds))
        if self.hook is not None:
            self.hook(name, seconds)


@contextmanager
def or_silent(
    text: str, state: Callable[[], Mapping[str, object]] = dict, **facts: object
) -> Iterator[None]:
    """Raise FirmwareSilent(text) where a wait in the block reaches its limit, with the facts of the
    wait. state: reads what explains it, after the limit; facts: known before."""
    try:
        yield
    except UnitTimeout as error:
        raise FirmwareSilent(text, **{**error.facts, **facts, **state()}) from error
