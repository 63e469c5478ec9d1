"""Fetch the kernel of the backports: `python -m lab.kernel.newer_kernel [CACHE]`.

It stays beside the release's; tier nouveau boots both with --long. About 110 MB to download.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from lab.kernel import initrd, packages
from lab.kernel.lab import CACHE, Lab, extract
from lab.kernel.machine import LabUnavailable

_IMAGE, _MODULES = "vmlinux", "usr/lib/modules"


def laboratory(lab: Lab) -> Lab | None:
    """Return the laboratory with this kernel; None until it was fetched."""
    folder = _folder(lab.folder)
    if not (folder / _IMAGE).is_file():
        return None
    return lab.with_kernel(folder / _IMAGE, initrd.Modules(folder / _MODULES))


def release(folder: Path) -> str:
    """Return the release of the fetched kernel."""
    return next((_folder(folder) / _MODULES).iterdir()).name


def fetch(folder: Path) -> Path:
    """Download and unpack; LabUnavailable says what this machine lacks. Ctrl-C leaves no half."""
    programs, target = packages.ensure(folder), _folder(folder)
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        packages.unpack_kernel(packages.SUITES[-1], partial, folder)
        image = next(partial.rglob("vmlinuz*"))  # in boot, or beside the modules
        (partial / _IMAGE).write_bytes(extract(image, programs))
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _folder(folder: Path) -> Path:
    return folder / "newer-kernel"


def main() -> int:
    folder = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else CACHE
    try:
        sys.stdout.write(f"{fetch(folder)}\n")
    except LabUnavailable as reason:
        sys.stderr.write(f"newer kernel: {reason}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
