"""Reports: interrupt entries and register snapshots of a running device, turned into errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ugpu.am.chip import remedies as advice
from ugpu.am.failure import inspect
from ugpu.am.units import faults
from ugpu.am.units.faults import SqWord
from ugpu.am.units.ih import Interrupt
from ugpu.am.work.queue import SLOT_WORDS, SLOTS, RingQueue
from ugpu.hcq.errors import LinkError, UgpuError
from ugpu.hcq.state.instruction import take_culprit
from ugpu.hcq.work.timeline import Timeline

if TYPE_CHECKING:
    from ugpu.am.work.holder import Holder

log = logging.getLogger(__name__)

_WAVES_LIMIT_S = 0.1  # TIMEOUT: our choice; the search for a wave of a stalled queue


class Reporter:
    """Explains the reports of one device."""

    def __init__(self, driver: Holder) -> None:
        self.driver = driver

    def explain(self, entry: Interrupt) -> UgpuError | None:
        """Return the failure that an interrupt entry reports, with what registers add, or None."""
        units = self.driver.units
        if entry.source == faults.SOURCE_UTCL2 and entry.client in (
            faults.CLIENT_GFX,
            faults.CLIENT_VMC,
        ):
            gmc = units.gmc
            hubs = gmc.mmhubs if entry.client == faults.CLIENT_VMC else gmc.gfxhubs
            return self._page_fault(faults.faulted_page(entry), entry, gmc.take_fault(hubs))
        if (
            heat := units.thermal.explain(
                self.driver.name, entry.client, entry.source, entry.data[0]
            )
        ) is not None:
            return heat
        if (damage := faults.uncorrectable_error(entry)) is not None:
            return damage
        if entry.source == faults.SOURCE_SQ:
            return self._wave(entry)
        if entry.client == faults.CLIENT_GRBM_CP:
            return faults.command_processor_error(entry, self._compute_state(entry))
        if entry.client == faults.CLIENT_GFX:
            if entry.source == faults.SOURCE_SDMA_HANG:
                # A copy queue that waits for another queue looks like this too.
                log.warning("%s: SDMA reports a queue that makes no progress", self.driver.name)
                return None
            return faults.sdma_error(entry, {})
        return None

    def latched(self) -> UgpuError | None:
        """Return this holder's page fault that a hub has latched, whose interrupt entry was lost;
        None without one. A fault of another holder is passed to that holder."""
        driver = self.driver
        for fault in filter(None, [hub.take_fault() for hub in driver.units.gmc]):
            for holder in driver.card.holders:
                if fault.vmid in (0, holder.seat.vmid):
                    holder.latched.append(fault)
        while driver.latched:
            fault = driver.latched.pop()
            return self._page_fault(fault.address, None, fault)
        return None

    def _page_fault(
        self, page: int, entry: Interrupt | None, latched: faults.HubFault | None
    ) -> UgpuError:
        kernels = self.suspects()
        culprit = self._culprit(page)
        if culprit is not None and culprit.kernel is not None:
            kernels = (culprit.kernel,)
        return faults.page_fault(
            entry,
            latched,
            device=self.driver.name,
            kernels=kernels,
            culprit=culprit,
            null=self.driver.programs.null_pointers(kernels),
            stacks=self.driver.programs.stacks(kernels),
            regions=self.driver.memory.regions(),
        )

    def suspects(self) -> tuple[str, ...]:
        """Names of the kernels that may have caused the current report."""
        return tuple(name for queue in self.driver.queues.compute for name in queue.suspects)

    def _culprit(self, page: int) -> faults.Place | None:
        """Return the faulting instruction of a page fault, if the device is a model."""
        found = take_culprit(self.driver.transport, address=page)
        if found is None:
            return None
        programs = self.driver.programs
        kernel, offset = programs.find(found.pc) or (None, None)
        return faults.Place(found.pc, found.text, kernel, offset, programs.source_of(found.pc))

    def _wave(self, entry: Interrupt) -> UgpuError | None:
        word = SqWord.decode(entry.data)
        if not word.is_error:
            return None
        state = self.driver.units.gfx.wave_state(word.array, word.wgp, word.simd, word.wave)
        if word.error == faults.ILLEGAL_INSTRUCTION:
            state |= self._words_at(state.get("pc"))
        return word.to_error(entry.vmid, self._named(state), self.driver.name)

    def _words_at(self, pc: object) -> dict[str, object]:
        """Return the two words at a program counter, as the program was written."""
        if not isinstance(pc, int):
            return {}
        try:
            start, code = self.driver.programs.code_at(pc)
        except LookupError:
            return {}
        found = code[pc - start : pc - start + 8]
        words = [int.from_bytes(found[at : at + 4], "little") for at in range(0, len(found), 4)]
        return {"instruction": " ".join(f"{word:#010x}" for word in words)}

    def _named(self, state: dict[str, object]) -> dict[str, object]:
        """Return a wave's state with its kernel and the offset in it, if its program is known."""
        pc = state.get("pc")
        found = self.driver.programs.find(pc) if isinstance(pc, int) else None
        if found is None:
            return {"kernel": ", ".join(self.suspects()) or None, **state}
        return {"kernel": found[0], "offset": found[1], **state}

    def _compute_state(self, entry: Interrupt) -> dict[str, object]:
        if not faults.is_packet_error(entry):
            return {}
        _, pipe, queue = entry.queue
        return self.driver.units.gfx.queue_state(pipe, queue)

    def _first_wave(self) -> dict[str, object]:
        """Return where one of the waves on the chip is; empty if there is none."""
        driver = self.driver
        identity, shared = driver.chip.wave_registers["SQ_WAVE_HW_ID2"], not driver.alone
        for wave in inspect.waves(driver.chip, _WAVES_LIMIT_S):
            pc, values = wave.get("pc"), wave.get("registers")
            if isinstance(pc, int) and isinstance(values, dict):
                if shared and driver.seat.vmid != identity.decode(values["HW_ID2"]).VM_ID:
                    continue
                found: dict[str, object] = {
                    "pc": pc,
                    "exec": values["EXEC_HI"] << 32 | values["EXEC_LO"],
                    "wave_status": values["STATUS"],
                    "source": driver.programs.source_of(pc) or None,
                    **self._words_at(pc),
                }
                known = {name: value for name, value in found.items() if value is not None}
                return self._named(known)
        return {}

    def diagnose(self, timeline: Timeline) -> dict[str, object]:
        """Describe the chip's state when `timeline` does not advance. Never raises."""
        driver = self.driver
        state: dict[str, object] = {"remedy": advice.RESET}
        try:
            if driver.chip.lost():
                return {"chip": "does not answer", "remedy": advice.LINK}
            if not driver.units.psp.alive():
                state["chip"] = "was reset by another program: the secure OS does not run"
            for compute in driver.queues.compute:
                if compute.timeline is timeline:
                    state |= driver.units.gfx.queue_state(compute.pipe, compute.queue)
                    state |= {"slots_submitted": compute.count, "slots_done": compute.done}
                    state |= self._first_wave()
                    state |= _standstill(compute, state)
            for copy in driver.queues.copy:
                if copy.timeline is timeline:
                    state |= copy.engine.state()
                    state |= {"slots_submitted": copy.count, "slots_done": copy.done}
                    state |= _standstill(copy, state)
            for hub in driver.units.gmc:
                fault = hub.take_fault()
                if fault is not None:
                    state[f"{hub.name.lower()}_fault"] = f"{fault.access} of {fault.address:#x}"
            state |= driver.units.smu.state()
        except (LinkError, UgpuError) as error:
            state["while_looking"] = str(error)
        return state


def _standstill(queue: RingQueue, state: Mapping[str, object]) -> dict[str, object]:
    """Return the cause of a queue that has not begun what was submitted, from its pointers: the
    driver's, and those that the engine has."""
    count = queue.count - queue.ended
    what = f"{count} submission{'s' if count > 1 else ''}"
    read, write = state.get("rptr"), state.get("wptr")
    if not count or "pc" in state or not isinstance(read, int) or not isinstance(write, int):
        return {}
    ring = SLOTS * SLOT_WORDS
    due, begin = (slots * SLOT_WORDS % ring for slots in (queue.count, queue.ended))
    read, write = (read >> queue.shift) % ring, (write >> queue.shift) % ring
    if read != begin:
        return {}
    if write == begin:
        return {"cause": f"{what}, write pointer never moved: the doorbell did not arrive"}
    if write == due:
        return {
            "cause": f"{what}, read pointer never moved: the engine fetches and gets no answer; "
            "see the IOMMU's log (dmesg, lines with DMAR or AMD-Vi)"
        }
    return {}
