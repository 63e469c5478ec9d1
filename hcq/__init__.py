"""One interface to every GPU: devices, buffers, programs, queues, graphs.

    from ugpu import hcq
    with hcq.open("auto") as gpu: ...

Importing this package loads almost nothing, not even NumPy: names are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ugpu.hcq import errors as errors
    from ugpu.hcq.device.device import Device as Device
    from ugpu.hcq.errors import UgpuError as UgpuError
    from ugpu.hcq.find.listing import list_devices as list_devices
    from ugpu.hcq.find.registry import open as open
    from ugpu.hcq.remote.lease import lease as lease
    from ugpu.hcq.state.memory import Placement as Placement
    from ugpu.hcq.state.target import TargetSpec as TargetSpec
    from ugpu.hcq.state.telemetry import Sensor as Sensor
    from ugpu.hcq.work.buffer import Buffer as Buffer
    from ugpu.hcq.work.graph import Capture as Capture
    from ugpu.hcq.work.program import Kernel as Kernel
    from ugpu.hcq.work.program import Parameter as Parameter
    from ugpu.hcq.work.program import Program as Program
    from ugpu.hcq.work.queue import Queue as Queue
    from ugpu.hcq.work.queue import QueueKind as QueueKind
    from ugpu.hcq.work.timeline import Timeline as Timeline

_HOMES = {
    "Buffer": "ugpu.hcq.work.buffer",
    "Capture": "ugpu.hcq.work.graph",
    "Device": "ugpu.hcq.device.device",
    "Kernel": "ugpu.hcq.work.program",
    "Parameter": "ugpu.hcq.work.program",
    "Placement": "ugpu.hcq.state.memory",
    "Program": "ugpu.hcq.work.program",
    "Queue": "ugpu.hcq.work.queue",
    "QueueKind": "ugpu.hcq.work.queue",
    "Sensor": "ugpu.hcq.state.telemetry",
    "TargetSpec": "ugpu.hcq.state.target",
    "Timeline": "ugpu.hcq.work.timeline",
    "UgpuError": "ugpu.hcq.errors",
    "lease": "ugpu.hcq.remote.lease",
    "list_devices": "ugpu.hcq.find.listing",
    "open": "ugpu.hcq.find.registry",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("ugpu.hcq.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ugpu.hcq' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "errors"})
