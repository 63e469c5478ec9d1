"""What the laboratory needs of this machine, asked before anything is tested.

Each lack is a LabUnavailable with its reason: the tiers are then skipped, and nothing was tested.
What fails after these questions were answered is a failure, not a lack.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


class LabUnavailable(Exception):
    """The laboratory cannot be had on this machine; the text says why. The tiers are skipped."""


GIB = 1 << 30
# The guest's 1 GiB, the model's process, QEMU's own, and what a test touches of video memory.
LEAST_MEMORY = 3 * GIB
# Packages, their lists and what is unpacked of them; then run folders with an initrd each.
ROOM_COLD, ROOM_WARM = 3 * GIB // 2, GIB // 4
TOOLS = ("timeout",)
PACKAGE_TOOLS = ("apt-get", "apt-cache", "dpkg-deb")
HIDDEN = (Path("/run"), Path("/dev"), Path("/proc"), Path("/sys"))  # the guest has its own there


def check(folder: Path, checkout: Path) -> None:
    """Ask all that does not depend on what is unpacked below `folder` already."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise LabUnavailable(
            f"the laboratory is built for Linux on x86_64, not {sys.platform} on "
            f"{os.uname().machine}"
        )
    need_tools(TOOLS)
    for path in (checkout, folder, Path(sys.executable).resolve()):
        if any(path.is_relative_to(hidden) for hidden in HIDDEN):
            raise LabUnavailable(f"{path} lies where the guest has a file system of its own")
    try:
        os.close(os.memfd_create("ugpu-lab-probe"))
    except OSError as error:
        raise LabUnavailable(f"no shared memory (memfd): {error.strerror}") from None
    available = available_memory(Path("/"))
    if available < LEAST_MEMORY:
        raise LabUnavailable(
            f"{available / GIB:.1f} GiB of memory are available, {LEAST_MEMORY // GIB} needed"
        )


def guests_at_once() -> int:
    """How many guests this machine can run side by side: one a processor, two at most."""
    memory = available_memory(Path("/")) // LEAST_MEMORY
    return max(1, min(2, len(os.sched_getaffinity(0)), memory))


def need_tools(names: Sequence[str]) -> None:
    missing = [name for name in names if not shutil.which(name)]
    if missing:
        raise LabUnavailable(f"{', '.join(missing)} not found on this machine")


def need_room(folder: Path, size: int) -> None:
    """`folder`, which is made, is on a disk with `size` bytes free, and may be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise LabUnavailable(f"{folder} cannot be used: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise LabUnavailable(f"{folder} may not be written")
    if free < size:
        raise LabUnavailable(
            f"{free / GIB:.1f} GiB are free for {folder}, {size / GIB:.1f} GiB needed"
        )


def available_memory(root: Path) -> int:
    """Bytes that new processes can have: what the kernel calls available, within the limit of a
    container (cgroup v2 or v1) where there is one. `root`: where proc and sys are."""
    found = [
        int(line.split()[1]) << 10
        for line in (root / "proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    ]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = root / "sys/fs/cgroup" / name
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            found.append(int(text))
    return min(found, default=0)
