"""Boot: named stages that bring the chip from power-on, or from a previous process, to running.

Policy only: which unit starts when. docs/am-bringup.md compares the sequence with the kernel's and
with a recorded transcript; a golden file keeps it from drifting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from ugpu.am.boot import reservation
from ugpu.am.boot.contact import ChipHook, first_contact, wait_ifwi
from ugpu.am.boot.engines import reset_engines, start_engines
from ugpu.am.boot.units import UnitClasses, Units, make_units
from ugpu.am.chip.chip import Chip
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.units.gmc import Hub
from ugpu.am.units.psp import commands as psp_commands
from ugpu.am.units.psp.images import FirmwareSet
from ugpu.am.units.psp.psp import DEFAULT_TMR_SIZE
from ugpu.hcq.bare.function import (
    enable_master,
    reset_function,
    restore_function,
)
from ugpu.hcq.bare.stages import Stages, or_silent
from ugpu.hcq.errors import (
    DeviceLost,
    FirmwareError,
    FirmwareRejected,
    FirmwareSilent,
    NotSupported,
    OutOfMemory,
)
from ugpu.hcq.transport.base import ResetKind, Transport

log = logging.getLogger(__name__)

# Scratch registers of the graphics core outlive a process but not a reset. Register 7 records that
# this driver set the chip up (and which layout of its carve-out), register 6 whether it left
# cleanly.
TAG = 0x75470001
LEFT_CLEAN, IN_USE = 0, 1
_TMR_ALIGN = 1 << 20


# ---- warm or cold ------------------------------------------------------------------------------


def is_warm(chip: Chip, units: Units) -> bool:
    """Return whether a ugpu process left the chip clean, with its secure OS running. A chip in any
    other state is not trusted."""
    gc = chip.gc
    if not marked(chip) or int(gc.SCRATCH_REG6.read()) != LEFT_CLEAN:
        return False
    if not reservation.noted(units):
        return False
    if units.gmc.gfxhubs[0].fault_status.read() or units.gmc.mmhubs[0].fault_status.read():
        return False
    return units.smu.alive()


def make_fresh(units: Units, stages: Stages) -> None:
    """Bring a chip that is neither warm nor fresh to its bootloader: another driver left it
    running, a ugpu process died with it, or a boot failed half way. If a process died while it
    loaded the PSP, no reset is needed (it would require the slot): `load_firmware` continues where
    the process stopped."""
    if units.psp.alive():
        if not units.smu.running():
            # The process died between the secure OS and the SMU: nothing else runs, the firmware
            # owns no memory yet, and the secure OS takes a new ring (as in Linux on resume).
            return
        with stages.stage("mode1 reset"):
            reset_whole_chip(units)
    elif units.psp.bootloader_failed():
        with stages.stage("bus reset"):
            bus_reset(units)


def mark(chip: Chip, state: int) -> None:
    """Write the tag and `state` for the next process."""
    chip.gc.SCRATCH_REG7.write(TAG)
    chip.gc.SCRATCH_REG6.write(state)


def marked(chip: Chip) -> bool:
    """Return whether the tag is present: the graphics core was not reset since it was written."""
    return int(chip.gc.SCRATCH_REG7.read()) == TAG


# ---- stages ------------------------------------------------------------------------------------


def start_bus_and_hub(units: Units, stages: Stages) -> None:
    """Start doorbells, HDP, MMHUB and interrupts, which every start needs first."""
    programs, ih = units.programs, units.ih
    with stages.stage("NBIO"):
        units.nbio.start()
    with stages.stage("MMHUB"):
        start_hubs(units, units.gmc.mmhubs)
    with stages.stage("IH"):
        enable_master(units.chip)
        programs.clear(ih.pointer)
        programs.leave(partial(ih.start, units.dummy_address))


def start_hubs(units: Units, hubs: Sequence[Hub]) -> None:
    """Set up memory hubs with ugpu's page tables."""
    place, memory, dummy = units.carveout, units.memory, units.dummy_address
    units.gmc.start(hubs, place, memory.root_entry, memory.end, dummy, units.programs)


def load_components(units: Units, firmware: FirmwareSet, done: int) -> None:
    """Load the bootloader's components up to the secure OS, except for the first `done` ones."""
    generation, psp = units.chip.generation, units.psp
    components = generation.boot_components
    if done == len(components):
        psp.wait_secure_os()
    else:
        psp.wait_bootloader(components[done][0])
    psp.stage.fill()
    for position, (name, command, kind) in enumerate(components):
        image = firmware.boot.get(kind)
        gate = generation.boot_gates.get(command, kind)
        if image is None or gate not in firmware.boot or position < done:
            continue
        if kind == generation.secure_os_type:
            psp.load_secure_os(position, name, command, image)
        else:
            psp.load_component(position, name, command, image)


def load_firmware(units: Units, firmware: FirmwareSet, stages: Stages) -> None:
    """Load all firmware, beginning at the PSP's bootloader. ORDER: SMU before TMR, RLC_G last."""
    generation, psp = units.chip.generation, units.psp
    psp.forget_staged()
    with stages.stage("PSP bootloader"):
        done = len(generation.boot_components) if psp.alive() else psp.components_done()
        try:
            load_components(units, firmware, done)
        except FirmwareError as error:
            # Begin from the start next time: the note may be wrong.
            if done:
                error.facts["resumed_after"] = done
            psp.forget_components(refused=isinstance(error, FirmwareRejected) or done > 0)
            raise
    with stages.stage("PSP ring"):
        psp.create_ring(destroy_first=done > 0)
    with stages.stage("TMR"):
        size = ask_sizes(units, firmware)
        kind, name = generation.smu_firmware
        first = [psp_commands.load_firmware(name, kind, firmware.parts[name])]
        if not generation.boot_time_tmr:
            first.append(psp.setup_tmr(units.carveout.tmr, size))
        psp.run(*first, more=True)
    with stages.stage("IP firmware"):
        parts = firmware.parts
        load = psp_commands.load_firmware
        rest = (load(name, kind, parts[name]) for kind, name in generation.ip_firmware)
        psp.run(*rest, psp_commands.autoload(), later=True)
        units.programs.leave(read=psp.unread_places, then=psp.check_unread)


def ask_sizes(units: Units, firmware: FirmwareSet) -> int:
    """Ask the PSP which VRAM the firmware keeps for itself, and keep off it; return how much memory
    the images need, where there is a table of contents. ORDER: as in Linux, right after the ring's
    creation."""
    toc = firmware.boot.get(units.chip.generation.toc_type) or firmware.parts.get("toc")
    commands = list(reservation.queries(units, firmware))
    if toc is not None:
        commands.append(psp_commands.load_toc(toc))
    answers = units.psp.ask(*commands) if commands else []
    size = int.from_bytes(answers.pop(), "little") if toc is not None else 0
    reservation.take(units, answers)
    size = -(-(size or DEFAULT_TMR_SIZE) // _TMR_ALIGN) * _TMR_ALIGN
    if size > units.carveout.tmr_space and not units.chip.generation.boot_time_tmr:
        raise OutOfMemory("the firmware requests more memory than is reserved for it", size=size)
    return size


def start_graphics(units: Units, firmware: FirmwareSet | None, stages: Stages) -> None:
    """Start GFXHUB and the compute engine, and do what earlier stages left. firmware: None when the
    micro engines already run."""
    if firmware is not None:
        with stages.stage("RLC autoload"):
            try:
                units.gfx.wait_autoload()
            except FirmwareError:
                units.psp.check_unread()  # a refused image explains more
                raise
        with stages.stage("MEC"):
            units.gfx.start_front(firmware.starts)
            units.gfx.start_mec(firmware.starts["mec"])
    with stages.stage("GFXHUB"):
        start_hubs(units, units.gmc.gfxhubs)
    if firmware is None:
        with stages.stage("engine resets"):
            reset_engines(units)
    with stages.stage("GFX"):
        start_engines(units)


def cold_boot(units: Units, firmware: FirmwareSet, stages: Stages) -> None:
    """Bring the chip from its power-on state to waiting for queues. What can wait is left to a
    program of accesses: up to the end of GFX, or of the start of the queues."""
    with units.programs.starting():
        for mapping in units.unclean:
            units.programs.clear(mapping)
        start_bus_and_hub(units, stages)
        load_firmware(units, firmware, stages)
        with stages.stage("SMU"):
            try:
                units.smu.start(units.programs)
            except FirmwareError:
                units.psp.check_unread()  # a refused image explains more
                raise
            units.thermal.start(units.programs)
        start_graphics(units, firmware, stages)
    units.unclean.clear()  # after a later reset it contains values


def warm_attach(units: Units, stages: Stages) -> None:
    """Take over a chip that a previous process left up: firmware runs, everything else is new."""
    units.smu.version = units.smu.send("GetSmuVersion")
    reservation.take_again(units)
    start_bus_and_hub(units, stages)
    units.thermal.start(units.programs)
    start_graphics(units, None, stages)


def prepare(
    transport: Transport,
    facts: ChipFacts,
    classes: UnitClasses,
    stages: Stages,
    on_chip: ChipHook | None = None,
) -> Units:
    """Make first contact and plan the memory. The chip is not changed."""
    try:
        return _prepare(transport, facts, classes, stages, on_chip)
    except DeviceLost as error:
        if not transport.present():
            raise
        log.warning("%s: %s: a reset may be in progress; trying again", transport.name, error)
        return _prepare(transport, facts, classes, stages, on_chip)


def _prepare(
    transport: Transport,
    facts: ChipFacts,
    classes: UnitClasses,
    stages: Stages,
    on_chip: ChipHook | None,
) -> Units:
    chip = first_contact(transport, facts, stages, on_chip)
    try:
        with stages.stage("memory"):
            return make_units(chip, classes)
    except BaseException:
        chip.link.restore()
        raise


# ---- leaving -----------------------------------------------------------------------------------


def halt(units: Units) -> None:
    """Halt the engines."""
    units.gfx.disable_mec()
    for engine in units.engines:
        engine.halt()


def stop(units: Units) -> None:
    """Switch off everything that could access host memory. Firmware stays up; queues are off.

    ORDER: the engines halt before their translation goes off (gfx_v11_0.c and sdma_v6_0.c, hw_fini,
    before gart_disable). A graphics core that a reset left without firmware accepts no writes, and
    accesses nothing.
    """
    loaded = units.gfx.loaded()
    if loaded:
        halt(units)
    units.thermal.stop()
    units.ih.stop()
    for hub in units.gmc if loaded else units.gmc.mmhubs:
        hub.stop()
    units.nbio.stop()


def mode1_reset(units: Units) -> None:
    """Reset the whole chip through its SMU; everything is lost, VRAM too. Ends at the bootloader.

    NotSupported where the SMU's firmware is too old for it.
    """
    facts = units.chip.facts
    version = units.smu.version or units.smu.send("GetSmuVersion")
    if version < facts.mode1_since:
        raise NotSupported("the SMU's firmware does not support the mode1 reset", version=version)
    units.ih.stop()
    _reset_chip(units, units.smu.mode1)
    if units.psp.alive():
        raise FirmwareSilent("the SMU does not perform the mode1 reset", **units.smu.state())


def debug_mode1_reset(units: Units) -> None:
    """Reset the whole chip by the SMU's debug mailbox, which works while its firmware is stuck."""
    units.ih.stop()
    _reset_chip(units, units.smu.strike_mode1)
    if units.psp.alive():
        raise FirmwareSilent(
            "the SMU does not perform the mode1 reset requested through its debug mailbox",
            **units.smu.state(),
        )


def psp_mode1_reset(units: Units) -> None:
    """Reset the whole chip through the PSP's secure OS, for when the SMU does not answer."""
    units.ih.stop()
    _reset_chip(units, units.psp.strike_mode1)
    if units.psp.alive():
        raise FirmwareSilent("the PSP does not perform the mode1 reset")


def reset_whole_chip(units: Units) -> None:
    """Reset through the SMU, else through the PSP, else from the slot; raises the slot's error."""
    for way in (mode1_reset, debug_mode1_reset, psp_mode1_reset):
        try:
            way(units)
        except (FirmwareSilent, FirmwareRejected, NotSupported) as error:
            log.info("%s", error)
        else:
            return
    bus_reset(units)


def bus_reset(units: Units) -> None:
    """Reset the chip from its slot, for when the SMU does not. Ends at the bootloader.

    NotSupported where the transport cannot reach the slot.
    """
    slot_reset(units, ResetKind.BUS)


def slot_reset(units: Units, kind: ResetKind) -> None:
    """Reset the chip by any reset that the transport offers."""
    _reset_chip(units, lambda: units.chip.transport.reset(kind))


def _reset_chip(units: Units, strike: Callable[[], None]) -> None:
    """Reset the chip, apart from its configuration space, to the bootloader."""

    def struck() -> None:
        strike()
        units.gmc.forget()

    reset_function(units.chip, struck, units.chip.generation.mode1_quiet_s)
    _wait_bootloader(units)


def after_power_loss(units: Units) -> None:
    """Take up a chip that lost its power; see hcq.bare.function.restore_function."""
    units.gmc.forget()
    restore_function(units.chip)
    _wait_bootloader(units)


def _wait_bootloader(units: Units) -> None:
    """Wait until a chip that was reset can be booted from the start."""
    chip = units.chip
    wait_ifwi(chip)
    if chip.mailbox(81).read():
        return  # nothing was reset: the caller handles that
    chip.dark = False
    with or_silent("the chip does not respond after the reset", unit="PSP"):
        chip.wait(
            chip.mailbox(35),
            lambda value: value == 0x8000_0000,
            unit="PSP",
            waiting_for="bootloader after the reset",
            limit_s=chip.generation.ifwi_limit_s,
        )
    units.psp.forget_components()
