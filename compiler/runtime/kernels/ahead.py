"""Compile kernels ahead for a target without a local device, while a program runs on another one.

    with compiling_ahead(target, folder) as made: run the program on any device

Every plan that a runtime makes is also made for the target, and its kernels are compiled into a
cache folder. A device of that target finds them there, with their launches: it needs no compiler
for what the program has run. Replays of recorded functions add nothing: they are planned before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from ugpu.compiler.codegen.emit import emitted
from ugpu.compiler.codegen.process.children import Compiled, shared
from ugpu.compiler.expression.value import interning
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.plan.arrange import arrange
from ugpu.compiler.plan.packing import computation_of
from ugpu.compiler.plan.plan import kernels
from ugpu.compiler.runtime.kernels.faulted import Places
from ugpu.compiler.runtime.kernels.known import Known, Record, object_key
from ugpu.compiler.runtime.kernels.store import Store
from ugpu.compiler.schedule.group import Group
from ugpu.compiler.schedule.hazards import InPlace
from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.state.target import TargetSpec

Planner = Callable[[Sequence[Node], InPlace], None]
planners: list[Planner] = []  # called with each graph that is planned, before it runs


@dataclass
class Ahead:
    """Kernels compiled ahead: bytes of each object, by name."""

    target: TargetSpec
    disk: DiskCache
    known: Known
    places: Places
    sizes: dict[str, int] = field(default_factory=dict)
    _seen: set[object] = field(default_factory=set)

    def plan(self, roots: Sequence[Node], ways: InPlace) -> None:
        """Compile the kernels that compute the roots. CompileError if a kernel is rejected."""
        waiting: list[tuple[Group, Record, Future[Compiled] | None]] = []
        for group in kernels(arrange(roots, ways, self.target), self.target):
            if group.key in self._seen:
                continue
            self._seen.add(group.key)
            with interning:
                kernel = lower(computation_of(group), self.target)
                module = emitted(kernel, self.target)
            key = object_key(module.text, self.target)
            compiled = None
            if self.disk.get(key) is None:
                compiled = shared().submit(module.text, self.target, kernel.name)
                self.places.keep(kernel, key, module)
            waiting.append((group, Record.of(kernel, key), compiled))
        for group, record, compiled in waiting:
            if compiled is not None:
                self.disk.put(record.object, compiled.result().image)
            image = self.disk.get(record.object)
            self.sizes[record.name] = len(image or b"")
            self.known.put(group, record)


@contextlib.contextmanager
def compiling_ahead(target: TargetSpec, folder: Path) -> Iterator[Ahead]:
    """Compile everything that runtimes plan during the block, on all devices and threads, into a
    cache folder (UGPU_CACHE of the machine that has the device)."""
    disk = DiskCache(folder / "kernels")
    made = Ahead(target, disk, Known(target, disk, Store(folder / "tuned")), Places(target, disk))
    planners.append(made.plan)
    try:
        yield made
    finally:
        planners.remove(made.plan)
