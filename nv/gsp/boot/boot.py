"""The start of the GSP: its steps in order, each a stage with a name.

    gfw-boot, vbios, layout, frts, gsp-reset, booter, riscv, init-done, static-info
    gfw-boot, layout, chain-of-trust, lockdown, riscv, init-done, static-info    with FSP

Sources: open-gpu-kernel-modules 570.144 kernel_gsp.c (kgspInitRm), kernel_gsp_tu102.c
(kgspBootstrap_TU102); Linux 7.3 nouveau subdev/gsp/tu102.c, ga102.c, nova-core gsp/boot.rs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ugpu.hcq.bare.function import enable_function, enable_master
from ugpu.hcq.bare.stages import Stages
from ugpu.hcq.errors import NotSupported
from ugpu.nv.chips.boot import BootWay
from ugpu.nv.gsp.boot import booter, frts, gfw, init, placement, riscv, static, trust, unload, vbios
from ugpu.nv.gsp.boot.files import BootFiles
from ugpu.nv.gsp.boot.start import Start
from ugpu.nv.gsp.boot.static import StaticInfo
from ugpu.nv.gsp.boot.unload import WayBack
from ugpu.nv.gsp.chip.chip import GspChip
from ugpu.nv.gsp.layout.memory import PAGE, Keeper, Pages
from ugpu.nv.gsp.rpc.calls import Calls

log = logging.getLogger(__name__)


@dataclass
class Firmware:
    """The firmware of a card that runs. `stop` ends it.

    flush_page: page of host memory that the GPU reads. way: back to the state after power-on.
    """

    start: Start
    calls: Calls
    static: StaticInfo
    way: WayBack
    flush_page: Pages

    def stop(self) -> None:
        """Let the firmware leave and hand the chip back. The memory is freed once the GSP no longer
        runs; else it stays allocated, as the GSP may still write there."""
        try:
            unload.leave(self.start, self.calls)
            unload.hand_back(self.start, self.way)
        finally:
            if not self.start.running:
                self.start.memory.close()


def boot(chip: GspChip, files: BootFiles, stages: Stages) -> Firmware:
    """Start the GSP of a chip that no earlier start has left in use.

    DeviceBusy before anything is changed if its region is protected. An error in a later stage
    carries the stage's name; the chip is handed back as far as that works.
    """
    start = Start(chip, files, Keeper(chip.transport, chip.boot.bus_bits))
    way = WayBack()
    try:
        with stages.stage("gfw-boot"):
            _first_contact(start)
        if chip.boot.way is not BootWay.FSP:
            with stages.stage("vbios"):
                vbios.find_fwsec(start)
        with stages.stage("layout"):
            placement.plan(start)
            flush_page = start.memory.take(PAGE)
            chip.set_flush_page(flush_page.address)
            placement.place_image(start)
            placement.place_arguments(start)
            way = unload.prepare(start)
            enable_master(chip)
            calls = init.open_queues(start)
        _start_core(start, stages.stage)
        with stages.stage("init-done"):
            init.await_init(start, calls)
        with stages.stage("static-info"):
            info = static.read_static(calls, chip.memory_size)
    except BaseException:
        unload.undo(start, way)
        if not start.running:
            start.memory.close()
        raise
    return Firmware(start, calls, info, way, flush_page)


def _first_contact(start: Start) -> None:
    chip = start.chip
    enable_function(chip.transport)
    boot_0 = chip.identify()
    start.gsp.chip_id = start.sec2.chip_id = boot_0
    gfw.await_board_firmware(chip)
    frts.check_unprotected(chip)


def _start_core(start: Start, stage: Callable[[str], AbstractContextManager[None]]) -> None:
    """Run the signed programs that load and start the firmware."""
    if start.boot.way is BootWay.FSP:
        with stage("chain-of-trust"):
            trust.request_start(start)
        with stage("lockdown"):
            trust.await_release(start)
        with stage("riscv"):
            riscv.await_core(start)
        return
    if not start.boot.dma:
        raise NotSupported(
            f"the start of {start.chip.facts.name} without the kernel driver is not implemented"
        )
    if start.boot.way is BootWay.FWSEC:
        with stage("frts"):
            frts.run_frts(start)
    with stage("gsp-reset"):
        booter.reset_gsp(start)
    with stage("booter"):
        booter.load_firmware(start)
    with stage("riscv"):
        riscv.await_core(start)
