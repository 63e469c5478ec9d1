"""Named states of each firmware and unit of a chip, with meaning and remedy.

This module reads registers and writes none, so it works on a chip in any state: not booted, hung,
or left by another process. Registers that change when they are read (the semaphores of the
invalidation engines) are left alone.

Sources: Linux 6.12 amdgpu_discovery.c (board firmware), psp_v13_0.c (bootloader, secure OS, ring),
amdgpu_ras.c, amdgpu_ras.h (boot errors), smu_cmn.c (responses), gfx_v11_0.c (autoload, RLC, MEC),
sdma_v6_0.c, ih_v6_0.c, gmc_v11_0.c (invalidation engines), smu_v13_0.c (thermal controller).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import partial

from ugpu.am.chip import remedies as advice
from ugpu.am.chip.chip import Chip
from ugpu.am.units.psp.psp import noted_refusal
from ugpu.am.units.smu.smu import BUSY, OK, RESPONSES
from ugpu.hcq.bare.bus import ALL_ONES
from ugpu.hcq.bare.stages import State, shown_with, states_of, tried
from ugpu.hcq.errors import DeviceLost, DiscoveryError, FirmwareSilent, NotRecorded, UgpuError

_READY = 0x8000_0000


def states(chip: Chip) -> list[State]:
    """Return each unit's state, in the order of a boot; the first that is not ok is where to look.
    A chip that does not answer at all has one state."""
    return states_of(chip, partial(_looks, chip))


def unreached(error: UgpuError) -> State | None:
    """Return the state of a chip that cannot be read, from the error that reports this; None for an
    error that does not concern the chip."""
    facts, remedy = error.facts, str(error.facts.get("remedy", ""))
    if isinstance(error, FirmwareSilent):
        words = {"C2PMSG_33": "c2pmsg_33", "RCC_CONFIG_MEMSIZE": "vram_mb"}
        registers = {name: int(str(facts.get(key, 0))) for name, key in words.items()}
        return _not_done(registers)
    if isinstance(error, DiscoveryError):
        return State("discovery", "unreadable", False, error.message, remedy, {})
    if isinstance(error, DeviceLost):
        return State("link", "no answer", False, error.message, remedy or advice.LINK, {})
    return None


def as_json(chip: Chip) -> list[dict[str, object]]:
    """Return `states` as dictionaries, for a bundle."""
    return [asdict(state) for state in states(chip)]


def _board(chip: Chip) -> Iterator[State]:
    word = int(chip.mailbox(33).read())
    registers = {"C2PMSG_33": word, "RCC_CONFIG_MEMSIZE": chip.memory_size_mb()}
    if word & _READY and registers["RCC_CONFIG_MEMSIZE"]:
        yield State("board firmware", "done", True, "the card's own start is over", "", registers)
        return
    yield _not_done(registers)


def _not_done(registers: dict[str, int]) -> State:
    return State(
        "board firmware",
        "not done",
        False,
        "the card's own firmware (IFWI) has not finished: memory training, or no supply",
        advice.POWER_CYCLE,
        registers,
    )


def _psp(chip: Chip) -> Iterator[State]:
    loader, sign = int(chip.mailbox(35).read()), chip.read_again(chip.mailbox(81))
    registers = {"C2PMSG_35": loader, "C2PMSG_81": sign}
    if sign == 0:
        yield _bootloader(chip, loader, registers)
        return
    if sign == ALL_ONES:
        yield State(
            "PSP", "no answer", False, "its mailbox reads as ones", advice.POWER_CYCLE, registers
        )
        return
    ring = int(chip.mailbox(64).read())
    registers["C2PMSG_64"] = ring
    if f"{chip.generation.psp_mailbox}_58" in chip.mp0.map:  # its version
        registers = shown_with(registers, C2PMSG_58=chip.mailbox(58))
    if ring & 0xFFFF and ring & _READY:
        yield State(
            "PSP",
            "ring refused",
            False,
            f"the secure OS runs and refused a ring command with status {ring & 0xFFFF:#x}",
            advice.MODE1,
            registers,
        )
    elif not ring & _READY and ring:
        yield State(
            "PSP",
            "ring busy",
            False,
            "the secure OS runs and has not ended a ring command",
            advice.MODE1,
            registers,
        )
    else:
        yield State("PSP", "secure OS", True, "the secure OS runs", "", registers)


def _bootloader(chip: Chip, word: int, registers: dict[str, int]) -> State:
    refusal = word & 0xFF if chip.generation.bootloader_tells_refusal else 0
    if refusal or noted_refusal(chip):
        refusal = refusal or word & 0xFF
        return State(
            "PSP",
            "bootloader refused",
            False,
            f"the bootloader refused a component with status {refusal:#x}: wrong or "
            "damaged firmware image, or one for another chip",
            advice.REFUSED,
            registers,
        )
    if word == _READY:
        return State(
            "PSP",
            "bootloader ready",
            True,
            "it waits for firmware: the chip is not booted",
            advice.BOOT,
            registers,
        )
    return State(
        "PSP",
        "bootloader not ready",
        False,
        "the bootloader has not finished loading the component",
        advice.POWER_CYCLE,
        registers,
    )


def _smu(chip: Chip) -> Iterator[State]:
    mp1, registers, loaded = chip.mp1, dict[str, int](), True
    with suppress(NotRecorded):  # then the mailbox shows the state
        flags = registers["MP1_FIRMWARE_FLAGS"] = chip.bus.read32(
            chip.generation.smu_firmware_flags // 4
        )
        loaded = bool(flags & 1)
    registers |= {
        "C2PMSG_66": int(mp1.MP1_SMN_C2PMSG_66.read()),
        "C2PMSG_82": int(mp1.MP1_SMN_C2PMSG_82.read()),
        "C2PMSG_90": int(mp1.MP1_SMN_C2PMSG_90.read()),
    }
    response = registers["C2PMSG_90"]
    last = f"message {registers['C2PMSG_66']:#x}, argument {registers['C2PMSG_82']:#x}"
    if not loaded:
        yield State("SMU", "not loaded", True, "no power firmware runs yet", advice.BOOT, registers)
    elif response == 0 and registers["C2PMSG_66"]:
        yield State(
            "SMU", "hung or at work", False, f"it has not answered {last}", advice.MODE1, registers
        )
    elif response == BUSY:
        yield State("SMU", "busy", False, f"it answered {last} with busy", "ask again", registers)
    elif response not in (0, OK):
        text = RESPONSES.get(response, f"status {response:#x}")
        yield State("SMU", "refused", True, f"it refused {last}: {text}", "", registers)
    else:
        yield State("SMU", "running", True, "it answers messages", "", registers)


def _graphics(chip: Chip) -> Iterator[State]:
    gc = chip.gc
    boot, control = gc.RLC_RLCS_BOOTLOAD_STATUS.read(), gc.RLC_CNTL.read()
    registers = {"RLC_RLCS_BOOTLOAD_STATUS": int(boot), "RLC_CNTL": int(control)}
    if not boot.BOOTLOAD_COMPLETE:
        begun = int(chip.mailbox(81).read()) not in (0, ALL_ONES)
        if begun:
            meaning = "the secure OS runs, but the graphics core's firmware has not come up"
            yield State("RLC", "autoload not complete", False, meaning, advice.MODE1, registers)
        else:
            meaning = "the graphics core's firmware was not loaded"
            yield State("RLC", "not loaded", True, meaning, advice.BOOT, registers)
        return
    yield State(
        "RLC",
        "running",
        bool(control.RLC_ENABLE_F32),
        "the graphics core's firmware is loaded"
        if control.RLC_ENABLE_F32
        else "its processor is switched off",
        "" if control.RLC_ENABLE_F32 else advice.MODE1,
        registers,
    )
    yield from tried("MEC", partial(_mec, chip))


def _mec(chip: Chip) -> Iterator[State]:
    gc = chip.gc
    control = gc.CP_MEC_RS64_CNTL.read()
    registers = shown_with(
        {"CP_MEC_RS64_CNTL": int(control)}, CP_STAT=gc.CP_STAT, CP_CPC_STATUS=gc.CP_CPC_STATUS,
        GRBM_STATUS=gc.GRBM_STATUS,
    )  # fmt: skip
    if control.MEC_HALT:
        meaning = "its processors stand still: no driver has started it, or one has stopped it"
        yield State("MEC", "halted", True, meaning, advice.BOOT, registers)
    elif not any(control[f"MEC_PIPE{pipe}_ACTIVE"] for pipe in range(4)):
        yield State("MEC", "inactive", True, "no pipe was started", advice.BOOT, registers)
    elif "GRBM_STATUS" not in registers:
        meaning = "its pipes run; GRBM_STATUS, which shows whether they work, is not recorded"
        yield State("MEC", "started", True, meaning, "", registers)
    else:
        busy = bool(gc.GRBM_STATUS.read().GUI_ACTIVE)
        yield State(
            "MEC",
            "at work" if busy else "idle",
            True,
            "work runs on the graphics core" if busy else "nothing runs",
            "",
            registers,
        )


def _copy_engine(chip: Chip, name: str) -> Iterator[State]:
    processor = f"{name}_{chip.generation.copy_processor}"
    control = chip.gc[processor].read()
    status = chip.gc[f"{name}_STATUS_REG"]
    registers = shown_with({processor: int(control)}, **{f"{name}_STATUS_REG": status})
    if control.HALT:
        meaning = "it was not started, or was stopped"
        yield State(name, "halted", True, meaning, advice.BOOT, registers)
        return
    if f"{name}_STATUS_REG" not in registers:
        meaning = (
            f"it was started; {name}_STATUS_REG, which shows whether it works, is not recorded"
        )
        yield State(name, "started", True, meaning, "", registers)
        return
    idle = status.read().IDLE
    meaning = "nothing to copy" if idle else "it copies or waits"
    yield State(name, "idle" if idle else "at work", True, meaning, "", registers)


def _hub(chip: Chip, block: str) -> Iterator[State]:
    prefix, name = ("GCVM", "GFXHUB") if block == "gc" else ("MMVM", "MMHUB")
    registers = getattr(chip, block)
    latch = f"{prefix}_{chip.generation.hub_fault_status}"
    status = registers[latch].read()
    values = {latch: int(status)}
    if not status:
        yield State(name, "no fault", True, "no page fault is latched", "", values)
        return
    address = "an address that is not recorded"
    with suppress(NotRecorded):
        low = int(registers[f"{prefix}_L2_PROTECTION_FAULT_ADDR_LO32"].read())
        high = int(registers[f"{prefix}_L2_PROTECTION_FAULT_ADDR_HI32"].read())
        address = f"{(high & 0xF) << 44 | low << 12:#x}"
    yield State(
        name,
        "page fault",
        False,
        f"a {'write to' if status.RW else 'read of'} {address} by VMID {status.VMID} faulted",
        "find the kernel: `ugpu waves`",
        values,
    )


def _interrupts(chip: Chip) -> Iterator[State]:
    ih = chip.osssys
    control, write = ih.IH_RB_CNTL.read(), ih.IH_RB_WPTR.read()
    registers = {
        "IH_RB_CNTL": int(control),
        "IH_RB_WPTR": int(write),
        "IH_RB_RPTR": int(ih.IH_RB_RPTR.read()),
    }
    if not control.RB_ENABLE:
        yield State("IH", "off", True, "no interrupts are written", advice.BOOT, registers)
    elif write.RB_OVERFLOW:
        yield State(
            "IH",
            "overflow",
            False,
            "interrupts were lost: they were not read in time",
            "the driver goes on by itself; reports may be missing",
            registers,
        )
    else:
        yield State("IH", "on", True, "interrupts are written to their ring", "", registers)


def _thermal(chip: Chip) -> Iterator[State]:
    """Thermal controller. UNSURE: whether CTF_TEMP shows the temperature on gfx11 as it does on
    Vega (vega10_thermal.c); a board would settle it."""
    if not chip.instances("THM"):
        return
    control = chip.thm.THM_THERMAL_INT_CTRL.read()
    status = chip.thm.CG_MULT_THERMAL_STATUS.read()
    registers = {"THM_THERMAL_INT_CTRL": int(control), "CG_MULT_THERMAL_STATUS": int(status)}
    celsius, limit = status.CTF_TEMP, control.DIG_THERM_INTH
    if not control.THERM_IH_HW_ENA:
        meaning = f"{celsius} degrees Celsius; no driver has asked to be told of a limit"
        yield State("THM", "off", True, meaning, advice.BOOT, registers)
    elif celsius > limit:
        meaning = f"{celsius} degrees Celsius, at most {limit} expected"
        yield State("THM", "too hot", False, meaning, advice.COOL, registers)
    else:
        meaning = f"{celsius} degrees Celsius, of {limit}"
        yield State("THM", "cool enough", True, meaning, "", registers)


def _looks(chip: Chip) -> Iterator[tuple[str, Callable[[], Iterator[State]]]]:
    """Yield each unit, and the function that finds its state, in the order of a boot."""
    yield "board firmware", lambda: _board(chip)
    yield "PSP", lambda: _psp(chip)
    yield "SMU", lambda: _smu(chip)
    yield "RLC", lambda: _graphics(chip)
    for engine in chip.copy_engines():
        name = f"SDMA{engine.instance}"
        yield name, partial(_copy_engine, chip, name)
    yield "GFXHUB", lambda: _hub(chip, "gc")
    yield "MMHUB", lambda: _hub(chip, "mmhub")
    yield "IH", lambda: _interrupts(chip)
    yield "THM", lambda: _thermal(chip)
