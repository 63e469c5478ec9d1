"""Steps "queues", "init-done" and "static-info": the first messages, the events until the firmware
is up, and what it says of the card, which does not change."""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass
from functools import partial

from ugpu.hcq.errors import FirmwareError, FirmwareRejected
from ugpu.nv.gsp.boot import evidence
from ugpu.nv.gsp.boot.booter import set_arguments
from ugpu.nv.gsp.boot.start import Start, machine_facts
from ugpu.nv.gsp.rpc import sequencer
from ugpu.nv.gsp.rpc.calls import REPLY_LIMIT_S, Calls, LeftCalls, require_size
from ugpu.nv.gsp.rpc.messages import SETTINGS, registry, system_info
from ugpu.nv.gsp.rpc.queue import MessageQueues

log = logging.getLogger(__name__)

# TIMEOUT: tinygrad waits 10 s for it on boards, nouveau 4 to 8 s; it takes 1 to 3 s there.
INIT_LIMIT_S = 20.0
_RESUME_LIMIT_S = 2.0
_MOST_REPORTS = 64
_MOST_REGIONS = 16


@dataclass(frozen=True)
class StaticInfo:
    """What the driver uses of GspStaticConfigInfo.

    name: of the product. uuid: 16 bytes, or none. regions: begin and end of VRAM that the driver
    may use. saved_at: where the heap outside of the protected region, and FRTS, are in VRAM; None
    where the release does not say.
    """

    name: str
    uuid: bytes
    regions: tuple[tuple[int, int], ...]
    saved_at: tuple[int, int] | None


def open_queues(start: Start, left: LeftCalls | None = None) -> Calls:
    """Create the queues. left: by an earlier process, whose firmware still runs."""
    chip, abi = start.chip, start.files.abi
    head = chip.nv.NV_PGSP_QUEUE_HEAD
    indices = left.indices if left is not None else None
    queues = MessageQueues(start.queues, chip.clock, partial(head.write, 0), indices)
    calls = Calls(queues, abi, check=start.check, state=partial(evidence.explain, start))
    number = abi.constants
    calls.on_event |= {
        number.NV_VGPU_MSG_EVENT_GSP_RUN_CPU_SEQUENCER: partial(_run_sequencer, start),
        number.NV_VGPU_MSG_EVENT_GSP_LOCKDOWN_NOTICE: partial(_note_lockdown, start),
        number.NV_VGPU_MSG_EVENT_OS_ERROR_LOG: partial(_note_error, start),
        number.NV_VGPU_MSG_EVENT_UCODE_LIBOS_PRINT: _note_print,
    }
    if left is not None:
        calls.go_on(left)
    return calls


def send_first(start: Start, calls: Calls) -> None:
    """Queue what the firmware reads first: it looks for these messages when it starts."""
    chip, abi, number = start.chip, start.files.abi, start.files.abi.constants
    facts = machine_facts(chip.transport, chip.boot)
    calls.send(number.NV_VGPU_MSG_FUNCTION_GSP_SET_SYSTEM_INFO, system_info(abi, facts))
    calls.send(number.NV_VGPU_MSG_FUNCTION_SET_REGISTRY, registry(abi, SETTINGS))


def await_init(start: Start, calls: Calls) -> None:
    """Wait until the firmware reports that it is up; serve its events meanwhile."""
    number = calls.abi.constants
    try:
        calls.await_event(number.NV_VGPU_MSG_EVENT_GSP_INIT_DONE, INIT_LIMIT_S)
        start.up = True
    except FirmwareError as error:
        start.up = "event" in error.facts  # it answers, and can be asked to leave
        error.add_facts(reported=start.reported[-8:])
        raise


def read_static(calls: Calls, vram: int, limit_s: float = REPLY_LIMIT_S) -> StaticInfo:
    """Ask for GspStaticConfigInfo; FirmwareError if it describes no memory in VRAM. limit_s: for
    the answer."""
    abi = calls.abi
    layout = abi.structs.GspStaticConfigInfo
    function = abi.constants.NV_VGPU_MSG_FUNCTION_GET_GSP_STATIC_INFO
    reply = calls.call(function, bytes(layout.size), limit_s=limit_s)
    require_size(reply, layout.size, "description of the card")
    info = layout.view(reply[: layout.size])
    regions = info.fbRegionInfoParams
    count = min(int(regions.numFBRegions), _MOST_REGIONS)
    usable = []
    for number in range(count):
        region = regions.fbRegion[number]
        if region.reserved or region.bProtected:
            continue
        begin, end = int(region.base), int(region.limit) + 1
        if not begin < end <= vram:
            raise FirmwareError(
                "the GSP describes memory outside of VRAM", begin=begin, end=end, vram=vram
            )
        usable.append((begin, end))
    if not usable:
        raise FirmwareError("the GSP describes no memory that a driver may use", regions=count)
    saved_at, gid = None, info.gidInfo
    if "fwWprLayoutOffset" in layout.fields:
        places = info.fwWprLayoutOffset
        saved_at = int(places.nonWprHeapOffset), int(places.frtsOffset)
    text = bytes(info.gpuNameString).split(b"\0")[0].decode("ascii", "replace")
    return StaticInfo(
        name=text,
        uuid=bytes(gid.data)[:16] if int(gid.length) >= 16 else b"",
        regions=tuple(sorted(usable)),
        saved_at=saved_at,
    )


def _note_lockdown(start: Start, payload: bytes) -> None:
    start.locked_down = bool(payload[:1].rstrip(b"\0"))


def _note_error(start: Start, payload: bytes) -> None:
    """Keep the text of an error that the firmware reports (Xid)."""
    layout = start.files.abi.structs.rpc_os_error_log_v17_00
    if len(payload) < layout.size:
        log.warning("the GSP's error report is cut short: %d bytes", len(payload))
        return
    report = layout.view(payload[: layout.size])
    text = bytes(report.errString).split(b"\0")[0].decode("ascii", "replace")
    note = f"Xid {int(report.exceptType)}: {text}"
    log.warning("GSP: %s", note)
    start.reported.append(note)
    del start.reported[:-_MOST_REPORTS]


def _note_print(payload: bytes) -> None:
    """Log a part of another unit's log. Its texts are addresses in a file that is not published."""
    if len(payload) >= 8:
        unit, size = struct.unpack_from("<2I", payload)
        log.debug("log of unit %#x: %d bytes", unit, size)


def _run_sequencer(start: Start, payload: bytes) -> None:
    commands = sequencer.parse(start.files.abi, payload)
    log.debug("CPU sequencer: %d operations", len(commands))
    sequencer.run(commands, SequencerMachine(start))


class SequencerMachine:
    """The chip, as the GSP's program for the CPU acts on it. See rpc.sequencer.Machine."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._chip = start.chip
        self.delay = self._chip.clock.sleep
        self.start_core, self.await_halt = start.gsp.start, start.gsp.await_halt

    def read(self, address: int) -> int:
        """Read a register of BAR 0."""
        return self._chip.bus.read32(self._index(address))

    def write(self, address: int, value: int) -> None:
        """Write a register of BAR 0."""
        self._chip.bus.write32(self._index(address), value)

    def _index(self, address: int) -> int:
        if address % 4 or address + 4 > self._chip.bus.window.size:
            raise sequencer.BadProgram("a register lies outside of BAR 0", address=address)
        return address // 4

    def poll(self, address: int, mask: int, value: int, limit_s: float) -> None:
        """See Machine."""
        index = self._index(address)
        self._chip.clock.wait_until(
            lambda: self._chip.bus.read32(index) & mask == value,
            unit="GSP",
            waiting_for=f"register {address:#x} & {mask:#x} == {value:#x}",
            limit_s=limit_s,
            state=lambda: f"{self._chip.bus.read32(index):#x}",
        )

    def reset_core(self) -> None:
        """Reset the GSP to its falcon, and let its DMA use addresses of the bus."""
        self._start.gsp.reset_to_falcon()
        self._start.gsp.allow_physical()

    def resume_core(self) -> None:
        """Let the GSP's firmware continue: SEC2 restarts the RISC-V core."""
        start, chip = self._start, self._chip
        start.gsp.reset_to_riscv()
        set_arguments(start)
        start.sec2.start()
        stage, what = chip.nv.NV_PGC6_BSI_SECURE_SCRATCH_14, "hand-off to the GSP"
        chip.await_fields("SEC2", stage, what, _RESUME_LIMIT_S, BOOT_STAGE_3_HANDOFF=1)
        start.sec2.check("booter")
        if chip.boot.dma:
            start.gsp.regs.OS.write(start.files.boot_loader.app_version)
        if not start.gsp.riscv_active:
            raise FirmwareRejected(
                "the GSP's RISC-V core does not run after its resumption", **start.state()
            )
