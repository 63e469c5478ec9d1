"""GPU data published by the driver in memory that programs may read: clocks, power, temperatures.

An object of class RM_USER_SHARED_DATA below the subdevice is a page of system memory, which the
GPU's system processor writes every 100 to 500 ms as long as a program requests it. Sources:
open-gpu-kernel-modules 580.142 class/cl00de.h (layout, how to read it), ctrl/ctrl00de.h,
src/nvidia/src/kernel/gpu/gpu_user_shared_data.c (permissions, and when it is refused),
nvfixedtypes.h (temperatures have 8 bits below the point). Branch 535 publishes none of this.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from ugpu.hcq.errors import NotSupported, UgpuError, UnitTimeout
from ugpu.hcq.registers.layout import Struct
from ugpu.nv.rm.client import CONTROL_NODE
from ugpu.nv.rm.node_gpu import NodeGpu

_POLL = "NV00DE_RUSD_POLL_"
_WANTED = ("CLOCK", "PERF", "MEMORY", "POWER", "THERMAL", "PCI", "FAN")
_STAMP = "lastModifiedTimestamp"
_WRITING = (1 << 64) - 1  # RUSD_TIMESTAMP_WRITE_IN_PROGRESS
_SEQUENCE = 0xFF << 56  # RUSD_SEQ_START: from here on a counter, odd during a write
_TRIES = 100  # each lets a writer on; a section takes microseconds
# On driver 580.159.04 the sections after this one are 8 bytes further on than in 580.142, and its
# CUDA maps 8 bytes more (recorded on an H100). No public header of that release is available.
_GREW, _SHIFTS = "memRowRemap", (0, 8)
_REFERENCE, _LAST = "clkPublicDomainInfos", "instPowerUsage"  # both are polled
_NEAR_NS = 3600 * 10**9
_FIRST_LIMIT_S = 2.5  # TIMEOUT: two of the longest polling intervals, RMRusdPollingInterval
_STEP = re.compile(r"(\w+)(?:\[(\d+)\])?")


class SharedData:
    """One GPU's page. `close` ends the polling. NotSupported if the driver publishes nothing."""

    def __init__(self, gpu: NodeGpu) -> None:
        client = gpu.client
        constants = client.constants
        mask = sum(
            constants[_POLL + name] for name in _WANTED if _POLL + name in constants
        )  # one bit each
        if not mask:
            raise NotSupported(
                f"driver branch {client.abi.branch} does not publish clocks and power"
            )
        self.gpu = gpu
        self.layout = client.structs.NV00DE_SHARED_DATA
        parameters = client.structs.NV00DE_ALLOC_PARAMETERS.new(polledDataMask=mask)
        self.handle = client.allocate(gpu.subdevice, "RM_USER_SHARED_DATA", parameters)
        try:
            self.mapping = client.map(gpu.device, self.handle, self.layout.size, CONTROL_NODE)
        except BaseException:
            with contextlib.suppress(UgpuError):
                client.free(gpu.subdevice, self.handle)
            raise
        self.closed = False
        self._shift: int | None = 0
        self._await()
        self._shift = self._find_shift()

    def _await(self) -> None:
        """Wait for the first samples; values that still have none are then treated as absent."""
        with contextlib.suppress(UnitTimeout):
            self.gpu.client.node.clock.wait_until(
                lambda: self.value("clkPublicDomainInfos.info[0].targetClkMHz") is not None,
                unit=self.gpu.path,
                waiting_for="first samples of clocks and power",
                limit_s=_FIRST_LIMIT_S,
            )

    def _find_shift(self) -> int | None:
        """Return how many bytes the sections after _GREW are further on than in the tables.

        None if their timestamps are not plausible at any known shift.
        """
        view = self.mapping.view
        known = self._at(_REFERENCE)
        last = self._at(_LAST)
        if view is None or known is None or last is None:
            return 0
        now = int.from_bytes(view[known : known + 8], "little")
        stamps = {
            shift: int.from_bytes(view[last + shift : last + shift + 8], "little")
            for shift in _SHIFTS
        }
        for shift, stamp in stamps.items():
            if stamp >= _SEQUENCE or abs(stamp - now) < _NEAR_NS:
                return shift
        return None if any(stamps.values()) else 0

    def _at(self, section: str) -> int | None:
        """The offset of a section's timestamp; None if the branch has no such section."""
        try:
            return self.layout.offset_of(f"{section}.{_STAMP}")
        except UgpuError:
            return None

    def value(self, path: str) -> int | None:
        """The number at a place, such as "temperatures[0].temperature"; None while there is none.

        Its section is read as a whole, between two reads of the section's timestamp.
        """
        section, _, rest = path.partition(".")
        at, grew = self._at(section), self._at(_GREW)
        shift = self._shift if at is not None and grew is not None and at > grew else 0
        view = self.mapping.view
        if at is None or shift is None or view is None:
            return None
        at += shift
        for _ in range(_TRIES):
            before = int.from_bytes(view[at : at + 8], "little")
            if before == 0:
                return None
            if before != _WRITING and not (before >= _SEQUENCE and before & 1):
                copy = self.layout.view(bytes(view[shift:]).ljust(self.layout.size, b"\0"))
                if int.from_bytes(view[at : at + 8], "little") == before:
                    return _member(copy, f"{section}.{rest}")
            self.gpu.client.node.clock.sleep(0)
        return None

    def close(self) -> None:
        """Unmap and free; idempotent."""
        if self.closed:
            return
        self.closed = True
        self.mapping.close()
        with contextlib.suppress(UgpuError):
            self.gpu.client.free(self.gpu.subdevice, self.handle)


def _member(block: Struct, path: str) -> int | None:
    found: Any = block  # Any: the tables define the members
    for step in path.split("."):
        match = _STEP.fullmatch(step)
        assert match is not None, path
        try:
            found = found[match[1]]
            found = found[int(match[2])] if match[2] else found
        except (UgpuError, LookupError, AttributeError):
            return None  # this branch has no such member
    return int(found)
