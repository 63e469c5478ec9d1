"""The best choices that searches found, on disk: by computation and target."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from ugpu.compiler.codegen.process.children import version
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.text import format_value
from ugpu.compiler.expression.value import Memory
from ugpu.compiler.kernel.choices import Choices, from_text, to_text
from ugpu.hcq.device.device import Device
from ugpu.hcq.disk.cache import DiskCache
from ugpu.hcq.find import planting

log = logging.getLogger(__name__)


class Store:
    """A folder of records; None keeps nothing. Processes may share it."""

    def __init__(self, folder: Path | None) -> None:
        self.disk = DiskCache(folder)
        self.listener: Callable[[], object] | None = None  # called when kernels may be outdated

    def tell(self) -> None:
        """Report new records of kernels that may be in use."""
        if self.listener is not None:
            self.listener()

    def exists(self) -> bool:
        """Return whether the store can contain records."""
        return self.disk.folder is not None and os.path.isdir(self.disk.folder)

    def get(self, key: str) -> Choices | None:
        """Return the record, or None; one that cannot be read is deleted and gives None."""
        data = self.disk.get(key)
        if data is None:
            return None
        try:
            return from_text(data.decode())
        except (ValueError, TypeError) as error:
            log.warning("discarding the invalid record of a tuned kernel: %s", error)
            self.disk.forget(key)
            return None

    def put(self, key: str, choices: Choices) -> None:
        self.disk.put(key, to_text(choices).encode())


def key_of(computation: Computation, device: Device) -> str:
    """Return the key of a record: the computation, the whole target, LLVM, and whether the device
    is virtual (a model's times are not the chip's). The caller holds `interning`."""
    target = asdict(device.target)
    name, _ = planting.split(device.name)  # without planted faults
    kind = name if name.startswith("virtual:") else name.partition(":")[0]
    ranges = [f"{r.name}:{r.size}" for r in computation.ranges]
    memories = [
        f"{m.name} {m.dtype.name} {m.count}" for m in (*computation.outputs, *computation.inputs)
    ]
    return DiskCache.key(
        format_value(computation.value), str(computation.position), *ranges, *memories, kind,
        repr(sorted(target.items(), key=str)), version(),
    )  # fmt: skip


def packing_key(computation: Computation, device: Device) -> str:
    """Return the key for whether a product's factors are packed. The caller holds `interning`."""
    return DiskCache.key("packing", key_of(computation, device))


def _text(memory: Memory) -> str:
    return f"{memory.name} {memory.dtype.name} {memory.count}"
