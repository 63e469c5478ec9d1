"""An NVIDIA GPU without a kernel driver, as a device: `pci:` names and `virtual:<chip>+gsp`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.bare.holder import LONGEST_SLEEP_S, SHARED_SLEEP_S
from ugpu.hcq.bare.space import AddressSpace
from ugpu.hcq.bare.stages import StageHook, Stages
from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.state.config import config
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.base import Transport
from ugpu.nv.device.device import NvDevice
from ugpu.nv.device.driver import NvDriver
from ugpu.nv.gsp.boot.files import PACKAGE
from ugpu.nv.gsp.chip.chip import GspChip
from ugpu.nv.gsp.rm.card import GspCard
from ugpu.nv.gsp.rm.gpu import GspGpu
from ugpu.nv.gsp.rm.session import GspSession
from ugpu.nv.rm.session import Session

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
    folders = (Path(firmware),) if firmware is not None else config().firmware_folders
    images = attachment.firmware if firmware is None else None
    card: GspCard[BareDriver] = GspCard(
        name,
        attachment,
        FirmwareSource(PACKAGE, images, folders, attachment.on_image),
        Stages(on_stage),
        leave_warm=leave == "warm",
    )
    if on_chip is not None:
        _call(on_chip, card)
    card.start(force_cold=force_cold)
    try:
        return BareDevice(BareDriver(name, card, 0, on_stage, card.stages.done))
    except BaseException:
        card.end(clean=False)
        raise


def _call(on_chip: ChipHook, card: GspCard[BareDriver]) -> None:
    try:
        on_chip(card.chip)
    except BaseException:
        card.end(clean=False)
        raise


class BareDevice(NvDevice):
    """One NVIDIA GPU without a kernel driver."""

    _driver: BareDriver

    def __init__(self, driver: BareDriver) -> None:
        super().__init__(driver)

    @property
    def chip(self) -> GspChip:
        """The chip's registers and memory by name, as in `gpu.chip.gsp.MAILBOX0.read()`."""
        return self._driver.card.chip

    @property
    def transport(self) -> Transport:
        """The transport to the chip."""
        return self._driver.card.transport

    @property
    def warm(self) -> bool:
        """Return whether the driver goes on with firmware that an earlier ugpu process left."""
        return self._driver.card.warm


class BareDriver(NvDriver):
    """A holder of a card; see hcq.bare.card.Member. The last one to close ends the card.

    unfinished: the harshest rung of a reset that did not end.
    """

    session: GspSession

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
        super().__init__(
            name,
            GspSession(card),
            _open_gpu,
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

    def doze(self, limit_s: float) -> None:
        """See NvDriver. Ends with an interrupt, where the transport has them."""
        interrupts = self.card.interrupts
        if interrupts is None:
            super().doze(limit_s)
        else:
            alone = len(self.card.holders) == 1
            interrupts.wait(min(limit_s, LONGEST_SLEEP_S if alone else SHARED_SLEEP_S))

    # ---- several holders ---------------------------------------------------------------------

    def open_tenant(self, name: str) -> BareDriver:
        """See Driver. A tenant is a client of the resource manager with its own address space and
        channels."""
        with self.card.lock:
            reason = self.sole_holder()
            if reason:
                raise NotSupported(f"{self.name} cannot have a second holder: {reason}")
            self.core.check_usable()
            return BareDriver(name, self.card, self.card.free_index())

    def info(self) -> dict[str, object]:
        """See Driver."""
        return {**super().info(), "start": self.card.found}


def _open_gpu(session: Session) -> GspGpu:
    assert isinstance(session, GspSession)
    return GspGpu(session)
