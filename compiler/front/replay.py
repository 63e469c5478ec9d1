"""A recorded call of a function: its graph, and how the memory of each replay is bound.

The graph names memory of four kinds: of arguments (stand-ins, taken for the recording), of captured
tensors (their own), of results (allocated for each replay) and of intermediate values. Before a
replay, each address is bound to the memory that the argument, the captured tensor or the result has
this time. A tensor that the function assigns gets the result afterwards. An assignment in place
writes into the tensor's own memory, or into a copy if anything else refers to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ugpu.compiler.dtype import DType
from ugpu.compiler.front.forms import difference, leaves_of, mapped, tensors_of
from ugpu.compiler.front.ready import Expected, Held, Leaf, Memory, Ready
from ugpu.compiler.front.touched import Captured, Touched, exclusive, stored
from ugpu.compiler.graph.node import Node, Shape
from ugpu.compiler.graph.origin import here
from ugpu.compiler.methods.core import TensorCore
from ugpu.compiler.runtime.memory_pool import Part, Place, Storage, place_of
from ugpu.compiler.runtime.numbers import Draws, Slot
from ugpu.compiler.runtime.recording import Recording
from ugpu.compiler.runtime.runtime import runtime_of
from ugpu.compiler.runtime.several.stages import Stages
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.state.life import ModuleLock
from ugpu.hcq.work.buffer import Buffer

_recording = ModuleLock()  # a device captures one graph at a time; other threads' functions wait


class Outdated(Exception):
    """A captured tensor is not what it was; the function must be recorded again. Raised before
    anything has run."""


@dataclass(frozen=True)
class _Result:
    """A tensor in the result. place: the argument that it is, or None; same: the captured tensor
    that it is. where: its memory in the recording; fixed: memory that replays leave alone."""

    place: int | None
    same: Tensor | None
    kind: type[Tensor]
    dtype: DType
    shape: Shape
    device: Device
    where: Place
    fixed: Storage | None


@dataclass(frozen=True)
class _Source:
    """An argument in the graph: its stand-in's buffer, and a weak reference to its node."""

    tensor: Tensor
    whole: Storage
    buffer: Buffer
    node: weakref.ref[Node]


class Replay:
    """Captured graphs, and the memory they own. A replay that is dropped needs no `close`: devices
    free graphs and buffers that nothing refers to."""

    def __init__(self, name: str, devices: Sequence[Device]) -> None:
        self.name = name
        self.devices = devices
        self.stages = Stages()
        self.kernels = 0
        self.left = ""  # a tensor of the recorded call that something refers to
        self.settled = True  # whether it may be replayed again
        self._draws = Draws()  # of the random numbers it uses
        self._buffers: list[tuple[Buffer, Place]] = []  # stand-ins, by place of the argument
        self._wholes: list[Storage] = []
        self._captured: list[Captured] = []
        self._by_id: dict[int, Captured] = {}  # the same by the ids of their tensors
        self._made: dict[Place, Storage] = {}  # memory that each replay allocates
        self._kept: dict[Place, Storage] = {}  # assigned memory of values begun before
        self._states: list[tuple[int | Captured, Place]] = []  # assigned tensor, place of its value
        self._result: Any = None  # form of the result, with leaves of _Result
        self._used: set[Place] = set()
        self._written: set[Place] = set()
        self._named: set[Place] = set()  # results and memory that is written
        self._shared: set[Place] = set()  # captured memory with several owners

    # ---- recording -----------------------------------------------------------------------------

    def record(
        self, function: Callable[..., Any], args: Any, kwargs: Any, tensors: Sequence[Tensor]
    ) -> tuple[Any, ...]:
        """Capture one call without running it; return what must be equal in the next recording.
        tensors: the arguments, computed, without repetitions."""
        recording, touched = Recording(self.name, self.stages), Touched(captures=True)
        sources: dict[int, _Source] = {}
        try:
            with _recording.lock, recording, self.stages, touched:
                for device in self.devices:
                    recording.pool_for(runtime_of(device).pool)
                for tensor in tensors:
                    sources[id(tensor)] = self._stand_in(tensor)
                given = mapped((args, kwargs), Tensor, lambda each: sources[id(each)].tensor)
                result = call(self.name, function, given)
                assigned = touched.assigned()
                inside = [each for each in sources.values() if touched.was_assigned(each.tensor)]
                realize([*tensors_of(result), *assigned, *(each.tensor for each in inside)])
            self._bind(result, recording, touched, list(sources.values()))
        except BaseException:
            self._undo(recording, touched, tensors, list(sources.values()))
            raise
        identity = (recording.keys, touched.used(tensors), touched.written(tensors))
        recording.finish()
        del given, inside, assigned, result
        nodes = [(tensor, sources[id(tensor)].node) for tensor in tensors]
        sources.clear()
        for captured in touched.captured:
            captured.restore()
            captured.pending = captured.node is not None and captured.node.storage is None
        gone = any(captured.ref() is None for captured in self._captured)
        self.settled = not self._leaks(recording, touched, nodes) and not gone
        return identity

    def _stand_in(self, tensor: Tensor) -> _Source:
        """Return a copy of an argument that has memory of the recording."""
        size = cast(Storage, tensor.node.storage).size
        whole = self.stages.lane(tensor.device).pool.take(size)
        part = Part(whole, 0, size)  # exactly the size needed: a program's buffer may end there
        node = stored(tensor, part)
        self._wholes.append(whole)
        self._buffers.append((part.buffer, place_of(part.buffer)))
        return _Source(tensor._new(node), whole, part.buffer, weakref.ref(node))

    def _bind(
        self, result: Any, recording: Recording, touched: Touched, sources: Sequence[_Source]
    ) -> None:
        """Find out where the memory of results and assigned tensors comes from."""
        kept: set[Place] = set()  # memory of values begun before: it is written in the run
        for captured in touched.captured:
            if captured.node is not None:
                kept.update(_places(captured.node))
        alive = [each for ref in recording.made if (each := ref()) is not None]
        made = {place: each for each in alive if (place := place_of(each.buffer)) not in kept}
        self._used, self._written = recording.used, recording.written
        self._draws, self.kernels = recording.draws, recording.kernels
        leaves = tensors_of(result)
        self._find_captured(touched, {_place(leaf) for leaf in leaves})
        assigned: list[tuple[int | Captured, TensorCore]] = [
            (place, source.tensor)
            for place, source in enumerate(sources)
            if touched.was_assigned(source.tensor)
        ]
        for captured in self._captured:
            tensor = captured.ref()
            if captured.assigned and tensor is not None:
                assigned.append((captured, tensor))
        for owner, tensor in assigned:
            where = _place(tensor)
            self._states.append((owner, where))
            if where in made:
                self._made[where] = made[where]
            elif where in kept:
                self._kept[where] = cast(Storage, tensor.node.storage)
        known = {id(source.tensor): place for place, source in enumerate(sources)}
        found = {id(each): self._leaf(each, touched, known, made) for each in leaves}
        self._result = mapped(result, Tensor, lambda each: found[id(each)])
        self._named = self._written | {leaf.where for leaf in found.values()}
        self._named.update(where for _, where in self._states)

    def _leaf(
        self,
        tensor: Tensor,
        touched: Touched,
        known: Mapping[int, int],
        made: Mapping[Place, Storage],
    ) -> _Result:
        storage = cast(Storage, tensor.node.storage)
        where, fixed = place_of(storage.buffer), None
        place = known.get(id(tensor))
        same = None if touched.created(tensor) else tensor
        if place is None and same is None:
            if where in made:
                self._made[where] = made[where]
            elif where not in self._own():
                fixed = storage
        facts = tensor.dtype, tensor.shape, tensor.device
        return _Result(place, same, type(tensor), *facts, where, fixed)

    def _own(self) -> set[Place]:
        """Return the memory of arguments and captured tensors."""
        captured = {each.where for each in self._captured if each.buffer is not None}
        return captured | {where for _, where in self._buffers}

    def _find_captured(self, touched: Touched, results: set[Place]) -> None:
        """Find the captured tensors whose memory is named by the graph or by results."""
        named = self._used | results
        assigned = {id(tensor) for tensor in touched.assigned()}
        stored_in: set[Place] = set()
        for captured in touched.captured:
            captured.assigned = id(captured.ref()) in assigned
            if captured.node is not None:
                self._shared.update(_places(captured.node))
            elif captured.where in stored_in:
                self._shared.add(captured.where)
            stored_in.add(captured.where)
            if captured.assigned or captured.node is not None or captured.where in named:
                self._captured.append(captured)
                self._by_id[id(captured.ref())] = captured

    def _undo(
        self,
        recording: Recording,
        touched: Touched,
        tensors: Sequence[Tensor],
        sources: Sequence[_Source],
    ) -> None:
        """Leave everything as if the function had run, without its recording, up to the error."""
        recording.undo()
        for captured in touched.captured:
            captured.free()
        for tensor, source in zip(tensors, sources, strict=False):
            node = source.node()
            if node is not None:
                node.storage = tensor.node.storage
            if touched.was_assigned(source.tensor):
                tensor.node = source.tensor.node
        self.close()

    def _leaks(
        self,
        recording: Recording,
        touched: Touched,
        nodes: Sequence[tuple[Tensor, weakref.ref[Node]]],
    ) -> bool:
        """Return whether anything besides the result refers to tensors or memory of this call."""
        left = touched.left()
        for tensor, ref in nodes:
            node = ref()
            if node is not None:
                node.storage = tensor.node.storage
        alive = [each for ref in recording.made if (each := ref()) is not None]
        self.left = left[0]._shown if left else ""
        return bool(left) or any(place_of(each.buffer) not in self._made for each in alive)

    # ---- replaying -----------------------------------------------------------------------------

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """Replay with these arguments, which are computed; return the result. Raises Outdated."""
        sources = self._sources(tensors)
        self._check_apart(tensors)
        current = dict(self._kept)
        bound: dict[Buffer, Buffer] = {}
        owners = [owner for owner, _ in self._states]
        changed = {id(tensors[each]) if isinstance(each, int) else id(each) for each in owners}
        for key, tensor, buffer, where in sources:
            if where in self._written and not (id(key) in changed and exclusive(tensor)):
                move(tensor)
            storage = cast(Storage, tensor.node.storage)
            current[where] = storage
            if where in self._used and storage.address != where[1]:
                bound[buffer] = storage.buffer
        for where, storage in self._made.items():
            pool = runtime_of(storage.pool.device).pool
            current[where] = pool.placed(storage.pool.placement).take(storage.size)
            if where in self._used:
                bound[storage.buffer] = current[where].buffer
        self._replay(bound, current, self._draws.take())
        for owner, where in self._states:
            target = owner.ref() if isinstance(owner, Captured) else tensors[owner]
            if target is not None and target.node.storage is not current[where]:
                target.node = stored(target, current[where])
        made: dict[int, Tensor] = {}

        def tensor_of(leaf: _Result) -> Tensor:
            return self._tensor(leaf, tensors, current, made)

        return mapped(self._result, _Result, tensor_of)

    def _sources(
        self, tensors: Sequence[Tensor]
    ) -> list[tuple[Captured | Tensor, TensorCore, Buffer, Place]]:
        """Return the tensors whose memory the graphs may name, and the memory they have for
        them."""
        sources: list[tuple[Captured | Tensor, TensorCore, Buffer, Place]] = [
            (tensor, tensor, *memory) for tensor, memory in zip(tensors, self._buffers, strict=True)
        ]
        for captured in self._captured:
            tensor = captured.ref()
            if tensor is None:
                if not self.settled:  # the only run, in memory that is kept
                    continue
                raise Outdated
            node = tensor.node
            if captured.node is not None:
                # once it is computed, nothing keeps the memory that it was computed from
                if node is not captured.node or (captured.pending and node.storage is not None):
                    raise Outdated
                continue
            if node.storage is None:
                runtime_of(tensor.device).realize((node,))
            if cast(Storage, node.storage).address != captured.where[1]:
                if captured.where in self._shared:
                    raise Outdated
            elif captured.where not in self._named:
                continue
            if captured.buffer is not None:
                sources.append((captured, tensor, captured.buffer, captured.where))
        return sources

    def _check_apart(self, tensors: Sequence[Tensor]) -> None:
        """Refuse an argument that the function also uses from outside, if either is assigned."""
        if not self._states:
            return
        places = {owner for owner, _ in self._states if isinstance(owner, int)}
        for place, tensor in enumerate(tensors):
            other = self._by_id.get(id(tensor))
            if other is None or other.ref() is not tensor:
                continue
            if place in places or other.assigned:
                raise BadArgument(
                    f"@jit {self.name}: argument {tensor._shown} is also used by the function "
                    "from outside, and assigned; use it in one of these ways"
                )

    def _replay(
        self,
        bound: Mapping[Buffer, Buffer],
        current: Mapping[Place, Storage],
        words: Mapping[Slot, int],
    ) -> None:
        try:
            self.stages.replay(bound, current, words)
        except Closed:
            if any(device.closed for device in self.devices):
                raise
            raise Outdated from None  # memory that a captured tensor had is gone

    def _tensor(
        self,
        leaf: _Result,
        tensors: Sequence[Tensor],
        current: Mapping[Place, Storage],
        made: dict[int, Tensor],
    ) -> Tensor:
        """Return a tensor of the result."""
        if leaf.place is not None:
            return tensors[leaf.place]
        if leaf.same is not None:
            return leaf.same
        tensor = made.get(id(leaf))
        if tensor is None:
            node = Node("buffer", leaf.dtype, leaf.shape)
            node.storage = leaf.fixed or current[leaf.where]
            node.origin = here()
            tensor = made[id(leaf)] = object.__new__(leaf.kind)
            tensor.device, tensor.node = leaf.device, node
        return tensor

    def ready(self, tensors: Sequence[Tensor]) -> Ready | None:
        """Return what replays it in few steps, for arguments that are tensors like these, each
        once; None if a replay has to decide something."""
        leaves = {id(leaf): leaf for leaf in leaves_of(self._result, _Result)}
        if self._states or self._kept or not self._draws.empty:
            return None
        if any(leaf.where not in self._made or leaf.kind is not Tensor for leaf in leaves.values()):
            return None
        if any(each.node is not None or each.where in self._shared for each in self._captured):
            return None
        uses = [where in self._used for _, where in self._buffers]
        inputs = [buffer for buffer, where in self._buffers if where in self._used]
        inputs += [each.buffer for where, each in self._made.items() if where in self._used]
        repetition = self.stages.repetition(inputs)
        if repetition is None or any(where in self._written for _, where in self._buffers):
            return None
        memories = {
            where: Memory(
                runtime_of(each.pool.device).pool.placed(each.pool.placement),
                each.size, where in self._used,
            )
            for where, each in self._made.items()
        }  # fmt: skip
        order = list(memories)
        return Ready(
            self.devices[0],
            repetition,
            [Expected(each.dtype, each.shape, used)
             for each, used in zip(tensors, uses, strict=True)],
            [Held(each.ref, each.where[1]) for each in self._captured],
            list(memories.values()),
            [Leaf(order.index(leaf.where), leaf.dtype, leaf.shape) for leaf in leaves.values()],
            partial(_formed, self._result, {key: place for place, key in enumerate(leaves)}),
            isinstance(self._result, _Result),
        )  # fmt: skip

    def pending(self) -> list[TensorCore]:
        """Return the captured tensors that had no memory."""
        alive = [each.ref() for each in self._captured if each.node is not None]
        return [tensor for tensor in alive if tensor is not None]

    def retire(self) -> None:
        """Close the graphs; their results stay valid."""
        self.stages.retire()

    def close(self) -> None:
        """Free the graphs and their memory once the last replay has ended."""
        self.stages.close()


def _formed(form: Any, places: Mapping[int, int], tensors: Sequence[Tensor]) -> Any:
    """Return a result, whose leaves have their tensors at these places."""
    if isinstance(form, _Result):  # the usual case
        return tensors[0]
    return mapped(form, _Result, lambda leaf: tensors[places[id(leaf)]])


def call(name: str, function: Callable[..., Any], given: tuple[Any, Any]) -> Any:
    """Call a function with arguments in containers of its own. BadArgument if it changes these."""
    args, kwargs = mapped(given, Tensor, lambda each: each)
    result = function(*args, **kwargs)
    place = difference(given[0], args, "args") or difference(given[1], kwargs, "kwargs")
    if place is not None:
        raise BadArgument(
            f"@jit {name}: the function changes {place} in a list or dict, which a replay cannot "
            "do; assign to the tensor (x[...] = value), or return the new value"
        )
    return result


def move(tensor: TensorCore) -> None:
    """Move a tensor into memory of its own."""
    old = cast(Storage, tensor.node.storage)
    fresh = runtime_of(tensor.device).pool.placed(old.pool.placement).take(old.size)
    if old.size:
        tensor.device.queue().copy(fresh.buffer, old.buffer, old.size).submit()
    tensor.node = stored(tensor, fresh)


def realize(tensors: Sequence[TensorCore]) -> None:
    """Compute tensors, together those of one device."""
    devices = {id(tensor.device): tensor.device for tensor in tensors}
    for key, device in devices.items():
        runtime_of(device).realize([each.node for each in tensors if id(each.device) == key])


def _place(tensor: TensorCore) -> Place:
    return place_of(cast(Storage, tensor.node.storage).buffer)


def _places(root: Node) -> list[Place]:
    """Return the memory that a node is computed from."""
    found: list[Place] = []
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node.storage, Storage):
            found.append(place_of(node.storage.buffer))
        else:
            stack.extend(node.sources)
    return found
