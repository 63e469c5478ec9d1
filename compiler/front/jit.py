"""@jit: record a function's kernels once, then replay them with new inputs.

The first call runs as usual and compiles. The second is captured as a graph of the device
(Device.capture) and replayed at once. Later calls only replay: no tensor graph is built, no
schedule is made and no Python runs per kernel. Results are new tensors each time.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, cast

from compiler.graph.node import Node
from compiler.runtime.memory_pool import MemoryPool, Part, Storage
from compiler.runtime.numbers import Places
from compiler.runtime.recording import Recording, current_recording
from compiler.runtime.runtime import Runtime, runtime_of
from compiler.tensor import Tensor
from hcq.buffer import Buffer
from hcq.core import core_of
from hcq.device import Device
from hcq.errors import BadArgument, NotSupported
from hcq.graph import Capture

Given = ParamSpec("Given")
Result = TypeVar("Result")
ATTEMPTS = 4  # calls whose kernels may differ from those of the call before, until they settle


def jit(function: Callable[Given, Result]) -> Jit[Given, Result]:
    """Wrap a function (or method) of tensors for replay.

    Arguments may be tensors, also in lists, tuples and dicts, whose shapes and types must not
    change after the second call, and plain values, which must stay equal. The result has the same
    form. Other tensors that the function uses (weights) remain those of the second call. The
    function must do the same in every call, and must not read elements or create arrays; `reset()`
    discards the recording. Random numbers are new in each call, the same as without `jit`. Called
    inside a function that is being recorded, or inside `device.capture()`, it becomes part of that
    recording. The graph keeps memory for inputs, results and intermediate values.
    """
    return Jit(function)


class Jit(Generic[Given, Result]):
    """A recorded function, created by `jit`. Only one thread may call it at a time."""

    def __init__(self, function: Callable[Given, Result]) -> None:
        functools.update_wrapper(self, function)
        self.name = getattr(function, "__qualname__", repr(function))
        self._function = function
        self._calls = 0
        self._signature: tuple[Any, ...] = ()
        self._keys: list[tuple[Any, ...]] | None = None
        self._replay: _Replay | None = None

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        if current_recording() is not None:
            return self._function(*args, **kwargs)
        tensors: list[Tensor] = []
        shape = _flatten((args, kwargs), tensors)
        devices = {id(tensor.device): tensor.device for tensor in tensors}
        if len(devices) > 1:
            names = " and ".join(device.name for device in devices.values())
            raise NotSupported(
                f"@jit {self.name}: all arguments must be on one device, got {names}"
            )
        device = next(iter(devices.values()), None)
        if device is not None and _capturing(device):
            return self._function(*args, **kwargs)
        storages = _stored(tensors)
        places = {id(storage): place for place, storage in reversed(list(enumerate(storages)))}
        signature = (shape, tuple(places[id(storage)] for storage in storages))
        if self._replay is None:
            return self._learn(signature, args, kwargs, storages)
        if signature != self._signature:
            raise BadArgument(self._changed(signature))
        return cast(Result, self._replay.run(storages))

    def reset(self) -> None:
        """Discard the recording; the next call is a first call."""
        if self._replay is not None:
            self._replay.close()
        self._replay, self._keys, self._calls = None, None, 0

    @property
    def kernels(self) -> int:
        """Number of kernels of a replay; 0 before the recording."""
        return 0 if self._replay is None else self._replay.kernels

    def __repr__(self) -> str:
        state = f"recorded, {self.kernels} kernels" if self._replay is not None else "not recorded"
        return f"<jit {self.name}: {state}>"

    def __get__(self, instance: Any, owner: type) -> Any:
        """Bind as a method: each instance has its own recording."""
        if instance is None:
            return self
        bound = Jit(self._function.__get__(instance, owner))  # type of a bound method
        instance.__dict__[self._function.__name__] = bound
        return bound

    # ---- recording -----------------------------------------------------------------------------

    def _learn(
        self,
        signature: tuple[Any, ...],
        args: Any,  # the arguments of the call
        kwargs: Any,
        storages: list[Storage],
    ) -> Result:
        self._calls += 1
        if self._keys is None or signature != self._signature:
            with Recording(self.name) as first:
                given = _replace((args, kwargs), iter(storages))  # the caller's tensors stay as is
                result = self._function(*given[0], **given[1])
                _realize(result)
            first.finish()
            self._signature, self._keys, self._device = signature, first.keys, first.runtime
            return result
        if self._calls > ATTEMPTS + 1:
            raise BadArgument(
                f"@jit {self.name}: its kernels differ between calls, or it stores a tensor "
                "that it computed; return that tensor and pass it as an argument"
            )
        if self._device is None:
            return self._function(*args, **kwargs)
        replay = _Replay(self.name, self._device)
        with replay:
            result, recording = replay.record(self._function, args, kwargs, storages)
        computed = replay.run(storages)
        del result
        if recording.keys != self._keys or replay.leaks(recording):
            self._keys = recording.keys
            replay.retire()
        else:
            self._replay = replay
        return cast(Result, computed)

    def _changed(self, signature: tuple[Any, ...]) -> str:
        now, then = signature[0], self._signature[0]
        if now == then:
            return f"@jit {self.name}: other arguments share memory than when it was recorded"
        return (
            f"@jit {self.name}: called with {_text(now)}, recorded with {_text(then)}; "
            "use one jit for each, or reset()"
        )


class _Replay:
    """A captured graph, the memory it owns, and how its inputs and results are bound. A replay that
    is dropped needs no `close`: the device frees graphs and buffers that nothing refers to."""

    def __init__(self, name: str, runtime: Runtime) -> None:
        self.name = name
        self.runtime = runtime
        self.pool = MemoryPool(runtime.device, keep=1 << 62)
        self.graph: Capture = runtime.device.capture()
        self.inputs: list[tuple[int, Buffer]] = []  # position of an argument, its stand-in
        self.results: dict[int, Storage] = {}  # by id: storages that each replay allocates anew
        self.passed: dict[int, int] = {}  # by id of a stand-in: position of the argument
        self.held: list[Storage] = []
        self.shape: Any = None  # form of the result, with leaves of _Leaf
        self.leaves: list[Node] = []
        self.kernels = 0
        self.places: Places | None = None  # of the random numbers it uses
        self.states: list[tuple[weakref.ref[Node], int]] = []  # assigned nodes, references then

    def __enter__(self) -> _Replay:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.close()

    def record(
        self, function: Callable[..., Any], args: Any, kwargs: Any, storages: list[Storage]
    ) -> tuple[Any, Recording]:
        """Capture one call, with stand-in memory for its arguments."""
        stand_ins: dict[int, Storage] = {}
        for storage in storages:
            if id(storage) not in stand_ins:
                # exactly the size needed: a program's buffer may end there
                stand_ins[id(storage)] = Part(self.pool.take(storage.size), 0, storage.size)
        recording = Recording(self.name, self.pool)
        recording.runtime = self.runtime
        try:
            with recording, self.graph:
                given = _replace((args, kwargs), iter(stand_ins[id(s)] for s in storages))
                result = function(*given[0], **given[1])
                _realize(result)
        except BaseException:
            recording.undo()
            raise
        recording.finish()
        self._bind(result, recording, storages, stand_ins)
        return result, recording

    def _bind(
        self,
        result: Any,
        recording: Recording,
        storages: list[Storage],
        stand_ins: Mapping[int, Storage],
    ) -> None:
        for place, storage in enumerate(storages):
            stand_in = stand_ins[id(storage)]
            if id(stand_in) in self.passed:
                continue
            self.passed[id(stand_in)] = place
            self.held.append(stand_in)
            if id(stand_in) in recording.used:
                self.inputs.append((place, stand_in.buffer))
        tensors: list[Tensor] = []
        self.shape = _flatten(result, tensors)
        self.template = result
        self.leaves = [tensor.node for tensor in tensors]
        made = {id(each) for ref in recording.made if (each := ref()) is not None}
        for storage in _stored(tensors):
            if id(storage) in made:
                self.results[id(storage)] = storage
        self.states = [(ref, _references(ref)) for ref in recording.assigned if ref() is not None]
        states = {id(node.storage) for ref, _ in self.states if (node := ref()) is not None}
        if any(id(node.storage) in states for node in self.leaves):
            raise BadArgument(
                f"@jit {self.name}: it returns a tensor that it assigns to, which later "
                "calls would change; return a copy (x + 0)"
            )
        self.used = recording.used
        self.places = recording.places
        self.kernels = len(recording.keys)

    def leaks(self, recording: Recording) -> bool:
        """Return whether anything besides the result still refers to computed storages."""
        alive = [each for ref in recording.made if (each := ref()) is not None]
        return any(id(storage) not in self.results for storage in alive)

    def run(self, storages: list[Storage]) -> Any:
        """Replay with these inputs; return the result in fresh memory."""
        for ref, count in self.states:
            if _references(ref) > count:
                raise BadArgument(
                    f"@jit {self.name}: it assigns to a tensor whose current value is still "
                    "needed by tensors that are not computed yet; realize them first"
                )
        pool = self.runtime.pool
        fresh = {key: pool.take(storage.size) for key, storage in self.results.items()}
        bound = {buffer: storages[place].buffer for place, buffer in self.inputs}
        for key, storage in self.results.items():
            if key in self.used:
                bound[storage.buffer] = fresh[key].buffer
        if self.places is not None:
            self.places.fill()
        if self.kernels:
            self.graph.replay(inputs=bound)
        leaves = []
        for node in self.leaves:
            key = id(node.storage)
            if key in self.passed:
                leaves.append(storages[self.passed[key]])
            else:
                leaves.append(fresh.get(key) or cast(Storage, node.storage))
        return _replace(self.template, iter(leaves))

    def retire(self) -> None:
        """Close the graph; its results stay valid."""
        self.graph.close()

    def close(self) -> None:
        """Free the graph and its memory once the last replay has ended."""
        self.graph.close()
        self.pool.keep = 0
        self.pool.clear()


# ---- arguments and results ---------------------------------------------------------------------


def _references(ref: weakref.ref[Node]) -> int:
    """Return the number of references to a node; 0 if it was freed."""
    node = ref()
    return 0 if node is None else sys.getrefcount(node)


def _capturing(device: Device) -> bool:
    capturing = core_of(device).capturing
    return capturing is not None and capturing.is_mine


def _flatten(value: Any, tensors: list[Tensor]) -> Any:
    """Collect the tensors of nested containers; return the rest of their content, comparable."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return ("tensor", value.dtype.name, value.shape, value.device.name)
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(_flatten(each, tensors) for each in value))
    if isinstance(value, dict):
        return ("dict", *((key, _flatten(each, tensors)) for key, each in value.items()))
    return (type(value).__name__, value)


def tensors_of(value: object) -> list[Tensor]:
    """Return the tensors of nested lists, tuples and dicts."""
    tensors: list[Tensor] = []
    _flatten(value, tensors)
    return tensors


def _replace(value: Any, storages: Any) -> Any:
    """Return the same containers, each tensor now with the next storage."""
    if isinstance(value, Tensor):
        node = Node("buffer", value.dtype, value.shape)
        node.storage = next(storages)
        return value._new(node)
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
        return type(value)(*(_replace(each, storages) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(_replace(each, storages) for each in value)
    if isinstance(value, dict):
        return {key: _replace(each, storages) for key, each in value.items()}
    return value


def _realize(result: Any) -> None:
    tensors = tensors_of(result)
    if tensors:
        tensors[0].realize(*tensors[1:])


def _stored(tensors: list[Tensor]) -> list[Storage]:
    """Return the memory of each tensor, after computing those that are not computed yet."""
    waiting = [tensor.node for tensor in tensors if tensor.node.storage is None]
    if waiting:
        runtime_of(tensors[0].device).realize(waiting)
    return [cast(Storage, tensor.node.storage) for tensor in tensors]


def _text(shape: Any) -> str:
    """Return a signature as text for error messages."""
    if shape[0] == "tensor":
        return f"{shape[1]}{list(shape[2])}"
    if shape[0] in ("tuple", "list"):
        return f"({', '.join(_text(each) for each in shape[1:])})"
    if shape[0] == "dict":
        return "{" + ", ".join(f"{key}: {_text(each)}" for key, each in shape[1:]) + "}"
    return repr(shape[1])
