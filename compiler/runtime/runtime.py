"""From lazy tensors to results: schedules, compiles new kernels, launches.

Everything is cached by content. Groups with equal structure share a loaded kernel; kernels with
equal LLVM text share an object, even on disk (hcq.state.config, UGPU_CACHE). Launches are
asynchronous: a failure of the device is raised by the next wait.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from ugpu import hcq
from ugpu.compiler.codegen.process.behind import behind
from ugpu.compiler.expression.value import interning
from ugpu.compiler.graph.node import ByValue, Node, Recipe, Repeated, stored_as
from ugpu.compiler.graph.recipe import own_references
from ugpu.compiler.plan.arrange import arrange
from ugpu.compiler.plan.attention import PartGroup
from ugpu.compiler.plan.packing import Derived
from ugpu.compiler.plan.plan import (
    Plan,
    Structure,
    kernels,
    make_plan,
    structure,
    wanted_later,
)
from ugpu.compiler.plan.repeats import (
    Repeating,
    Written,
    copied,
    find_repeats,
    repeating,
    results_alone,
    shortened,
    shortened_writes,
    stretched,
    ways_of,
    written,
)
from ugpu.compiler.runtime.kernels.ahead import planners
from ugpu.compiler.runtime.kernels.programs import KernelRecord, Loaded, Programs, listeners
from ugpu.compiler.runtime.kernels.tuners import active
from ugpu.compiler.runtime.launches import for_all, launch, word_of
from ugpu.compiler.runtime.memory_pool import MemoryPool, Part, Storage
from ugpu.compiler.runtime.opened import Opened
from ugpu.compiler.runtime.recording import current_recording
from ugpu.compiler.runtime.scratch import Scratch
from ugpu.compiler.runtime.script import Script
from ugpu.compiler.runtime.watch import Run, Timed, Times, measure, watchers
from ugpu.compiler.schedule.group import Group
from ugpu.compiler.schedule.hazards import InPlace, in_place
from ugpu.hcq.device.device import Device, core_of, entered
from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.state.config import config
from ugpu.hcq.work.command_buffer import CommandBuffer
from ugpu.hcq.work.prepared import prepare


@dataclass
class _Ready:
    plan: Plan
    loaded: tuple[Loaded, ...]  # one for each step
    # set after the first run: its commands, whose parameters are the addresses of each step's
    # result and inputs, step by step
    prepared: CommandBuffer | None = None


PLANS = 4096  # plans kept per device; beyond this all are discarded
SCRIPTS = 256  # scripts kept per device


class Runtime:
    """State of the compiler for one open device. Thread-safe."""

    def __init__(self, device: Device, cache_folder: Path | None) -> None:
        self.device = device
        self.core = core_of(device)
        self.pool = MemoryPool(device)
        self.programs = Programs(device, cache_folder)
        self.constants: dict[str, Node] = {}  # arrays that operations need, by name
        self.opened = Opened()
        self._plans: dict[Structure, _Ready] = {}
        self._layers: dict[Structure, tuple[Repeating | None, tuple[Loaded, ...]]] = {}
        self._scripts: dict[Recipe, Script] = {}
        self._lock = threading.RLock()
        self.programs.tuned.listener = self.renew

    def renew(self) -> None:
        """Plan everything again when next requested: a search found better kernels."""
        with self._lock:
            self._plans.clear()
            self._layers.clear()
            self.forget()
            self.programs.renew()

    def realize(self, roots: Sequence[Node]) -> None:
        """Compute the roots and the nodes that must be stored for them; return after submission."""
        with self._lock:
            recipe = roots[0].recipe if len(roots) == 1 else None
            script = None if recipe is None else self._scripts.get(recipe)
            if recipe is not None and script is not None and script.run(roots[0], self.device):
                recipe.script = script  # it may hold another device's script
                return
            given = roots[0].given if roots and isinstance(roots[0], Repeated) else ()
            own = own_references(roots[0]) if given and script is None else None
            bases = [stored_as(root) for root in roots]
            wanted = [base for base in bases if base.storage is None]
            if wanted:
                key, nodes = structure(wanted)
                opened = self._opens(key, nodes) if key not in self._plans else []
                if opened:
                    key, nodes = structure(wanted)
                ready = self._planned(key, wanted, nodes)
                told = self._shown(wanted, nodes) if watchers else []
                if told:
                    behind().wait()  # times are those of the second versions
                self._run(ready, bases, nodes, told)
                if own is not None and recipe is not None:
                    self._write(ready, nodes, recipe, given, own, opened)
            for root, base in zip(roots, bases, strict=True):
                if root is not base:
                    root.settle(base.storage)

    def _opens(self, key: Structure, nodes: Sequence[Node]) -> list[Node]:
        """Have numbers of the graph come by value; return the nodes that it has more by this.
        See compiler.runtime.opened."""
        capturing = self.core.capturing
        if current_recording() is not None or active() is not None:
            return []  # replays keep their numbers; a search measures the graph as it is
        if capturing is not None and capturing.is_mine:
            return []
        return self.opened.open(key, nodes)

    def _write(
        self,
        ready: _Ready,
        nodes: Sequence[Node],
        recipe: Recipe,
        given: Sequence[Node],
        own: Sequence[int],
        opened: Sequence[Node],
    ) -> None:
        """Compute the recipe's nodes by a script from now on, if possible. given: the sources of
        the node that was computed. own: see Script. opened: nodes by which the recipe's numbers
        come by value."""
        places = {id(node): place for place, node in enumerate(nodes)}
        sources = [places.get(id(node), -1) for node in given]
        if ready.prepared is None or min(sources) < 0 or len(given) != recipe.sources:
            return
        if Script.fits(ready.plan, len(nodes) - len(opened), recipe):
            if len(self._scripts) >= SCRIPTS:
                self.forget()
            numbers = {
                places[id(node)]: storage.word
                for node in opened
                if isinstance(storage := node.storage, ByValue)
            }
            script = Script(
                ready.plan, ready.prepared, sources, own, self.pool, self._lock, numbers
            )
            self._scripts[recipe] = recipe.script = script

    def forget(self) -> None:
        """Discard the scripts: they belong to this device, the recipes to all."""
        for recipe, script in self._scripts.items():
            if recipe.script is script:
                recipe.script = None
        self._scripts.clear()

    def prepare(self, roots: Sequence[Node]) -> int:
        """Plan the roots and compile new kernels, without running anything; return the number of
        kernels that compute them."""
        with self._lock:
            wanted = [base for root in roots if (base := stored_as(root)).storage is None]
            if not wanted:
                return 0
            key, nodes = structure(wanted)
            return len(self._planned(key, wanted, nodes).plan.steps)

    def _planned(self, key: Structure, roots: Sequence[Node], nodes: list[Node]) -> _Ready:
        """Return the plan for graphs of this structure, with its kernels loaded."""
        graph, ways = key, in_place(nodes, roots)
        if ways.earlier or ways.free:
            key = (*graph, ways.places(nodes))
        found = self._plans.get(key)
        if found is None or active() is not None:  # a search examines known kernels too
            for planner in tuple(planners):
                planner(roots, ways)
            made = None
            if active() is None:
                made = self._repeated(graph, nodes, ways)
            if made is None:
                target, groups = self.device.target, self._scheduled(roots, ways)
                plan = make_plan(groups, nodes, target)
                made = _Ready(plan, self.programs.ready(kernels(groups, target)))
            if len(self._plans) >= PLANS:
                self._plans.clear()
            found = self._plans[key] = made
        return found

    def _repeated(self, key: Structure, nodes: Sequence[Node], ways: InPlace) -> _Ready | None:
        """Return a plan made from the one for fewer layers, if the graph repeats itself."""
        writes: Written | None = None
        if len(key[-1]) > 1:  # a recording's: each array that it writes is asked for
            key = results_alone(key, {
                root for root in key[-1] if id(nodes[root]) in ways.earlier
            })  # fmt: skip
        for found in find_repeats(key):
            writes = written(ways, nodes) if writes is None else writes
            fewer = shortened_writes(writes, found)
            if fewer is None:
                continue
            short = shortened(key, found)
            name = (short, found.first, found.period, fewer.key)
            if name not in self._layers:
                if len(self._layers) >= PLANS:
                    self._layers.clear()
                copies = copied(short, nodes, found)
                wanted = [copies[root] for root in short[-1]]
                groups = self._scheduled(wanted, ways_of(fewer, copies))
                made = None
                if not any(isinstance(group, PartGroup | Derived) for group in groups):
                    made = repeating(make_plan(groups, copies), kernels(groups), copies, found)
                ready = () if made is None else self.programs.ready(kernels(groups))
                self._layers[name] = (made, ready)
            layers, loaded = self._layers[name]
            if layers is not None:
                plan, numbers = stretched(layers, found)
                return _Ready(plan, tuple([loaded[number] for number in numbers]))
        return None

    def _scheduled(self, roots: Sequence[Node], ways: InPlace) -> list[Group]:
        return arrange(roots, ways, self.device.target, self.programs.packs)

    def _shown(self, roots: Sequence[Node], nodes: list[Node]) -> list[Timed]:
        """Notify the watchers of a run; return the callbacks for its kernels' times."""
        groups, device = self._scheduled(roots, in_place(nodes, roots)), self.device
        run = Run(device.name, device.target, groups, nodes, self.programs.lowered)
        with interning:
            return [watcher.begins(run) for watcher in tuple(watchers)]

    def _timed(
        self, loaded: Loaded, arguments: Sequence[Storage | ByValue], written: Sequence[Storage]
    ) -> Times:
        """Run a kernel alone, several times. written: the memory it writes into; it is restored
        before each run, so that its final content is that of a single run."""
        queue, synchronize = self.device.queue(), self.device.synchronize
        before = [(each, self.pool.take(each.size)) for each in written]
        for each, kept in before:
            queue.copy(kept.buffer, each.buffer, each.size).submit()

        def run(clock: Callable[[], float]) -> float:
            for each, kept in before:
                queue.copy(each.buffer, kept.buffer, each.size).submit()
            launch(queue, loaded, arguments)
            synchronize()
            start = clock()
            queue.submit()
            synchronize()
            return clock() - start

        return measure(run)

    def _run(
        self, ready: _Ready, roots: Sequence[Node], nodes: list[Node], told: Sequence[Timed]
    ) -> None:
        plan = ready.plan
        recording = current_recording()
        pool = self.pool if recording is None else recording.pool_for(self.pool)
        made: dict[int, Storage] = {place: pool.take(0) for place in plan.empty}
        assigned = {step.root for step in plan.steps if step.target not in (None, step.root)}
        assigned |= {place for step in plan.steps for place, _ in step.over}
        wanted = wanted_later(plan, roots, nodes) if len(plan.steps) > 1 else None
        keep: dict[int, Storage] = dict(made)
        stages = None if recording is None else recording.stages
        part = None if stages is None else stages.lane(self.device).part
        scratch = Scratch(pool, plan, wanted, part is not None)
        queue = self.device.queue()
        capturing = self.core.capturing
        plain = recording is None and not told and (capturing is None or not capturing.is_mine)
        prepared = ready.prepared if plain else None
        addresses: list[int] = []
        for number, (step, loaded) in enumerate(zip(plan.steps, ready.loaded, strict=True)):
            renewed = {place: _storage(nodes[old]) for place, old in step.over}
            if step.target == step.root:  # a scatter into the memory that the previous step filled
                storage = made[step.root]
            elif step.target is not None:
                storage = made.get(step.target) or _storage(nodes[step.target])
                keep[step.target] = keep[step.root] = storage
            else:
                storage = renewed.get(step.root) or scratch.take(step, step.root, step.size)
            made[step.root] = storage
            given = [made.get(place) or _given(nodes[place]) for place in step.inputs]
            if step.others:
                beside = [
                    renewed.get(other[0]) or scratch.take(step, *other) for other in step.others
                ]
                made.update(zip(step.results[1:], beside, strict=True))
                given = [*beside, *given]
            read = given if not step.starts else _from(given, step.starts)
            if prepared is not None:
                addresses += map(word_of, (storage, *read))
            elif told and part is None:
                written = [*renewed.values(), *([] if step.target is None else [storage])]
                times = self._timed(loaded, [storage, *read], written)
                for timed in told:
                    timed(number, times)
            else:
                launch(queue, loaded, [storage, *read], part)
            if recording is not None:
                written = [*renewed.values(), *([] if step.target is None else [storage])]
                recording.launched(step.key, storage, given, written)
            for place in step.results:
                if wanted is None or place in wanted:
                    keep[place] = made[place]
            for place in step.inputs:
                if plan.last_use[place] == number and place in made and place not in keep:
                    scratch.end(made.pop(place))
        if prepared is not None:
            self.core.submit_prepared(queue.hardware, prepared, addresses)
        elif plan.steps:
            if plain:
                counts = [len(step.results) + len(step.inputs) for step in plan.steps]
                ready.prepared = prepare(queue.hardware, for_all(queue.commands, counts))
            queue.submit()
        # only after everything is submitted: after an error the graph is unchanged
        for place, storage in keep.items():
            if place >= len(nodes):  # inside a call of a nested function
                continue
            if recording is not None and nodes[place].storage is None:
                recording.settling(nodes[place], storage, new=place not in assigned)
            nodes[place].settle(storage)


def _from(given: Sequence[Storage | ByValue], starts: Sequence[int]) -> Sequence[Storage | ByValue]:
    """Return a kernel's arguments, the last of which are its inputs, from these bytes on."""
    first = len(given) - len(starts)
    return [
        Part(each, start, each.size - start) if start and isinstance(each, Storage) else each
        for each, start in zip(given, (*(0,) * first, *starts), strict=True)
    ]


def _given(node: Node) -> Storage | ByValue:
    storage = node.storage
    assert isinstance(storage, Storage | ByValue)
    return storage


def _storage(node: Node) -> Storage:
    storage = node.storage
    assert isinstance(storage, Storage)
    return storage


# ---- devices -----------------------------------------------------------------------------------

_runtimes: dict[int, Runtime] = {}
_opened: dict[str, Device] = {}
_devices_lock = threading.RLock()
_default: Device | str = ""
_places: ContextVar[int] = ContextVar(
    "places", default=0
)  # devices entered before _default was set


def runtime_of(device: Device) -> Runtime:
    """Return the runtime of an open device; Closed if it is not open."""
    if device.closed:
        raise Closed(f"{device.name} is closed")
    found = _runtimes.get(id(device))
    if found is not None and found.device is device:
        return found
    with _devices_lock:
        found = _runtimes.get(id(device))
        if found is None or found.device is not device:
            for old in [old for old in _runtimes.values() if old.device.closed]:
                _forget(old)  # of devices that a parent process opened
            found = _made(device, config().cache_folder / "kernels")
        return found


def _made(device: Device, folder: Path | None) -> Runtime:
    """Make the runtime of a device, which keeps it until it is closed."""
    made = _runtimes[id(device)] = Runtime(device, folder)
    made.core.at_end.append(lambda: _forget(made))
    return made


def _forget(runtime: Runtime) -> None:
    with _devices_lock:
        if _runtimes.get(id(runtime.device)) is runtime:
            del _runtimes[id(runtime.device)]
    runtime.forget()


def known_runtime(device: Device) -> Runtime | None:
    """Return the runtime of a device that has used the compiler, otherwise None."""
    found = _runtimes.get(id(device))
    return found if found is not None and found.device is device else None


def use_cache(device: Device, folder: Path | None) -> Runtime:
    """Give a device a fresh runtime that keeps its objects in `folder`; None: not on disk."""
    with _devices_lock:
        old = _runtimes.get(id(device))
        if old is not None:
            old.forget()
        return _made(device, folder)


def device_of(given: Device | str | None) -> Device:
    """Return a device given as itself, by name, or as None for the default (see
    set_default_device). Devices opened by name are shared by all tensors and closed when the
    process ends."""
    if isinstance(given, Device):
        return given
    if given is not None and not isinstance(given, str):
        raise BadArgument(f"device must be a Device or a name, got {type(given).__name__}")
    name = given or _default_device()
    if isinstance(name, Device):
        return name
    found = _opened.get(name)
    if found is not None and not found.closed:
        return found
    with _devices_lock:
        found = _opened.get(name)
        if found is None or found.closed:
            if not _opened:
                atexit.register(_close_all)
            found = _opened[name] = hcq.open(name)
        return found


def shared_devices() -> list[Device]:
    """Return the open devices that tensors share by name."""
    return [device for device in _opened.values() if not device.closed]


def _default_device() -> Device | str:
    inside = entered()
    if inside and (not _default or len(inside) > _places.get()):
        return inside[-1]
    return _default or config().device or "cpu"


def set_default_device(device: Device | str | None) -> None:
    """Set the device of tensors without `device=`: an open one, or a name to open. None or "" sets
    the initial one: UGPU_DEVICE, otherwise "cpu". A `with` block of an open device that is entered
    later has precedence until its end, in its thread (or task of asyncio)."""
    global _default
    if not isinstance(device, Device | str | None):
        raise BadArgument(f"device must be a Device or a name, got {type(device).__name__}")
    with _devices_lock:
        _default = device or ""
    _places.set(len(entered()))


def _close_all() -> None:
    with _devices_lock:
        for device in _opened.values():
            device.close()
        _opened.clear()


@contextlib.contextmanager
def kernel_log() -> Iterator[list[KernelRecord]]:
    """Collect the kernels prepared while the `with` block runs, on all devices."""
    records: list[KernelRecord] = []
    listener = records.append
    listeners.append(listener)
    try:
        yield records
    finally:
        listeners.remove(listener)
