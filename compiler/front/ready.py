"""A recorded call that is replayed in few steps: one call of native code for all its kernels.

Only for what takes no decision at a replay: one graph of few kernels on one device, arguments that
are tensors, each once, and nothing assigned. Whatever is otherwise, is left to the full replay.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ugpu.compiler.dtype import DType
from ugpu.compiler.graph.node import Node, Shape
from ugpu.compiler.graph.origin import here
from ugpu.compiler.methods.core import TensorCore
from ugpu.compiler.runtime.memory_pool import MemoryPool, Storage
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device, core_of
from ugpu.hcq.errors import Closed
from ugpu.hcq.work.queue import Repetition

MISSED = object()  # the call has to be replayed in full


class Expected(NamedTuple):
    """An argument.

    Attributes:
        dtype: its type.
        shape: its shape.
        used: whether the kernels name its memory.
    """

    dtype: DType
    shape: Shape
    used: bool


class Held(NamedTuple):
    """A tensor from outside.

    Attributes:
        ref: the tensor.
        address: of the memory that the kernels name for it.
    """

    ref: weakref.ref[TensorCore]
    address: int


class Memory(NamedTuple):
    """Memory that each replay allocates.

    Attributes:
        pool: that it is taken from.
        size: in bytes.
        used: whether the kernels name it.
    """

    pool: MemoryPool
    size: int
    used: bool


class Leaf(NamedTuple):
    """A tensor of the result.

    Attributes:
        memory: number of the memory that it has.
        dtype: its type.
        shape: its shape.
    """

    memory: int
    dtype: DType
    shape: Shape


class Ready:
    """All that such a replay needs. form: makes the result from its new tensors. alone: it is a
    single tensor."""

    def __init__(
        self,
        device: Device,
        repetition: Repetition,
        arguments: Sequence[Expected],
        held: Sequence[Held],
        memories: Sequence[Memory],
        leaves: Sequence[Leaf],
        form: Callable[[Sequence[Tensor]], Any],
        alone: bool,
    ) -> None:
        self.device = device
        self.alone = alone
        self._core = core_of(device)
        self.repetition = repetition
        # plain tuples are unpacked faster
        self.arguments = [(each.dtype, each.shape, each.used) for each in arguments]
        self.held = [(each.ref, each.address) for each in held]
        self.memories = [(each.pool, each.size, each.used) for each in memories]
        self.leaves = [(each.memory, each.dtype, each.shape) for each in leaves]
        self._form = form

    def run(self, args: Sequence[object]) -> Any:
        """Replay with these arguments; return the result, or MISSED if nothing was done."""
        device, numbers, expected = self.device, [], self.arguments
        count = len(args)
        if count != len(expected) or self._core.capturing is not None:
            return MISSED
        for arg, (dtype, shape, used) in zip(args, expected, strict=True):
            if type(arg) is not Tensor or arg.device is not device:
                return MISSED
            node = arg.node
            storage = node.storage
            if node.dtype is not dtype or node.shape != shape or not isinstance(storage, Storage):
                return MISSED
            if used:
                numbers.append(storage.address)
        if count > 1 and (args[0] is args[1] or (count > 2 and len(set(map(id, args))) != count)):
            return MISSED
        for ref, address in self.held:
            tensor = ref()
            storage = None if tensor is None else tensor.node.storage
            if not isinstance(storage, Storage) or storage.address != address:
                return MISSED
        storages = []
        for pool, size, used in self.memories:
            storage = pool.take(size)
            storages.append(storage)
            if used:
                numbers.append(storage.address)
        try:
            self.repetition.submit(*numbers)
        except Closed:  # the full replay knows what is
            return MISSED
        tensors, origin = [], here(2)
        for memory, dtype, shape in self.leaves:
            node = Node("buffer", dtype, shape)
            node.storage, node.origin = storages[memory], origin
            tensor = object.__new__(Tensor)
            tensor.device, tensor.node = device, node
            tensors.append(tensor)
        return self._form(tensors)
