"""Cleaner: overwrites what a holder's kernels left in the compute units, outside memory.

A new wave finds in its vector registers, and a new group in LDS, what earlier ones left there (AMD,
"RDNA3" Instruction Set Architecture, 2023: neither is initialised; docs.kernel.org, "AMDGPU Process
Isolation"). Scratch is the driver's own memory, which the queue clears.

The driver does not depend on a compiler: the kernel of a generation is machine code in its folder.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ugpu.am.packets.dispatch import LaunchDetails, encode_setup
from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.errors import OutOfMemory
from ugpu.hcq.objects.code_object import Descriptor, KernelImage
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.command import Launch, Signal
from ugpu.hcq.work.command_buffer import Symbol, values_of
from ugpu.hcq.work.program import Kernel, Program

if TYPE_CHECKING:
    from ugpu.am.work.holder import Holder
    from ugpu.hcq.work.timeline import Timeline

NAME = "ugpu.cleaner"
# Groups for each compute unit. UNSURE: whether the hardware spreads groups evenly while all units
# are idle, so that one each would do; counters of groups per unit on a board would show it.
_ROUNDS = 2


class Cleaner:
    """The cleaner of one holder; its code is loaded at the first use and stays."""

    def __init__(self, driver: Holder) -> None:
        self._driver = driver
        self._kernel: Kernel | None = None

    def submit(self) -> tuple[Timeline, int]:
        """Clear scratch, LDS and registers after all work of the compute queue; does not wait.
        Returns the timeline and the value it has afterwards. The lock is held.

        OutOfMemory if the queue has no room. Units that other holders' waves occupy are cleaned
        when these waves end, if groups are left by then.
        """
        driver = self._driver
        driver.programs.clear_scratch()
        driver.core.complete()
        queue = driver.queues.compute[0]
        kernel = self._kernel = self._kernel or self._load()
        timeline, value = queue.timeline, queue.timeline.last + 1
        threads = kernel.details.image.max_threads
        launch = Launch(kernel, (_ROUNDS * driver.target.compute_units, 1, 1), (threads, 1, 1), b"")
        buffer = queue.encode([launch, Signal(timeline, Symbol.constant(value))])
        if not queue.room(len(buffer.words)):
            raise OutOfMemory(
                f"{queue.name} has no room for the kernel that clears registers; wait for its work"
            )
        queue.submit(buffer, values_of(buffer, value))
        return timeline, value

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
        setup = encode_setup(descriptor, address, None, driver.queues.compute[0].registers)
        return Kernel(
            NAME, Program(driver.core, None), address, 0, None, local_size=found.local_size,
            details=LaunchDetails(image, address, found.threads, setup),
        )  # fmt: skip
