"""Seats: where the work of each holder of a card runs.

Each holder has a VMID, one compute queue and one queue of each copy engine. The kernel's driver
leaves VMIDs 8 to 15 to compute (Linux 6.12 amdgpu_device.h, AMDGPU_NUM_VMID and first_vmid_kfd of
gmc_v11_0.c): there are eight seats, and as many queues on each SDMA engine (sdma_v6_0.c).
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.am.chips.facts import ChipFacts

QUEUE_VMID = 8  # of the first holder
SEATS = 8


@dataclass(frozen=True)
class Seat:
    """The seat of one holder. index: of its queues, 0 for the holder that booted the card. vmid:
    its translation context. pasid: also named by interrupts, a different one for each tenant; 0 for
    the first holder."""

    index: int = 0
    vmid: int = QUEUE_VMID
    pasid: int = 0

    @staticmethod
    def of_tenant(index: int, pasid: int) -> Seat:
        """The seat of a tenant, 1 to SEATS - 1."""
        return Seat(index, QUEUE_VMID + index, pasid)

    def compute_slot(self, facts: ChipFacts) -> tuple[int, int]:
        """Pipe and queue of its compute queue: holders are spread over the pipes."""
        pipes = facts.generation.compute_pipes
        return self.index % pipes, self.index // pipes

    def compute_doorbell(self, facts: ChipFacts) -> int:
        """Dword index of its compute queue's doorbell."""
        return 2 * (facts.generation.doorbells.compute_ring0 + self.index)

    def copy_doorbell(self, facts: ChipFacts, engine: int) -> int:
        """Dword index of the doorbell of its queue on a copy engine."""
        doorbells = facts.generation.doorbells
        return 2 * (doorbells.copy_engine0 + engine * doorbells.copy_stride + self.index)
