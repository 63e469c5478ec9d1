"""The memory hubs (GFXHUB, MMHUB): translate client accesses and carry them out.

Facts: Linux 6.12 gfxhub_v3_0.c, mmhub_v3_0.c, gmc_v11_0.c, amdgpu_vm.h; gc_11_0_0 and mmhub_3_0_0
register headers. All methods acquire the chip's lock themselves.
"""

from __future__ import annotations

import ctypes
import random
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ugpu.hcq.registers.fields import RegisterValue
from ugpu.virtual.amd.block import Reset
from ugpu.virtual.amd.memory.access import Fault
from ugpu.virtual.amd.memory.entries import EntryFormat
from ugpu.virtual.amd.memory.hub import HubState, Piece
from ugpu.virtual.amd.memory.hubfault import FaultUnit
from ugpu.virtual.amd.memory.shadermemory import HubShaderMemory
from ugpu.virtual.amd.memory.tlb import EXECUTE, READ, WRITE, Entry
from ugpu.virtual.amd.memory.walker import Refusal, Walker
from ugpu.virtual.shader.memory import Access

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

PAGE = 4096
ENGINES = 18
_CONTEXTS = 16
_PERMISSION = {Access.READ: READ, Access.WRITE: WRITE, Access.EXECUTE: EXECUTE}
_ALL = READ | WRITE | EXECUTE
_VA_END = 1 << 48
_NOT_IN_APERTURE = 3  # SYSTEM_ACCESS_MODE: translate addresses outside the aperture


class _View(NamedTuple):
    """Register configuration of untranslated addresses; ends are exclusive."""

    l1_enabled: bool
    aperture: tuple[int, int]  # empty unless SYSTEM_ACCESS_MODE lets it bypass the tables
    frame_buffer: tuple[int, int]
    agp: tuple[int, int]
    agp_bus: int


_VIEW_REGISTERS = (
    "MX_L1_TLB_CNTL",
    "SYSTEM_APERTURE_LOW_ADDR",
    "SYSTEM_APERTURE_HIGH_ADDR",
    "FB_LOCATION_BASE",
    "FB_LOCATION_TOP",
    "AGP_BOT",
    "AGP_TOP",
    "AGP_BASE",
)


class Hub(HubState):
    """One hub. prefix: GC or MM, as in GCVM_CONTEXT0_CNTL. block: name of the register block.
    entries: the format of page table entries.

    `read`, `write` and `pieces` serve engines (firmware, CP, SDMA, IH); `shader_memory` serves the
    shader cores. Client ids are those of the fault status register (e.g. GFXHUB: 4 CPF, 5 CPC,
    8 TCP, 9 SQC instruction, 13 SDMA0; MMHUB: 6 MP0, 7 MP1, 15 OSSSYS, 16 HDP).
    """

    def __init__(self, chip: Board, block: str, prefix: str, entries: EntryFormat) -> None:
        super().__init__(chip, block, prefix)
        self.faults = FaultUnit(self)
        self._walker = Walker(self, entries)
        self._memories: dict[int, HubShaderMemory] = {}
        self._random = random.Random(chip.options.seed)
        self._pending: dict[int, tuple[int, int]] = {}  # engine -> (request, polls to go)
        self._semaphores: set[int] = set()
        self._view: _View | None = None
        for name in _VIEW_REGISTERS:
            self.on_write(self.mc + name, self._forget_view)
        self.on_write(self.vm + "L2_CNTL2", self._l2_control2)
        for engine in range(ENGINES):
            name = f"{self.vm}INVALIDATE_ENG{engine}_"
            self.on_write(name + "REQ", partial(self._request, engine))
            self.on_read(name + "ACK", partial(self._acknowledge, engine))
            self.on_read(name + "SEM", partial(self._take_semaphore, engine))
            self.on_write(name + "SEM", partial(self._write_semaphore, engine))
            self.chip.space.read_only(self.block, name + "ACK")

    def reset(self, scope: Reset) -> None:
        """Clear cached translations, faults and semaphores."""
        self.caches.clear()
        self._pending.clear()
        self._semaphores.clear()
        self._view = None
        self.faults.reset()

    def locate_frame_buffer(self, base: int, size: int) -> None:
        """Set the location of VRAM among MC addresses, as the board's firmware does."""
        self.set(self.mc + "FB_LOCATION_BASE", base >> 24)
        self.set(self.mc + "FB_LOCATION_TOP", (base + size - 1) >> 24)
        self._view = None

    def _forget_view(self, _value: int) -> None:
        self._view = None

    def _look(self) -> _View:
        get, mc = self.get, self.mc
        control = self.fields(mc + "MX_L1_TLB_CNTL")
        low = get(mc + "SYSTEM_APERTURE_LOW_ADDR") << 18
        high = get(mc + "SYSTEM_APERTURE_HIGH_ADDR") + 1 << 18
        base = get(mc + "FB_LOCATION_BASE") << 24
        top = get(mc + "FB_LOCATION_TOP") + 1 << 24
        self._view = _View(
            bool(control.ENABLE_L1_TLB),
            (low, high) if control.SYSTEM_ACCESS_MODE == _NOT_IN_APERTURE else (0, 0),
            (base, min(top, base + self.chip.vram.size)),
            (get(mc + "AGP_BOT") << 24, get(mc + "AGP_TOP") + 1 << 24),
            get(mc + "AGP_BASE") << 24,
        )
        return self._view

    # ---- access -------------------------------------------------------------------------------

    def pieces(
        self, vmid: int, address: int, size: int, access: Access, client: int
    ) -> tuple[list[tuple[int, int]], Fault | None]:
        """Translate [address, address + size) into (host address, bytes) runs, in order.

        Host address 0 marks a run that faulted, -1 one that nothing answers. Only the first fault
        is returned, but all are raised. The host addresses are valid until the next call under the
        lock.
        """
        if not size:
            return [], None
        with self.chip.lock:
            first = self.resolve(vmid, address, access, client)
            return self._runs(first, vmid, address, size, access, client)

    def _runs(
        self, piece: Piece | Fault, vmid: int, address: int, size: int, access: Access, client: int
    ) -> tuple[list[tuple[int, int]], Fault | None]:
        """Collect the runs of a range, starting with `piece`, which contains `address`."""
        runs: list[tuple[int, int]] = []
        fault: Fault | None = None
        end = address + size
        while address < end:
            if isinstance(piece, Fault):
                fault = fault or piece
                length = min(end, (address & -PAGE) + PAGE) - address
                runs.append((0, length))
            else:
                length = min(end, piece.end) - address
                host = piece.host + address - piece.start if piece.host else -1
                runs.append((host, length))
            address += length
            if address < end:
                piece = self.resolve(vmid, address, access, client)
        return runs, fault

    def read(self, vmid: int, address: int, size: int, client: int) -> tuple[bytes, Fault | None]:
        """Read memory; bytes that fault read as zeros, bytes that the bus refuses as ones."""
        if not size:
            return b"", None
        with self.chip.lock:
            piece = self.resolve(vmid, address, Access.READ, client)
            if isinstance(piece, Piece) and piece.host and address + size <= piece.end:
                return ctypes.string_at(piece.host + address - piece.start, size), None
            runs, fault = self._runs(piece, vmid, address, size, Access.READ, client)
            parts = []
            for host, length in runs:
                if host > 0:
                    parts.append(ctypes.string_at(host, length))
                else:
                    parts.append((b"\x00" if host == 0 else b"\xff") * length)
            return b"".join(parts), fault

    def write(
        self, vmid: int, address: int, data: bytes | bytearray | memoryview, client: int
    ) -> Fault | None:
        """Write memory; bytes that fault or are refused are dropped."""
        content = bytes(data)
        if not content:
            return None
        with self.chip.lock:
            piece = self.resolve(vmid, address, Access.WRITE, client)
            if isinstance(piece, Piece) and piece.host and address + len(content) <= piece.end:
                ctypes.memmove(piece.host + address - piece.start, content, len(content))
                return None
            runs, fault = self._runs(piece, vmid, address, len(content), Access.WRITE, client)
            at = 0
            for host, length in runs:
                if host > 0:
                    ctypes.memmove(host, content[at : at + length], length)
                at += length
        return fault

    def mapped(self, vmid: int, address: int, size: int, permissions: int = 0) -> int:
        """Return how many bytes from `address` on are mapped with these permissions.

        Does not raise faults.
        """
        at, end = address, address + size
        with self.chip.lock:
            view = self._view or self._look()
            while at < end:
                if vmid == 0 and view.aperture[0] <= at < view.aperture[1]:
                    at = min(end, view.aperture[1])
                    continue
                entry = self._translate(vmid, at)
                if isinstance(entry, Refusal) or entry.permissions & permissions != permissions:
                    break
                at = min(end, entry.virtual + (1 << entry.shift))
        return at - address

    def shader_memory(self, vmid: int) -> HubShaderMemory:
        """Return one VMID's memory as the shader cores see it; always the same object."""
        with self.chip.lock:
            memory = self._memories.get(vmid)
            if memory is None:
                memory = self._memories[vmid] = HubShaderMemory(self, vmid)
            return memory

    # ---- translation --------------------------------------------------------------------------

    def resolve(self, vmid: int, address: int, access: Access, client: int) -> Piece | Fault:
        """Translate one address and the contiguous range around it. The lock is held."""
        view = self._view or self._look()
        if not view.l1_enabled:
            self._flag(f"{self.block}: access to {address:#x} before the L1 TLB is enabled")
            return self._direct(view, address, (0, _VA_END))
        if vmid == 0 and view.aperture[0] <= address < view.aperture[1]:
            return self._direct(view, address, view.aperture)
        cache = self.caches.l1(vmid, client)
        entry = cache.find(address)
        if entry is None:
            found = self._translate(vmid, address)
            if isinstance(found, Refusal):
                return self.faults.raise_fault(vmid, address, access, client, found)
            cache.add(found)
            entry = found
        if not entry.permissions & _PERMISSION[access]:
            refusal = Refusal(permission=_PERMISSION[access] << 1)
            return self.faults.raise_fault(vmid, address, access, client, refusal)
        return self._reach(entry, vmid, address, access, client)

    def _translate(self, vmid: int, address: int) -> Entry | Refusal:
        shared = self.caches.l2(vmid)
        entry = shared.find(address)
        if entry is None:
            found = self._walker.walk(vmid, address)
            if isinstance(found, Refusal):
                return found
            shared.add(found)
            entry = found
        return entry

    def _reach(
        self, entry: Entry, vmid: int, address: int, access: Access, client: int
    ) -> Piece | Fault:
        """Find the memory behind an entry, as far as it is contiguous around `address`."""
        start, end = entry.virtual, entry.virtual + (1 << entry.shift)
        physical = entry.physical + address - start
        if entry.system:
            first = address & -PAGE
            found = self.chip.dma_piece(physical & -PAGE, end - first)
            if found is None:
                return Piece(first, first + PAGE, 0, 0)
            return Piece(first, first + found[1], found[0], entry.permissions)
        if not 0 <= physical < self.chip.vram.size:
            return self.faults.raise_fault(vmid, address, access, client, Refusal(mapping=True))
        end = min(end, start + self.chip.vram.size - entry.physical)
        start = max(start, start - entry.physical)
        if self.chip.is_protected(physical & -PAGE, PAGE):
            self._fault(f"{self.block}: access to {physical:#x} inside the TMR")
            return Piece(address & -PAGE, (address & -PAGE) + PAGE, 0, 0)
        if self.chip.is_protected(entry.physical + start - entry.virtual, end - start):
            start = address & -PAGE
            end = start + PAGE
        host = self.chip.vram.host_address(entry.physical + start - entry.virtual)
        return Piece(start, end, host, entry.permissions)

    def _direct(self, view: _View, address: int, bounds: tuple[int, int]) -> Piece:
        """Resolve an untranslated address: local memory, AGP, or nothing."""
        first = address & -PAGE
        base, top = view.frame_buffer
        if base <= address < top:
            start, end = max(bounds[0], base), min(bounds[1], top)
            tmr = self.chip.tmr
            if tmr is not None:  # the piece stops where the TMR begins, or starts where it ends
                offset = address - base
                if offset < tmr[0]:
                    end = min(end, base + tmr[0])
                elif offset >= tmr[1]:
                    start = max(start, base + tmr[1])
                else:
                    self._fault(f"{self.block}: access to {address:#x} inside the TMR")
                    return Piece(first, first + PAGE, 0, 0)
            return Piece(start, end, self.chip.vram.host_address(start - base), _ALL)
        if view.agp[0] <= address < view.agp[1]:
            found = self.chip.dma_piece(first - view.agp[0] + view.agp_bus, PAGE)
            return Piece(first, first + PAGE, found[0] if found else 0, _ALL)
        self._fault(f"{self.block}: {address:#x} is in the aperture, but there is no memory")
        return Piece(first, first + PAGE, 0, 0)

    def frame_buffer(self) -> tuple[int, int]:
        """Return the MC address range of VRAM: the first address and the one past the last."""
        return (self._view or self._look()).frame_buffer

    def _flag(self, text: str) -> None:
        self.chip.violation(text)

    def _fault(self, text: str) -> None:
        self.chip.fault(text)

    # ---- invalidation -------------------------------------------------------------------------

    def _request(self, engine: int, value: int) -> None:
        if self._has_semaphores() and engine not in self._semaphores:
            self._flag(f"{self.block}: invalidation on engine {engine} without its semaphore")
            if self.chip.faults.tlb_needs_semaphore:
                return
        name = f"{self.vm}INVALIDATE_ENG{engine}_ADDR_RANGE_"
        if (self.get(name + "LO32"), self.get(name + "HI32")) != (0xFFFF_FFFF, 0x1F):
            # Before a context is enabled nothing is cached that the range could leave out: tinygrad
            # invalidates then, on boards, over USB (runtime/support/am/ip.py, hub_initted).
            object_to = self._flag if self._translates() else self.chip.note
            object_to(f"{self.block}: invalidation on engine {engine}: its range is not set to all")
        self.set(f"{self.vm}INVALIDATE_ENG{engine}_ACK", 0)
        self._pending[engine] = (value, self._random.randrange(3))

    def _translates(self) -> bool:
        """Return whether a context is enabled."""
        names = (f"{self.vm}CONTEXT{vmid}_CNTL" for vmid in range(_CONTEXTS))
        return any(self.fields(name).ENABLE_CONTEXT for name in names)

    def _has_semaphores(self) -> bool:
        """Return whether the hub has semaphores: MMHUB only.

        See Linux 6.12 gmc_v11_0_use_invalidate_semaphore.
        """
        return self.block == "mmhub"

    def _acknowledge(self, engine: int) -> int:
        """Answer a poll. The invalidation happens before the ACK is shown.

        A driver that does not wait for the ACK keeps using stale entries.
        """
        pending = self._pending.get(engine)
        ack = f"{self.vm}INVALIDATE_ENG{engine}_ACK"
        if pending is None or self.block in self.chip.faults.tlb_no_ack:
            return self.get(ack)
        value, polls = pending
        if polls > 0:
            self._pending[engine] = (value, polls - 1)
            return 0
        del self._pending[engine]
        request = self.chip.space.register(self.block, ack[:-3] + "REQ").decode(value)
        self._invalidate(request)
        self.set(ack, int(request.PER_VMID_INVALIDATE_REQ))
        return self.get(ack)

    def _invalidate(self, request: RegisterValue) -> None:
        levels = frozenset(level for level in (1, 2, 3) if request[f"INVALIDATE_L2_PDE{level - 1}"])
        for vmid in range(16):
            if request.PER_VMID_INVALIDATE_REQ >> vmid & 1:
                self.caches.invalidate(
                    vmid,
                    l1=bool(request.INVALIDATE_L1_PTES),
                    l2=bool(request.INVALIDATE_L2_PTES),
                    levels=levels,
                )
        if request.CLEAR_PROTECTION_FAULT_STATUS_ADDR:
            self.faults.clear()

    def _l2_control2(self, value: int) -> None:
        self.caches.clear(l1=bool(value & 1), l2=bool(value & 2))

    def _take_semaphore(self, engine: int) -> int:
        """Answer a read of the semaphore: 1 acquires it; 0 means busy, which happens at random."""
        if engine in self._semaphores or self._random.random() < 0.25:
            return 0
        self._semaphores.add(engine)
        return 1

    def _write_semaphore(self, engine: int, value: int) -> None:
        if not value & 1:
            self._semaphores.discard(engine)
