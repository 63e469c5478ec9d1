"""Which products with scales of blocks are compiled by Triton and compared with NumPy."""

from __future__ import annotations

from dataclasses import dataclass

EDGE, K = 32, 128


@dataclass(frozen=True)
class Scaled:
    """first, second: types of A and B. scale: of the scales; each: elements that one is for.
    kind: what the instruction must say."""

    first: str
    second: str
    scale: str
    each: int
    kind: str

    def in_byte(self, which: int) -> int:
        """Elements of A (0) or B (1) in a byte."""
        return 2 if (self.first, self.second)[which] == "e2m1" else 1


CASES = {
    "mixed f8": Scaled("e4m3", "e5m2", "ue8m0", 32, "mxf8f6f4.block_scale.scale_vec::1X"),
    "f8": Scaled("e4m3", "e4m3", "ue8m0", 32, "mxf8f6f4.block_scale.scale_vec::1X"),
    "mxf4": Scaled("e2m1", "e2m1", "ue8m0", 32, "mxf4nvf4.block_scale.scale_vec::2X"),
    "nvf4": Scaled("e2m1", "e2m1", "ue4m3", 16, "mxf4nvf4.block_scale.scale_vec::4X"),
}
