"""A recorded call made by native code (direct.ll): arguments, submission and result in one step.

For calls of short work on `cpu`, with one result; everything else is left to Ready and Replay,
as is every call on an interpreter whose objects are not laid out as expected (`slot_offsets`). The
kernels run in the calling thread, as they do there.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ugpu.compiler.front.ready import Ready
from ugpu.compiler.graph import node as nodes
from ugpu.compiler.graph.node import Node, Repeated
from ugpu.compiler.graph.origin import Origin, here
from ugpu.compiler.runtime.memory_pool import Part, Reused, Storage
from ugpu.compiler.runtime.recording import under_way
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.cpu.processor import Words, native
from ugpu.hcq.objects import jit
from ugpu.hcq.objects.builtin import (
    METH_FASTCALL,
    METH_KEYWORDS,
    Builtin,
    publish_interface,
    slot_offsets,
)
from ugpu.hcq.state.config import config
from ugpu.hcq.state.life import ModuleLock
from ugpu.hcq.work.queue import NativeWork

MOST = 64 << 10  # bytes of a result whose memory is kept for the next one
RING = 4  # results whose memory is kept, of one function
ORIGIN, WORDS = 12, 22  # of %Call: the word of the last origin, and how many there are
NONE = (1 << 64) - 1
USED = (
    "PyObject_Vectorcall", "PyType_GenericAlloc", "PyObject_Size", "PyList_GetItem",
    "PyEval_GetFrame", "PyFrame_GetCode", "PyFrame_GetLasti", "PyObject_RichCompareBool",
    "PyDict_GetItemWithError", "PyLong_AsUnsignedLongLong", "PyLong_AsLongLong", "PyTuple_GetItem",
    "PyTuple_Size", "PyMem_Malloc", "PyMem_Free", "PyErr_NoMemory", "Py_IncRef", "Py_DecRef",
)  # fmt: skip
OWN = ("storage", "origin", "made")  # what differs between the nodes of results


class Recorded:
    """A function that native code may call: as `direct` says, unless that is None."""

    __slots__ = ("direct",)
    direct: Direct | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # Any: the function's own
        raise NotImplementedError


class _Source:
    """What native code gets by calling Python: memory for results, and origins. record: of the
    call."""

    def __init__(self, take: Callable[[], Reused], record: Words) -> None:
        self.ring: list[Reused] = []
        self._take = take
        self._record = record
        self._origin: Origin | None = None

    def fill(self) -> Reused:
        """Return memory for a result, and keep it for later ones; the others are in use."""
        storage = self._take()
        self.ring.append(storage)
        if len(self.ring) > RING:
            del self.ring[0]  # it belongs to its tensor alone from now on
        return storage

    def here(self) -> Origin | None:
        """Return the origin of a tensor that is made now."""
        origin = here(2)
        if origin is not None and origin[0] is sys._getframe(1).f_code:
            before, self._origin = self._origin, origin
            self._record[ORIGIN] = id(origin)
            del before
        return origin


class Direct:
    """What native code needs for one recorded call: %Call of direct.ll, at `address`."""

    __slots__ = ("_kept", "address")

    def __init__(self, ready: Ready, work: NativeWork) -> None:
        (pool, size, used), (_, dtype, shape) = ready.memories[0], ready.leaves[0]
        template = Node("buffer", dtype, shape)
        arguments = _words([id(each[0]), id(each[1]), each[2]] for each in ready.arguments)
        held = _words([id(ref), address] for ref, address in ready.held)
        fields = _words([place, id(content)] for place, content in _fields(template))
        record = Words(WORDS)
        source = _Source(partial(pool.reused, size), record)
        called = source.ring, source.fill, source.here
        slot = sum(each[2] for each in ready.arguments) if used else NONE
        period = "_period"
        record.words[:] = [
            len(ready.arguments), *map(id, (under_way, Tensor, Node, Repeated, Storage, Reused)),
            work.address, work.given, *map(id, called), 0, slot,
            len(ready.held), held.address, len(template.__slots__) - len(OWN) - 1, fields.address,
            id(ready.device), id(vars(nodes)), id(period), arguments.address,
        ]  # fmt: skip
        self._kept = ready, work, template, arguments, held, fields, record, called, period
        self.address = record.address


def _words(rows: Iterable[Sequence[int]]) -> Words:
    listed = [word for row in rows for word in row]
    words = Words(max(1, len(listed)))
    words.words[: len(listed)] = listed
    return words


def direct_of(ready: Ready, kind: type[Recorded]) -> Direct | None:
    """Return the record of a call that native code can make; None if it has to be made by Python.
    kind: the class of the recorded function."""
    if not ready.alone or len(ready.memories) != 1:
        return None
    pool, size, _ = ready.memories[0]
    if size > MOST or pool.poison is not None:
        return None
    work = ready.repetition.native()
    return Direct(ready, work) if work is not None and _install(kind) else None


def _fields(template: Node) -> list[tuple[int, object]]:
    """Return where nodes of results have what is the same in all of them."""
    names = [each for each in Node.__slots__ if each != "__weakref__" and each not in OWN]
    offsets = slot_offsets(Node, *names)
    assert offsets is not None  # `_install` has asked
    return [(offset, getattr(template, name)) for offset, name in zip(offsets, names, strict=True)]


class _Native:
    """The loaded code and the method that it is called by; never freed."""

    def __init__(self, offsets: Sequence[int], kind: type, call: Callable[..., Any]) -> None:
        native()  # publishes ugpu_now
        publish_interface(USED)
        text = Path(__file__).with_suffix(".ll").read_text(encoding="utf-8")
        objects = jit.ObjectCache(config().cache_folder / "cpu")
        key = jit.key_of((), text)
        compiled = objects.made(key, partial(jit.compile_object, text, jit.FULL, jit.FULL))
        self._code = jit.Loaded(compiled)
        pointer = ctypes.c_void_p
        setup = ctypes.CFUNCTYPE(None, pointer, pointer, pointer)(
            self._code.address("ugpu_recorded_setup")
        )
        places = Words(len(offsets))
        places.words[:] = offsets
        setup(places.address, id(call), id(Direct))
        self._call = call
        flags = METH_FASTCALL | METH_KEYWORDS
        self._builtin = Builtin("__call__", self._code.address("ugpu_recorded"), flags)
        self.method = self._builtin.method(kind)


_lock = ModuleLock()
_native: list[_Native | None] = []


def _install(kind: type[Recorded]) -> bool:
    """Have native code make the calls of a class of recorded functions that have a Direct, and
    leave others to its method `__call__`; return whether that is possible."""
    with _lock.lock:
        if not _native:
            offsets = _offsets()
            code = None if offsets is None else _Native(offsets, kind, kind.__call__)
            _native.append(code)
            if code is not None:
                name = "__call__"
                setattr(kind, name, code.method)
        return _native[0] is not None


def _offsets() -> list[int] | None:
    """Return the places of direct.ll; None if this interpreter is not known well enough."""
    places: list[int] = []
    for kind, names in (
        (Tensor, ("device", "node")), (Node, ("dtype", "shape", "storage", "origin", "made")),
        (Part, ("address",)), (Recorded, ("direct",)), (Direct, ("address",)),
    ):  # fmt: skip
        offsets = slot_offsets(kind, *names)  # Part: a Storage that needs no pool
        if offsets is None:
            return None
        places += offsets
    return places
