"""Tier "amdgpu_navi48": the guest kernel's own driver, unmodified, probes the virtual Navi48; see
tier_amdgpu.py."""

from __future__ import annotations

from lab.kernel.lab import Lab, Run
from lab.kernel.tier_amdgpu import boots

REACHED = (
    "initializing kernel modesetting (IP DISCOVERY 0x1002:0x7550",
    "Fetched VBIOS from ROM",
    "RAM width 256bits GDDR6",
    "PCIE GART of 512M enabled",
    "SMU is initialized successfully!",
    "amdgpu: added device 1002:7550",
    "ring gfx_0.0.0 uses VM inv eng",
    "ring gfx_1.1.1 ib test pass",
    "ring compute_1.2.2 ib test pass",
    "ring sdma_1.3.3 ib test pass",
    "[drm] Initialized amdgpu 3.",
)


def run(lab: Lab) -> list[Run]:
    """One boot."""
    return boots(lab, "amdgpu_navi48", "navi48", REACHED)
