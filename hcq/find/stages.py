"""Names of the stages of bring-up, by driver: what a boot in steps can halt after.

Drivers report them to `on_stage` of `hcq.open`. Which of them a boot has depends on the state of
the device: a card that still runs skips most of them.
"""

from __future__ import annotations

import difflib

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.find.catalogue import VARIANTS, vendor_of
from ugpu.hcq.find.node_drivers import NODE_DRIVERS

STAGES = {
    "am": (
        *("config space", "board firmware", "discovery", "mode1 reset", "bus reset", "memory"),
        *("firmware images", "NBIO", "MMHUB", "IH", "PSP bootloader", "PSP ring", "TMR"),
        *("IP firmware", "SMU", "RLC autoload", "MEC", "GFXHUB", "engine resets", "GFX"),
        *("compute queue", "copy queues"),
    ),
    "nv-bare": (
        *("firmware files", "gfw-boot", "rejoin", "unload or reset", "vbios", "layout", "frts"),
        *("gsp-reset", "booter", "chain-of-trust", "lockdown", "riscv", "init-done"),
        *("static-info", "objects and address space", "copy queues", "compute queue"),
    ),
    "nv": ("objects and address space", "copy queues", "compute queue"),
    "qcom": ("identify", "context", "first work"),
    "cpu": ("command processor", "queues and threads"),
}


def stages_of(name: str) -> tuple[str, ...]:
    """Return the stages of a device's driver, in order; those of all drivers if the name does not
    identify the driver."""
    kind, _, rest = name.partition(":")
    driver: str | None = kind
    if kind == "virtual":
        chip, _, variant = rest.partition("+")
        driver = vendor_of(chip)
        if driver is not None and variant in VARIANTS.get(driver, ()):
            driver = f"{driver}-bare"
    elif kind in NODE_DRIVERS:
        driver = NODE_DRIVERS[kind].entry.partition(".")[0]
    if driver in STAGES:
        return STAGES[driver]
    return tuple(dict.fromkeys(stage for stages in STAGES.values() for stage in stages))


def check_stage(name: str, stage: str) -> None:
    """Raise BadArgument, with the names that are near, unless the device's driver has the stage."""
    stages = stages_of(name)
    if not isinstance(stage, str):
        raise BadArgument(f"stage must be a str, got {stage!r}")
    if stage in stages:
        return
    folded = {existing.casefold(): existing for existing in stages}
    near = difflib.get_close_matches(stage.casefold(), folded, n=3, cutoff=0.6)
    meant = ", ".join(repr(folded[match]) for match in near)
    hint = f"did you mean {meant}? " if near else ""
    raise BadArgument(f"no stage {stage!r}; {hint}{name} has: {', '.join(stages)}")
