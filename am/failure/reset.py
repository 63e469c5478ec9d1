"""Reset: the rungs of the ladder (hcq.state.ladder) for the driver of an open card.

Policy: what each rung does and in which order they come. A rung counts only when every queue that
it set up again has computed or copied correctly. Rungs and their order: Linux 6.12 gfx_v11_0.c
(soft reset, queue reset), smu_v13_0_10.c (mode2, see am.boot.mode2), smu_v13_0_0_ppt.c (mode1),
soc21.c (soc21_asic_reset_method: mode1). Single pipes are not reset: the command processor's
firmware of gfx11 does not support it (gfx_v11_0.c, gfx_v11_pipe_reset_support; tinygrad reverted
its own).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ugpu.am.boot import boot, engines, mode2
from ugpu.am.boot.units import Units
from ugpu.am.chip import discovery
from ugpu.am.failure.diagnosis import diagnose, failed_queues, reports, stands_still
from ugpu.am.units.smu.thermal import WHOLE_CARD
from ugpu.am.work import proof
from ugpu.am.work.queue import ComputeQueue
from ugpu.hcq.bare.rungs import Rungs
from ugpu.hcq.bare.stages import Stages
from ugpu.hcq.errors import ChipError, NotSupported, OverTemperature
from ugpu.hcq.state.ladder import Diagnosis, Level, PlainRung

if TYPE_CHECKING:
    from ugpu.am.units.ih import Interrupt
    from ugpu.am.work.holder import Holder
    from ugpu.am.work.queue import RingQueue

_FAILED_WORK = "work of the queues that failed"
_ALL_WORK = "work of all queues; memory, programs and firmware stay"
_GRAPHICS = (
    "work of all queues; memory and programs stay, the graphics core's firmware is loaded again"
)


class AmRungs(Rungs["Holder", "RingQueue"]):
    """The rungs of one reset; see Rungs."""

    def __init__(self, driver: Holder) -> None:
        self.driver = driver
        super().__init__(driver, driver.queues.all, failed_queues(driver, driver.core.failure))

    def diagnose(self) -> Diagnosis:
        """See Rungs. Changes nothing on the card except its TLBs."""
        return diagnose(self.driver)

    def settle(self) -> None:
        """See Rungs. The work of a card that was too hot has been stopped now."""
        if isinstance(self.driver.core.failure, OverTemperature):
            excess = self.driver.units.thermal.excess(self.driver.name)
            if excess is not None:
                raise excess

    def all(self) -> list[PlainRung]:
        """See Rungs."""
        units = self.driver.units
        return [
            self.rung(
                "take queues off", Level.QUEUE, _FAILED_WORK, self._drain, self._check_drains
            ),
            self.rung(
                "kill waves", Level.QUEUE, _FAILED_WORK, self._kill_waves, self._check_graphics
            ),
            self.rung(
                "pipe reset", Level.PIPE, "work of the pipe's queues", lambda: None, _no_pipe_reset
            ),
            self.rung(
                "soft reset", Level.BLOCK, _ALL_WORK, self._soft_reset, self._check_graphics
            ),
            self.rung(
                "warm start", Level.WARM, _ALL_WORK, self._warm_start, self._check_firmware_runs
            ),
            self.rung(
                "mode2 reset", Level.MODE2, _GRAPHICS, self._mode2, self._check_mode2
            ),
            self.power_rung(Level.MODE1, partial(boot.after_power_loss, units)),
            *(
                self.boot_rung(name, Level.MODE1, partial(strike, units), check)
                for name, strike, check in (
                    ("boot again", _go_on, self._check_not_booted),
                    ("mode1 reset", boot.mode1_reset, self._check_secure_os_runs),
                    (
                        "mode1 reset by the debug mailbox", boot.debug_mode1_reset,
                        self._check_secure_os_runs,
                    ),
                    (
                        "mode1 reset by the PSP", boot.psp_mode1_reset,
                        self._check_secure_os_runs,
                    ),
                )
            ),
            *self.slot_rungs(partial(boot.slot_reset, units)),
        ]  # fmt: skip

    # ---- preconditions -----------------------------------------------------------------------

    def _check_graphics(self) -> None:
        if not self.driver.units.gfx.loaded():
            raise NotSupported("the graphics core's firmware does not run: a reset was cut off")

    def _check_drains(self) -> None:
        self._check_graphics()
        if stands_still(self.driver.core.failure):
            raise NotSupported("the queue has stopped: its work cannot end by itself")

    def _check_secure_os_runs(self) -> None:
        if not self.driver.units.psp.alive():
            raise NotSupported(
                "the PSP's secure OS is not running, so no firmware can execute the request"
            )

    def _check_firmware_runs(self) -> None:
        self._check_secure_os_runs()
        if not self.driver.units.smu.running():
            raise NotSupported("the SMU's firmware does not run")
        self._check_graphics()

    def _check_not_booted(self) -> None:
        units = self.driver.units
        if self.driver.chip.lost() or (units.psp.alive() and units.smu.running()):
            raise NotSupported("there is no interrupted boot to continue")

    def _check_mode2(self) -> None:
        self._check_secure_os_runs()
        mode2.check(self.driver.units)

    # ---- actions -----------------------------------------------------------------------------

    def _drain(self) -> None:
        """Let running work end, then set the queues up again."""
        for queue in self.failed:
            if not self.driver.queues.drain(queue):
                kind = "compute" if isinstance(queue, ComputeQueue) else "copy"
                raise ChipError(f"the {kind} queue has not drained", queue=queue.name)
        self._restart(self.failed)

    def _kill_waves(self) -> None:
        """Kill the waves of compute queues, reset the engines of copy queues."""
        for queue in self.failed:
            if not self.driver.queues.kill(queue):
                kind = "compute" if isinstance(queue, ComputeQueue) else "copy"
                raise ChipError(
                    f"the {kind} queue could not be removed from the hardware", queue=queue.name
                )
        self._restart(self.failed)

    def _soft_reset(self) -> None:
        """Reset the command processors and copy engines."""
        units = self.driver.units
        with units.gfx.safe_mode():
            units.gfx.soft_reset()
        for engine in units.engines:
            engine.reset()
        engines.start_engines(units)
        self._restart(self.driver.queues.all)

    def _warm_start(self) -> None:
        """Set up everything but the firmware, as for a card that another process left running."""
        units = self.driver.units
        self._quiet()
        boot.stop(units)
        self.driver.generation.warm_attach(units, Stages())
        self.restart_all()

    def _mode2(self) -> None:
        """Reset the graphics core and the copy engines; memory, programs and buffers stay."""
        units, firmware = self.driver.units, self.driver.card.needed_firmware()
        if units.gfx.loaded():
            self._quiet()
        mode2.reset(units, firmware)
        self.restart_all()

    def _quiet(self) -> None:
        """Stop every queue that can be stopped: none should use host memory when it is cut off."""
        for holder in (*self.driver.card.holders, *self.driver.card.stuck):
            for queue in holder.queues.compute:
                holder.units.gfx.stop_queue(queue.pipe, queue.queue, reset_waves=True)
            for copy in holder.queues.copy:
                copy.engine.stop()

    def quiet(self) -> None:
        """See Rungs."""
        units = self.driver.units
        if not self.driver.chip.lost() and units.psp.alive() and units.gfx.loaded():
            self._quiet()

    def restart_all(self) -> None:
        """See Rungs."""
        self.driver.queues.route_copy_doorbells()
        self._restart(self.driver.queues.all)

    def _restart(self, queues: Sequence[RingQueue]) -> None:
        """Restart queues with empty rings and fresh hardware queues, without old reports and stale
        translations."""
        driver = self.driver
        self.restarted = [*queues]
        driver.card.drain()
        for hub in driver.units.gmc:
            hub.clear_fault()
        driver.flush_tlb()
        for queue in queues:
            queue.restart()
            queue.timeline.restart()
            driver.queues.start(queue)
        driver.card.drain()
        driver.reports = [one for one in driver.reports if self._of_others(one)]
        if driver.is_tenant and any(isinstance(queue, ComputeQueue) for queue in queues):
            driver.programs.clear_scratch()

    def _of_others(self, entry: Interrupt) -> bool:
        """Return whether an entry reports a failure of a queue that goes on, or concerns the whole
        card: heat, and announcements of the SMU, which it does not repeat. Page faults do not name
        their queue, and count as those of the queues that failed."""
        return entry.client in WHOLE_CARD or any(
            reports(entry, queue) for queue in self.driver.queues.all if queue not in self.restarted
        )

    # ---- proof -------------------------------------------------------------------------------

    def prove(self, level: Level) -> dict[str, object]:
        """See Rungs."""
        found: dict[str, object] = {}
        if level >= Level.BLOCK:
            found["discovery"] = check_discovery(self.driver)
        self.driver.flush_tlb()
        found |= {"TLB": "flushed", "ran": ", ".join(one.name for one in self.restarted)}
        return {**found, **proof.work(self.driver, self.restarted)}


def _go_on(units: Units) -> None:
    """Continue an interrupted boot: nothing is reset if the chip's firmware takes the rest."""
    boot.make_fresh(units, Stages())


def _no_pipe_reset() -> None:
    raise NotSupported("the command processor's firmware does not support resets of single pipes")


def check_discovery(driver: Holder) -> str:
    """Read the discovery table from memory again, and check it; DiscoveryError."""
    chip, generation = driver.chip, driver.chip.generation
    start = chip.vram.size - generation.discovery_offset
    found = discovery.parse(chip.vram.read(start, generation.discovery_size))
    if found != chip.discovery:
        raise ChipError("the discovery table is not the one that the chip was booted with")
    return "valid"
