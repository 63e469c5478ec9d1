"""Closing that takes the kernel seconds, in separate threads, which the next opening waits for.

VFIO resets a function when its descriptor is closed (Linux 6.12 drivers/vfio/pci/vfio_pci_core.c,
vfio_pci_core_disable), and waits for one that no longer responds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ugpu.hcq.errors import OutOfMemory
from ugpu.hcq.state.threads import start

log = logging.getLogger(__name__)

# TIMEOUT: Linux waits 60 s at most for a function after a reset (drivers/pci/pci.c,
# PCIE_RESET_READY_POLL_MS).
_LIMIT_S = 60.0
_closing: dict[str, threading.Thread] = {}


def close_late(name: str, close: Callable[[], object]) -> None:
    """Call `close`, for the device opened as `name`, in a thread that the interpreter's end waits
    for; in this thread if the system cannot start one. An error is logged."""

    def run() -> None:
        try:
            close()
        except Exception as error:  # including errors of the driver that gets the device back
            log.warning("%s: while closing: %s", name, error)
        finally:
            if _closing.get(name) is threading.current_thread():
                del _closing[name]

    thread = threading.Thread(target=run, name=f"close {name}")
    _closing[name] = thread
    try:
        start(thread)
    except OutOfMemory:
        del _closing[name]
        run()


def await_closed(name: str) -> None:
    """Wait until the device opened as `name` before has been closed; must not be called in the
    thread that closes it."""
    thread = _closing.get(name)
    if thread is not None and thread is not threading.current_thread():
        thread.join(_LIMIT_S)
