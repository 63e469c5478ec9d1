"""Mode2: the SMU's reset of the graphics core and copy engines, which preserves device memory.

Source: Linux 6.12 smu_v13_0_0_ppt.c (the message; only SMU 13.0.10 has it), smu_v13_0_10.c (the
first firmware that has it, what is stopped before, what is loaded and started afterwards). Linux
resets such a card by mode1 unless told otherwise (soc21.c, amdgpu.reset_method=3).
"""

from __future__ import annotations

from ugpu.am.boot import boot
from ugpu.am.boot.units import Units
from ugpu.am.units.psp import commands as psp_commands
from ugpu.am.units.psp.images import FirmwareSet
from ugpu.am.units.smu.smu import version_text
from ugpu.hcq.bare.stages import Stages
from ugpu.hcq.errors import FirmwareSilent, NotSupported


def check(units: Units) -> None:
    """Raise NotSupported if the SMU has no mode2, or does not run."""
    facts = units.chip.facts
    if not facts.mode2_since:
        version = ".".join(map(str, facts.versions["MP1"]))
        raise NotSupported(f"the firmware of SMU {version} has no mode2 reset")
    if not units.smu.running() or units.smu.stuck:
        raise NotSupported("the SMU's firmware does not take the request")
    version = version_text(facts.mode2_since)
    if units.smu.version < facts.mode2_since:
        found = version_text(units.smu.version)
        raise NotSupported(f"mode2 needs SMU firmware {version} or newer, got {found}")


def reset(units: Units, firmware: FirmwareSet) -> None:
    """Reset, load, start; queues can be set up afterwards. The queues are already off, as far as
    possible; translations, doorbells and interrupts of the other blocks stay as they are.

    FirmwareSilent, FirmwareRejected: from the SMU, the PSP or the RLC. Can be repeated from the
    start wherever it ended.
    """
    if units.gfx.loaded():
        boot.halt(units)
        boot.mark(units.chip, boot.IN_USE)
    units.smu.tell("Mode2Reset")
    if boot.marked(units.chip):
        raise FirmwareSilent("the SMU does not perform the mode2 reset", **units.smu.state())
    units.gmc.forget(units.gmc.gfxhubs)
    _load(units, firmware)
    units.smu.enable_graphics()
    boot.start_graphics(units, firmware, Stages())
    boot.mark(units.chip, boot.IN_USE)


def _load(units: Units, firmware: FirmwareSet) -> None:
    """Have the PSP load the graphics core's first firmware, and the RLC start the rest."""
    generation, psp = units.chip.generation, units.psp
    # The kernel keeps its ring; ours may be of an earlier process, or interrupted by an exception.
    psp.forget_staged()
    psp.create_ring(destroy_first=True)
    psp.run(
        *(
            psp_commands.load_firmware(name, kind, firmware.parts[name])
            for kind, name in generation.ip_firmware
            if name in generation.mode2_firmware
        )
    )
    psp.run(psp_commands.autoload())
