"""What lowering may choose, as data: one record for each shape of kernel.

Lowering a computation with the same choices gives the same kernel, so a search can try records
and keep the best, and a record can be written down and read back.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MatrixTiles:
    """A product on matrix units. waves: of a group, down and across. fragments: of a wave, down and
    across. depth: of a slice. buffers: slices in local memory, 1 or 2."""

    unit: str
    waves: tuple[int, int]
    fragments: tuple[int, int]
    depth: int
    buffers: int
