"""Preparation of kernels: lowered, compiled (or fetched from disk), loaded on a device.

Groups with equal structure share a loaded kernel; kernels with equal LLVM text share an object,
even on disk. New kernels of a run are compiled in child processes while the next kernel is lowered
(compiler.codegen.process.children), on the host in two versions (compiler.runtime.kernels.tiers).
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ugpu.compiler.codegen.emit import emitted
from ugpu.compiler.codegen.process.children import Compiled, shared
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.value import interning
from ugpu.compiler.kernel import ir
from ugpu.compiler.kernel.choices import Packing, shown
from ugpu.compiler.kernel.lower import lower, spaces
from ugpu.compiler.pattern.work import flops, moved
from ugpu.compiler.plan.packing import computation_of
from ugpu.compiler.runtime.kernels.faulted import Places
from ugpu.compiler.runtime.kernels.known import Known, Record, object_key
from ugpu.compiler.runtime.kernels.progress import Progress
from ugpu.compiler.runtime.kernels.store import Store, key_of, packing_key
from ugpu.compiler.runtime.kernels.tiers import Tiers, pays, target_of
from ugpu.compiler.runtime.kernels.tuners import active
from ugpu.compiler.runtime.recent import Recent
from ugpu.compiler.schedule.group import Group
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.errors import CompileError
from ugpu.hcq.state import trace
from ugpu.hcq.work.program import Kernel, Program, Work

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KernelRecord:
    """A kernel that was prepared. seconds: to lower, compile (or fetch, if `from_disk`) and load
    it, without waiting for others. code_bytes: size of the object file. origin: the tensor
    operations it computes."""

    name: str
    device: str
    seconds: float
    code_bytes: int
    from_disk: bool
    origin: str


@dataclass(frozen=True)
class Loaded:
    """A kernel on a device, and how to launch it."""

    program: Program
    kernel: Kernel
    grid: tuple[int, int, int]
    block: int
    dynamic_local: int = 0


@dataclass
class _Pending:
    """A kernel in preparation. seconds: spent on it so far."""

    record: Record
    seconds: float
    image: bytes | None = None  # from disk
    first: str = ""  # the text, if this is a first version; its key on disk is `first_key`
    first_key: str = ""
    lowered: bool = True  # in this process, not by an earlier one
    compiled: Future[Compiled] | None = None
    groups: list[Group] = field(default_factory=list)  # groups that need it


KERNELS = 4096  # kept per device, see docs/compiler.md
listeners: list[Callable[[KernelRecord], None]] = []  # called for each kernel prepared


class Programs:
    """The kernels of one open device. Only one thread may use it at a time."""

    def __init__(self, device: Device, cache_folder: Path | None) -> None:
        self.device = device
        self.disk = DiskCache(cache_folder, further=device.driver.kernels)
        self.failed = None if cache_folder is None else cache_folder.parent / "failed-kernels"
        self.tuned = Store(None if cache_folder is None else cache_folder.parent / "tuned")
        self.target = target_of(device)
        self.known = Known(self.target, self.disk, self.tuned)
        self._groups: Recent[tuple[Any, ...], Loaded] = Recent(KERNELS)
        self._kernels: Recent[str, Loaded] = Recent(KERNELS)
        self.places = Places(self.target, self.disk)
        self.tiers = Tiers(device, self.disk, self.known)
        core_of(device).explainers.append(self.places.explain)

    def ready(self, groups: Sequence[Group]) -> tuple[Loaded, ...]:
        """Prepare the kernels of all groups. CompileError if LLVM fails on one of them."""
        pending: dict[str, _Pending] = {}
        begun: dict[tuple[Any, ...], _Pending] = {}  # by the group's key
        known: dict[int, Loaded] = {}  # by id of the group
        once = {id(group): group for group in groups}  # calls of a function share groups
        for number, group in once.items():
            ready = self._groups.get(group.key) if active() is None else None
            there = ready or begun.get(group.key) or self._begin(group, pending)
            if isinstance(there, Loaded):
                known[number] = there
            else:
                begun[group.key] = there
                there.groups.append(group)
        firsts: list[tuple[_Pending, Program]] = []
        try:
            with Progress(len(pending)) as progress:
                for waiting in self._awaited(pending, progress):
                    loaded = self._finish(waiting)
                    known |= {id(group): loaded for group in waiting.groups}
                    if waiting.first:
                        firsts.append((waiting, loaded.program))
        finally:  # not before: they would delay other first versions
            for waiting, program in firsts:
                self.tiers.later(waiting.first, waiting.record, waiting.groups, program)
        return tuple([known[id(group)] for group in groups])

    def _awaited(self, pending: Mapping[str, _Pending], progress: Progress) -> Iterator[_Pending]:
        """Yield each kernel once it is compiled; a model's once all are, which its driver prepares
        together."""
        driver = self.device.driver
        together = driver.foresees and self.target.quick and len(pending) > 1
        for waiting in pending.values():
            progress.await_one(waiting.compiled)
            if not together:
                yield waiting
        if together:
            images = [waiting.image or _image_of(waiting.compiled) for waiting in pending.values()]
            driver.foresee([image for image in images if image])
            yield from pending.values()

    def _begin(self, group: Group, pending: dict[str, _Pending]) -> Loaded | _Pending:
        """Return a group's kernel if it is loaded; otherwise lower it and start compiling it."""
        start = time.perf_counter()
        record = self.known.get(group) if active() is None else None
        if record is not None:
            loaded = self._kernels.get(record.object)
            if loaded is not None:
                self._groups[group.key] = loaded
                return loaded
            recalled = self._recalled(record, pending, start)
            if recalled is not None:
                return recalled
        target = self.target
        with interning:
            computation = computation_of(group)
        tuner = active()
        if tuner is not None:
            tuner.tune(computation, self.device, self.tuned)
        with interning:
            kernel = self.lowered(computation)
            module = emitted(kernel, target)
        key = object_key(module.text, target)
        known = self._kernels.get(key)
        if known is not None:
            self._groups[group.key] = known
            return known
        waiting = pending.get(key)
        if waiting is None:
            waiting = pending[key] = _Pending(Record.of(kernel, key), 0.0)
            waiting.image = self.disk.get(key)
            if waiting.image is None:
                with interning:
                    first = pays(computation, target, module.text)
                self._compile(waiting, module.text, first)
                self.places.keep(kernel, key, module)
            waiting.seconds = time.perf_counter() - start
        return waiting

    def _compile(self, waiting: _Pending, text: str, first: bool) -> None:
        """Start compiling a kernel, unless it is a first version that is on disk."""
        if first:
            waiting.first = text
            waiting.first_key = DiskCache.key("first", waiting.record.object)
            waiting.image = self.disk.get(waiting.first_key)
        if waiting.image is None:
            target, name = self.target, waiting.record.name
            waiting.compiled = shared().submit(text, target, name, self.failed, first=first)

    def _recalled(
        self, record: Record, pending: dict[str, _Pending], start: float
    ) -> _Pending | None:
        """Use a group's kernel as lowered and compiled by an earlier process, if it is stored."""
        waiting = pending.get(record.object)
        if waiting is None:
            image = self.disk.get(record.object)
            if image is None:
                return None
            seconds = time.perf_counter() - start
            waiting = pending[record.object] = _Pending(record, seconds, image, lowered=False)
        return waiting

    def packs(self, plain: Computation, forms: tuple[Computation, ...]) -> bool | None:
        """Return whether `forms` should replace a product; None unless a search has measured it."""
        tuner = active()
        if tuner is not None:
            tuner.compare(plain, forms, self.device, self.tuned)
        if not self.tuned.exists():
            return None
        with interning:
            found = self.tuned.get(packing_key(plain, self.device))
        return found.pays if isinstance(found, Packing) else None

    def lowered(self, computation: Computation) -> ir.Kernel:
        """Return the kernel that computes it, with the choices found by a search, if any; a record
        that does not fit (any more) is ignored. The caller holds `interning`."""
        target = self.target
        choices = None
        if self.tuned.exists():
            choices = self.tuned.get(key_of(computation, self.device))
        if choices is not None:
            for space in spaces(computation, target):
                if space.contains(choices):
                    return lower(computation, target, choices)
            log.warning("a tuned kernel's record does not match: %s", shown(choices))
        return lower(computation, target)

    def renew(self) -> None:
        """Look kernels up again when they are next requested: a search found others."""
        self._groups.clear()

    def _compiled(self, waiting: _Pending) -> Compiled:
        assert waiting.compiled is not None
        try:
            return waiting.compiled.result()
        except CompileError as error:
            if not waiting.first:
                raise
            name, target = waiting.record.name, self.target
            log.warning("kernel %s has no first version: %s", name, error)
            text, waiting.first, waiting.first_key = waiting.first, "", ""
            return shared().submit(text, target, name, self.failed).result()

    def _finish(self, waiting: _Pending) -> Loaded:
        with trace.step("compiler.kernel", device=self.device.name) as step:
            loaded = self._load(waiting)
            step["kernel"] = loaded.kernel.name
            return loaded

    def _load(self, waiting: _Pending) -> Loaded:
        image, record = waiting.image, waiting.record
        if image is None:
            done = self._compiled(waiting)
            image = done.image
            waiting.seconds += done.seconds
            self.disk.put(waiting.first_key or record.object, image)
        start = time.perf_counter()
        program = self.device.load(image)
        program.source = functools.partial(self.places.source, record.object)
        program.bounded = True
        if self.device.driver.counts_work:
            program.work = {record.name: _work(waiting.groups[0])}
        loaded = Loaded(
            program, program[record.name], record.grid, record.block, record.dynamic_local
        )
        self._kernels[record.object] = loaded
        self.places.keys[record.name] = record.object
        for group in waiting.groups:
            self._groups[group.key] = loaded
            if waiting.lowered and not waiting.first:
                self.known.put(group, record)
        seconds = waiting.seconds + time.perf_counter() - start
        from_disk = waiting.compiled is None
        told = KernelRecord(
            record.name, self.device.name, seconds, len(image), from_disk, record.origin
        )
        log.debug("kernel %s: %.1f ms", record.name, seconds * 1e3)
        for listener in tuple(listeners):
            listener(told)
        return loaded


def _image_of(compiled: Future[Compiled] | None) -> bytes:
    """Return the image of a kernel that was compiled; empty if it failed."""
    return b"" if compiled is None or compiled.exception() else compiled.result().image


def _work(group: Group) -> Work:
    with interning:
        computation = computation_of(group)
        return Work(moved(computation), flops(computation))
