"""Operands for the comparison of instructions with AMD's pseudocode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.foreign.pseudocode.pseudocode_cases import Judged, Operand
from tests.support.amd.isa.gfx_cases import LANES, SCALARS, VECTORS, Registers
from tests.support.pcode.numbers import FORMATS

_FLOATS = {
    16: (0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x83FF, 0x3C00, 0xBC00, 0x3BFF, 0x3C01, 0x3800, 0xB800,
         0x3E00, 0x4100, 0xC100, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7C01, 0x7DFF, 0xFD00, 0x7E00,
         0xFE01, 0x7FFF, 0x4900, 0x5BFF, 0x77FF, 0x7800, 0x0800, 0x64FF),
    32: (0, 1 << 31, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x807FFFFF, 0x3F800000, 0xBF800000,
         0x3F7FFFFF, 0x3F800001, 0x3F000000, 0xBF000000, 0x3FC00000, 0x40200000, 0xC0200000,
         0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FBFFFFF, 0xFFA00000,
         0x7FC00000, 0xFFC00001, 0x7FFFFFFF, 0x4B000001, 0x4B7FFFFF, 0x4F000000, 0xCF000000,
         0x4EFFFFFF, 0x4F800000, 0x477FE000, 0x477FF000, 0x477FEFFF, 0x33000000, 0x33000001,
         0x387FC000, 0x37800000, 0x43E00000, 0x43E80000, 0x43E7FFFF, 0x3EFFFFFF, 0x42FE0000,
         0x43000000, 0x437F0000, 0x46FFFE00, 0x47000000, 0x477FFF00, 0x47800000, 0x00200000),
    64: (0, 1 << 63, 1, 1 << 63 | 1, 0xFFFFF << 32, 1 << 52, 0x3FF0 << 48, 0xBFF0 << 48,
         0x3FE0 << 48,
         0x3FF8 << 48, 0xC004 << 48, (0x7FF0 << 48) - 1, (0xFFF0 << 48) - 1, 0x7FF0 << 48,
         0xFFF0 << 48, 0x7FF0 << 48 | 1, 0xFFF4 << 48, 0x7FF8 << 48, 0xFFF8 << 48 | 1,
         0x41DFFFFF_FFC00000, 0x41E0 << 48, 0xC1E0 << 48, 0x41EFFFFF_FFE00000,
         0x47EFFFFF_E0000000, 0x47F0 << 48,
         0x36A0 << 48, 0x3690 << 48, 0x4330 << 48 | 1, 0x3FDFFFFF_FFFFFFFF, 0x4350 << 48),
}  # fmt: skip


def _integers(width: int) -> list[int]:
    top = 1 << (width - 1)
    small = [0, 1, 2, 3, 5, 7, 8, 12, 13, 15, 16, 23, 24, 31, 32, 33, 63, 64, 127, 128, 255, 256]
    edges = [
        top - 1,
        top,
        top + 1,
        2 * top - 1,
        2 * top - 2,
        0x7FFF,
        0x8000,
        0xFFFF,
        0x7FFFFF,
        0x800000,
        0xFFFFFF,
        0x80008000,
        0x7FFF7FFF,
        0x10001,
        0x1010101,
        0xF0F0F0F0,
    ]
    return [value & (2 * top - 1) for value in small + edges]


class Inputs:
    """Makes registers for the operands of an instruction."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def _values(self, operand: Operand, count: int) -> list[int]:
        """Return values of an operand: special ones, numbers of like size, any bits."""
        width = max(operand.width, 16)
        whole = width if width in (16, 32, 64) else 32
        floating = "f" in operand.kind and operand.width >= 16
        part = 16 if operand.kind.startswith("pk2") and operand.width == 32 else whole
        special = _FLOATS[part] if floating else tuple(_integers(part))
        values = []
        for _ in range(count):
            number = 0
            for low in range(0, max(width, 32), part):
                number |= self._one(special, part, floating) << low
            values.append(number)
        return values

    def _one(self, special: Sequence[int], width: int, floating: bool) -> int:
        draw = self.random.random()
        if draw < 0.55:
            return special[int(self.random.integers(len(special)))]
        bits = int.from_bytes(self.random.bytes(width // 8), "little")
        if draw < 0.85 and floating:  # numbers near one, whose sums cancel
            form = FORMATS["f", width]
            field = form.bias - 4 + int(self.random.integers(9))
            return bits & (form.sign | (1 << form.fraction) - 1) | field << form.fraction
        return bits

    def of(self, judged: Judged, groups: int) -> Registers:
        """Make registers."""
        vectors = self.random.integers(0, 1 << 32, (groups, VECTORS, LANES), np.uint32)
        scalars = self.random.integers(0, 1 << 32, (groups, 16), np.uint32)
        for number, operand in enumerate(judged.sources):
            if operand.kind == "m64":
                continue
            words = max(1, operand.width // 32)
            mask = 0xFFFFFFFF
            for group in range(groups):
                values = self._values(operand, LANES)
                for word in range(words):
                    row = [value >> 32 * word & mask for value in values]
                    vectors[group, 2 * number + word] = row
                    scalars[group, 2 * number + word] = row[0]
        if judged.name.startswith("V_DIV_SCALE"):  # it scales one of the operands of a division
            chosen = self.random.random((groups, 1, LANES)) < 0.5
            for word in range(max(1, judged.target.width // 32)):
                one, two = vectors[:, 2 + word : 3 + word], vectors[:, 4 + word : 5 + word]
                vectors[:, word : word + 1] = np.where(chosen, one, two)
        scalars[:, SCALARS + 1] |= 1  # EXEC
        if "PERMLANE" in judged.name:
            scalars[:, SCALARS + 1] = 0xFFFFFFFF
        scalars[0, SCALARS + 1] = 0xFFFFFFFF
        scalars[:, SCALARS + 2] &= 1
        scalars[:, SCALARS + 3] &= 0x10001 if "_2_" in judged.name or "REL_" in judged.name else 2
        return Registers(vectors, scalars)
