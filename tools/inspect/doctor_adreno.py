"""`ugpu doctor` on the kernel drivers of Adreno GPUs: obstacles to opening `kgsl:<n>` and
`msm:<n>`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ugpu.qcom.device.attach import listed_msm
from ugpu.tools.base.finding import Finding

_CHECK = "Adreno"


def findings(root: Path = Path("/")) -> Iterator[Finding]:
    """Yield findings on each node, and on a Qualcomm machine without nodes; none on other
    machines."""
    dev = root / "dev"
    nodes = [(f"kgsl:{path.name.removeprefix('kgsl-3d')}", path) for path in _kgsl(dev)]
    nodes += [(f"msm:{index}", path) for index, path in listed_msm(dev, root / "sys/class/drm")]
    for name, path in nodes:
        if os.access(path, os.R_OK | os.W_OK):
            yield Finding(_CHECK, "ok", f"{name} is used through {path}")
        else:
            yield Finding(
                _CHECK,
                "missing",
                f"no permission to open {path} ({name})",
                f"sudo chmod a+rw {path}   # or join the group that owns it",
            )
    if not nodes and _is_qualcomm(root):
        yield Finding(
            _CHECK,
            "missing",
            "this is a Qualcomm machine, and neither KGSL (/dev/kgsl-3d0) nor msm "
            "(/dev/dri/renderD*) has a node",
            "sudo modprobe msm   # sudo dmesg | grep -i adreno shows what is missing",
        )


def _kgsl(dev: Path) -> list[Path]:
    return sorted(path for path in dev.glob("kgsl-3d*") if path.name[7:].isdecimal())


def _is_qualcomm(root: Path) -> bool:
    try:
        return b"qcom," in (root / "proc/device-tree/compatible").read_bytes()
    except OSError:
        return False
