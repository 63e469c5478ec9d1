"""Tensors that a training step leaves to be computed: losses, and statistics that modules update.

An optimiser computes them together with the parameters, so that their common parts run once, and
so that statistics do not grow into graphs of all steps.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from ugpu.compiler.gradients.values import Values
from ugpu.hcq.device.device import Device


class _Pending(threading.local):
    def __init__(self) -> None:
        self.tensors: dict[int, weakref.ref[Values]] = {}


_pending = _Pending()


def add(*tensors: Values) -> None:
    """Note tensors of this thread; only weak references are kept."""
    for tensor in tensors:
        _pending.tensors[id(tensor)] = weakref.ref(tensor)


def take(device: Device) -> list[Any]:  # of Tensor, which is above this floor
    """Return the living tensors of a device that are not computed yet, and forget them."""
    alive = [tensor for ref in _pending.tensors.values() if (tensor := ref()) is not None]
    _pending.tensors.clear()
    add(*(each for each in alive if each.device is not device))
    return [each for each in alive if each.device is device and each.node.storage is None]
