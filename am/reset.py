"""Reset: a ladder from taking one queue off the hardware to resetting the whole chip.

Policy: which rung first, when to go on to the next. Every step is recorded in
`device.reset_report`; nothing goes down the ladder silently. A rung counts only when every queue
has executed something afterwards. Rungs and their order: Linux 6.12 gfx_v11_0.c (soft reset, queue
reset), smu_v13_0_0_ppt.c (mode1). There is no reset of single pipes: the command processor's
firmware of gfx11 does not support it (gfx_v11_0.c, gfx_v11_pipe_reset_support; tinygrad took its
own back).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from am import boot
from am.firmware import load_firmware
from am.units import Units
from hcq import trace
from hcq.command import Signal, Symbol, values_of
from hcq.errors import (
    ChipError,
    DeviceLost,
    FirmwareError,
    LinkError,
    NotSupported,
    UnitTimeout,
)
from hcq.timeline import Timeline

if TYPE_CHECKING:
    from am.driver import AmDriver

log = logging.getLogger(__name__)

PROOF_LIMIT_S = 0.5  # how long a queue may take to show that it lives again


@dataclass(frozen=True)
class Step:
    """One rung that was tried."""

    name: str
    worked: bool
    seconds: float
    detail: str = ""


def recover(driver: AmDriver) -> None:
    """Bring the device back by the mildest rung that works; raises what the last one met."""
    driver.reset_report = []
    driver.vram_lost = False
    if not driver.transport.present():
        raise DeviceLost(
            f"{driver.name} does not respond, so it cannot be reset", device=driver.name
        )
    rungs: list[tuple[str, Callable[[AmDriver], None]]] = [
        ("take queues off", _drain),
        ("kill waves", _kill_waves),
        ("soft reset", _soft_reset),
        ("mode1 reset", _mode1),
        ("mode1 reset by the debug mailbox", _debug_mode1),
        ("mode1 reset by the PSP", _psp_mode1),
        ("bus reset", _bus_reset),
    ]
    firmware_broken = isinstance(driver.core.failure, FirmwareError | LinkError)
    if driver.chip.lost():  # configuration space answers, the BARs do not: it was without power
        rungs = [("boot after power loss", _after_power_loss)]
    elif firmware_broken or driver.units.smu.stuck or not _hubs_answer(driver):
        rungs = rungs[-4:]  # what is broken is not a queue
    for position, (name, climb) in enumerate(rungs):
        start = time.monotonic()
        try:
            with trace.step("am.reset", rung=name):
                climb(driver)
                prove(driver)
        except (ChipError, FirmwareError, LinkError, NotSupported) as error:
            _record(driver, Step(name, False, time.monotonic() - start, str(error)))
            if position == len(rungs) - 1:
                log.error("%s: no reset helps: %s", driver.name, _outcome(driver))
                raise
            continue
        _record(driver, Step(name, True, time.monotonic() - start))
        log.warning("%s: reset: %s", driver.name, _outcome(driver))
        return


def _record(driver: AmDriver, step: Step) -> None:
    driver.reset_report.append(step)
    log.debug("%s: %s", driver.name, step)


def _outcome(driver: AmDriver) -> str:
    """The whole ladder in a line."""
    tried = ", ".join(
        f"{step.name} {'worked' if step.worked else 'failed'}" for step in driver.reset_report
    )
    return tried + ("; the content of device memory is lost" if driver.vram_lost else "")


def _hubs_answer(driver: AmDriver) -> bool:
    try:
        driver.flush_tlb()
    except ChipError:
        return False
    return True


# ---- rungs -------------------------------------------------------------------------------------


def _drain(driver: AmDriver) -> None:
    """Let what runs end, then set the queues up afresh."""
    for queue in driver.compute_queues:
        if not driver.units.gfx.stop_queue(queue.pipe, queue.queue):
            raise ChipError("the compute queue has not drained", queue=queue.name)
    for copy in driver.copy_queues:
        if not copy.engine.stop():
            raise ChipError("the copy queue has not drained", queue=copy.name)
    _restart_queues(driver)


def _kill_waves(driver: AmDriver) -> None:
    """Kill the waves of the compute queue, reset copy engines that do not rest."""
    for queue in driver.compute_queues:
        if not driver.units.gfx.stop_queue(queue.pipe, queue.queue, reset_waves=True):
            raise ChipError(
                "the compute queue could not be removed from the hardware", queue=queue.name
            )
    for copy in driver.copy_queues:
        if not copy.engine.stop():
            copy.engine.reset()
    _restart_queues(driver)


def _soft_reset(driver: AmDriver) -> None:
    """Reset the command processors and copy engines."""
    with driver.units.gfx.safe_mode():
        driver.units.gfx.soft_reset()
    for engine in driver.units.engines:
        engine.reset()
    boot.start_engines(driver.units)
    _restart_queues(driver)


def _mode1(driver: AmDriver) -> None:
    """Reset the chip through its SMU and boot it again."""
    _quiet(driver)
    _boot_again(driver, boot.mode1_reset)


def _debug_mode1(driver: AmDriver) -> None:
    """The same by the SMU's debug mailbox."""
    _quiet(driver)
    _boot_again(driver, boot.debug_mode1_reset)


def _psp_mode1(driver: AmDriver) -> None:
    """The same by the secure OS."""
    _quiet(driver)
    _boot_again(driver, boot.psp_mode1_reset)


def _bus_reset(driver: AmDriver) -> None:
    """Reset the chip from its slot and boot it again."""
    _quiet(driver)
    _boot_again(driver, boot.bus_reset)


def _after_power_loss(driver: AmDriver) -> None:
    """Boot a chip that was pulled out and plugged in again, or whose power came back."""
    _boot_again(driver, boot.after_power_loss)


def _quiet(driver: AmDriver) -> None:
    """Take off what still can be: nothing should reach for host memory when it is cut off."""
    for queue in driver.compute_queues:
        driver.units.gfx.stop_queue(queue.pipe, queue.queue, reset_waves=True)
    for copy in driver.copy_queues:
        copy.engine.stop()


def _boot_again(driver: AmDriver, strike: Callable[[Units], None]) -> None:
    """After a reset of everything: DEVICE memory is lost; page tables and programs come back."""
    if driver.firmware is None:
        driver.firmware = load_firmware(driver.firmware_source, driver.facts)
    units = driver.units
    driver.vram_lost = True
    strike(units)
    units.smu.stuck = False
    boot.read_discovery(units.chip)
    units.memory.own()
    boot.cold_boot(units, driver.firmware, boot.Stages())
    boot.mark(units.chip, boot.IN_USE)
    driver.route_copy_doorbells()
    driver.programs.rewrite()
    for image in list(driver.images):
        image.rewrite()
    _restart_queues(driver)


# ---- coming back -------------------------------------------------------------------------------


def _restart_queues(driver: AmDriver) -> None:
    """Empty rings, fresh hardware queues, no old reports, no stale translations."""
    for hub in driver.units.gmc:
        hub.clear_fault()
    driver.flush_tlb()
    for compute in driver.compute_queues:
        compute.restart()
        compute.timeline.restart()
        driver.start_compute(compute)
    for copy in driver.copy_queues:
        copy.restart()
        copy.timeline.restart()
        driver.start_copy(copy)
    driver.units.ih.drain()


def prove(driver: AmDriver) -> None:
    """Have every queue execute one signal."""
    for queue in [*driver.compute_queues, *driver.copy_queues]:
        timeline = queue.timeline
        value = timeline.last + 1
        buffer = queue.encode([Signal(timeline, Symbol.constant(value))])
        queue.submit(buffer, values_of(buffer, value))
        try:
            driver.clock.wait_until(
                partial(_reached, timeline, value),
                unit=queue.name,
                waiting_for="a signal after the reset",
                limit_s=PROOF_LIMIT_S,
            )
        except UnitTimeout as error:
            raise ChipError(f"{queue.name} does not run after the reset", **error.facts) from error


def _reached(timeline: Timeline, value: int) -> bool:
    return timeline.value >= value
