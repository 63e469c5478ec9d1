"""Kernels of the driver's own, which a generation provides as machine code: for proofs after a
reset, and for cleaning up. The driver does not depend on a compiler."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ugpu.hcq.objects.code_object import Descriptor

PROOF_ARGUMENTS = struct.Struct("<QI")  # address of the results, seed


@dataclass(frozen=True)
class ProofKernel:
    """A kernel of one group of 32 threads; thread n stores 3 * n + seed in a u32.

    words: its machine code. rsrc1, rsrc2, rsrc3, properties: of its descriptor, as in LLVM's
    AMDGPUUsage. Its arguments are the address of the results, u64, and the seed, u32.
    """

    words: tuple[int, ...]
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int

    @property
    def descriptor(self) -> Descriptor:
        """The kernel's descriptor."""
        return Descriptor(0, 0, PROOF_ARGUMENTS.size, 0, self.rsrc3, self.rsrc1, self.rsrc2,
                          self.properties, 0)  # fmt: skip


@dataclass(frozen=True)
class CleanerKernel:
    """A kernel without arguments. One of its groups occupies a whole compute unit: all wave slots
    and vector registers, and `local_size` bytes of LDS.

    words: its machine code. rsrc1, rsrc2, rsrc3, properties: of its descriptor, as in LLVM's
    AMDGPUUsage.
    """

    words: tuple[int, ...]
    threads: int
    local_size: int
    rsrc1: int
    rsrc2: int
    rsrc3: int
    properties: int
