"""Tier "amdgpu_newest": the driver of Debian's newest kernel (backports), unmodified, probes the
virtual Navi48 and the virtual Navi44; see tier_amdgpu.py."""

from __future__ import annotations

from lab.kernel.lab import Lab, Run
from lab.kernel.tier_amdgpu_gfx12 import cards

RINGS = ("gfx_0.0.0", "comp_1.0.0", "comp_1.1.0", "comp_1.0.1", "comp_1.1.1", "sdma0", "sdma1")
# It says so at the debug level of DRM, which the tier turns on.
TESTED = tuple(f"{what} test on {ring} succeeded" for what in ("ring", "ib") for ring in RINGS)


def run(lab: Lab) -> list[Run]:
    """One boot for each card."""
    newest, release = lab.with_newest_kernel()
    print(f"kernel of the backports: Linux {release}", flush=True)
    return cards(newest, "amdgpu_newest", TESTED)
