"""Objects that outlive their references (open devices, running threads), and forked children.

An open device is kept until it is closed, even if the caller drops it: its threads, its hardware or
its model still use its memory. When the process ends, devices that are still open are closed, then
transports. A thread that cannot be stopped (inside a kernel that never ends) keeps its memory until
the process is gone: the interpreter's teardown would free it under the running thread.

A forked child does not inherit devices: there, `abandon` is called for everything registered by
`inherits`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterable
from typing import Protocol

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.weak_registry import WeakRegistry

log = logging.getLogger(__name__)


class Inherited(Protocol):
    """Something of the parent process that a forked child must not use."""

    def abandon(self) -> None:
        """Become closed, in the child: touch no hardware, no other process and no thread. Locks may
        be held by threads that do not exist in the child: replace them."""
        ...


class Closable(Protocol):
    """An object that is closed at the latest when the process ends.

    Attributes:
        name: for messages.
    """

    name: str

    def close(self) -> None: ...


class OpenDevice(Closable, Inherited, Protocol):
    """See hcq.device.device.

    Attributes:
        closed: whether the device is closed.
    """

    closed: bool


class ModuleLock:
    """A module's lock. A thread of the parent may hold it when a process forks: the child then gets
    a new one that is free. Use `with module_lock.lock:`. A method of this class in place of the
    lock's could be interrupted by an exception between taking the lock and entering the block.

    Attributes:
        lock: reentrant: a thread interrupted before the release can acquire it again.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        inherits(self)

    def abandon(self) -> None:
        """See Inherited."""
        self.lock = threading.RLock()


_devices: dict[int, OpenDevice] = {}  # open, by id; in the order they were opened
_parts: WeakRegistry[Closable] = WeakRegistry()  # transports; each belongs to a device
_inherited: WeakRegistry[Inherited] = WeakRegistry()
# Threads that cannot be stopped: whether each still runs, and all objects that it may access.
_left_behind: list[tuple[Callable[[], bool], list[object]]] = []


def device_opened(device: OpenDevice) -> None:
    """Keep a device until `device_closed`, at the latest until the process ends."""
    _register()
    _devices[id(device)] = device
    _inherited.add(device)


def device_closed(device: OpenDevice) -> None:
    """Stop keeping a device: no part of it runs any more."""
    _devices.pop(id(device), None)
    _inherited.discard(device)


def open_devices() -> list[OpenDevice]:
    """Return the devices that are open, in the order they were opened."""
    return list(_devices.values())


def part_opened(part: Closable) -> None:
    """Close a transport at the end of the process, after all devices, if it is still referenced."""
    _register()
    _parts.add(part)


def part_closed(part: Closable) -> None:
    _parts.discard(part)


def inherits(thing: Inherited) -> None:
    """Have a forked child call `thing.abandon()`, for as long as `thing` is referenced."""
    _register()
    _inherited.add(thing)


def inherits_no_more(thing: Inherited) -> None:
    """Undo `inherits` for a closed object: a forked child need not abandon it."""
    _inherited.discard(thing)


def leave_behind(running: Callable[[], bool], reach: list[object]) -> None:
    """Keep all of `reach` as long as `running()` is true, even if the objects are dropped or
    closed."""
    _register()
    _left_behind[:] = [entry for entry in _left_behind if entry[0]()]
    _left_behind.append((running, reach))


def left_behind() -> int:
    """Return the number of abandoned threads that still run."""
    return sum(running() for running, _ in _left_behind)


def call_all(calls: Iterable[Callable[[], object]]) -> None:
    """Make all calls, the last one first; if one raises an error, raise it after all are made."""
    with contextlib.ExitStack() as stack:
        for call in calls:
            stack.callback(call)


@functools.cache
def _register() -> None:
    os.register_at_fork(after_in_child=_abandon_all)
    atexit.register(_end)


def _abandon_all() -> None:
    """Abandon everything inherited, in a forked child. It has one thread, so nothing else uses
    these collections. The objects stay registered: the child may fork too."""
    inherited = list(_inherited)
    _devices.clear()
    _parts.clear()
    _left_behind.clear()
    call_all(thing.abandon for thing in inherited)


def _end() -> None:
    """Close open objects at the interpreter's end, and keep the memory of threads that still
    run."""
    try:
        for device in reversed(list(_devices.values())):
            if not device.closed:
                text = f"{device!r} was not closed: closed at the end of the process"
                warnings.warn(text, ResourceWarning, stacklevel=1)
            _close(device)
        for part in list(_parts):
            _close(part)
    finally:  # also after an interrupt
        _immortal([*_devices.values(), *[reach for running, reach in _left_behind if running()]])


def _close(thing: Closable) -> None:
    try:
        thing.close()
    except (UgpuError, OSError) as error:
        log.error("%s cannot be closed: %s", thing.name, error)


def _immortal(things: Iterable[object]) -> None:
    """Never free `things`, or objects they refer to, even when modules are torn down."""
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
