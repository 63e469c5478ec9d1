"""@jit: record a function's kernels once, then replay them with new inputs.

The first call runs as usual and compiles. The second is captured as a graph of the device
(Device.capture) and replayed at once. Later calls only replay: no tensor graph is built, no
schedule is made and no Python runs per kernel. Results are new tensors each time; tensors that the
function assigns get their new values, as if it had run.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast

from ugpu.compiler.front.direct import Direct, Recorded, direct_of
from ugpu.compiler.front.forms import flatten, tensors_of, text
from ugpu.compiler.front.ready import MISSED, Ready
from ugpu.compiler.front.replay import Outdated, Replay, call, move, realize
from ugpu.compiler.front.touched import Touched, exclusive
from ugpu.compiler.methods.core import TensorCore
from ugpu.compiler.runtime.recording import Recording, current_recording
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import BadArgument

Given = ParamSpec("Given")
Result = TypeVar("Result")
Refs = Sequence[weakref.ref[TensorCore]]
ATTEMPTS = 4  # calls whose kernels may differ from those of the call before, until they settle


def jit(function: Callable[Given, Result]) -> Jit[Given, Result]:
    """Wrap a function (or method) of tensors for replay.

    Arguments may be tensors, also in lists, tuples and dicts, whose shapes and types must not
    change after the second call, and plain values, which must stay equal. The result has the same
    form. The function may use other tensors (weights), and may assign to them and to its arguments
    (`x[...] = value`): each call uses their values at that time and gives them the new ones, as if
    the function ran. The function must do the same in every call, and must not read elements,
    create arrays, replace tensors in the lists and dicts it gets, or store tensors that it
    computed; `reset()` discards the recording. Random numbers are new in each call, the same as
    without `jit`. Called inside a function that is being recorded, or inside `device.capture()`, it
    becomes part of that recording. The graph keeps memory for inputs, results and intermediate
    values.
    """
    return Jit(function)


class Jit(Recorded, Generic[Given, Result]):
    """A recorded function, created by `jit`. Only one thread may call it at a time; the functions
    of several threads are recorded one after the other. Once there is a Direct, native code takes
    the place of `__call__`, which it calls for all that it leaves."""

    def __init__(self, function: Callable[Given, Result]) -> None:
        functools.update_wrapper(self, function)
        self.name = getattr(function, "__qualname__", repr(function))
        self._function = function
        self._calls = 0
        self._signature: tuple[Any, ...] = ()
        self._identity: tuple[Any, ...] | None = None  # what equals in two calls that are the same
        self._left = ""
        self._replay: Replay | None = None
        self._ready: Ready | None = None  # the same in few steps
        self.direct: Direct | None = None  # the same in native code
        self._devices: Sequence[Device] = ()  # none until a call has a kernel

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        if current_recording() is not None:
            return self._function(*args, **kwargs)
        if self._ready is not None and not kwargs:
            result = self._ready.run(args)
            if result is not MISSED:
                return cast(Result, result)
        listed: list[Tensor] = []
        shape = flatten((args, kwargs), listed)
        if any(map(_capturing, {tensor.device for tensor in listed})):
            return self._function(*args, **kwargs)
        tensors = list({id(tensor): tensor for tensor in listed}.values())
        places = {id(tensor): place for place, tensor in enumerate(tensors)}
        realize([tensor for tensor in tensors if tensor.node.storage is None])
        signature = (shape, tuple(places[id(tensor)] for tensor in listed))
        if self._replay is not None:
            if signature != self._signature:
                raise BadArgument(self._changed(signature))
            try:
                return cast(Result, self._replay.run(tensors))
            except Outdated:
                realize(self._replay.pending())
                self.reset()
        return self._learn(signature, args, kwargs, tensors)

    def reset(self) -> None:
        """Discard the recording; the next call is a first call."""
        if self._replay is not None:
            self._replay.close()
        self._replay = self._ready = self.direct = self._identity = None
        self._calls = 0

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
        tensors: list[Tensor],
    ) -> Result:
        self._calls += 1
        if not self._devices or self._identity is None or signature != self._signature:
            self._calls = 1
            with Recording(self.name) as first, Touched() as touched:
                result = call(self.name, self._function, (args, kwargs))
                results = tensors_of(result)
                realize([*results, *touched.assigned()])
                for tensor in results:  # as in a replay, whose results have no history
                    if touched.created(tensor):
                        tensor.node.forget()
                del results
            first.finish()
            self._signature = signature
            self._devices = first.devices
            self._identity = (first.keys, touched.used(tensors), touched.written(tensors))
            return cast(Result, result)
        if self._calls > ATTEMPTS + 1:
            raise BadArgument(self._restless())
        self._settle(*self._identity[1:])
        replay = Replay(self.name, self._devices)
        identity = replay.record(self._function, args, kwargs, tensors)
        self._left = replay.left
        try:
            computed = replay.run(tensors)
        except Outdated:
            replay.close()
            self.reset()
            return self._learn(signature, args, kwargs, tensors)
        if replay.settled and identity == self._identity:
            self._replay = replay
            if not kwargs and [*map(id, args)] == [*map(id, tensors)]:
                self._ready = replay.ready(tensors)
                if self._ready is not None:
                    self.direct = direct_of(self._ready, Jit)
        else:
            replay.retire()
        self._identity = identity
        return cast(Result, computed)

    @staticmethod
    def _settle(used: Refs, written: Refs) -> None:
        """Keep what the program did since the last call out of the recording: compute the tensors
        from outside, and move those that are assigned into memory of their own."""
        outside = [tensor for ref in used if (tensor := ref()) is not None]
        realize([tensor for tensor in outside if tensor.node.storage is None])
        del outside
        for ref in written:
            tensor = ref()
            if tensor is not None and not exclusive(tensor):
                move(tensor)

    def _restless(self) -> str:
        if self._left:
            return (
                f"@jit {self.name}: it stores a tensor that it computed, {self._left}, which a "
                "replay cannot do; return that tensor and pass it as an argument, or assign to an "
                "existing one (x[...] = value)"
            )
        return (
            f"@jit {self.name}: its kernels, or the tensors that it uses, differ between calls; "
            "pass what changes as an argument"
        )

    def _changed(self, signature: tuple[Any, ...]) -> str:
        now, then = signature[0], self._signature[0]
        if now == then:
            return (
                f"@jit {self.name}: one tensor is passed as several arguments in another way than "
                "when it was recorded"
            )
        return (
            f"@jit {self.name}: called with {text(now)}, recorded with {text(then)}; "
            "use one jit for each, or reset()"
        )


def _capturing(device: Device) -> bool:
    capturing = core_of(device).capturing
    return capturing is not None and capturing.is_mine
