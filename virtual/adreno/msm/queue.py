"""Submit queues of msm: fences, faults, and the memory that a submission keeps in place.

Source: Linux drivers/gpu/drm/msm: msm_submitqueue.c, msm_gpu.c (recover_worker).
"""

from __future__ import annotations

from typing import Protocol

from ugpu.virtual.adreno.kgsl.context import Context, Owner, Submission


class File(Owner, Protocol):
    """The file of a queue. named: handles that the running submission lists. faults: of the address
    space."""

    named: frozenset[int]
    faults: int


class MsmQueue(Context):
    """One submit queue. number: within the file. faults: hangs of its submissions; a hang skips one
    submission, and the others continue. last: the last fence that was allocated."""

    def __init__(self, number: int, machine_id: int, node: File) -> None:
        super().__init__(machine_id, node, 0)
        self.number = number
        self.file = node
        self.faults = 0
        self.last = 0
        self.fences: dict[int, int] = {}  # fence: the machine's timestamp, until it has retired

    def retire(self, timestamp: int) -> None:
        """See Context."""
        super().retire(timestamp)
        self.fences = {fence: at for fence, at in self.fences.items() if not self.is_retired(at)}

    def begin(self, submission: Submission) -> None:
        """See Context."""
        self.file.named = submission.named

    def blame(self) -> None:
        """See Context."""
        self.faults += 1
        self.file.faults += 1

    @property
    def halts_at_page_faults(self) -> bool:
        """Return False: page faults of shaders are logged, and the GPU continues
        (a6xx_fault_handler)."""
        return False

    @property
    def tolerates_faults(self) -> bool:
        """See Context."""
        return True

    def is_pending(self, fence: int) -> bool:
        """Return whether the submission of a fence has not ended."""
        return fence in self.fences
