"""UVM's event queue: reports of faults that ended a channel, including those of copy engines.

Any user who may open the node may watch an address space of their own. Without the node, or if a
sandbox in front of the driver blocks the calls, faults are reported with fewer facts.

Source: open-gpu-kernel-modules 580.142 kernel-open/nvidia-uvm/uvm_tools.c (create_event_tracker:
pages of the caller's, a power of two of entries, the UVM file it watches and keeps alive);
uvm_gpu_non_replayable_faults.c, uvm_gpu_replayable_faults.c: the event is written before the
channel is notified of its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import struct
from collections import deque
from dataclasses import dataclass

from ugpu.hcq.errors import UgpuError
from ugpu.nv.abi.events import (
    ACCESSES,
    CONTROL_FORMAT,
    ENTRY_SIZE,
    FATAL_FAULT,
    FATAL_FAULT_FORMAT,
    QUEUE_VERSION,
    TOOLS_NODE,
)
from ugpu.nv.rm.client import RmClient, call
from ugpu.nv.rm.requests import status_error

log = logging.getLogger(__name__)

_PAGE = 4096
_ENTRIES = _PAGE // ENTRY_SIZE
_KEPT = 256  # faults that were not requested


@dataclass(frozen=True)
class FatalFault:
    """One fault. access: "read", "write", "atomic", "prefetch" or "invalid". unit, engine: what
    made the access, and for which engine, by the headers' names; "" if that is not known."""

    address: int
    access: str
    unit: str = ""
    engine: str = ""


class SeenFaults:
    """The last faults that were reported. See nv.rm.session.FaultSource."""

    def __init__(self) -> None:
        self._seen: deque[FatalFault] = deque(maxlen=_KEPT)

    @property
    def works(self) -> bool:
        """Return whether anything reports faults."""
        return True

    def add(self, fault: FatalFault) -> None:
        """Note a fault."""
        self._seen.append(fault)

    def take(self, address: int | None) -> FatalFault | None:
        """The newest fault in an address's page, or in any page for None; each is returned once."""
        for fault in reversed(self._seen):
            if address is None or address ^ fault.address < _PAGE:
                self._seen.remove(fault)
                return fault
        return None

    def forget(self) -> None:
        """Discard all reports so far, when channels are recreated."""
        self._seen.clear()


class FaultEvents(SeenFaults):
    """The queue of one UVM file. Close it before that file, which it keeps alive."""

    def __init__(self, client: RmClient, uvm_file: int) -> None:
        super().__init__()
        self._client = client
        self._file: int | None = None
        self._pages = mmap.mmap(-1, 2 * _PAGE)  # pinned by the driver until the file closes
        try:
            self._file = client.node.open(TOOLS_NODE)
            self._start(uvm_file)
        except (OSError, UgpuError) as error:
            log.info("no events of faults: %s", error)
            self.close()

    def _start(self, uvm_file: int) -> None:
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        values = {
            "queueBuffer": address,
            "queueBufferSize": _ENTRIES,
            "controlBuffer": address + _PAGE,
            "uvmFd": uvm_file,
            "requestedVersion": QUEUE_VERSION,
        }
        self._call("UVM_TOOLS_INIT_EVENT_TRACKER", values)
        self._call("UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS", {"eventTypeFlags": 1 << FATAL_FAULT})

    def _call(self, name: str, values: dict[str, int]) -> None:
        client = self._client
        layout = client.structs[client.abi.ioctls[name].struct]
        known = {member: value for member, value in values.items() if member in layout.fields}
        block = layout.new(**known)
        assert self._file is not None
        call(client.node, self._file, client.abi.request(name), block.raw, name)
        if block.rmStatus:
            raise status_error(block.rmStatus, name)

    @property
    def works(self) -> bool:
        """Return whether the driver reports faults."""
        return self._file is not None

    def take(self, address: int | None) -> FatalFault | None:
        """See SeenFaults."""
        self._read()
        return super().take(address)

    def forget(self) -> None:
        """See SeenFaults."""
        self._read()
        super().forget()

    def _read(self) -> None:
        if self._file is None:
            return
        _, at, _, put = struct.unpack_from(CONTROL_FORMAT, self._pages, _PAGE)
        at, put = at % _ENTRIES, put % _ENTRIES
        while at != put:
            kind, _, access, _, _, address, _ = struct.unpack_from(
                FATAL_FAULT_FORMAT, self._pages, at * ENTRY_SIZE
            )
            if kind == FATAL_FAULT:
                name = ACCESSES[access] if access < len(ACCESSES) else f"access {access}"
                self.add(FatalFault(address, name))
            at = (at + 1) % _ENTRIES
        struct.pack_into("<2I", self._pages, _PAGE, at, at)

    def close(self) -> None:
        """Stop watching; idempotent."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(UgpuError):
                self._client.node.release(file)
