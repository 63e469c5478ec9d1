"""The MMU's fault buffers: entries that describe an access which faulted, before its channel ends.

Address spaces of the driver allow page faults, so that an access of a kernel waits: its entry is in
the replayable buffer, whose memory and GET the driver owns. No fault is served here: all that wait
are cancelled, and the GSP ends their channels as after any fault. The other buffer is the GSP's. It
copies faults of copy and host engines to a queue in host memory (the client's shadow buffer), and
ends their channel when the driver reports the entry. Faults of other units have no entry: the GSP
ends their channel, and its report is all that there is.

Sources: open-gpu-kernel-modules 595.45.04 and 570.144: kern_gmmu.c, kern_gmmu_gv100.c (what is
copied: _kgmmuFaultEntryRmServiceable; how long an entry may take), queue.c, ctrl2080internal.h,
ctrl2080gpu.h (REPORT_NON_REPLAYABLE_FAULT), clc369.h, dev_vm.h; kernel-open/nvidia-uvm
uvm_gpu_replayable_faults.c, uvm_turing_fault_buffer.c.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ugpu.hcq.errors import FirmwareError, UgpuError, UnitTimeout
from ugpu.nv import abi
from ugpu.nv.gsp.chip.chip import GspChip
from ugpu.nv.gsp.layout.memory import PAGE, Pages
from ugpu.nv.gsp.rm.client import GspClient
from ugpu.nv.gsp.rm.engines import Engine, engine_behind
from ugpu.nv.rm.events import FatalFault

ENTRY = 32
_LAST, _VALID = 31, 0x80  # an entry's last byte, and its bit
_MOST_PAGES = 256  # NV2080_CTRL_INTERNAL_GMMU_FAULT_BUFFER_MAX_PAGES
_QUEUE = struct.Struct("<4Q32xQ56xQ")  # capacity, two pointers, size of a message, get, put
_INDEX, _GET, _PUT = struct.Struct("<Q"), 64, 128
_VALID_LIMIT_S = 0.1  # TIMEOUT: our choice, as the write is under way; RM allows it seconds
_KEPT = 256
_CONTROL = "NV2080_CTRL_CMD_INTERNAL_GMMU"
_REPORT = "NV2080_CTRL_CMD_GPU_REPORT_NON_REPLAYABLE_FAULT"
_REGISTER = "NV_VIRTUAL_FUNCTION_PRIV_MMU_REPLAY_FAULT_BUFFER"
_REPLAY, _CANCEL_GLOBAL = 1, 4  # REPLAY of the MMU's invalidation: START, CANCEL_GLOBAL


@dataclass(frozen=True)
class MmuFault(FatalFault):
    """One entry. instance: address of the channel's instance block in VRAM. address: of the page.
    unit: what made the access. engine: for which one it did, "" if the firmware does not name it.
    """

    instance: int = 0
    kind: str = ""
    time_ns: int = 0


def decode(raw: bytes, family: str, engines: Sequence[Engine]) -> MmuFault:
    """Return what an entry says. raw: 32 bytes; codes without a name are given as numbers."""
    entry: Any = abi.fault_entry().decode(raw)
    codes = abi.fault_codes(abi.FAULT_TABLES[family])
    prefix, client = "HUB_" if entry["MMU_CLIENT_TYPE"] else "GPC_", entry["CLIENT"]
    named = (name for name, number in codes.field("CLIENT").values.items() if number == client)
    unit = next((name for name in named if name.startswith(prefix)), f"{prefix}{client:#x}")
    if prefix == "GPC_":
        unit = f"GPC{entry['GPC_ID']}_{unit.removeprefix(prefix)}"
    kind, access = entry["FAULT_TYPE"], entry["ACCESS_TYPE"]
    access = abi.access_name(codes.field("ACCESS_TYPE").name_of(access), access)
    kind = codes.field("FAULT_TYPE").name_of(kind) or f"type {kind}"
    engine = engine_behind(engines, entry["ENGINE_ID"])
    instance, address = entry["INST"] << 12, entry["ADDR"] << 12
    return MmuFault(address, access, unit, engine, instance, kind, entry["TIMESTAMP"])


class FaultBuffers:
    """Both buffers of a card, which its holders share. lock: of the card.

    engines: to name in entries. seen: the last entries. lost: overflows, after which the entry of a
    fault may be missing. late: entries that did not become valid in time.
    """

    def __init__(self, chip: GspChip, lock: threading.RLock) -> None:
        self.seen: deque[MmuFault] = deque(maxlen=_KEPT)
        self.lost = self.late = 0
        self._chip = chip
        self._lock = lock
        self.engines: Sequence[Engine] = ()
        self._users: list[object] = []
        self._held = contextlib.ExitStack()  # the memory, while it is the GSP's
        self._works = False
        self._given: list[str] = []  # what the GSP has, by the name of the control
        self._get = 0
        self._owed = 0  # to accesses whose entries were taken: the REPLAY that lets them go

    # ---- begin and end -----------------------------------------------------------------------

    def enter(self, user: object, client: GspClient) -> None:
        """Register the buffers for the first user."""
        with self._lock:
            if not self._users:
                self.register(client)
            self._users.append(user)

    def leave(self, user: object, client: GspClient) -> None:
        """Take the buffers back from the GSP after the last user; can be repeated."""
        with self._lock:
            if user in self._users:
                self._users.remove(user)
                if not self._users:
                    self.unregister(client)

    def register(self, client: GspClient) -> None:
        """Give the GSP memory for both buffers; it enables them."""
        static = client.ask_gpu(f"{_CONTROL}_GET_STATIC_INFO")
        sizes = int(static.replayableFaultBufferSize), int(static.nonReplayableFaultBufferSize)
        if not all(0 < size <= _MOST_PAGES * PAGE and size % PAGE == 0 for size in sizes):
            raise FirmwareError("the GSP states impossible sizes of fault buffers", sizes=sizes)
        try:
            self._ring, self._shadow, self._queue = map(self._take, (*sizes, PAGE))
            self._queue.put(_QUEUE.pack(sizes[1] // ENTRY, 0, 0, ENTRY, 0, 0))
            self._give(client, "", "faultBuffer", self._ring,
                       hClient=client.root, hObject=client.subdevice)  # fmt: skip
            self._give(client, "_CLIENT_SHADOW", "shadowFaultBuffer", self._shadow,
                       shadowFaultBufferQueuePhysAddr=self._queue.address)  # fmt: skip
            self._get = self._chip.nv[f"{_REGISTER}_GET"].read().PTR
        except BaseException:
            with contextlib.suppress(UgpuError):
                self.unregister(client)
            raise
        self._works, self._owed = True, 0

    def _take(self, size: int) -> Pages:
        pages = Pages(self._chip.transport, size, bits=self._chip.boot.bus_bits)
        self._held.callback(pages.close)
        pages.put(bytes(pages.size))
        return pages

    def _give(self, client: GspClient, kind: str, member: str, pages: Pages, **values: int) -> None:
        name = f"{_CONTROL}_REGISTER{kind}_FAULT_BUFFER"
        parameters = f"{name.replace('CMD_', '')}_PARAMS"
        block = client.structs[parameters].new(**{f"{member}Size": pages.size}, **values)
        getattr(block, f"{member}PteArray")[: len(pages.pages)] = pages.pages
        client.control(client.subdevice, name, block)
        self._given.append(name.replace("REGISTER", "UNREGISTER"))

    def unregister(self, client: GspClient) -> None:
        """Take the memory back. If the GSP refuses that, the buffers stay as they are."""
        with self._lock:
            while self._given:
                shadow = "SHADOW" in self._given[-1]  # which has parameters
                (client.ask if shadow else client.control)(client.subdevice, self._given[-1])
                self._given.pop()
            self._works = False
            self._held.close()

    def forget(self) -> None:
        """Free the memory after a reset, and forget the users."""
        self._works = False
        self._users.clear()
        self._given.clear()
        self._held.close()

    # ---- entries -----------------------------------------------------------------------------

    def serve(self, client: GspClient) -> None:
        """Take what was reported, and have the GSP end the channels. Reads host memory alone if
        there is nothing. A call while another thread uses the card leaves it to the next."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._works:
                if self._owed or self._ring.view[ENTRY * self._get + _LAST] & _VALID:
                    self._take_replayable()
                self._take_shadow(client)
        finally:
            self._lock.release()

    def of(self, instance: int, address: int = 0) -> MmuFault | None:
        """Return the entry of a channel, and forget all that it reported: the one in a page if
        there is one, else the oldest; None if there is none."""
        own = [fault for fault in list(self.seen) if fault.instance == instance]
        for fault in own:
            with contextlib.suppress(ValueError):  # newer ones took its place meanwhile
                self.seen.remove(fault)
        return next((each for each in own if each.address ^ address < PAGE), next(iter(own), None))

    def as_json(self) -> dict[str, object]:
        """Return the state for a bundle."""
        return {"seen": [asdict(fault) for fault in list(self.seen)], "lost": self.lost,
                "late": self.late}  # fmt: skip

    def _note(self, raw: bytes) -> MmuFault:
        self.seen.append(decode(raw, self._chip.facts.family, self.engines))
        return self.seen[-1]

    def _take_replayable(self) -> None:
        """Take the entries up to PUT, in order, then let the accesses go: as faults, except
        prefetches, which end with a replay."""
        get, view, begun = self._chip.nv[f"{_REGISTER}_GET"], self._ring.view, self._get
        put = self._chip.nv[f"{_REGISTER}_PUT"].read()
        entries, limit_s = self._ring.size // ENTRY, _VALID_LIMIT_S
        if entries <= put.PTR:
            raise FirmwareError("PUT of the fault buffer is past its end", put=int(put))
        while self._get != put.PTR:
            at = ENTRY * self._get
            if self._is_valid(at, limit_s):
                prefetch = self._note(bytes(view[at : at + ENTRY])).access == "prefetch"
                self._owed = max(self._owed, _REPLAY if prefetch else _CANCEL_GLOBAL)
            else:
                self.late, limit_s, self._owed = self.late + 1, 0.0, _CANCEL_GLOBAL
            view[at + _LAST] = 0
            self._get = (self._get + 1) % entries
        if self._get != begun or self._owed:
            get.write(PTR=self._get)
        if put.OVERFLOW or put.GETPTR_CORRUPTED:
            # ORDER: after GET has moved: if it is full still, it would overflow again (tu102).
            self.lost += put.OVERFLOW
            get.write(PTR=self._get, OVERFLOW=1, GETPTR_CORRUPTED=1)
        if self._owed:
            self._chip.replay_faults(self._owed)
            self._owed = 0

    def _is_valid(self, at: int, limit_s: float) -> bool:
        with contextlib.suppress(UnitTimeout):
            return self._chip.transport.clock.wait_until(
                lambda: bool(self._ring.view[at + _LAST] & _VALID),
                unit="MMU", waiting_for="a valid entry of a fault", limit_s=limit_s,
            )  # fmt: skip
        return False

    def _take_shadow(self, client: GspClient) -> None:
        queue, entries = self._queue.view, self._shadow.size // ENTRY
        for _ in range(entries):
            (get,), (put,) = _INDEX.unpack_from(queue, _GET), _INDEX.unpack_from(queue, _PUT)
            if get == put:
                return
            if max(get, put) >= entries:
                raise FirmwareError("the GSP's queue of faults is damaged", get=get, put=put)
            raw = bytes(self._shadow.view[ENTRY * get : ENTRY * (get + 1)])
            report: Any = client.structs[f"{_REPORT.replace('CMD_', '')}_PARAMS"].new()
            report.faultPacket.data[:] = raw
            self._note(raw)
            client.control(client.subdevice, _REPORT, report)
            _INDEX.pack_into(queue, _GET, (get + 1) % entries)
