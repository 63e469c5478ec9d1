"""The tensors that a function creates, reads and assigns while it is recorded.

A tensor's `node` is a slot, which costs nothing to read. While a recording is under way, a property
replaces it on the class and reports each access of the recording thread. Assignment to a tensor
(`x[...] = value`) is a write of `node`; the first write of a tensor is its creation.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ugpu.compiler.graph.node import Node
from ugpu.compiler.methods.core import TensorCore
from ugpu.compiler.runtime.memory_pool import Part, Place, Storage, place_of
from ugpu.hcq.work.buffer import Buffer

_SLOT = TensorCore.__dict__["node"]
_thread = threading.local()
_lock = threading.Lock()
_under_way = 0
_changes = 0
# An interpreter stops caching the attributes of a class that has changed too often (CPython 3.13:
# 1000 times); after as many changes as this, the property stays.
CHANGES = 400


def _read(tensor: TensorCore) -> Any:  # Node; AttributeError before it is set
    touched: Touched | None = getattr(_thread, "touched", None)
    if touched is not None:
        touched.reads(tensor)
    return _SLOT.__get__(tensor)


def _write(tensor: TensorCore, node: Node) -> None:
    touched: Touched | None = getattr(_thread, "touched", None)
    if touched is not None:
        touched.writes(tensor)
    _SLOT.__set__(tensor, node)


def _watch(change: int) -> None:
    """Count a recording that begins (1) or ends (-1); put the property in place meanwhile."""
    global _under_way, _changes
    with _lock:
        _under_way += change
        wanted = _under_way > 0 or _changes >= CHANGES
        if wanted is not isinstance(TensorCore.__dict__["node"], property):
            _changes += 1
            name = "node"
            setattr(TensorCore, name, property(_read, _write) if wanted else _SLOT)


class Captured:
    """A tensor that existed before the recording and was used in it. buffer, where: its memory
    then; node: its node then, if it had no memory; pending: if it had none after the recording
    either. It stays the only owner of its memory, if it was, although the memory is kept until
    `restore`."""

    __slots__ = ("_old", "_storage", "assigned", "buffer", "node", "pending", "ref", "where")

    def __init__(self, tensor: TensorCore) -> None:
        alone = exclusive(tensor)
        node = _node(tensor)
        self.ref = weakref.ref(tensor)
        self.assigned = False
        self.pending = False
        self.where: Place = (0, 0)
        self.buffer: Buffer | None = None
        self._old = weakref.ref(node)
        self._storage = cast("Storage | None", node.storage)
        self.node = node if self._storage is None else None
        if self._storage is not None:
            if alone:
                node.storage = Part(self._storage, 0, self._storage.size)
            self.buffer = cast(Storage, node.storage).buffer
            self.where = place_of(self.buffer)

    def free(self) -> None:
        """Release the memory."""
        storage, self._storage = self._storage, None
        node = self._old()
        if node is not None and storage is not None:
            node.storage = storage

    def restore(self) -> None:
        """Undo the assignments to the tensor. If it is gone, its memory is kept."""
        tensor, node, storage = self.ref(), self._old(), self._storage
        if tensor is None:
            return
        if self.assigned:
            if node is None:
                node = stored(tensor, cast(Storage, storage))
            _SLOT.__set__(tensor, node)
        self.free()


class Touched:
    """Collects, between entering and leaving, the tensors that its thread touches. captures:
    whether to keep the memory of those that existed before; see Captured."""

    def __init__(self, captures: bool = False) -> None:
        self.captures = captures
        self.captured: list[Captured] = []  # in order of first use
        self._used: dict[int, weakref.ref[TensorCore]] = {}
        self._assigned: dict[int, weakref.ref[TensorCore]] = {}
        self._created: dict[int, weakref.ref[TensorCore]] = {}

    def __enter__(self) -> Touched:
        _thread.touched = self
        _watch(1)
        return self

    def __exit__(self, *_: object) -> None:
        _thread.touched = None
        _watch(-1)

    def reads(self, tensor: TensorCore) -> None:
        """Note a tensor that existed before."""
        if _is(self._created, tensor) or _is(self._used, tensor) or _is_new(tensor):
            return
        self._used[id(tensor)] = weakref.ref(tensor)
        if self.captures:
            self.captured.append(Captured(tensor))

    def writes(self, tensor: TensorCore) -> None:
        """Note a tensor that is created or assigned."""
        if _is_new(tensor):
            self._created[id(tensor)] = weakref.ref(tensor)
            return
        self.reads(tensor)
        self._assigned[id(tensor)] = weakref.ref(tensor)

    def used(self, besides: Sequence[TensorCore]) -> list[weakref.ref[TensorCore]]:
        """Return the tensors that existed before, in order of first use, without some."""
        others = {id(tensor) for tensor in besides}
        return [ref for key, ref in self._used.items() if key not in others]

    def assigned(self) -> list[TensorCore]:
        """Return the living tensors that were assigned, and not created."""
        tensors = [each for ref in self._assigned.values() if (each := ref()) is not None]
        return [tensor for tensor in tensors if not _is(self._created, tensor)]

    def written(self, besides: Sequence[TensorCore]) -> list[weakref.ref[TensorCore]]:
        """Return those of `used` that were assigned."""
        assigned = {id(tensor) for tensor in self.assigned()}
        return [ref for ref in self.used(besides) if id(ref()) in assigned]

    def was_assigned(self, tensor: TensorCore) -> bool:
        """Return whether a tensor was assigned."""
        return _is(self._assigned, tensor)

    def created(self, tensor: TensorCore) -> bool:
        """Return whether a tensor was created."""
        return _is(self._created, tensor)

    def left(self) -> list[TensorCore]:
        """Return the tensors that were created and are still alive."""
        if any(ref() is not None for ref in self._created.values()):
            gc.collect()  # cycles
        return [each for ref in self._created.values() if (each := ref()) is not None]


def exclusive(tensor: TensorCore) -> bool:
    """Return whether nothing else refers to the tensor's node or its memory, and assignments may
    be done there."""
    node = _node(tensor)
    storage = node.storage
    # known: the slot of each owner, the variable here, the argument of getrefcount
    alone = sys.getrefcount(node) == 3 and sys.getrefcount(storage) == 3
    return alone and isinstance(storage, Storage) and storage.writable


def stored(tensor: TensorCore, storage: Storage) -> Node:
    """Return a node like the tensor's with other memory."""
    old = _node(tensor)
    node = Node("buffer", old.dtype, old.shape)
    node.storage, node.origin = storage, old.origin
    if old.tracked:  # a leaf of gradients stays one; other histories end
        node.take_over(old)
    return node


def _node(tensor: TensorCore) -> Node:
    node: Node = _SLOT.__get__(tensor)
    return node


def _is(refs: Mapping[int, weakref.ref[TensorCore]], tensor: TensorCore) -> bool:
    ref = refs.get(id(tensor))
    return ref is not None and ref() is tensor


def _is_new(tensor: TensorCore) -> bool:
    try:
        _SLOT.__get__(tensor)
    except AttributeError:
        return True
    return False
