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
from typing import Any, cast

from ugpu.compiler.dtype import DType
from ugpu.compiler.front.forms import difference, mapped, tensors_of
from ugpu.compiler.front.touched import Captured, Touched, exclusive, stored
from ugpu.compiler.graph.node import Node, Shape
from ugpu.compiler.graph.origin import here
from ugpu.compiler.methods.core import TensorCore
from ugpu.compiler.runtime.memory_pool import MemoryPool, Part, Storage
from ugpu.compiler.runtime.numbers import Places
from ugpu.compiler.runtime.recording import Recording
from ugpu.compiler.runtime.runtime import Runtime, runtime_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.graph import Capture


class Outdated(Exception):
    """A captured tensor is not what it was; the function must be recorded again. Raised before
    anything has run."""


@dataclass(frozen=True)
class _Result:
    """A tensor in the result. place: the argument that it is, or None; same: the captured tensor
    that it is. address: that of its memory in the graph; fixed: memory that replays leave alone."""

    place: int | None
    same: Tensor | None
    kind: type[Tensor]
    dtype: DType
    shape: Shape
    address: int
    fixed: Storage | None


@dataclass(frozen=True)
class _Source:
    """An argument in the graph: its stand-in's buffer, and a weak reference to its node."""

    tensor: Tensor
    whole: Storage
    buffer: Buffer
    node: weakref.ref[Node]

    @property
    def address(self) -> int:
        return int(self.buffer.address)


class Replay:
    """A captured graph, and the memory it owns. A replay that is dropped needs no `close`: the
    device frees graphs and buffers that nothing refers to."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name = name
        self.runtime = runtime
        self.pool = MemoryPool(runtime.device, keep=1 << 62)
        self.graph: Capture = runtime.device.capture()
        self.kernels = 0
        self.left = ""  # a tensor of the recorded call that something refers to
        self.settled = True  # whether it may be replayed again
        self._places: Places | None = None  # of the random numbers it uses
        self._buffers: list[Buffer] = []  # stand-ins, by place of the argument
        self._wholes: list[Storage] = []
        self._captured: list[Captured] = []
        self._by_id: dict[int, Captured] = {}  # the same by the ids of their tensors
        self._made: dict[int, Storage] = {}  # by address: memory that each replay allocates
        self._kept: dict[int, Storage] = {}  # by address: assigned memory of values begun before
        self._states: list[tuple[int | Captured, int]] = []  # assigned tensor, address of its value
        self._result: Any = None  # form of the result, with leaves of _Result
        self._used: set[int] = set()
        self._written: set[int] = set()
        self._named: set[int] = set()  # addresses of results and of memory that is written
        self._shared: set[int] = set()  # addresses of captured memory with several owners

    # ---- recording -----------------------------------------------------------------------------

    def record(
        self, function: Callable[..., Any], args: Any, kwargs: Any, tensors: Sequence[Tensor]
    ) -> tuple[Any, ...]:
        """Capture one call without running it; return what must be equal in the next recording.
        tensors: the arguments, computed, without repetitions."""
        recording, touched = Recording(self.name, self.pool), Touched(captures=True)
        recording.device = self.runtime.device
        sources: dict[int, _Source] = {}
        try:
            with recording, self.graph, touched:
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
        whole = self.pool.take(size)
        part = Part(whole, 0, size)  # exactly the size needed: a program's buffer may end there
        node = stored(tensor, part)
        self._wholes.append(whole)
        self._buffers.append(part.buffer)
        return _Source(tensor._new(node), whole, part.buffer, weakref.ref(node))

    def _bind(
        self, result: Any, recording: Recording, touched: Touched, sources: Sequence[_Source]
    ) -> None:
        """Find out where the memory of results and assigned tensors comes from."""
        kept: set[int] = set()  # memory of values that were begun before: it is written in the run
        for captured in touched.captured:
            if captured.node is not None:
                kept.update(_addresses(captured.node))
        alive = [each for ref in recording.made if (each := ref()) is not None]
        made = {int(each.address): each for each in alive if int(each.address) not in kept}
        self._used, self._written = recording.used, recording.written
        self._places, self.kernels = recording.places, len(recording.keys)
        leaves = tensors_of(result)
        self._find_captured(touched, {_address(leaf) for leaf in leaves})
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
            address = _address(tensor)
            self._states.append((owner, address))
            if address in made:
                self._made[address] = made[address]
            elif address in kept:
                self._kept[address] = cast(Storage, tensor.node.storage)
        known = {id(source.tensor): place for place, source in enumerate(sources)}
        found = {id(each): self._leaf(each, touched, known, made) for each in leaves}
        self._result = mapped(result, Tensor, lambda each: found[id(each)])
        self._named = self._written | {leaf.address for leaf in found.values()}
        self._named.update(address for _, address in self._states)

    def _leaf(
        self,
        tensor: Tensor,
        touched: Touched,
        known: Mapping[int, int],
        made: Mapping[int, Storage],
    ) -> _Result:
        storage = cast(Storage, tensor.node.storage)
        address, fixed = int(storage.address), None
        place = known.get(id(tensor))
        same = None if touched.created(tensor) else tensor
        if place is None and same is None:
            if address in made:
                self._made[address] = made[address]
            elif address not in self._own():
                fixed = storage
        return _Result(place, same, type(tensor), tensor.dtype, tensor.shape, address, fixed)

    def _own(self) -> set[int]:
        """Return the addresses of arguments and captured tensors."""
        captured = {each.address for each in self._captured if each.buffer is not None}
        return captured | {int(buffer.address) for buffer in self._buffers}

    def _find_captured(self, touched: Touched, results: set[int]) -> None:
        """Find the captured tensors whose memory is named by the graph or by results."""
        named = self._used | results
        assigned = {id(tensor) for tensor in touched.assigned()}
        stored_in: set[int] = set()
        for captured in touched.captured:
            captured.assigned = id(captured.ref()) in assigned
            if captured.node is not None:
                self._shared.update(_addresses(captured.node))
            elif captured.address in stored_in:
                self._shared.add(captured.address)
            stored_in.add(captured.address)
            if captured.assigned or captured.node is not None or captured.address in named:
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
        return bool(left) or any(int(each.address) not in self._made for each in alive)

    # ---- replaying -----------------------------------------------------------------------------

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """Replay with these arguments, which are computed; return the result. Raises Outdated."""
        sources = self._sources(tensors)
        self._check_apart(tensors)
        pool = self.runtime.pool
        current = dict(self._kept)
        bound: dict[Buffer, Buffer] = {}
        owners = [owner for owner, _ in self._states]
        changed = {id(tensors[each]) if isinstance(each, int) else id(each) for each in owners}
        for key, tensor, buffer in sources:
            address = int(buffer.address)
            if address in self._written and not (id(key) in changed and exclusive(tensor)):
                move(self.runtime, tensor)
            storage = cast(Storage, tensor.node.storage)
            current[address] = storage
            if address in self._used and storage.address != address:
                bound[buffer] = storage.buffer
        for address, storage in self._made.items():
            current[address] = pool.placed(storage.pool.placement).take(storage.size)
            if address in self._used:
                bound[storage.buffer] = current[address].buffer
        if self._places is not None:
            self._places.fill()
        if self.kernels:
            self._replay(bound)
        for owner, address in self._states:
            target = owner.ref() if isinstance(owner, Captured) else tensors[owner]
            if target is not None and target.node.storage is not current[address]:
                target.node = stored(target, current[address])
        made: dict[int, Tensor] = {}

        def tensor_of(leaf: _Result) -> Tensor:
            return self._tensor(leaf, tensors, current, made)

        return mapped(self._result, _Result, tensor_of)

    def _sources(
        self, tensors: Sequence[Tensor]
    ) -> list[tuple[Captured | Tensor, TensorCore, Buffer]]:
        """Return the tensors whose memory the graph may name, and the buffers it has for them."""
        sources: list[tuple[Captured | Tensor, TensorCore, Buffer]] = [
            (tensor, tensor, buffer) for tensor, buffer in zip(tensors, self._buffers, strict=True)
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
            if cast(Storage, node.storage).address != captured.address:
                if captured.address in self._shared:
                    raise Outdated
            elif captured.address not in self._named:
                continue
            if captured.buffer is not None:
                sources.append((captured, tensor, captured.buffer))
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

    def _replay(self, bound: Mapping[Buffer, Buffer]) -> None:
        try:
            self.graph.replay(inputs=bound)
        except Closed:
            if self.runtime.device.closed:
                raise
            raise Outdated from None  # memory that a captured tensor had is gone

    def _tensor(
        self,
        leaf: _Result,
        tensors: Sequence[Tensor],
        current: Mapping[int, Storage],
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
            node.storage = leaf.fixed or current[leaf.address]
            node.origin = here()
            tensor = made[id(leaf)] = object.__new__(leaf.kind)
            tensor.device, tensor.node = self.runtime.device, node
        return tensor

    def pending(self) -> list[TensorCore]:
        """Return the captured tensors that had no memory."""
        alive = [each.ref() for each in self._captured if each.node is not None]
        return [tensor for tensor in alive if tensor is not None]

    def retire(self) -> None:
        """Close the graph; its results stay valid."""
        self.graph.close()

    def close(self) -> None:
        """Free the graph and its memory once the last replay has ended."""
        self.graph.close()
        self.pool.keep = 0
        self.pool.clear()


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


def move(runtime: Runtime, tensor: TensorCore) -> None:
    """Move a tensor into memory of its own."""
    old = cast(Storage, tensor.node.storage)
    fresh = runtime.pool.placed(old.pool.placement).take(old.size)
    if old.size:
        runtime.device.queue().copy(fresh.buffer, old.buffer, old.size).submit()
    tensor.node = stored(tensor, fresh)


def realize(tensors: Sequence[TensorCore]) -> None:
    """Compute tensors, together those of one device."""
    devices = {id(tensor.device): tensor.device for tensor in tensors}
    for key, device in devices.items():
        runtime_of(device).realize([each.node for each in tensors if id(each.device) == key])


def _address(tensor: TensorCore) -> int:
    return int(cast(Storage, tensor.node.storage).address)


def _addresses(root: Node) -> list[int]:
    """Return the addresses of the memory that a node is computed from."""
    found: list[int] = []
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node.storage, Storage):
            found.append(int(node.storage.address))
        else:
            stack.extend(node.sources)
    return found
