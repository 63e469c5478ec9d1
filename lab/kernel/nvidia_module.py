"""Build NVIDIA's open kernel modules: `python -m lab.kernel.nvidia_module [CACHE]`.

Debian's source (nvidia-open-kernel-source of the backports) and the headers of the laboratory's
kernel, compiled by the suite's own compiler in an unpacked root, which needs root or user
namespaces (unshare). About five minutes on two cores, 1 GiB of disk while it builds; two files
stay.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lab.kernel import packages
from lab.kernel.lab import CACHE
from lab.kernel.machine import LabUnavailable

SOURCE = "nvidia-open-kernel-source"
COMPILER = (
    "make", "gcc-14", "bash", "dash", "coreutils", "sed", "grep", "gawk", "findutils", "perl-base",
    "diffutils",
)  # fmt: skip
NAMES = ("nvidia", "nvidia-uvm")
LIMIT_S = 3600
# Debian's 6.12.117 has the parameter of Linux 6.19 (exclude_bars), which the module does not know.
_CALL = "pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size"
_BUILD = """set -e
export PATH=/usr/sbin:/usr/bin HOME=/
cd /modules/nvidia-open-kernel
make -j"$1" modules KERNEL_UNAME="$2" NV_KERNEL_MODULES="nvidia nvidia-uvm" \\
    NV_EXCLUDE_KERNEL_MODULES="nvidia-drm nvidia-modeset nvidia-peermem"
strip -g nvidia.ko nvidia-uvm.ko
"""


def path(folder: Path, release: str, name: str = NAMES[0]) -> Path:
    """Where a module for a kernel lies in a laboratory's folder."""
    return folder / "nvidia-open" / release / f"{name}.ko"


def build(folder: Path) -> Path:
    """Download and build; LabUnavailable says what this machine lacks. Ctrl-C leaves no half."""
    programs = packages.ensure(folder)
    missing = [tool for tool in ("unshare", "tar", "xz") if not shutil.which(tool)]
    if missing:
        raise LabUnavailable(f"needed to build the modules: {', '.join(missing)}")
    work = folder / "nvidia-open.partial"
    shutil.rmtree(work, ignore_errors=True)
    root = work / "root"
    for name in ("bin", "sbin", "lib", "lib64"):  # one tree, as in Debian's own
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    try:
        release = programs.kernel_release()
        wanted = (*COMPILER, f"linux-headers-{release}")
        packages.unpack_whole(wanted, root, folder)
        packages.unpack((SOURCE,), work, folder, packages.SUITES[-1:], ("main", "contrib"))
        archive = work / "usr/src/nvidia-open-kernel.tar.xz"
        _run(["tar", "xJf", str(archive), "-C", str(root)])
        _patch(root / "modules/nvidia-open-kernel/nvidia/nv-pci.c")
        _compile(root, release)
        made = root / "modules/nvidia-open-kernel"
        target = path(folder, release)
        target.parent.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            shutil.move(made / f"{name}.ko", path(folder, release, name))
        return target
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _patch(source: Path) -> None:
    text = source.read_text()
    if text.count(f"{_CALL})") != 1:
        raise LabUnavailable(f"{source.name} does not call pci_resize_resource as expected")
    source.write_text(text.replace(f"{_CALL})", f"{_CALL}, 0)"))


def _compile(root: Path, release: str) -> None:
    """Run make inside the root, in a mount namespace of its own."""
    for folder in ("dev", "proc", "tmp"):
        (root / folder).mkdir(exist_ok=True)
    for name, target in (("gcc", "gcc-14"), ("sh", "dash"), ("awk", "gawk")):
        link = root / "usr/bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    (root / "build.sh").write_text(_BUILD)
    inside = 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    jobs = str(os.cpu_count() or 1)
    _run([
        "unshare", *own, "--mount", "--pid", "--fork", "bash", "-c", inside, str(root),
        "/usr/bin/bash", "/build.sh", jobs, release,
    ])  # fmt: skip


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise LabUnavailable(f"{command[0]} failed: {' / '.join(last)}")


def main() -> int:
    folder = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else CACHE
    try:
        sys.stdout.write(f"{build(folder)}\n")
    except LabUnavailable as reason:
        sys.stderr.write(f"NVIDIA's modules: {reason}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
