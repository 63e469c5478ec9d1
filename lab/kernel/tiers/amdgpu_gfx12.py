"""Tier "amdgpu_gfx12": the guest kernel's own driver, unmodified, probes the virtual Navi48 and the
virtual Navi44; see amdgpu.py."""

from __future__ import annotations

from lab.kernel.lab import Lab, Run
from lab.kernel.tiers.amdgpu import boots

_CARDS = {"navi48": ("7550", 256), "navi44": ("7590", 128)}  # PCI id, bits of the memory's bus


def run(lab: Lab) -> list[Run]:
    """One boot for each card."""
    runs: list[Run] = []
    for name, (device, bits) in _CARDS.items():
        reached = (
            f"initializing kernel modesetting (IP DISCOVERY 0x1002:0x{device}",
            "Fetched VBIOS from ROM",
            f"RAM width {bits}bits GDDR6",
            "PCIE GART of 512M enabled",
            "SMU is initialized successfully!",
            f"amdgpu: added device 1002:{device}",
            "ring gfx_0.0.0 uses VM inv eng",
            "ring gfx_1.1.1 ib test pass",
            "ring compute_1.2.2 ib test pass",
            "ring sdma_1.3.3 ib test pass",
            "[drm] Initialized amdgpu 3.",
        )
        runs += boots(lab, f"amdgpu_{name}", name, reached)
    return runs
