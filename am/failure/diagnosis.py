"""Diagnosis: which rung of the ladder can help, from the failure and the units' named states.

Policy. Sources: Linux 6.12 amdgpu_device.c (amdgpu_device_gpu_recover: jobs, then the whole chip),
and am.failure.states for what a state means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ugpu.am.failure.states import states
from ugpu.am.units.faults import SOURCE_SQ, SqWord, is_packet_error, is_wave_client, sdma_engine
from ugpu.am.work.queue import ComputeQueue
from ugpu.hcq.bare.stages import needs as named_needs
from ugpu.hcq.errors import (
    AssertionFailed,
    BadPacket,
    ChipError,
    DeviceHang,
    FirmwareError,
    IllegalInstruction,
    LinkError,
    PageFault,
    UgpuError,
)
from ugpu.hcq.state.ladder import Diagnosis, Level

if TYPE_CHECKING:
    from ugpu.am.chip.chip import Chip
    from ugpu.am.units.ih import Interrupt
    from ugpu.am.work.holder import Holder
    from ugpu.am.work.queue import RingQueue

# Named states (am.failure.states: unit, name), and the mildest level that can help.
_NEEDS = {
    ("link", "no answer"): Level.BUS,
    ("link", "no addresses"): Level.MODE1,
    ("board firmware", "not done"): Level.BUS,
    ("PSP", "no answer"): Level.BUS,
    ("PSP", "bootloader refused"): Level.BUS,
    ("PSP", "bootloader not ready"): Level.BUS,
    ("PSP", "ring busy"): Level.MODE1,
    ("SMU", "hung or at work"): Level.MODE1,
    ("RLC", "autoload not complete"): Level.MODE2,
    ("RLC", "running"): Level.WARM,  # reported when its processor is off
}


def diagnose(driver: Holder) -> Diagnosis:
    """Return the mildest level that can help, and why. The card is present. Writes only the
    registers of a TLB flush."""
    units, failure = driver.units, driver.core.failure
    if driver.chip.unplaced():
        return Diagnosis(
            Level.MODE1, "the slot was reset by another program: its BARs have no addresses"
        )
    if driver.chip.lost():
        return Diagnosis(
            Level.MODE1,
            "configuration space answers and registers read as ones: the card was without power",
        )
    if not units.psp.alive():
        return Diagnosis(Level.MODE1, "the PSP's secure OS does not run: the chip is not booted")
    if isinstance(failure, FirmwareError | LinkError):
        return Diagnosis(Level.MODE1, str(failure))
    if units.smu.stuck:
        return Diagnosis(Level.MODE1, "the SMU has not answered a message")
    found = [Diagnosis(driver.card.unfinished, "a reset before this one was cut off")]
    worst = max([*found, *needs(driver.chip)], key=lambda one: one.first)
    if worst.first >= Level.MODE2:
        return worst
    try:
        driver.flush_tlb()
    except ChipError as error:
        return Diagnosis(Level.MODE1, str(error))
    if worst.first > Level.QUEUE or driver.unfinished is not None:
        return worst
    return Diagnosis(Level.QUEUE, str(failure) if failure is not None else "no failure is known")


def needs(chip: Chip) -> list[Diagnosis]:
    """Return the resets that the named states of a chip's units require, beyond a queue's reset;
    reads registers and writes none."""
    return named_needs(states(chip), _NEEDS)


def failed_queues(driver: Holder, failure: UgpuError | None) -> list[RingQueue]:
    """Return the queues that a failure concerns; all queues if it names none."""
    queues = driver.queues.all
    compute: list[RingQueue] = [*driver.queues.compute]
    named = [queue for queue in queues if failure and _names(failure, queue)]
    if named:
        return named
    if isinstance(failure, PageFault):
        client = failure.facts.get("client")
        return compute if isinstance(client, str) and is_wave_client(client) else queues
    if isinstance(failure, IllegalInstruction | AssertionFailed):
        return compute
    if isinstance(failure, BadPacket) and "pipe" in failure.facts:
        return compute
    if (
        isinstance(failure, ChipError) and "wgp" in failure.facts
    ):  # a wave's, see am.units.faults.SqWord
        return compute
    return queues


def _names(failure: UgpuError, queue: RingQueue) -> bool:
    """Return whether a failure's facts name the queue: its timeline, or its engine."""
    facts = failure.facts
    return queue.timeline.name == facts.get("timeline") or queue.name in (
        facts.get("engine"),
        facts.get("client"),
    )


def stands_still(failure: UgpuError | None) -> bool:
    """Return whether a failure leaves its queue at a command that never ends, so that the queue
    cannot be drained."""
    halted = isinstance(failure, ChipError) and "wgp" in failure.facts
    return halted or isinstance(failure, DeviceHang | IllegalInstruction | BadPacket)


def reports(entry: Interrupt, queue: RingQueue) -> bool:
    """Return whether an interrupt entry reports a failure of this queue. Entries of page faults do
    not name their queue."""
    if not isinstance(queue, ComputeQueue):
        return sdma_engine(entry) == queue.name
    if is_packet_error(entry):
        return entry.queue[1:] == (queue.pipe, queue.queue)
    return entry.source == SOURCE_SQ and SqWord.decode(entry.data).is_error
