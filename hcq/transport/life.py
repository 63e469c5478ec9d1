"""What becomes of open devices when their process forks, or ends without closing them.

A forked child does not inherit devices: its copies of descriptors and mappings are dropped, else
the child would keep the kernel from taking the device back, and could write its registers. At the
interpreter's end (also after Ctrl-C) what is still open is closed, so that a device that was taken
from its driver goes back to it. A process that is killed outright leaves its device to vfio-pci.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import weakref
from typing import Protocol

from hcq.errors import UgpuError

log = logging.getLogger(__name__)


class Owned(Protocol):
    """An open device."""

    name: str

    def abandon(self) -> None:
        """Drop this process' copies without touching the device; later use raises Closed."""
        ...

    def close(self) -> None: ...


_open: weakref.WeakSet[Owned] = weakref.WeakSet()


def look_after(transport: Owned) -> None:
    """From now on a fork abandons `transport` in the child, and the process' end closes it."""
    _register()
    _open.add(transport)


@functools.cache
def _register() -> None:
    os.register_at_fork(after_in_child=_abandon_all)
    atexit.register(_close_all)


def _abandon_all() -> None:
    for transport in list(_open):
        transport.abandon()
    _open.clear()


def _close_all() -> None:
    for transport in list(_open):
        try:
            transport.close()
        except (UgpuError, OSError) as error:
            log.error("%s does not close: %s", transport.name, error)
