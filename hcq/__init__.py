"""One interface to every GPU: devices, buffers, programs, queues, graphs.

    import hcq
    with hcq.open("auto") as gpu: ...

Importing this package loads almost nothing, not even NumPy: names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hcq import errors as errors
    from hcq.buffer import Buffer as Buffer
    from hcq.device import Device as Device
    from hcq.errors import UgpuError as UgpuError
    from hcq.graph import Capture as Capture
    from hcq.listing import list_devices as list_devices
    from hcq.memory import Placement as Placement
    from hcq.program import Kernel as Kernel
    from hcq.program import Parameter as Parameter
    from hcq.program import Program as Program
    from hcq.queue import Queue as Queue
    from hcq.queue import QueueKind as QueueKind
    from hcq.registry import open as open
    from hcq.remote.lease import lease as lease
    from hcq.target import TargetSpec as TargetSpec
    from hcq.telemetry import Sensor as Sensor
    from hcq.timeline import Timeline as Timeline

_HOMES = {
    "Buffer": "hcq.buffer",
    "Capture": "hcq.graph",
    "Device": "hcq.device",
    "Kernel": "hcq.program",
    "Parameter": "hcq.program",
    "Placement": "hcq.memory",
    "Program": "hcq.program",
    "Queue": "hcq.queue",
    "QueueKind": "hcq.queue",
    "Sensor": "hcq.telemetry",
    "TargetSpec": "hcq.target",
    "Timeline": "hcq.timeline",
    "UgpuError": "hcq.errors",
    "lease": "hcq.remote.lease",
    "list_devices": "hcq.listing",
    "open": "hcq.registry",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("hcq.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'hcq' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "errors"})
