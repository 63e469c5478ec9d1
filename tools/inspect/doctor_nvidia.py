"""`ugpu doctor` on NVIDIA's stock kernel driver: obstacles to opening `nvrm:<n>`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ugpu.nv import abi, chips
from ugpu.nv.gsp.boot.files import PACKAGE, file_names
from ugpu.tools.base.finding import Finding
from ugpu.tools.inspect.nvidia import Gpu, Node, NvidiaMachine, StockDriver

_MAKE_NODES = "sudo nvidia-modprobe -c 0 -u   # or: sudo nvidia-smi"
_CHECK = "nvidia driver"


def missing_images(folders: Sequence[Path], vendor: int, device: int) -> list[str]:
    """Return the firmware files that a GPU without a kernel driver lacks, of the release that lacks
    the fewest."""
    facts = chips.find(vendor, device)
    boot = None if facts is None else chips.boot_facts(facts.name)
    if boot is None:
        return []

    def present(name: str) -> bool:
        return any(
            (folder / (name + suffix)).is_file()
            for top in folders
            for folder in (top / PACKAGE.folder, top)
            for suffix in ("", ".xz", ".zst")
        )

    lacking = (
        [names[0] for names in file_names(boot, release) if not any(map(present, names))]
        for release in boot.releases
    )
    return min(lacking, key=len)


def findings(machine: NvidiaMachine, *, expected: bool) -> Iterator[Finding]:
    """Yield findings on the driver; none without a driver and without a GPU that needs it."""
    driver = machine.driver()
    if driver is None:
        if expected:
            yield Finding(
                _CHECK,
                "missing",
                "there is an NVIDIA GPU, but no NVIDIA kernel module is loaded",
                "sudo modprobe nvidia nvidia-uvm   # or install it: sudo apt install nvidia-driver",
            )
        return
    yield from _versions(driver)
    yield _access(driver.control, _CHECK)
    yield _access(driver.uvm, _CHECK)
    if not driver.uvm_tools.usable:
        yield Finding(
            _CHECK,
            "note",
            "/dev/nvidia-uvm-tools cannot be opened: errors of copies will not state whether "
            "the access was a read or a write",
            _MAKE_NODES if not driver.uvm_tools.exists else "ls -l /dev/nvidia-uvm-tools",
        )
    if not driver.persistence:
        yield Finding(
            _CHECK,
            "note",
            "no persistence daemon: the first open after the last close initialises the GPU again, "
            "which takes seconds",
            "sudo systemctl enable --now nvidia-persistenced",
        )
    if not driver.gpus:
        yield Finding(
            _CHECK,
            "missing",
            "the driver is not bound to any GPU",
            "sudo dmesg | grep -i nvrm   # shows the reason",
        )
    for gpu in driver.gpus:
        yield from _gpu(gpu)


def usable(machine: NvidiaMachine) -> bool:
    """Return whether at least one GPU can be opened through the driver."""
    driver = machine.driver()
    if driver is None or not driver.control.usable or not driver.uvm.usable:
        return False
    return any(gpu.node.usable and not gpu.excluded for gpu in driver.gpus)


def _versions(driver: StockDriver) -> Iterator[Finding]:
    if not driver.version:
        yield Finding(_CHECK, "missing", "it does not report its version", "sudo modprobe nvidia")
        return
    what = f"version {driver.version}, {driver.flavour} kernel module"
    if abi.select(driver.version).exact:
        yield Finding(_CHECK, "ok", f"{what}; a known branch")
    else:
        branches = ", ".join(abi.branches())
        yield Finding(
            _CHECK,
            "note",
            f"{what}; unknown release, treated as branch {driver.branch}",
            f"install a driver of branch {branches}, or report problems",
        )
    if driver.module and driver.module != driver.version:
        yield Finding(
            _CHECK,
            "missing",
            f"procfs reports version {driver.version}, sysfs {driver.module}",
            "sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; sudo modprobe nvidia-uvm"
            "   # or reboot",
        )


def _access(node: Node, check: str) -> Finding:
    if not node.exists:
        return Finding(check, "missing", f"/dev/{node.path.name} does not exist", _MAKE_NODES)
    if not node.usable:
        return Finding(
            check,
            "missing",
            f"this user has no permission to open /dev/{node.path.name}",
            f"ls -l /dev/{node.path.name}   # join the group that owns it: "
            "sudo usermod -aG GROUP $USER; then log in again",
        )
    return Finding(check, "ok", f"this user can open /dev/{node.path.name}")


def _gpu(gpu: Gpu) -> Iterator[Finding]:
    if gpu.excluded:
        yield Finding(
            gpu.name,
            "missing",
            f"{gpu.model} at {gpu.address} is excluded by the driver's configuration",
            "grep -r NVreg_ExcludedGpus /etc/modprobe.d   # remove the GPU from it, then "
            "reload nvidia",
        )
        return
    yield Finding(
        gpu.name, "ok", f"{gpu.model} at {gpu.address}, firmware {gpu.firmware or 'none'}"
    )
    yield _access(gpu.node, gpu.name)
    if gpu.mig:
        mine = sum(instance.usable for instance in gpu.mig)
        yield Finding(
            gpu.name,
            "ok" if mine else "missing",
            f"MIG is on: {len(gpu.mig)} instances, {mine} usable",
            ""
            if mine
            else ("ls -l /dev/nvidia-caps   # request access to the capability of an instance"),
        )
