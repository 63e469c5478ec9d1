"""The compiler's target for a GPU."""

from __future__ import annotations

from ugpu.hcq.state.target import TargetSpec, ptx_target


def target_of(capability: tuple[int, int], sm_count: int) -> TargetSpec:
    """Return the target of a GPU with a compute capability and a number of multiprocessors."""
    major, minor = capability
    own = "a" if (major, minor) == (9, 0) else ""  # features of Hopper alone: wgmma
    return ptx_target(f"sm_{major}{minor}{own}", sm_count)
