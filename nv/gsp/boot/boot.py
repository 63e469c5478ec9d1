"""The start of the GSP: its steps in order, each a stage with a name.

    gfw-boot (`contact`), vbios, layout, frts, gsp-reset, booter, riscv, init-done, static-info
    gfw-boot, layout, chain-of-trust, lockdown, riscv, init-done, static-info    with FSP

Sources: open-gpu-kernel-modules 570.144 kernel_gsp.c (kgspInitRm), kernel_gsp_tu102.c
(kgspBootstrap_TU102); Linux 7.3 nouveau subdev/gsp/tu102.c, ga102.c, nova-core gsp/boot.rs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ugpu.hcq.bare.function import disable_master, enable_function, enable_master
from ugpu.hcq.bare.stages import Stages
from ugpu.hcq.errors import ChipError, DeviceBusy, NotSupported, OutOfMemory, UgpuError
from ugpu.nv.chips.boot import BootWay
from ugpu.nv.gsp.boot import booter, evidence, fwsec, init, placement, trust, unload
from ugpu.nv.gsp.boot.init import StaticInfo
from ugpu.nv.gsp.boot.start import Start
from ugpu.nv.gsp.boot.unload import WayBack
from ugpu.nv.gsp.chip.chip import GspChip, is_locked
from ugpu.nv.gsp.layout.arguments import manager_arguments
from ugpu.nv.gsp.layout.memory import Pages
from ugpu.nv.gsp.rpc.calls import Calls
from ugpu.nv.gsp.rpc.note import Note

# TIMEOUT: for the first answer of firmware that an earlier process left; our choice.
_ANSWER_LIMIT_S = 2.0
KeepEvidence = Callable[[UgpuError, Start, Calls | None], None]


@dataclass
class Firmware:
    """The firmware of a card that runs. `stop` ends it.

    way: back to the state after power-on.
    """

    start: Start
    calls: Calls
    static: StaticInfo
    way: WayBack

    def stop(self) -> None:
        """Let the firmware leave and hand the chip back. The memory is freed once the GSP no longer
        runs; else it stays allocated, as the GSP may still write there."""
        try:
            unload.leave(self.start, self.calls)
            unload.hand_back(self.start, self.way)
        finally:
            if not self.start.running:
                self.start.memory.close()


def contact(chip: GspChip) -> int:
    """Make first contact: memory decoding on, bus mastering off; wait for the board's firmware.
    Return BOOT_0. Nothing else of the chip is changed."""
    enable_function(chip.transport)
    boot_0 = chip.identify()
    chip.await_board_firmware()
    return boot_0


def occupied(start: Start) -> bool:
    """Return whether the GSP of an earlier start still owns its region, or runs."""
    if fwsec.protected_region(start.chip)[1]:
        return True
    if start.boot.way is not BootWay.FSP:
        return False
    return not is_locked(int(start.gsp.regs.RISCV_CPUCTL.read())) and start.gsp.riscv_active


def boot(start: Start, stages: Stages, keep: KeepEvidence | None = None) -> Firmware:
    """Start the GSP of a chip after first contact that no earlier start has left in use.

    An error carries the stage's name, and the firmware's crash report if there is one; the chip is
    handed back as far as that works. keep: called before that, to write a bundle.
    """
    chip = start.chip
    way = WayBack()
    calls: Calls | None = None
    try:
        if chip.boot.way is not BootWay.FSP:
            with stages.stage("vbios"):
                fwsec.find_fwsec(start)
        with stages.stage("layout"):
            placement.plan(start)
            chip.set_flush_page(placement.place_flush_page(start).address)
            placement.place_image(start)
            placement.place_arguments(start)
            way = unload.prepare(start)
            enable_master(chip)
            calls = init.open_queues(start)
            init.send_first(start, calls)
        _start_core(start, stages.stage)
        with stages.stage("init-done"):
            init.await_init(start, calls)
        with stages.stage("static-info"):
            info = init.read_static(calls, chip.memory_size)
    except BaseException as error:
        if isinstance(error, UgpuError):
            explain(error, start, calls, keep)
        unload.undo(start, way, calls)
        if not start.running:
            start.memory.close()
        raise
    return Firmware(start, calls, info, way)


def rejoin(start: Start, note: Note) -> Firmware:
    """Go on with firmware that an earlier process left running, whose memory is gone: place memory
    where that was, and let the firmware answer.

    ChipError or FirmwareError if it cannot be used; the card then no longer accesses host memory.
    """
    chip, transport = start.chip, start.chip.transport
    try:
        placement.plan(start)
        start.memory.places = note.memory
        placement.place_flush_page(start)
        placement.place_arguments(start)
        if chip.boot.way is not BootWay.FSP:
            fwsec.find_fwsec(start)
        way = unload.prepare(start)
        start.running = True
        enable_master(chip)
        calls = init.open_queues(start, note.calls)
        info = init.read_static(calls, chip.memory_size, _ANSWER_LIMIT_S)
        return Firmware(start, calls, info, way)
    except BaseException as error:
        disable_master(transport)
        start.memory.close()
        if isinstance(error, OutOfMemory):
            raise ChipError(
                "the memory that the firmware uses cannot be placed where it was", **error.facts
            ) from error
        raise


def suspend(firmware: Firmware, saved: Pages) -> None:
    """Let firmware that is prepared save itself, and end. saved: GspFwSRMeta."""
    start = firmware.start
    unload.leave(start, firmware.calls, suspending=True)
    unload.hand_back(start, firmware.way, saved.address)
    start.saved = saved


def resume(firmware: Firmware, stages: Stages) -> None:
    """Let suspended firmware go on, after first contact with the chip."""
    start, calls = firmware.start, firmware.calls
    assert start.manager is not None and start.queues is not None
    start.manager.put(manager_arguments(calls.abi, start.queues.address, resuming=True))
    start.chip.set_flush_page(start.memory.named["flush"].address)
    enable_master(start.chip)
    calls.begin_again()
    _start_core(start, stages.stage)
    with stages.stage("init-done"):
        init.await_init(start, calls)
    start.saved = None


def explain(error: UgpuError, start: Start, calls: Calls | None, keep: KeepEvidence | None) -> None:
    """Keep what explains a failed start, before anything of it is undone."""
    error.add_facts(**evidence.crash_fact(start))
    if keep is not None and not isinstance(error, DeviceBusy | NotSupported):
        keep(error, start, calls)


def _start_core(start: Start, stage: Callable[[str], AbstractContextManager[None]]) -> None:
    """Run the signed programs that load and start the firmware."""
    steps: dict[str, Callable[[Start], None]] = {}
    if start.boot.way is BootWay.FSP:
        steps |= {"chain-of-trust": trust.request_start, "lockdown": trust.await_release}
    else:
        if start.boot.way is BootWay.FWSEC and start.saved is None:
            steps["frts"] = fwsec.run_frts
        if start.saved is None:  # else booter does it, and the firmware has its arguments
            steps["gsp-reset"] = booter.reset_gsp
        steps["booter"] = booter.load_firmware
    for name, step in (steps | {"riscv": Start.await_core}).items():
        with stage(name):
            step(start)
