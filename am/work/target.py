"""The compiler's target for a chip."""

from __future__ import annotations

from ugpu.am.chips.facts import ChipFacts
from ugpu.am.units.gfx import PRIVATE_BASE, SHARED_BASE
from ugpu.hcq.state.target import TargetSpec, matrix_family


def target_of(facts: ChipFacts, compute_units: int) -> TargetSpec:
    """Return the target of a chip. compute_units: those that its board has."""
    shared = facts.generation
    return TargetSpec(
        name=facts.isa,
        abi="amdhsa",
        triple="amdgcn-amd-amdhsa",
        cpu=facts.isa,
        wave_size=shared.wave_size,
        max_threads_per_group=shared.max_threads_per_group,
        local_memory=shared.local_memory,
        dynamic_local_memory=shared.local_memory,
        compute_units=compute_units,
        vector_bytes=16,
        matrix=matrix_family(facts.isa),
        extra={"shared_base": SHARED_BASE << 48, "private_base": PRIVATE_BASE << 48},
    )
