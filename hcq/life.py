"""Objects that outlive their references (open devices, running threads), and forked children.

An open device is kept until it is closed, even if the caller drops it: its threads, its hardware or
its model still use its memory. When the process ends, devices that are still open are closed, then
transports. What cannot be stopped (a thread inside a kernel that never ends) keeps its memory until
the process is gone: the interpreter's teardown would free it under the running thread.

A forked child inherits no device: `abandon` is called there for everything that `inherits` named.
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
import weakref
from collections.abc import Callable, Iterable
from typing import Protocol

from hcq.errors import UgpuError

log = logging.getLogger(__name__)


class Inherited(Protocol):
    """Something of the parent process that a forked child must not use."""

    def abandon(self) -> None:
        """Become closed, in the child: touch no hardware, no other process and no thread. Locks
        may be held by threads that the child does not have: replace them."""
        ...


class Closable(Protocol):
    """Something that is closed at the latest when the process ends."""

    name: str

    def close(self) -> None: ...


class OpenDevice(Closable, Inherited, Protocol):
    """See hcq.device."""

    closed: bool


class ModuleLock:
    """A lock of a module, which a thread of the parent may hold when a process forks: the child
    has one that is free. `with module_lock.lock:` takes it; our own method in place of the lock's
    could be interrupted by an exception between taking it and the block.

    lock: reentrant, for a thread that an exception kept from releasing it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        inherits(self)

    def abandon(self) -> None:
        """See Inherited."""
        self.lock = threading.RLock()


_devices: dict[int, OpenDevice] = {}  # open, by id; in the order they were opened
_parts: weakref.WeakSet[Closable] = weakref.WeakSet()  # transports; each belongs to a device
_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()
# What cannot be stopped: whether it still runs, and all that it may reach.
_left_behind: list[tuple[Callable[[], bool], list[object]]] = []


def device_opened(device: OpenDevice) -> None:
    """Keep a device until `device_closed`, at the latest until the process ends."""
    _register()
    _devices[id(device)] = device
    _inherited.add(device)


def device_closed(device: OpenDevice) -> None:
    """Nothing of the device runs any more: keep it no longer."""
    _devices.pop(id(device), None)
    _inherited.discard(device)


def part_opened(part: Closable) -> None:
    """Close a transport at the end of the process, after all devices, if it is still referenced."""
    _register()
    _parts.add(part)


def part_closed(part: Closable) -> None:
    _parts.discard(part)


def inherits(thing: Inherited) -> None:
    """Have a forked child call `thing.abandon()`, as long as it is referenced."""
    _register()
    _inherited.add(thing)


def inherits_no_more(thing: Inherited) -> None:
    """It is closed: a forked child has nothing to drop."""
    _inherited.discard(thing)


def leave_behind(running: Callable[[], bool], reach: list[object]) -> None:
    """Keep all of `reach` for as long as `running()`, whatever is dropped or closed."""
    _register()
    _left_behind[:] = [entry for entry in _left_behind if entry[0]()]
    _left_behind.append((running, reach))


def left_behind() -> int:
    """Return the number of abandoned threads that still run."""
    return sum(running() for running, _ in _left_behind)


def call_all(calls: Iterable[Callable[[], object]]) -> None:
    """Make all calls, the last one first; an error of one is raised when all are made."""
    with contextlib.ExitStack() as stack:
        for call in calls:
            stack.callback(call)


@functools.cache
def _register() -> None:
    os.register_at_fork(after_in_child=_abandon_all)
    atexit.register(_end)


def _abandon_all() -> None:
    """In a forked child, which has one thread: nothing else uses these collections. What is
    inherited stays so: the child may fork too."""
    found = list(_inherited)
    _devices.clear()
    _parts.clear()
    _left_behind.clear()
    call_all(thing.abandon for thing in found)


def _end() -> None:
    """At the interpreter's end: close what is open, and keep the memory of what still runs."""
    try:
        for device in reversed(list(_devices.values())):
            if not device.closed:
                text = f"{device!r} was not closed: closed at the end of the process"
                warnings.warn(text, ResourceWarning, stacklevel=1)
            _close(device)
        for part in list(_parts):
            _close(part)
    finally:  # an interrupt, too
        _immortal([*_devices.values(), *[reach for running, reach in _left_behind if running()]])


def _close(thing: Closable) -> None:
    try:
        thing.close()
    except (UgpuError, OSError) as error:
        log.error("%s cannot be closed: %s", thing.name, error)


def _immortal(things: Iterable[object]) -> None:
    """Never free `things`, nor what they refer to: not even when modules are torn down."""
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
