"""A card whose GSP runs: what its clients share, until the last one is gone."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from pathlib import Path

from ugpu.hcq.bare import remedies
from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.bare.function import disable_master
from ugpu.hcq.bare.stages import StageHook, Stages
from ugpu.hcq.device import crash
from ugpu.hcq.errors import DeviceLost, NotSupported, UgpuError
from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.paging.allocator import RangeAllocator
from ugpu.hcq.state.config import config
from ugpu.hcq.transport.base import Transport
from ugpu.nv import chips
from ugpu.nv.gsp.boot.boot import Firmware, boot
from ugpu.nv.gsp.boot.files import PACKAGE, read_files
from ugpu.nv.gsp.chip.chip import GspChip
from ugpu.nv.gsp.rm.space import memory_map
from ugpu.nv.gsp.rpc.calls import Calls

log = logging.getLogger(__name__)

_PAGE = 4096
_NO_VENDOR = 0xFFFF  # what a bus reads where nothing answers
# Below it lies what the board's firmware and the VGA BIOS use before a driver runs; RM leaves the
# same size alone (open-gpu-kernel-modules 570.144 mem_mgr_gm107.c, VGA emulation).
_LEAST_ADDRESS = 1 << 20


def open_card(
    attachment: Attachment, *, firmware: str | Path | None, on_stage: StageHook | None
) -> GspCard:
    """Boot the card behind an attachment, which the card then owns. firmware: a folder with images,
    which replaces the system's and the attachment's."""
    folders = (Path(firmware),) if firmware is not None else config().firmware_folders
    images = attachment.firmware if firmware is None else None
    source = FirmwareSource(PACKAGE, images, folders, attachment.on_image)
    try:
        return GspCard(attachment.transport, source, Stages(on_stage))
    except BaseException:
        with contextlib.suppress(UgpuError):  # the GSP may still run, and write to memory
            disable_master(attachment.transport)
        attachment.transport.close()
        raise


class GspCard:
    """One card. Owns the transport. firmware: runs, until `close`.

    stages: of the start, measured. heap: VRAM that the driver may use, which all address spaces
    share. lock: of chip, heap and tables.
    """

    firmware: Firmware

    def __init__(self, transport: Transport, source: FirmwareSource, stages: Stages) -> None:
        """Find the chip, read its files, and boot it. Nothing is changed before all files are
        there."""
        self.transport = transport
        self.stages = stages
        self.lock = threading.RLock()
        self.closed = False
        identity = transport.identity
        if identity.vendor == _NO_VENDOR:
            raise DeviceLost(f"{transport.name} does not answer on the bus", remedy=remedies.LINK)
        facts = chips.find(identity.vendor, identity.device)
        how = None if facts is None else chips.boot_facts(facts.name)
        if facts is None or how is None:
            raise NotSupported(f"PCI id {identity} is not a chip that ugpu boots")
        with stages.stage("firmware files"):
            files = read_files(source, how)
        self.chip = GspChip(transport, facts, how)
        self.chip.link.keep_awake()
        self.firmware = boot(self.chip, files, stages, crash.Keeper(transport.name).keep)
        try:
            self._open_memory()
        except BaseException:
            self.close()
            raise

    def _open_memory(self) -> None:
        """Take BAR 1 back to physical mode, and find the memory that the driver may use."""
        chip = self.chip
        chip.nv.NV_PBUS_BAR1_BLOCK.write(0)
        if chip.boot.wide_window:
            chip.nv.NV_VIRTUAL_FUNCTION_PRIV_FUNC_BAR1_BLOCK_LOW_ADDR.write(0)
        regions = self.firmware.static.regions
        begin, end = max(regions[0][0], _LEAST_ADDRESS), regions[-1][1] // _PAGE * _PAGE
        self.places = memory_map(chip, begin, end)
        self.heap = RangeAllocator(begin, end - begin, _PAGE, name="video memory")
        for (_, last), (first, _) in itertools.pairwise(regions):
            if last < first:
                self.heap.reserve(last, first - last)

    @property
    def calls(self) -> Calls:
        """Return the calls of the firmware that runs."""
        return self.firmware.calls

    def lost(self) -> bool:
        """Return whether the card no longer answers."""
        return self.chip.lost()

    def close(self) -> None:
        """Let the firmware leave, hand the card back, and close the transport; idempotent."""
        if self.closed:
            return
        self.closed = True
        chip = self.chip
        try:
            if not chip.lost():
                self.firmware.stop()
        except DeviceLost:
            log.debug("%s: the card has left the bus", self.transport.name)
        except UgpuError as error:
            log.warning("%s: the firmware did not leave cleanly: %s", self.transport.name, error)
        finally:
            with contextlib.suppress(UgpuError):
                disable_master(self.transport)
            chip.link.restore()
            self.transport.close()
