"""The transports under a real kernel, in the laboratory's guest, each beside its floor there.

Optional: it runs where the laboratory's programs are unpacked already (`make test-kernel` does it),
and says why not elsewhere. VFIO's groups and sysfs on Debian's kernel; iommufd on our own, where
that was built. Everything is emulated, so that ratios count, not times.
"""

from __future__ import annotations

from lab.kernel import own_kernel, packages
from lab.kernel.lab import CACHE, Lab, Run, guest_tests
from lab.kernel.machine import LabUnavailable

FLOOR = " floor"
DEVICES = (
    *("-device", "pcie-root-port,id=port0,chassis=1,slot=1"),
    *("-device", "edu,id=edu0,bus=port0"),
)
LIMIT_S = 180


def measure() -> list[dict[str, object]]:
    """One boot for each kernel there is; a row that says why where there is none."""
    if not packages.is_ready(CACHE):
        return [_skipped("the laboratory is not here; `make test-kernel` fetches it")]
    try:
        with Lab.prepare() as lab:
            results = rows(
                lab.boot("rates", tests=guest_tests("rates"), devices=DEVICES, limit_s=LIMIT_S)
            )
            kernel = own_kernel.path(lab.folder)
            if not kernel.is_file():
                return [*results, _skipped("iommufd: the own kernel is not built")]
            own = lab.with_kernel(kernel).boot(
                "rates-own",
                tests=guest_tests("rates"),
                devices=DEVICES,
                modules=(),
                limit_s=LIMIT_S,
            )
            return [*results, *(one for one in rows(own) if "iommufd" in str(one["name"]))]
    except LabUnavailable as reason:
        return [_skipped(str(reason))]


def rows(run: Run) -> list[dict[str, object]]:
    """What a boot measured, each with its floor; a failed boot stops the benchmark."""
    if run.lack:
        return [_skipped(run.lack)]
    if not run.passed:
        failed = [case.name for case in run.cases if case.outcome == "failed"]
        raise SystemExit(f"guest {run.name}: {run.trouble} {failed}; see {run.console}")
    figures = {name: float(value) for case in run.cases for name, value in case.figures.items()}
    return [
        {"name": f"guest, {name}", "value": value * 1e6, "unit": "us", "peer": "floor",
         "peer_value": figures[name + FLOOR] * 1e6, "ratio": value / figures[name + FLOOR]}
        for name, value in figures.items() if not name.endswith(FLOOR)
    ]  # fmt: skip


def _skipped(reason: str) -> dict[str, object]:
    return {"name": "guest: transports under a real kernel", "skipped": reason}
