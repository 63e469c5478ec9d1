"""Register names of a recorded card: BAR 0 and its falcons are at the same places on all chips."""

from __future__ import annotations

from collections.abc import Callable

from ugpu.hcq.registers.fields import Register
from ugpu.hcq.transport.recorded.format import Recording
from ugpu.nv.gsp.chip.chip import GSP_BASE, PMU_BASE, REGISTER_BAR, SEC2_BASE
from ugpu.nv.regs import load

_TABLES = (("bar0", 0), ("fsp", 0), ("falcon", GSP_BASE), ("falcon", SEC2_BASE),
           ("falcon", PMU_BASE))  # fmt: skip


def register_names(recording: Recording) -> Callable[[int, int], Register | None]:
    """Return a function from (BAR, offset in bytes) to the register there, None if there is none.
    Falcons' registers lack the falcon's name."""

    def find(window: int, offset: int) -> Register | None:
        if window != REGISTER_BAR or offset % 4:
            return None
        for name, base in _TABLES:
            register = load(name).find((offset - base) // 4, 0) if offset >= base else None
            if register is not None:
                return register
        return None

    return find
