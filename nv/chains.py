"""Launches that start their successor: a descriptor names the one that begins when its grid has
ended.

A barrier between two launches then costs no wait of the host engine: 1.3 us instead of 2.4 between
two small kernels on an H100 (docs/figures.md), where the release at a submission's end was seen to
wait for all of a chain. Source: open-gpu-doc classes/compute/cl*qmd.h (DEPENDENT_QMD*); CUDA names
successors this way (recorded on an H200, driver 580.159.04), as does tinygrad's ops_nv.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from nv import abi
from nv.clusters import Bits


@dataclass(frozen=True)
class Successor:
    """Where a descriptor's version names its successor. pointer: the word for a descriptor's
    address, shifted right by 8. marks: what else is set."""

    pointer: int
    marks: tuple[tuple[Bits, int], ...]

    @property
    def required(self) -> tuple[tuple[Bits, int], ...]:
        """Return the marks without which nothing is started."""
        return self.marks[:2]

    @classmethod
    def of(cls, table: abi.Descriptor) -> Successor | None:
        """The fields of a version; None before 2.4, whose fields are others: no recording and no
        other driver uses them."""
        fields = table.fields
        if "DEPENDENT_QMD0_POINTER" not in fields:
            return None
        prefix = "DEPENDENT_QMD0" if "DEPENDENT_QMD0_ENABLE" in fields else "DEPENDENT_QMD"
        marks = []
        for name, value in (("ENABLE", "TRUE"), ("ACTION", "QMD_SCHEDULE"), ("PREFETCH", "TRUE")):
            found = table.field(f"{prefix}_{name}")
            marks.append((Bits(found.lsb, found.width), found.values[value]))
        return cls(table.field("DEPENDENT_QMD0_POINTER").lsb // 32, tuple(marks))

    def named(self, qmd: bytes | bytearray) -> int:
        """Return the address of the descriptor that one starts behind it; 0 where there is none."""
        whole = int.from_bytes(qmd, "little")
        if any(whole >> bits.first & (1 << bits.width) - 1 != v for bits, v in self.required):
            return 0
        return (whole >> 32 * self.pointer & 0xFFFF_FFFF) << 8

    def mark(self, qmd: bytearray) -> None:
        """Say that a descriptor has a successor."""
        for bits, value in self.marks:
            bits.insert(qmd, value)
