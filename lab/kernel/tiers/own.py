"""Tier "own": iommufd and no-IOMMU mode, which Debian's kernels leave out, on a kernel of our own.

Optional: the kernel takes about ten minutes to build, so `make test-kernel` does not build it.
"""

from __future__ import annotations

from lab.kernel import own_kernel
from lab.kernel.lab import Lab, Run, guest_tests
from lab.kernel.machine import LabUnavailable


def run(lab: Lab) -> list[Run]:
    """One boot of the edu device; skipped until the kernel was built."""
    kernel = own_kernel.path(lab.folder)
    if not kernel.is_file():
        raise LabUnavailable("the kernel is not built; `python -m lab.kernel.own_kernel` does it")
    devices = (
        *("-device", "pcie-root-port,id=port0,chassis=1,slot=1"),
        *("-device", "edu,id=edu0,bus=port0"),
    )
    own = lab.with_kernel(kernel)
    tests = guest_tests("own_iommufd")
    with_iommu = own.boot("own", tests=tests, devices=devices, modules=(), limit_s=180)
    without = own.boot(
        "own-no-iommu",
        tests=guest_tests("own_no_iommu"),
        devices=devices,
        modules=(),
        kernel_command="intel_iommu=off",
        limit_s=180,
    )
    return [with_iommu, without]
