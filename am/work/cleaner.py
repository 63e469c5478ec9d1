"""Cleaner: overwrites what a holder's kernels left in the compute units, outside memory.

A new wave finds in its vector registers, and a new group in LDS, what earlier ones left there (AMD,
"RDNA3" Instruction Set Architecture, 2023: neither is initialised; docs.kernel.org, "AMDGPU Process
Isolation"). Scratch is the driver's own memory, which the queue clears.

The driver does not depend on a compiler: the kernel of a generation is machine code in its folder.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ugpu.am.packets.dispatch import LaunchDetails, encode_setup
from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.objects.code_object import Descriptor, KernelImage
from ugpu.hcq.rings import proof
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.command import Command, Launch
from ugpu.hcq.work.program import Kernel, Program

if TYPE_CHECKING:
    from ugpu.am.work.holder import Holder
    from ugpu.am.work.queue import ComputeQueue

NAME = "ugpu.cleaner"
# Groups for each compute unit. UNSURE: whether the hardware spreads groups evenly while all units
# are idle, so that one each would do; counters of groups per unit on a board would show it.
_ROUNDS = 2


class Cleaner(proof.Cleaner):
    """The cleaner of one holder. Units that waves of other holders occupy are cleaned when these
    waves end, if groups are left by then."""

    def __init__(self, driver: Holder) -> None:
        self._driver = driver
        self._kernel: Kernel | None = None

    @property
    def queue(self) -> ComputeQueue:
        """See proof.Cleaner."""
        return self._driver.queues.compute[0]

    def commands(self) -> Sequence[Command]:
        """Return what clears LDS and registers, after scratch."""
        driver = self._driver
        driver.programs.clear_scratch()
        kernel = self._kernel = self._kernel or self._load()
        threads = kernel.details.image.max_threads
        return [Launch(kernel, (_ROUNDS * driver.target.compute_units, 1, 1), (threads, 1, 1), b"")]

    def _load(self) -> Kernel:
        driver = self._driver
        found = driver.generation.cleaner(driver.facts.board.vector_registers)
        code = struct.pack(f"<{len(found.words)}I", *found.words)
        mapping: Mapping = driver.map(len(code), Placement.DEVICE, code=True)
        driver.programs.keep(mapping, code + bytes(mapping.size - len(code)))
        descriptor = Descriptor(found.local_size, 0, 0, 0, found.rsrc3, found.rsrc1, found.rsrc2,
                                found.properties, 0)  # fmt: skip
        image = KernelImage(NAME, 0, 0, descriptor, (), (), found.threads, {})
        address = int(mapping.address)
        setup = encode_setup(descriptor, address, None, self.queue.registers)
        return Kernel(
            NAME, Program(driver.core, None), address, 0, None, local_size=found.local_size,
            details=LaunchDetails(image, address, found.threads, setup),
        )  # fmt: skip
