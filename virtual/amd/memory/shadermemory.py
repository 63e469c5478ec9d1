"""Memory as seen by the shader cores: native translation tables filled from the GFX hub."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.state.instruction import Culprit
from ugpu.virtual.amd.memory.access import Fault
from ugpu.virtual.amd.memory.hub import HubState
from ugpu.virtual.amd.memory.tlb import READ, WRITE
from ugpu.virtual.shader.memory import Access
from ugpu.virtual.shader.table import DummyPages, fill

_TCP, _SQC_INSTRUCTION = 8, 9  # clients of the GFX hub (Linux 6.12 gfxhub_v3_0.c)
_MOST_CODE = 4096  # pieces of code whose host address is kept


class HubShaderMemory:
    """One VMID of a hub; implements `virtual.amd.shader.ShaderMemory`."""

    def __init__(self, hub: HubState, vmid: int) -> None:
        self._hub = hub
        self._vmid = vmid
        self._dummy = DummyPages()
        self.cut = False  # the waves that use it were killed but have not stopped yet
        # Host addresses of code in VRAM by (address, size), and the epoch in which they were
        # translated: a program is compared with its code before each launch. The host's memory may
        # stop answering at any time.
        self._code: dict[tuple[int, int], int] = {}
        self._epoch = -1

    def new_tlb(self) -> NDArray[np.uint64]:
        """Create a table for one worker thread."""
        with self._hub.chip.lock:
            return self._hub.caches.new_native(self._vmid)

    def refill(
        self,
        tlb: NDArray[np.uint64],
        address: int,
        access: Access,
        who: Callable[[], tuple[int, str]] | None = None,
    ) -> int:
        """Translate and fill the table; see the protocol."""
        access = Access(access)
        hub = self._hub
        offset = address & 0xFFF
        with hub.chip.lock:
            if hub.chip.lost or self.cut:
                return self._nothing(access, self._dummy.ones) + offset
            client = _SQC_INSTRUCTION if access is Access.EXECUTE else _TCP
            piece = hub.resolve(self._vmid, address, access, client)
            if isinstance(piece, Fault):
                if piece.latched and who is not None:
                    hub.chip.culprits.add(Culprit(address, *who()))
                return self._nothing(access, self._dummy.zeros) + offset
            if not piece.host:
                return self._nothing(access, self._dummy.ones) + offset
            readable, writable = bool(piece.permissions & READ), bool(piece.permissions & WRITE)
            fill(tlb, address, piece.start, piece.end, piece.host,
                 readable=readable, writable=writable)  # fmt: skip
            return piece.host + address - piece.start

    def _nothing(self, access: Access, page: int) -> int:
        return self._dummy.sink if access is Access.WRITE else page

    def fetch(self, address: int, size: int) -> bytes | None:
        """Read instructions; None after a fault."""
        hub = self._hub
        with hub.chip.lock:
            if self.cut or hub.chip.lost:
                return None
            if self._epoch == hub.caches.native_epoch:
                host = self._code.get((address, size))
                if host is not None:
                    return ctypes.string_at(host, size)
            runs, fault = hub.pieces(self._vmid, address, size, Access.EXECUTE, _SQC_INSTRUCTION)
            if fault is not None:
                return None
            if len(runs) == 1 and hub.chip.vram.contains(runs[0][0]):
                self._keep(address, size, runs[0][0])
            return b"".join(
                ctypes.string_at(host, length) if host > 0 else b"\xff" * length
                for host, length in runs
            )

    def _keep(self, address: int, size: int, host: int) -> None:
        epoch = self._hub.caches.native_epoch
        if self._epoch != epoch or len(self._code) >= _MOST_CODE:
            self._code.clear()
            self._epoch = epoch
        self._code[address, size] = host

    def peek(self, address: int, size: int) -> bytes | None:
        """Read for a debugger; see the protocol."""
        hub = self._hub
        with hub.chip.lock:
            if hub.chip.lost or hub.mapped(self._vmid, address, size, READ) < size:
                return None
            return hub.read(self._vmid, address, size, _TCP)[0]
