"""Sizes of a core's caches, as Linux reports them, or as a setting specifies.

Facts: Linux Documentation/ABI/testing/sysfs-devices-system-cpu, /sys/devices/system/cpu/cpu*/cache.
"""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from ugpu.hcq.state.config import config
from ugpu.hcq.state.target import Caches

SYSFS = Path("/sys/devices/system/cpu")
SIBLINGS = 2  # processors of a core: a cache shared by more belongs to several cores
LEAST, MOST = 4 << 10, 64 << 20  # limits of plausible sizes, bytes
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def caches() -> Caches:
    """Return the caches of the first processor this process may use; the setting UGPU_HOST_CACHES
    overrides them."""
    chosen = config().host_caches
    return Caches(*chosen) if chosen is not None else found(SYSFS, min(os.sched_getaffinity(0)))


@functools.cache  # for each open: the files do not change
def found(root: Path, processor: int) -> Caches:
    """Return the cache sizes that a tree like sysfs reports for a processor. The default replaces a
    size that is missing or invalid. If several cores share the second level, only one core's part
    is counted."""
    default = Caches()
    sizes = {1: default.first, 2: default.second}
    for folder in sorted((root / f"cpu{processor}" / "cache").glob("index*")):
        level, kind = _text(folder / "level"), _text(folder / "type")
        size = _bytes(_text(folder / "size"))
        if level not in ("1", "2") or kind not in ("Data", "Unified"):
            continue
        sharing = _count(_text(folder / "shared_cpu_list"))
        if sharing > SIBLINGS:
            size = size * SIBLINGS // sharing
        if LEAST <= size <= MOST:
            sizes[int(level)] = size
    return Caches(sizes[1], sizes[2])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _bytes(text: str) -> int:
    """Return the bytes of a size such as "48K"; 0 if the text is not a size."""
    match = re.fullmatch(r"([0-9]{1,9})([KM]?)", text)
    return int(match[1]) * _UNITS[match[2]] if match else 0


def _count(text: str) -> int:
    """Return the number of processors in a list like "0-3,8"; 1 if the text is not such a list."""
    if not re.fullmatch(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*", text):
        return 1
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return max(1, count)
