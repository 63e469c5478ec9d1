"""Step "riscv": the GSP's core must run after booter, or after FSP's chain of trust."""

from __future__ import annotations

from ugpu.hcq.bare.stages import or_silent
from ugpu.nv.gsp.boot.start import Start

# TIMEOUT: nova-core; booter starts the core before it halts, so RM and nouveau look once.
_LIMIT_S = 5.0


def await_core(start: Start) -> None:
    """Tell the firmware its version, and wait until the RISC-V core is active."""

    def runs() -> bool:
        start.check()
        return start.gsp.riscv_active

    start.gsp.regs.OS.write(start.files.boot_loader.app_version)
    with or_silent("the GSP's RISC-V core does not run", start.state):
        start.chip.clock.wait_until(
            runs,
            unit="GSP",
            waiting_for="the RISC-V core",
            limit_s=_LIMIT_S,
        )
