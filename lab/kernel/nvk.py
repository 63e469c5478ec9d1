"""Fetch NVK, Mesa's Vulkan driver above nouveau: `python -m lab.kernel.nvk [CACHE]`.

The backports' Mesa with its libraries, as a tree of its own, and a Vulkan program of ours, compiled
by this machine's C compiler. Tier nouveau runs it with --long. About 80 MB to download.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from lab.kernel import packages
from lab.kernel.lab import CACHE, GUEST, ROOT
from lab.kernel.machine import LabUnavailable

PACKAGES = ("mesa-vulkan-drivers", "libvulkan-dev")
PROGRAM = "usr/bin/nvk_work"
SOURCE = ROOT / GUEST / "nvidia/nvk_work.c"
DRIVER = "/usr/share/vulkan/icd.d/nouveau_icd.json"
# Folders of the system that the tree lacks, and what is mounted there.
MOUNTS = {"dev": "devtmpfs", "proc": "proc", "sys": "sysfs", "tmp": "tmpfs"}
# What the program says, in order.
STEPS = (
    "device", "logical device", "memory of type", "commands", "submission", "vkCmdCopyBuffer",
    "vkCmdFillBuffer", "vkCmdUpdateBuffer", "end",
)  # fmt: skip


def tree(folder: Path) -> Path | None:
    """Return the tree below a laboratory's folder; None until it was fetched."""
    made = folder / "nvk"
    return made if (made / PROGRAM).is_file() else None


def command(made: Path, busybox: str, output: str) -> str:
    """Return the shell command that runs the program in a guest with the driver's module."""
    mounts = "".join(
        f"mkdir -p {made}/{name}; {busybox} mount -t {kind} {name} {made}/{name}; "
        for name, kind in MOUNTS.items()
    )
    settings = f"HOME=/tmp VK_DRIVER_FILES={DRIVER} MESA_SHADER_CACHE_DISABLE=1"
    return f"{mounts}{settings} {busybox} chroot {made} /{PROGRAM} > {output} 2>&1; "


def judge(said: str) -> dict[str, bool]:
    """Return what the program said, as named results."""
    lines = said.splitlines()
    results = {
        f"NVK: {step}": any(line.startswith(f"right {step}") for line in lines) for step in STEPS
    }
    return results | {"NVK: nothing wrong": "wrong" not in said}


def fetch(folder: Path) -> Path:
    """Download, unpack and compile; LabUnavailable says what this machine lacks. Ctrl-C leaves no
    half."""
    compiler = shutil.which("gcc")
    if compiler is None:
        raise LabUnavailable("a C compiler is needed: gcc")
    target = folder / "nvk"
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        packages.unpack_whole(PACKAGES, partial, folder, packages.SUITES[-1])
        for name in ("lib", "lib64"):  # the C library's loader is named below them
            (partial / name).symlink_to(f"usr/{name}")
        subprocess.run(
            [compiler, "-O1", f"-I{partial}/usr/include", "-o", str(partial / PROGRAM),
             str(SOURCE), "-ldl"],
            check=True,
        )  # fmt: skip
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def main() -> int:
    folder = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else CACHE
    try:
        sys.stdout.write(f"{fetch(folder)}\n")
    except LabUnavailable as reason:
        sys.stderr.write(f"NVK: {reason}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
