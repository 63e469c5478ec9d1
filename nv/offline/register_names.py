"""Register names of a recorded card: BAR 0 and its falcons are at the same places on all chips."""

from __future__ import annotations

from ugpu.hcq.transport.recorded.format import Recording
from ugpu.hcq.transport.recorded.names import Names, names_in
from ugpu.nv.gsp.chip.chip import GSP_BASE, PMU_BASE, REGISTER_BAR, SEC2_BASE
from ugpu.nv.regs import load

_TABLES = (("bar0", 0), ("fsp", 0), ("falcon", GSP_BASE), ("falcon", SEC2_BASE),
           ("falcon", PMU_BASE))  # fmt: skip


def register_names(recording: Recording) -> Names:
    """Return the registers' names, see hcq.transport.recorded.names. Falcons' registers lack the
    falcon's name."""
    return names_in(REGISTER_BAR, [(load(name), (base // 4,)) for name, base in _TABLES])
