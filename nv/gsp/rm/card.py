"""A card whose GSP runs: what its holders share, until the last one is gone."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ugpu.hcq.bare import remedies
from ugpu.hcq.bare.card import BareCard, Member
from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.bare.function import disable_master, reset_function, restore_function
from ugpu.hcq.bare.rungs import check_kind
from ugpu.hcq.bare.space import AddressSpace
from ugpu.hcq.bare.stages import Stages
from ugpu.hcq.bare.vram import MemoryMap
from ugpu.hcq.device import crash
from ugpu.hcq.disk.bundle import Evidence
from ugpu.hcq.errors import (
    ChipError,
    DeviceBusy,
    DeviceLost,
    FirmwareError,
    NotSupported,
    UgpuError,
)
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.paging.allocator import RangeAllocator
from ugpu.hcq.transport.base import Placing, ResetKind
from ugpu.hcq.transport.life import end_absence
from ugpu.hcq.transport.pci.config import SavedConfig
from ugpu.nv.gsp.boot import boot as steps
from ugpu.nv.gsp.boot import placement
from ugpu.nv.gsp.boot.boot import Firmware
from ugpu.nv.gsp.boot.evidence import gather, log_words
from ugpu.nv.gsp.boot.files import BootFiles, read_files
from ugpu.nv.gsp.boot.fwsec import protected_region
from ugpu.nv.gsp.boot.start import Start
from ugpu.nv.gsp.chip.chip import GspChip, chip_behind
from ugpu.nv.gsp.chip.interrupts import LEAVES, InterruptTree
from ugpu.nv.gsp.rm import saving
from ugpu.nv.gsp.rm.client import GspClient
from ugpu.nv.gsp.rm.contexts import Contexts
from ugpu.nv.gsp.rm.fault_buffers import FaultBuffers
from ugpu.nv.gsp.rm.space import VIRTUAL, VIRTUAL_END, GspSpace
from ugpu.nv.gsp.rm.states import as_json
from ugpu.nv.gsp.rpc import note
from ugpu.nv.gsp.rpc.calls import Calls
from ugpu.nv.gsp.rpc.note import Note

log = logging.getLogger(__name__)

_PAGE = 4096
_MOST_VECTORS = 256  # rows of the table of interrupts
_VECTORS = 32 * LEAVES
# Below it lies what the board's firmware and the VGA BIOS use before a driver runs; RM leaves the
# same size alone (open-gpu-kernel-modules 570.144 mem_mgr_gm107.c, VGA emulation).
_LEAST_ADDRESS = 1 << 20
# TIMEOUT: PCI Express Base Specification 5.0, 6.6.1 and 6.6.2: a function may be accessed 100 ms
# after a reset.
_QUIET_S = 0.1
RESETS = (ResetKind.FUNCTION, ResetKind.BUS)  # of a card that another process left, mildest first
H = TypeVar("H", bound=Member)


@dataclass(frozen=True)
class ChannelReport:
    """The GSP ended a channel. chid: its number on its runlist. kind: the Xid. engine:
    NV2080_ENGINE_TYPE. address: of the page fault that was the reason, 0 for another one."""

    chid: int
    kind: int
    engine: int
    address: int


class GspCard(BareCard[H]):
    """One card; see BareCard. firmware: runs, from `start` to `stop`.

    heap: VRAM that the driver may use, which all address spaces share. found: the state in which
    `start` found the card, and what it did. contexts: without shared buffers until the first
    graphics context is made. interrupts: None where the transport has none, or before the first
    holder's objects.
    on_channel_end: called with the firmware's report of each channel that it ended, by GPU.
    """

    firmware: Firmware
    heap: RangeAllocator
    places: MemoryMap
    _files: BootFiles
    _start_state: Start  # since `take_over`
    seats = 32  # our choice; RM has room for more clients and channels

    def __init__(
        self,
        name: str,
        attachment: Attachment,
        source: FirmwareSource,
        stages: Stages,
        *,
        leave_warm: bool = False,
    ) -> None:
        """Find what drives the chip; nothing is accessed but its identity. The transport is closed
        on NotSupported and DeviceLost."""
        super().__init__(name, attachment.transport, stages, leave_warm=leave_warm)
        try:
            self._chip = chip_behind(self.transport)
            if leave_warm and not isinstance(self.transport, Placing):
                raise NotSupported(
                    f"{self.transport.name} cannot be left warm: the firmware's memory must be "
                    "placed where it was, and this transport does not place memory"
                )
        except BaseException:
            self.transport.close()
            raise
        self._source = source
        self._left: Note | None = None
        self._memory: GspSpace | None = None
        self._runs = False
        self._busy = False  # as `take_over` found the card
        self.contexts = Contexts(self)
        self.interrupts: InterruptTree | None = None
        self.faults = FaultBuffers(self._chip, self.lock)
        self.on_channel_end: dict[object, Callable[[ChannelReport], None]] = {}
        self.found = ""
        self.closed = False
        self._slept = False  # the host was suspended, and the card was not yet booted again
        self.saved: saving.Saved | None = None  # what a suspended card goes on from

    def _keep(self, error: UgpuError, start: Start, calls: Calls | None) -> None:
        """Write a bundle of a start that failed."""
        crash.Keeper(self.transport.name).keep(error, lambda _: self.evidence(start, calls))

    def evidence(self, start: Start, calls: Calls | None) -> Evidence:
        """Return what explains a failure of the firmware."""
        found = Evidence()
        gather(found, start, calls)
        found.take("states.json", partial(as_json, self.chip))
        return found

    @property
    def chip(self) -> GspChip:
        """The card's registers and memory."""
        return self._chip

    @property
    def memory(self) -> AddressSpace:
        """The address space in which the first graphics context is made."""
        assert self._memory is not None
        return self._memory

    @property
    def calls(self) -> Calls:
        """Return the calls of the firmware that runs."""
        return self.firmware.calls

    def lost(self) -> bool:
        """See BareCard: also whether it has lost its state in a suspend."""
        return self._slept or self.saved is not None or super().lost()

    def resume(self) -> None:
        """Take up a card whose host was suspended; a reset is to boot it."""
        if end_absence(self.transport):
            self._slept = True
            self.calls.end(FirmwareError("the host was suspended, and the GSP lost its power"))

    def suspend(self, client: GspClient) -> None:
        """Save everything in host memory; the card may lose its power then. No channel has work.
        If this fails early the card goes on, if it fails late `calls` do not work."""
        saving.require_release(client)
        self.faults.unregister(client)
        try:
            saved = saving.save(self, client)
        except BaseException:
            self.faults.register(client)
            raise
        try:
            if self.interrupts is not None:
                self.interrupts.disable()
                self.interrupts = None
            steps.suspend(self.firmware, saved.pages[0])
            self.saved, self._runs = saved, False
            disable_master(self.transport)
        except BaseException:
            self.calls.end(FirmwareError("a suspend was cut off"))
            raise
        self.calls.end(FirmwareError("the card is suspended"))

    def wake(self, client: GspClient) -> None:
        """Go on after `suspend`. If this fails, only a reset helps."""
        saved = self.saved
        assert saved is not None
        try:
            end_absence(self.transport)  # of a host that was suspended meanwhile
            restore_function(self.chip)
            steps.contact(self.chip)
            self.chip.vram.forget()
            steps.resume(self.firmware, Stages())
            self._open_memory()
            saving.restore(self, saved)
            self.saved, self._runs = None, True
            super().own_memory()
            saving.schedule(client, on=True)
            self.enable_interrupts(client)
            self.faults.register(client)
        except BaseException:
            self.calls.end(FirmwareError("a resume was cut off"))
            raise

    # ---- start -------------------------------------------------------------------------------

    def start(self, *, force_cold: bool = False) -> None:
        """See BareCard. Nothing is changed before all files are there. If it fails, the card is
        handed back as far as that works, and closed."""
        try:
            self.find_images()
            super().start(force_cold=force_cold)
        except BaseException:
            self.end(clean=False)
            raise

    images_stage = "firmware files"

    def find_firmware(self) -> None:
        """See BareCard."""
        if not self._has_images:
            self._files = read_files(self._source, self.chip.boot)

    def take_over(self) -> bool:
        """See BareCard. Bus mastering is off then, so that the firmware reaches no memory."""
        chip = self.chip
        if chip.kept is None:
            chip.kept = SavedConfig(self.transport.config_read)
        chip.link.keep_awake()
        with self.stages.stage("gfw-boot"):
            self._contact()
        self._busy = steps.occupied(self._start_state)
        return self._busy

    def _contact(self) -> Start:
        chip = self.chip
        start = self._start_state = Start(chip, self._files)
        try:
            start.gsp.chip_id = start.sec2.chip_id = steps.contact(chip)
        except UgpuError as error:
            steps.explain(error, start, None, self._keep)
            raise
        return start

    def is_warm(self) -> bool:
        """See BareCard: a process has left a note, and memory can be placed as it says."""
        self._left = self._read_note()
        return self._left is not None

    def _read_note(self) -> Note | None:
        chip = self.chip
        if not isinstance(self.transport, Placing):
            return None
        chip.open_memory(placement.memory_size(chip))
        found = note.read(chip.vram)
        expected = (chip.facts.name, self._files.abi.version)
        return found if found is not None and (found.chip, found.release) == expected else None

    def warm_attach(self, stages: Stages) -> None:
        """See BareCard."""
        with stages.stage("rejoin"):
            left = self._rejoin()
        for kind, begin in left.contexts.items():
            self.heap.reserve(begin, left.sizes[kind])
        self.contexts.shared, self.contexts.sizes = dict(left.contexts), dict(left.sizes)
        self.found = "warm: the firmware of an earlier process goes on"

    def _rejoin(self) -> Note:
        left, start = self._left, self._start_state
        assert left is not None
        self._left = None
        self.firmware = steps.rejoin(start, left)
        self._runs = True
        self._open_memory()
        return left

    def make_fresh(self, stages: Stages) -> None:
        """See BareCard. Firmware that an earlier process left is unloaded if it answers; any other
        GSP that runs is reset with its slot. DeviceBusy if neither helps."""
        self.found = "cold: as after power-on"
        if not self._busy:
            return
        with stages.stage("unload or reset"):
            if self._left is None:
                self._left = self._read_note()
            if self._left is not None and self._unload_left():
                self.found = "cold: unloaded the firmware of an earlier process"
                return
            kind = self._reset_slot()
        self.found = f"cold: {kind.value} reset, as an earlier process had not stopped the GSP"
        log.warning("%s: %s", self.name, self.found)

    def _unload_left(self) -> bool:
        try:
            self._rejoin()
            self.firmware.stop()
        except UgpuError as error:
            log.warning("%s: the GSP cannot be unloaded: %s", self.name, error)
        disable_master(self.transport)
        self._runs = False
        self._contact()
        return not steps.occupied(self._start_state)

    def _reset_slot(self) -> ResetKind:
        """Reset the function or the slot, whichever stops the GSP; return which one did."""
        for kind in RESETS:
            try:
                check_kind(self.transport, kind)
                self.reset_by(kind)
            except (NotSupported, DeviceBusy) as error:
                log.info("%s: %s", self.name, error)
                continue
            if not steps.occupied(self._start_state):
                return kind
        low, high = protected_region(self.chip)
        raise DeviceBusy(
            "the GSP still owns its memory (WPR2 is set), or runs: an earlier start failed, or its "
            "driver died, and no reset of the slot has ended it",
            holder="GSP firmware", region=f"{low:#x}-{high:#x}", remedy=remedies.POWER_CYCLE,
        )  # fmt: skip

    def reset_by(self, kind: ResetKind) -> None:
        """Reset the chip by its slot, and make first contact again."""
        reset_function(self.chip, partial(self.transport.reset, kind), _QUIET_S)
        self.after_reset()

    def cold_boot(self, stages: Stages) -> None:
        """See BareCard."""
        self.firmware = steps.boot(self._start_state, stages, self._keep)
        self._runs = True
        self._open_memory()

    def after_reset(self) -> None:
        """See BareCard."""
        self._runs = self._busy = False
        self.chip.logs = {}
        self.interrupts = None
        self.faults.forget()
        if self._memory is not None:
            self.heap.free_all(self.contexts)
            self.contexts, self._memory = Contexts(self), GspSpace(self, self)
        if self.chip.memory_size:
            self.chip.vram.forget()
        self._start_state.running = False
        self._start_state.memory.close()
        self._contact()

    def boot_again(self) -> None:
        """See BareCard. The heap stays as it is: all allocations keep their places."""
        super().boot_again()
        self.own_memory()  # whatever the start did to VRAM

    def after_power_loss(self) -> None:
        """See BareCard. A suspend may leave the card its power: its GSP is reset then."""
        restore_function(self.chip)
        self._slept, self.saved = False, None
        with self.stages.stage("gfw-boot"):
            self.after_reset()
            if steps.occupied(self._start_state):
                self._reset_slot()

    def own_memory(self) -> None:
        """See BareCard. At the first start no holder has an address space: usable memory is
        known when the firmware runs."""
        for holder in self.holders:
            holder.memory.own()

    def _open_memory(self) -> None:
        """Take BAR 1 back to physical mode, and find the memory that the driver may use."""
        chip = self.chip
        chip.nv.NV_PBUS_BAR1_BLOCK.write(0)
        if chip.boot.wide_window:
            chip.nv.NV_VIRTUAL_FUNCTION_PRIV_FUNC_BAR1_BLOCK_LOW_ADDR.write(0)
        ended = self.calls.abi.constants.NV_VGPU_MSG_EVENT_RC_TRIGGERED
        self.calls.on_event[ended] = self._tell_ended
        logs = self.firmware.start.logs
        chip.logs = {name: partial(log_words, pages) for name, pages in logs.items()}
        if self._memory is None:
            self._divide_memory()

    def _divide_memory(self) -> None:
        """Make the heap of the memory that the firmware leaves to the driver."""
        chip, regions = self.chip, self.firmware.static.regions
        begin, end = max(regions[0][0], _LEAST_ADDRESS), regions[-1][1] // _PAGE * _PAGE
        # Tables hold offsets in VRAM.
        self.places = MemoryMap(begin, end, 0, chip.boot.bus_bits, VIRTUAL, VIRTUAL_END)
        self.heap = RangeAllocator(begin, end - begin, _PAGE, name="video memory")
        for (_, last), (first, _) in itertools.pairwise(regions):
            if last < first:
                self.heap.reserve(last, first - last)
        if begin != note.PLACE:
            raise ChipError("the place of ugpu's note is not usable VRAM", begin=begin)
        self.heap.reserve(note.PLACE, note.SIZE)
        self._memory = GspSpace(self, self)

    def _tell_ended(self, payload: bytes) -> None:
        """Handle RC_TRIGGERED: the GSP has stopped a channel after an error."""
        layout = self.calls.abi.structs.rpc_rc_triggered_v17_02
        if len(payload) < layout.size:
            log.warning("the GSP's report of a channel is cut short: %d bytes", len(payload))
            return
        report = layout.view(payload[: layout.size])
        address = 0
        if "mmuFaultAddrLo" in layout.fields:  # not in release 535
            address = int(report.mmuFaultAddrHi) << 32 | int(report.mmuFaultAddrLo)
        found = ChannelReport(
            int(report.chid), int(report.exceptType), int(report.nv2080EngineType), address
        )
        log.debug("the GSP ended a channel: %s", found)
        for take in list(self.on_channel_end.values()):
            take(found)

    def enable_interrupts(self, client: GspClient) -> None:
        """Let the end of work and the GSP's messages interrupt, if the transport has interrupts;
        once."""
        with self.lock:
            messages = self.transport.interrupts
            if messages is None or self.interrupts is not None:
                return
            found = client.ask_gpu("NV2080_CTRL_CMD_INTERNAL_INTR_GET_KERNEL_TABLE")
            rows = [found.table[row] for row in range(min(int(found.tableLen), _MOST_VECTORS))]
            gsp = client.constants.MC_ENGINE_IDX_GSP
            stall = [int(row.vectorStall) for row in rows if int(row.engineIdx) == gsp]
            faults = client.constants.MC_ENGINE_IDX_REPLAYABLE_FAULT
            vectors = [int(row.vectorNonStall) for row in rows]
            vectors += [int(row.vectorStall) for row in rows if int(row.engineIdx) == faults]
            used = [vector for vector in vectors if vector < _VECTORS]
            if not stall or stall[0] >= _VECTORS:
                raise FirmwareError("the GSP's table of interrupts lacks its own", rows=len(rows))
            self.interrupts = InterruptTree(self.chip, messages)
            self.interrupts.enable(used, stall[0])

    # ---- notes and the end -------------------------------------------------------------------

    def note_in_use(self) -> None:
        """See BareCard."""
        note.erase(self.chip.vram)

    def stop(self, *, clean: bool) -> None:
        """See BareCard. Firmware with which messages are under way is not left running."""
        if self.interrupts is not None:
            self.interrupts.disable()
            self.interrupts = None
        super().stop(clean=clean and self._runs and self.calls.left() is not None)

    def note_left(self) -> None:
        """See BareCard."""
        left = self.calls.left()
        assert left is not None
        contexts, named = self.contexts, self.firmware.start.memory.named
        note.write(
            self.chip.vram,
            Note(
                self.chip.facts.name,
                self.calls.abi.version,
                {name: pages.address for name, pages in named.items()},
                left,
                contexts.shared,
                contexts.sizes,
            ),
        )

    def quiet(self) -> None:
        """See BareCard. Its last client has freed its channels: nothing uses host memory but the
        firmware's queues."""

    def reset_at_end(self) -> None:
        """See BareCard: let the firmware leave, and hand the chip back."""
        if self._runs:
            self._runs = False
            self.firmware.stop()

    def open_context(self, holder: H) -> None:
        """See BareCard. A holder's objects in the resource manager do it."""

    def close_context(self, holder: H) -> None:
        """See BareCard."""

    def close_units(self) -> None:
        """See BareCard. The transport frees memory that the GSP may still write, after its access
        has ended."""

    def end(self, *, clean: bool) -> None:
        """Stop and close the card; idempotent. clean: nothing has failed."""
        if self.closed:
            return
        self.closed = True
        try:
            if not self.chip.lost():
                self.stop(clean=clean)
        except DeviceLost:
            log.debug("%s: the card has left the bus", self.transport.name)
        except UgpuError as error:
            log.warning("%s: the firmware did not leave cleanly: %s", self.transport.name, error)
        finally:
            with contextlib.suppress(UgpuError):
                disable_master(self.transport)
            self.close()
