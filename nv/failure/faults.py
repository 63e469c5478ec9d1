"""Errors of stopped channels: Xids, MMU faults and SM exceptions, with their facts.

Sources: open-gpu-kernel-modules 580.142 ctrl83dedebug.h (the debugger object's queries),
nverror.h (Xids); NVIDIA, "XID Errors" r580 (meanings and advice); kernel-open/nvidia-uvm/hwref
dev_fault.h (fault and access types); Linux 6.12 drivers/gpu/drm/nouveau/nvkm/engine/gr/gf100.c
(kinds of warp error; gv100.c uses the same list for later chips).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ugpu.hcq.errors import (
    AssertionFailed,
    BadPacket,
    ChipError,
    DeviceHang,
    DeviceLost,
    IllegalInstruction,
    NotSupported,
    PageFault,
    UgpuError,
)
from ugpu.hcq.paging.location import Region, place_of
from ugpu.hcq.state.instruction import Culprit, take_culprit
from ugpu.hcq.transport.node import take_gap
from ugpu.hcq.work.queue import QueueKind
from ugpu.hcq.work.timeline import Timeline
from ugpu.nv import abi
from ugpu.nv.rm.channel import ENTRIES, ChannelError
from ugpu.nv.rm.requests import GONE

if TYPE_CHECKING:
    from ugpu.nv.work.holder import WorkHolder
    from ugpu.nv.work.queue import ChannelQueue

log = logging.getLogger(__name__)

WARP_ERRORS = {
    0x01: "STACK_ERROR",
    0x02: "API_STACK_ERROR",
    0x03: "RET_EMPTY_STACK_ERROR",
    0x04: "PC_WRAP",
    0x05: "MISALIGNED_PC",
    0x06: "PC_OVERFLOW",
    0x07: "MISALIGNED_IMMC_ADDR",
    0x08: "MISALIGNED_REG",
    0x09: "ILLEGAL_INSTR_ENCODING",
    0x0A: "ILLEGAL_SPH_INSTR_COMBO",
    0x0B: "ILLEGAL_INSTR_PARAM",
    0x0C: "INVALID_CONST_ADDR",
    0x0D: "OOR_REG",
    0x0E: "OOR_ADDR",
    0x0F: "MISALIGNED_ADDR",
    0x10: "INVALID_ADDR_SPACE",
    0x11: "ILLEGAL_INSTR_PARAM2",
    0x12: "INVALID_CONST_ADDR_LDC",
    0x13: "GEOMETRY_SM_ERROR",
    0x14: "DIVERGENT",
    0x15: "WARP_EXIT",
}
_PLAIN = {
    "STACK_ERROR": "its stack was damaged",
    "API_STACK_ERROR": "its stack was damaged",
    "PC_WRAP": "it ran past the end of its program",
    "PC_OVERFLOW": "it ran past the end of its program",
    "MISALIGNED_PC": "it jumped to where no instruction can be",
    "ILLEGAL_INSTR_ENCODING": "it met an instruction that there is not, or a trap of its own",
    "ILLEGAL_INSTR_PARAM": "an instruction had an operand that it cannot have, or stopped it",
    "INVALID_CONST_ADDR": "it read past the end of its constants",
    "OOR_REG": "it used more registers than it has",
    "OOR_ADDR": "it left its shared or local memory",
    "MISALIGNED_ADDR": "it accessed an address that is not a multiple of the access's size",
    "INVALID_ADDR_SPACE": "it accessed an address of a kind of memory that the access is not for",
}
_HANGING = "the kernel loops, waits for a signal that never comes, or needs a longer limit"
_SILENT = "work was submitted and did not complete: a lost doorbell or signal"
_RESET = "device.reset() recreates the channel; programs and buffers stay"
_GPU_RESET = "stop what uses the GPU, then: sudo nvidia-smi --gpu-reset"
_WHOLE_GPU = frozenset((48, 62, 64, 95, 119, 120, 140))  # Xids that need more than a new channel
# Warp errors caused by an access, rather than by an instruction.
_OF_AN_ACCESS = frozenset((0x07, 0x0C, 0x0E, 0x0F, 0x10, 0x12))
_WARP_ERROR_MASK = 0xFFFF
_WARP_SHIFT, _WARP_MASK = 16, 0xFF  # UNSURE: bits 23:16 of the warp's error word name the warp
_SMS_AT_ONCE = 100  # of NV83DE_CTRL_DEBUG_READ_ALL_SM_ERROR_STATES_PARAMS

_UNKNOWN = "invalid"  # the access of an event that does not tell it
_NO_FAULT = ("", "NONE", "FAULT_NONE")
_GRAPHICS, _MMU, _PBDMA, _HANG, _FELL_OFF = 13, 31, 32, 109, 79
_ADVICE = {
    13: "a kernel did something the multiprocessor refuses",
    31: "an access that no mapping allows",
    32: "the host engine met a command that it cannot read",
    38: "firmware of the driver: update the driver",
    43: "the channel was reset: other work of the same process may have caused it",
    44: "a fault while contexts were switched",
    45: "the work was removed, most often after another error",
    48: "memory has an uncorrectable error: the GPU needs a reset, watch it for more",
    62: "the power controller halted: the GPU needs a reset",
    63: "a row of memory was remapped: reset when it is convenient",
    64: "a row of memory could not be remapped: the GPU should be replaced",
    69: "the engine received a method that its class does not have",
    74: "an NVLink failed: check cables and bridges",
    79: "the GPU has fallen off the bus: check power and seating, then reboot",
    94: "an uncorrectable memory error, contained to this process",
    95: "an uncorrectable memory error, not contained: the GPU needs a reset",
    109: "a context did not switch in time: a kernel ran too long",
    119: "the GPU's system processor does not answer: the GPU needs a reset",
    120: "the GPU's system processor failed: the GPU needs a reset",
    140: "an uncorrectable memory error: the GPU needs a reset",
    143: "the GPU could not be initialised",
    154: "the driver asks for a recovery action",
}


class Faults:
    """Reads the kernel driver's records of a failure. One per device."""

    def __init__(self, driver: WorkHolder) -> None:
        self.driver = driver

    def explain(self, queue: ChannelQueue, error: ChannelError) -> UgpuError:
        """The error for a channel that the resource manager stopped, with all known facts."""
        kernels = queue.in_flight
        gap = take_gap(self.driver.session.source)
        if gap is not None:
            remedy = {"queue": queue.name, "remedy": _RESET}
            return NotSupported(f"{self.driver.name}: {gap.message}", **gap.facts, **remedy)
        failed = self.driver.programs.output.assertion()
        if failed is not None:
            return AssertionFailed(
                f"{self.driver.name}: {', '.join(kernels)}: {failed.file}:{failed.line}: "
                f"{failed.function}: block {failed.block}, thread {failed.thread}: assertion "
                f"`{failed.condition}` failed",
                **asdict(failed), queue=queue.name, remedy=_RESET,
            )  # fmt: skip
        facts: dict[str, object] = {"xid": error.xid, "xid_name": error.name, "queue": queue.name}
        advice = _ADVICE.get(error.xid)
        if advice is not None:
            facts["meaning"] = advice
        if error.xid == _FELL_OFF or self.driver.gpu.lost():
            facts["remedy"] = GONE
            return DeviceLost(f"{self.driver.name} has fallen off the bus", **facts)
        page = self._page_fault(queue)
        state = self._exception() if queue.kind is QueueKind.COMPUTE else None
        if state is not None and (found := self.driver.programs.find(int(state["pc"]))):
            kernels = (found[0],)
            facts["offset"] = found[1]
        culprit = take_culprit(
            self.driver.session.source,
            address=None if page is None else page["address"],
            pc=None if state is None else state["pc"],
        )
        if culprit is None and state is not None:  # a real chip
            culprit = self.driver.programs.culprit(int(state["pc"]))
        if culprit is not None:
            facts |= {"instruction": culprit.text, "pc": culprit.pc}
            if culprit.line:
                facts["ptx_line"] = culprit.line
            if culprit.source:
                facts["source_line"] = culprit.source
            if found := self.driver.programs.find(culprit.pc):
                kernels = (found[0],)
        by = _by(culprit)
        facts["kernel"] = ", ".join(kernels) or None
        facts["remedy"] = _GPU_RESET if error.xid in _WHOLE_GPU else _RESET
        name = f"{self.driver.name}: {facts['kernel'] or queue.name}"
        if page is not None and (error.xid == _MMU or state is None):
            what = f"a {page['access']} of" if page["access"] else "an access to"
            kind = ", ".join((page["fault"], *filter(None, [page.get("unit")])))
            text = f"{name}: {what} {page['address']:#x} faulted ({kind}){by}"
            return PageFault(f"{text}: {self.place_of(page['address'])}", **page, **facts)
        if state is not None:
            return self._exception_error(name, state, facts, by)
        if error.xid == _MMU:
            return PageFault(f"{name}: an access faulted, and the driver does not say where",
                             address=None, access=None, **facts)  # fmt: skip
        text = f"{name}: {facts.pop('meaning', error.name)} (Xid {error.xid})"
        if error.xid in (_PBDMA, 69):
            return BadPacket(text, **facts)
        if error.xid == _HANG:
            return DeviceHang(text, **facts)
        return ChipError(text, **facts)

    def _exception_error(
        self, name: str, state: dict[str, int], facts: dict[str, object], by: str
    ) -> UgpuError:
        code = state["warp_error"] & _WARP_ERROR_MASK
        kind = WARP_ERRORS.get(code, f"warp error {code:#x}")
        facts = {
            "kind": kind,
            "pc": state["pc"],
            "sm": state["sm"],
            "warp": state["warp_error"] >> _WARP_SHIFT & _WARP_MASK,
            **facts,
        }
        plain = _PLAIN.get(kind, "it was stopped")
        offset = facts.get("offset")
        where = f"byte {offset} of its program" if offset is not None else f"{state['pc']:#x}"
        text = f"{name}: {plain} ({kind}), at {where}{by}"
        if code in _OF_AN_ACCESS:
            return PageFault(text, address=state["address"] or None, access=None, **facts)
        return IllegalInstruction(text, **facts)

    def place_of(self, address: int) -> str:
        """Describe where a fault's page lies relative to the memory of this device."""
        return place_of(address, self.regions())

    def regions(self) -> list[Region]:
        """The memory of this device, for reports."""
        return [
            Region(memory.address, memory.size, f"{memory.placement.value} memory")
            for memory in self.driver.gpu.memories
        ]

    def _page_fault(self, queue: ChannelQueue) -> dict[str, Any] | None:
        """Return the page, access and kind of a fault.

        The source is the driver's record for the debugger of compute channels, else its record for
        any channel. The latter has no access; UVM's event supplies it.
        """
        found = self._debugger_fault() if queue.kind is QueueKind.COMPUTE else None
        found = found or self._channel_fault(queue)
        event = self.driver.session.events.take(None if found is None else found["address"])
        if event is None:
            return found
        access = None if event.access == _UNKNOWN else event.access
        if found is None:
            found = {"address": event.address, "access": None, "fault": "seen by UVM"}
        found["access"] = found["access"] or access
        if event.unit:
            found |= {"unit": event.unit, "engine": event.engine or None}
        return found

    def _channel_fault(self, queue: ChannelQueue) -> dict[str, Any] | None:
        """Read NV906F_CTRL_CMD_GET_MMU_FAULT_INFO, ctrl906f.h: reading it clears it.

        For a channel without a fault, address is 0 and faultString NONE. Both, and that faults of
        copy engines are recorded there, were observed on an H100, driver 580.159.04.
        """
        if queue.channel is None:
            return None
        with contextlib.suppress(UgpuError):
            found = self.driver.gpu.client.ask(
                queue.channel.handle, "NV906F_CTRL_CMD_GET_MMU_FAULT_INFO"
            )
            address = int(found.addrHi) << 32 | int(found.addrLo)
            kind = bytes(found.faultString).split(b"\0")[0].decode("ascii", "replace")
            if address or kind not in _NO_FAULT:
                fault = kind.removeprefix("FAULT_") or f"type {found.faultType}"
                return {"address": address, "access": None, "fault": fault}
        return None

    def _debugger_fault(self) -> dict[str, Any] | None:
        debugger = self.driver.debugger
        if not debugger:
            return None
        with contextlib.suppress(UgpuError):
            found = self.driver.gpu.client.ask(
                debugger, "NV83DE_CTRL_CMD_DEBUG_READ_MMU_FAULT_INFO"
            )
            if found.count:
                entry = found.mmuFaultInfoList[0]
                codes = abi.fault_codes(abi.FAULT_TABLES[self.driver.family.name])
                fault = codes.field("FAULT_TYPE").name_of(entry.faultType)
                access = codes.field("ACCESS_TYPE").name_of(entry.accessType)
                return {
                    "address": int(entry.faultAddress),
                    "access": abi.access_name(access, entry.accessType),
                    "fault": fault or f"type {entry.faultType}",
                }
        return None

    def _exception(self) -> dict[str, int] | None:
        """The state of the first multiprocessor that reports an error of a warp, if any."""
        try:
            return next(self._exceptions(), None)
        except UgpuError as error:
            log.debug("reading the multiprocessors' state: %s", error)
            return None

    def exceptions(self) -> list[dict[str, int]]:
        """Return the reports of all multiprocessors that have an error; RM's errors are raised."""
        return list(self._exceptions())

    def _exceptions(self) -> Iterator[dict[str, int]]:
        driver = self.driver
        channel = driver.compute_queue.channel if driver.debugger else None
        if channel is None:
            return
        for start in range(0, driver.gpu.sm_count, _SMS_AT_ONCE):
            count = min(_SMS_AT_ONCE, driver.gpu.sm_count - start)
            found = driver.gpu.client.ask(
                driver.debugger,
                "NV83DE_CTRL_CMD_DEBUG_READ_ALL_SM_ERROR_STATES",
                hTargetChannel=channel.handle,
                numSMsToRead=count,
                startingSM=start,
            )
            for position in range(count):
                state = found.smErrorStateArray[position]
                if state.hwwWarpEsr or state.hwwGlobalEsr:
                    yield {
                        "sm": start + position,
                        "warp_error": int(state.hwwWarpEsr),
                        "pc": int(state.hwwWarpEsrPc64),
                        "address": int(state.hwwEsrAddr),
                    }

    def diagnose(self, timeline: Timeline) -> dict[str, object]:
        """Return the known state of a queue that makes no progress."""
        facts: dict[str, object] = {}
        for queue in self.driver.all_queues():
            if queue.timeline is timeline:
                facts["queue"] = queue.name
                facts["kernel"] = ", ".join(queue.in_flight) or None
                facts["meaning"] = _HANGING if facts["kernel"] else _SILENT
                stands = queue.progress()
                facts["ring"] = f"GP_GET {stands.fetched}, GP_PUT {stands.given}"
                count = queue.submissions_in_flight
                if count and (stands.given - stands.fetched) % ENTRIES == count % ENTRIES:
                    what = f"{count} submission{'s' if count > 1 else ''}"
                    # An entry counts as fetched only once it has ended, waits included.
                    facts["cause"] = (
                        f"{what}, GP_GET never moved: the doorbell did not arrive, or the first "
                        "waits for a signal"
                    )
                facts["remedy"] = _RESET
                failed = queue.error()
                if failed is not None:
                    facts["xid"] = failed.xid
        if self.driver.gpu.lost():
            facts["gpu"] = "reads as all ones"
        return facts


def _by(culprit: Culprit | None) -> str:
    """Describe an instruction and its source line, as the end of an error text."""
    if culprit is None:
        return ""
    return f", by `{culprit.text}`" + (f", {culprit.source}" if culprit.source else "")
