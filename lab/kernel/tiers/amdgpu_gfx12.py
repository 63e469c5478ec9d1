"""Tier "amdgpu_gfx12": the guest kernel's own driver, unmodified, probes the virtual Navi48 and the
virtual Navi44; see amdgpu.py. With --long, that of the backports' kernel too, once
lab.kernel.newer_kernel has fetched it."""

from __future__ import annotations

from collections.abc import Sequence

from lab.kernel import newer_kernel
from lab.kernel.lab import Lab, Run
from lab.kernel.tiers.amdgpu import boots

_CARDS = {"navi48": ("7550", 256), "navi44": ("7590", 128)}  # PCI id, bits of the memory's bus
# What Linux 6.12 says of the scheduler's self test, by queues of its own.
_SELF_TEST = (
    "ring gfx_1.1.1 ib test pass",
    "ring compute_1.2.2 ib test pass",
    "ring sdma_1.3.3 ib test pass",
)


_RINGS = ("gfx_0.0.0", "comp_1.0.0", "comp_1.1.0", "comp_1.0.1", "comp_1.1.1", "sdma0", "sdma1")
# What Linux 7.3 says at the debug level of DRM, which the tier turns on.
_TESTS = tuple(f"{what} test on {ring} succeeded" for what in ("ring", "ib") for ring in _RINGS)


def run(lab: Lab) -> list[Run]:
    """One boot for each card; with `long`, one of the newer kernel too."""
    newer = newer_kernel.laboratory(lab) if lab.long else None
    runs = cards(lab, "amdgpu", _SELF_TEST)
    return runs if newer is None else runs + cards(newer, "amdgpu_newer", _TESTS)


def cards(lab: Lab, tier: str, tested: Sequence[str]) -> list[Run]:
    """One boot for each card with the kernel of `lab`. tier: what the runs' names begin with.
    tested: what the driver says of the tests of rings."""
    runs: list[Run] = []
    for name, (device, bits) in _CARDS.items():
        reached = (
            f"initializing kernel modesetting (IP DISCOVERY 0x1002:0x{device}",
            "Fetched VBIOS from ROM",
            f"RAM width {bits}bits GDDR6",
            "PCIE GART of 512M enabled",
            "SMU is initialized successfully!",
            f"added device 1002:{device}",
            "ring gfx_0.0.0 uses VM inv eng",
            *tested,
            "[drm] Initialized amdgpu 3.",
        )
        runs += boots(lab, f"{tier}_{name}", name, reached)
    return runs
