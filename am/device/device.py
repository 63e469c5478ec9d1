"""AmDevice: the user's interface to an AMD GPU."""

from __future__ import annotations

from pathlib import Path

from ugpu.am.boot.contact import ChipHook
from ugpu.am.chip.chip import Chip
from ugpu.am.chip.placement import QUEUE_VMID, Seat
from ugpu.am.chip.remedies import PACKAGE
from ugpu.am.device.card import Card
from ugpu.am.device.driver import AmDriver
from ugpu.am.units.gmc import VMIDS
from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.bare.stages import StageHook, Stages
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.state.ladder import Attempt
from ugpu.hcq.transport.base import Transport


def open_device(
    name: str,
    attachment: Attachment,
    *,
    on_stage: StageHook | None = None,
    on_chip: ChipHook | None = None,
    firmware: str | Path | None = None,
    leave: str = "warm",
    force_cold: bool = False,
    vmid: int = QUEUE_VMID,
) -> AmDevice:
    """Boot the chip behind `attachment`, or attach to it if a ugpu process left it running.

    on_stage(name, seconds) is called after each stage, on_chip once with the chip before any of its
    registers is read; an exception from them ends the boot. firmware: a folder with images, which
    replaces the system's and the attachment's. leave: "warm" keeps firmware running at close,
    "cold" resets the chip. force_cold boots from scratch in any case. vmid: translation context of
    all work: 8, or 0 for first tries on a board, as in the kernel's own queues; stray accesses to
    device memory do not fault in VMID 0. The device owns the attachment's transport from now on.
    """
    if leave not in ("warm", "cold"):
        raise BadArgument("leave must be 'warm' or 'cold'", leave=leave)
    if vmid not in VMIDS:
        raise BadArgument(f"vmid must be {' or '.join(map(str, VMIDS))}, got {vmid!r}")
    card = Card(
        name,
        attachment,
        FirmwareSource.chosen(PACKAGE, firmware, attachment.firmware, attachment.on_image),
        stages=Stages(on_stage),
        on_chip=on_chip,
        leave_warm=leave == "warm",
    )
    return AmDevice(AmDriver(name, card, Seat(vmid=vmid), card.stages, force_cold=force_cold))


class AmDevice(Device):
    """One AMD GPU. See hcq.Device."""

    def __init__(self, driver: AmDriver) -> None:
        super().__init__(driver)
        self._driver = driver

    @property
    def driver(self) -> AmDriver:
        """See Device."""
        return self._driver

    @property
    def chip(self) -> Chip:
        """The chip's registers and memory by name, as in `gpu.chip.gc.GRBM_STATUS.read()`."""
        return self._driver.units.chip

    @property
    def transport(self) -> Transport:
        """The transport to the chip."""
        return self._driver.transport

    @property
    def boot_stages(self) -> list[tuple[str, float]]:
        """Durations of the boot: (name, seconds) of each stage."""
        return self._driver.stages.done

    @property
    def dynamic_stack(self) -> int:
        """Bytes of stack per thread for recursion and calls through pointers, in programs loaded
        from now on. Can be set."""
        return self._driver.dynamic_stack

    @dynamic_stack.setter
    def dynamic_stack(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise BadArgument(f"dynamic_stack must be a number of bytes, got {size!r}")
        self._driver.dynamic_stack = size

    @property
    def warm(self) -> bool:
        """Return whether the driver attached to the running chip of an earlier ugpu process."""
        return self._driver.warm

    @property
    def vram_lost(self) -> bool:
        """Return whether the last reset lost the content of DEVICE memory."""
        return self._driver.vram_lost

    @property
    def reset_report(self) -> list[Attempt]:
        """The rungs that the last reset tried, the mildest first, and which of them helped."""
        return self._driver.reset_report
