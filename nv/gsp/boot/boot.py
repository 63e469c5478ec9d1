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
from ugpu.hcq.disk.bundle import Evidence
from ugpu.hcq.errors import DeviceBusy, NotSupported, UgpuError
from ugpu.nv.chips.boot import BootWay
from ugpu.nv.gsp.boot import (
    booter,
    evidence,
    frts,
    gfw,
    init,
    placement,
    riscv,
    static,
    trust,
    unload,
    vbios,
)
from ugpu.nv.gsp.boot.files import BootFiles
from ugpu.nv.gsp.boot.start import Start
from ugpu.nv.gsp.boot.static import StaticInfo
from ugpu.nv.gsp.boot.unload import WayBack
from ugpu.nv.gsp.chip.chip import GspChip
from ugpu.nv.gsp.layout.memory import PAGE, Keeper, Pages
from ugpu.nv.gsp.rpc.calls import Calls

log = logging.getLogger(__name__)

KeepEvidence = Callable[[UgpuError, Callable[[UgpuError], Evidence]], None]


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


def boot(
    chip: GspChip, files: BootFiles, stages: Stages, keep: KeepEvidence | None = None
) -> Firmware:
    """Start the GSP of a chip that no earlier start has left in use.

    DeviceBusy before anything is changed if its region is protected. An error in a later stage
    carries the stage's name, and the firmware's crash report if there is one; the chip is handed
    back as far as that works. keep(error, gather): called before that, to write a bundle.
    """
    start = Start(chip, files, Keeper(chip.transport, chip.boot.bus_bits))
    way = WayBack()
    calls: Calls | None = None
    try:
        with stages.stage("gfw-boot"):
            _first_contact(start)
        if chip.boot.way is not BootWay.FSP:
            with stages.stage("vbios"):
                vbios.find_fwsec(start)
        with stages.stage("layout"):
            placement.plan(start)
            flush_page = start.memory.take(PAGE, bits=chip.flush_bits)
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
    except BaseException as error:
        if isinstance(error, UgpuError):
            _explain(error, start, calls, keep)
        unload.undo(start, way, calls)
        if not start.running:
            start.memory.close()
        raise
    return Firmware(start, calls, info, way, flush_page)


def _explain(
    error: UgpuError, start: Start, calls: Calls | None, keep: KeepEvidence | None
) -> None:
    """Keep what explains a failed start, before anything of it is undone."""
    error.add_facts(**evidence.crash_fact(start))
    if keep is None or isinstance(error, DeviceBusy | NotSupported):
        return

    def gather(_: UgpuError) -> Evidence:
        found = Evidence()
        evidence.gather(found, start, calls)
        return found

    keep(error, gather)


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
    if start.boot.way is BootWay.FWSEC:
        with stage("frts"):
            frts.run_frts(start)
    with stage("gsp-reset"):
        booter.reset_gsp(start)
    with stage("booter"):
        booter.load_firmware(start)
    with stage("riscv"):
        riscv.await_core(start)
