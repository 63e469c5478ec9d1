"""Named states of the processors of a card that run firmware, with meaning and remedy.

Registers are read and none is written, so this works on a chip in any state: not booted, hung, or
left by another process. A register may be locked to the host (0xbadf....).

Sources: open-gpu-kernel-modules 570.144 kernel_gsp_tu102.c, kernel_gsp_gh100.c, kernel_falcon_
tu102.c, kern_fsp_gh100.c; Linux 7.3 nouveau subdev/gsp. PMU's base: dev_pwr_pri.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

from ugpu.hcq.bare import remedies
from ugpu.hcq.bare.stages import State, shown_with, states_of
from ugpu.hcq.registers.fields import RegisterBlock
from ugpu.nv.chips.boot import BootWay
from ugpu.nv.gsp.chip.chip import GspChip, is_locked
from ugpu.nv.gsp.rpc.crash import scratch_group
from ugpu.nv.regs import load

RESET = "open the device: the driver resets the card; or `ugpu reset`"
_DONE = 0xFF
_SUSPENDED = 0x8000_0000


def states(chip: GspChip) -> list[State]:
    """Return each unit's state, in the order of a boot; the first that is not ok is where to look.
    A chip that does not answer at all has one state."""
    return states_of(chip, partial(_looks, chip))


def as_json(chip: GspChip) -> list[dict[str, object]]:
    """Return `states` as dictionaries, for a bundle."""
    return [asdict(state) for state in states(chip)]


def _looks(chip: GspChip) -> Iterator[tuple[str, Callable[[], Iterator[State]]]]:
    """Yield each unit, and the function that finds its state, in the order of a boot."""
    if chip.boot.way is BootWay.FSP:
        yield "FSP", lambda: _fsp(chip)
    else:
        yield "board firmware", lambda: _board(chip)
    yield "WPR2", lambda: _region(chip)
    yield "SEC2", lambda: _falcon("SEC2", chip.sec2)
    yield "GSP", lambda: _gsp(chip)
    for name in chip.logs:
        yield f"GSP {name}", partial(_log, chip, name)
    yield "PMU", lambda: _falcon("PMU", chip.pmu)
    yield "MMU faults", lambda: _faults(chip)


def _board(chip: GspChip) -> Iterator[State]:
    mask = chip.nv.NV_PGC6_AON_SECURE_SCRATCH_GROUP_05_PRIV_LEVEL_MASK.read()
    values = {"GROUP_05_PRIV_LEVEL_MASK": int(mask)}
    if mask.READ_PROTECTION_LEVEL0:
        progress = chip.nv.NV_PGC6_AON_SECURE_SCRATCH_GROUP_05_0_GFW_BOOT.read()
        values["GROUP_05_0_GFW_BOOT"] = int(progress)
        if progress.PROGRESS == _DONE:
            yield State("board firmware", "done", True, "GFW has finished its start", "", values)
            return
    meaning = "the board's firmware (GFW) has not finished its start"
    yield State("board firmware", "not done", False, meaning, remedies.POWER_CYCLE, values)


def _fsp(chip: GspChip) -> Iterator[State]:
    scratch = chip.nv[f"NV_THERM_I2CS_SCRATCH_{chip.facts.family.upper()}"].read()
    values = {"THERM_I2CS_SCRATCH": int(scratch)}
    values = shown_with(
        values,
        **{name: chip.fsp[f"NV_PFSP_{name}"] for name in ("QUEUE_HEAD0", "QUEUE_TAIL0",
                                                           "MSGQ_HEAD0", "MSGQ_TAIL0")},
    )  # fmt: skip
    if scratch.FSP_BOOT_COMPLETE != _DONE:
        meaning = "FSP has not finished its start"
        yield State("FSP", "not done", False, meaning, remedies.POWER_CYCLE, values)
        return
    waiting = values.get("MSGQ_HEAD0") != values.get("MSGQ_TAIL0")
    meaning = "a message of it waits to be read" if waiting else "its start is over"
    yield State("FSP", "message waits" if waiting else "ready", True, meaning, "", values)


def _region(chip: GspChip) -> Iterator[State]:
    nv = chip.nv
    low, high = nv.NV_PFB_PRI_MMU_WPR2_ADDR_LO.read(), nv.NV_PFB_PRI_MMU_WPR2_ADDR_HI.read()
    values = {"WPR2_ADDR_LO": int(low), "WPR2_ADDR_HI": int(high)}
    if is_locked(int(high)):
        yield State("WPR2", "locked", None, "its registers are locked to the host", "", values)
    elif not high.VAL:
        yield State("WPR2", "unset", True, "no firmware has protected memory", "", values)
    else:
        meaning = f"[{low.VAL << 12:#x}, {high.VAL << 12:#x}) of VRAM belongs to the GSP's firmware"
        yield State("WPR2", "set", True, meaning, "", values)


def _gsp(chip: GspChip) -> Iterator[State]:
    regs, core = chip.gsp, chip.boot.core
    names = (core, "MAILBOX0", "MAILBOX1", "HWCFG2", "WAYFINDER")
    values = {name: int(regs[name].read()) for name in names}
    if is_locked(values[core]):
        meaning = "its registers are locked to the host: FSP or its firmware is at work"
        yield State("GSP", "locked", None, meaning, "", values)
        return
    if not is_locked(values["WAYFINDER"]) and scratch_group(values["WAYFINDER"]) is not None:
        meaning = "its firmware has crashed and left a report: `ugpu crash` shows it"
        yield State("GSP", "crashed", False, meaning, RESET, values)
        return
    active = bool(load("falcon")[core].decode(values[core]).ACTIVE_STAT)
    if values["MAILBOX0"] == _SUSPENDED:
        yield State("GSP", "left", True, "its firmware has ended in order", remedies.BOOT, values)
    elif active:
        yield State("GSP", "running", True, "its RISC-V core runs firmware", "", values)
    elif chip.nv.NV_PFB_PRI_MMU_WPR2_ADDR_HI.read().VAL:
        meaning = "its memory is protected and its core does not run: a boot was cut off"
        yield State("GSP", "boot cut off", False, meaning, RESET, values)
    else:
        yield State("GSP", "not booted", True, "no firmware runs", remedies.BOOT, values)


def _falcon(unit: str, regs: RegisterBlock) -> Iterator[State]:
    control = regs.CPUCTL.read()
    values = {"CPUCTL": int(control)}
    if is_locked(int(control)):
        meaning = "its registers are locked to the host, or not readable"
        yield State(unit, "locked", None, meaning, "", values)
        return
    values = shown_with(values, MAILBOX0=regs.MAILBOX0, MAILBOX1=regs.MAILBOX1, ENGINE=regs.ENGINE)
    if control.HALTED:
        yield State(unit, "halted", True, "its falcon has ended its last program", "", values)
    else:
        yield State(unit, "at work", True, "its falcon has not halted", "", values)


def _faults(chip: GspChip) -> Iterator[State]:
    prefix = "NV_VIRTUAL_FUNCTION_PRIV_MMU_REPLAY_FAULT_BUFFER_"
    get, put, size = (chip.nv[prefix + name].read() for name in ("GET", "PUT", "SIZE"))
    values = {"GET": int(get), "PUT": int(put), "SIZE": int(size)}
    if is_locked(int(put)) or not size.ENABLE:
        meaning = "the buffer of replayable faults is off: faults end their channel at once"
        yield State("MMU faults", "off", None if is_locked(int(put)) else True, meaning, "", values)
        return
    count = (put.PTR - get.PTR) % max(size.VAL, 1)
    meaning = f"{count} entries wait to be read" + (", and others were lost" * put.OVERFLOW)
    name = "overflow" if put.OVERFLOW else "entries wait" if count else "clear"
    yield State("MMU faults", name, not put.OVERFLOW, meaning, "", values)


def _log(chip: GspChip, name: str) -> Iterator[State]:
    words = chip.logs[name]()
    last = ", ".join(words[-4:])
    meaning = f"{len(words)} words; the last: {last}" if words else "nothing was written"
    yield State(f"GSP {name}", "log", True, meaning, "", {})
