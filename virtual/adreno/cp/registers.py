"""Register state that a submission builds up, and the registers that it may not touch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ugpu.hcq.registers.fields import RegisterValue
from ugpu.qcom.regs import load
from ugpu.virtual.adreno.faults import Cause, GpuFault

if TYPE_CHECKING:
    from ugpu.qcom.chips.facts import ChipFacts

_REGISTERS = 1 << 18
# Protected ranges (first, length - 1, whether reading is allowed) that no indirect buffer may
# write: Linux 6.12 drivers/gpu/drm/msm/adreno/a6xx_catalog.c, a630_protect_regs and
# a730_protect_regs, up to the shader blocks.
_PROTECTED_6 = (
    (0x00000, 0x04FF, True), (0x00501, 0x0005, True), (0x0050B, 0x02F4, True),
    (0x00800, 0x0082, False), (0x008A0, 0x0008, False), (0x008AB, 0x0024, False),
    (0x008DE, 0x00AE, True), (0x00900, 0x004D, False), (0x0098D, 0x0272, False),
    (0x00E00, 0x0001, False), (0x00E03, 0x000C, False), (0x03C00, 0x00C3, False),
    (0x03CC4, 0x1FFF, True), (0x08630, 0x01CF, False), (0x08E00, 0x0000, False),
    (0x08E08, 0x0000, False), (0x08E50, 0x001F, False), (0x09624, 0x01DB, False),
    (0x09E70, 0x0001, False), (0x09E78, 0x0187, False), (0x0A630, 0x01CF, False),
    (0x0AE02, 0x0000, False),
)  # fmt: skip
_PROTECTED_7 = (
    (0x00000, 0x04FF, True), (0x0050B, 0x0058, True), (0x005FB, 0x009D, True),
    (0x00699, 0x01E9, False), (0x008A0, 0x0008, False), (0x008AB, 0x0024, False),
    (0x008DE, 0x0001, False), (0x008E7, 0x014B, True), (0x00900, 0x004D, False),
    (0x0098D, 0x00B2, False), (0x00A41, 0x01BE, False), (0x00DF0, 0x0001, False),
    (0x00E01, 0x0000, False), (0x00E07, 0x0008, False), (0x03C00, 0x00C3, False),
    (0x03CC4, 0x1FFF, True), (0x08630, 0x01CF, False), (0x08E00, 0x0000, False),
    (0x08E08, 0x0000, False),
)  # fmt: skip
_PROTECTED = {6: _PROTECTED_6, 7: _PROTECTED_7}


class RegisterState:
    """Values that one submission has written; none survive from an earlier submission.

    Contexts are switched between submissions, and KGSL restores no state of a context that was
    created with KGSL_CONTEXT_PREAMBLE. Reading a register that the submission has not written is a
    violation, and returns a word that no driver writes.
    """

    def __init__(self, facts: ChipFacts, violate: Callable[[str], None]) -> None:
        self.map = load(f"a{facts.generation}xx")
        self.values: dict[int, int] = {}
        self._protected = _PROTECTED[facts.generation]
        self._violate = violate

    def write(self, index: int, value: int, address: int) -> None:
        """Write a register as the packet at `address` does; GpuFault for a protected one."""
        for first, more, _ in self._protected:
            if first <= index <= first + more:
                raise GpuFault(
                    Cause.PROTECTED, f"write of {value:#x} to protected register {index:#x}",
                    address,
                )  # fmt: skip
        if index >= _REGISTERS:
            raise GpuFault(Cause.PROTECTED, f"write to register {index:#x}", address)
        self.values[index] = value

    def read(self, index: int, address: int) -> int:
        """Read a register as the packet at `address` does; GpuFault for a protected one."""
        for first, more, readable in self._protected:
            if first <= index <= first + more and not readable:
                raise GpuFault(Cause.PROTECTED, f"read of protected register {index:#x}", address)
        return self.values.get(index, 0)

    def has(self, name: str) -> bool:
        """Return whether the submission has written a register."""
        return name in self.map and self.map[name].offset in self.values

    def get(self, name: str, user: str) -> RegisterValue:
        """Return a register on which `user` depends."""
        register = self.map[name]
        value = self.values.get(register.offset)
        if value is None:
            self._violate(
                f"{user} depends on {name}, which this submission has not written: its value is "
                "what another context left"
            )
            value = 0
        return register.decode(value)

    def optional(self, name: str) -> RegisterValue | None:
        """Return a register; None where it was not written, or the chip does not have it."""
        if name not in self.map:
            return None
        value = self.values.get(self.map[name].offset)
        return None if value is None else self.map[name].decode(value)

    def pair(self, name: str, user: str) -> int:
        """Return a 64-bit address in two registers, NAME_LO and NAME_HI."""
        return int(self.get(f"{name}_LO", user)) | int(self.get(f"{name}_HI", user)) << 32
