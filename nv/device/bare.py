"""An NVIDIA GPU without a kernel driver, as a device: `pci:` names and `virtual:<chip>+gsp`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ugpu.hcq.bare import remedies, rungs
from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.bare.holder import LONGEST_SLEEP_S, SHARED_SLEEP_S
from ugpu.hcq.bare.rungs import Rungs
from ugpu.hcq.bare.space import AddressSpace
from ugpu.hcq.bare.stages import StageHook, Stages
from ugpu.hcq.errors import BadArgument, ChipError, DeviceLost, FirmwareError, NotSupported
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.state.ladder import Attempt, Diagnosis, Level, PlainRung, Planned
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.base import Transport
from ugpu.hcq.transport.life import absence_of
from ugpu.hcq.work.recovery import Recovery
from ugpu.nv.device.device import NvDevice
from ugpu.nv.device.driver import NvDriver
from ugpu.nv.failure.reset import failed_queues, prove, rebuild
from ugpu.nv.gsp.boot.files import PACKAGE
from ugpu.nv.gsp.chip.chip import GspChip
from ugpu.nv.gsp.rm.card import GspCard
from ugpu.nv.gsp.rm.gpu import GspGpu
from ugpu.nv.gsp.rm.memory import GspMemory
from ugpu.nv.gsp.rm.session import GspSession
from ugpu.nv.work.queue import ChannelQueue

ChipHook = Callable[[GspChip], object]


def open_device(
    name: str,
    attachment: Attachment,
    *,
    on_stage: StageHook | None = None,
    firmware: str | Path | None = None,
    on_chip: ChipHook | None = None,
    leave: str = "cold",
    force_cold: bool = False,
) -> BareDevice:
    """Boot the GSP of the GPU behind `attachment`, or go on with the firmware that a ugpu process
    left running. The device owns its transport from now on.

    on_stage(name, seconds) is called after each stage, on_chip once with the chip before any of its
    registers is read; an exception from them ends the start. firmware: a folder with images, which
    replaces the system's and the attachment's. leave: "cold" unloads the firmware at close; "warm"
    leaves it running without access to host memory, so that the next process starts faster
    (NotSupported if the transport cannot place memory for it). force_cold: boot in any case.
    """
    if leave not in ("warm", "cold"):
        raise BadArgument("leave must be 'warm' or 'cold'", leave=leave)
    card: GspCard[BareDriver] = GspCard(
        name,
        attachment,
        FirmwareSource.chosen(PACKAGE, firmware, attachment.firmware, attachment.on_image),
        Stages(on_stage),
        leave_warm=leave == "warm",
    )
    try:
        if on_chip is not None:
            on_chip(card.chip)
        card.start(force_cold=force_cold)
        return BareDevice(BareDriver(name, card, 0, on_stage, card.stages.done))
    except BaseException:
        card.end(clean=False)
        raise


class BareDevice(NvDevice):
    """One NVIDIA GPU without a kernel driver."""

    _driver: BareDriver

    @property
    def chip(self) -> GspChip:
        """The chip's registers and memory by name, as in `gpu.chip.gsp.MAILBOX0.read()`."""
        return self._driver.card.chip

    @property
    def transport(self) -> Transport:
        """The transport to the chip."""
        return self._driver.card.transport

    def suspend(self) -> None:
        """Wait for all work, then save memory and the firmware's state in host memory, so that the
        card may lose its power: the host may be suspended. Until `resume` the device refuses work.
        NotSupported with several holders, or by older firmware. After an error `reset` may be
        needed."""
        self.synchronize()
        self._driver.suspend()

    def resume(self) -> None:
        """Go on after `suspend`: memory, programs and queues are as they were. After an error the
        device has failed; `reset` boots the card, without the content of DEVICE memory."""
        self._driver.resume()

    @property
    def warm(self) -> bool:
        """Return whether the driver goes on with firmware that an earlier ugpu process left."""
        return self._driver.card.warm


class BareDriver(NvDriver):
    """A holder of a card; see hcq.bare.card.Member. The last one to close ends the card.

    unfinished: the harshest rung of a reset that did not end. vram_lost: the last reset lost the
    content of DEVICE memory. spoiled: a reset by another holder lost it. reset_report: rungs that
    the last reset tried.
    """

    session: GspSession
    gpu: GspGpu

    def __init__(
        self,
        name: str,
        card: GspCard[Any],
        index: int,
        on_stage: StageHook | None = None,
        boot_stages: Sequence[tuple[str, float]] = (),
    ) -> None:
        """index: of the seat; 0 for the first holder. The card runs, and is not closed if this
        fails."""
        self.card = card
        self.index = index
        self.unfinished: Level | None = None
        self.vram_lost = self.spoiled = False
        self.reset_report: list[Attempt] = []
        self._asleep: ChipError | None = None  # the failure of a suspended device
        self.transport = card.transport
        super().__init__(
            name,
            GspSession(card),
            GspGpu,
            on_stage=on_stage,
            boot_stages=boot_stages,
            commands=Placement.HOST,
            lock=card.lock,
        )
        card.holders.append(self)

    @property
    def memory(self) -> AddressSpace:
        """The holder's address space."""
        return self.session.space

    def free_memory_of_holder(self) -> None:
        """See hcq.bare.card.Member."""
        self.session.space.close()

    def shutdown(self) -> None:
        """See Driver."""
        clean = self.core.failure is None
        try:
            super().shutdown()
        finally:
            with self.card.lock:
                if self in self.card.holders:
                    self.card.holders.remove(self)
                if not self.card.holders:
                    self.card.end(clean=clean)

    # ---- suspend -----------------------------------------------------------------------------

    def suspend(self) -> None:
        """See BareDevice."""
        with self.card.lock:
            self.core.check_usable()
            if not self.card.is_alone(self):
                raise NotSupported(f"{self.name} cannot be suspended while others hold its card")
            try:
                self.card.suspend(self.session.client)
            except BaseException:
                if not self.card.calls.works:
                    self._fail(": a suspend was cut off", remedies.RESET)
                raise
            self._asleep = self._fail(" is suspended", "device.resume()")

    def _fail(self, text: str, remedy: str) -> ChipError:
        self.core.failure = failure = ChipError(f"{self.name}{text}", remedy=remedy)
        return failure

    def resume(self) -> None:
        """See BareDevice."""
        with self.card.lock:
            if self._asleep is None:
                raise BadArgument(f"{self.name} is not suspended")
            self._asleep = None
            self._fail(": a resume was cut off", remedies.RESET)
            self.card.wake(self.session.client)
            self.core.failure = None

    # ---- resets ------------------------------------------------------------------------------

    def recover(self, only: Level | None = None) -> Recovery:
        """See Driver. Beyond channels, the card is reset by its slot and booted again."""
        if self._asleep is not None:
            raise self._asleep
        self.card.resume()
        return rungs.recover(BareRungs(self), only)

    def recovery_plan(self, only: Level | None = None) -> tuple[Diagnosis, list[Planned]]:
        """See Driver."""
        return rungs.plan(BareRungs(self), only)

    def rewrite(self) -> None:
        """Make the objects again, and write programs into VRAM: the card was reset and booted."""
        self.session.renew()
        self.gpu.renew()
        for memory, content in self.programs.contents():
            assert isinstance(memory, GspMemory)
            memory.write(content)
        if self.spoiled:  # another holder's reset: this one's own makes the channels again
            rebuild(self, self.all_queues())

    def absent(self) -> DeviceLost:
        """See NvDriver. After a suspend of the host, the card is there and has forgotten all."""
        facts = absence_of(self.transport)
        if not facts:
            return super().absent()
        return DeviceLost(
            f"{self.name} no longer answers: work, programs and the content of its memory are lost",
            device=self.name, remedy="device.reset(), or close it and open it again", **facts,
        )  # fmt: skip

    def doze(self, limit_s: float) -> None:
        """See NvDriver. Ends with an interrupt, where the transport has them."""
        interrupts = self.card.interrupts
        if interrupts is None:
            super().doze(limit_s)
        else:
            # RACE: of two waiting threads, one may take the interrupt that the other waits for.
            longest = max(1e-3, self.grown_s)
            alone = len(self.card.holders) == 1
            interrupts.wait(min(limit_s, longest, LONGEST_SLEEP_S if alone else SHARED_SLEEP_S))

    # ---- several holders ---------------------------------------------------------------------

    def open_tenant(self, name: str) -> BareDriver:
        """See Driver. A tenant is a client of the resource manager with its own address space and
        channels."""
        with self.card.lock:
            self.check_second()
            self.core.check_usable()
            return BareDriver(name, self.card, self.card.free_index())

    def info(self) -> dict[str, object]:
        """See Driver."""
        return {**super().info(), "start": self.card.found}


class BareRungs(Rungs[BareDriver, ChannelQueue]):
    """The rungs of one reset: new channels, then a reset of the slot and a boot."""

    def __init__(self, driver: BareDriver) -> None:
        self.driver = driver
        super().__init__(driver, driver.all_queues(), failed_queues(driver))

    def all(self) -> list[PlainRung]:
        """See Rungs."""
        failed = "work of the channels that failed; programs and memory stay"
        every = "work of all channels; programs and memory stay"
        card = self.driver.card
        return [
            self.rung("new channel", Level.QUEUE, failed, partial(self._build, self.failed)),
            self.rung("all channels new", Level.QUEUE, every, self.restart_all),
            self.power_rung(Level.FLR, card.after_power_loss),
            *self.slot_rungs(card.reset_by),
        ]

    def diagnose(self) -> Diagnosis:
        """See Rungs."""
        card, failure = self.driver.card, self.driver.core.failure
        if card.lost():
            return Diagnosis(Level.FLR, "the card has lost its power")
        if isinstance(failure, FirmwareError) or not card.calls.works:
            return Diagnosis(Level.FLR, str(failure or "the GSP does not answer"))
        if self.driver.unfinished is not None and self.driver.unfinished > Level.QUEUE:
            return Diagnosis(self.driver.unfinished, "a reset before this one was cut off")
        return Diagnosis(Level.QUEUE, str(failure or "no failure is known"))

    def quiet(self) -> None:
        """See Rungs. Firmware that does not answer is not asked."""
        for holder in self.driver.card.holders:
            for queue in holder.all_queues():
                queue.tear_down()

    def restart_all(self) -> None:
        """See Rungs."""
        self._build(self.driver.all_queues())

    def _build(self, queues: Sequence[ChannelQueue]) -> None:
        self.restarted = rebuild(self.driver, queues)

    def prove(self, level: Level) -> dict[str, object]:
        """See Rungs."""
        return prove(self.driver, self.restarted)
