"""Launches that start their successor: a descriptor points to the one that begins after its grid.

A barrier between two launches then needs no wait of the host engine. It takes 1.3 us instead of 2.4
between two small kernels on an H100 (docs/figures-history.md). On that GPU, the release at a
submission's end was observed to wait for the whole chain. Source: open-gpu-doc
classes/compute/cl*qmd.h (DEPENDENT_QMD*); CUDA sets successors this way (recorded on an H200,
driver 580.159.04), as does tinygrad's ops_nv.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.nv import abi
from ugpu.nv.packets.clusters import Bits


@dataclass(frozen=True)
class Successor:
    """Fields of a descriptor's version for its successor. pointer: index of the word for a
    descriptor's address, shifted right by 8. marks: the other fields to set, with their values."""

    pointer: int
    marks: tuple[tuple[Bits, int], ...]

    @property
    def required(self) -> tuple[tuple[Bits, int], ...]:
        """Return the marks without which the successor does not start."""
        return self.marks[:2]

    @classmethod
    def of(cls, table: abi.Descriptor) -> Successor | None:
        """The fields of a version; None before 2.4.

        Earlier versions have other fields, which no recording and no other driver uses.
        """
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
        """Return the address of the descriptor that starts after `qmd`; 0 if there is none."""
        whole = int.from_bytes(qmd, "little")
        if any(whole >> bits.first & (1 << bits.width) - 1 != v for bits, v in self.required):
            return 0
        return (whole >> 32 * self.pointer & 0xFFFF_FFFF) << 8

    def mark(self, qmd: bytearray) -> None:
        """Mark a descriptor as one with a successor."""
        for bits, value in self.marks:
            bits.insert(qmd, value)
