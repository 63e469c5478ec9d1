"""The kernel drivers' nodes on this machine, for hcq.find.registry."""

from __future__ import annotations

from pathlib import Path

from ugpu.hcq.transport.node import NodeAttachment
from ugpu.hcq.transport.system_node import SystemNode
from ugpu.qcom.kernel_driver.msm import FIRST_MINOR


def attach_kgsl(index: int) -> NodeAttachment:
    """Return the attachment of `/dev/kgsl-3d<index>`; opens nothing yet."""
    return NodeAttachment(SystemNode("kgsl"), "kgsl", index)


def attach_msm(index: int) -> NodeAttachment:
    """Return the attachment of `/dev/dri/renderD<128 + index>`; opens nothing yet."""
    return NodeAttachment(SystemNode("msm"), "msm", index)


def listed_msm(nodes: Path, sysfs: Path = Path("/sys/class/drm")) -> list[tuple[int, Path]]:
    """Return index and path of the render nodes below `nodes` (/dev) that belong to msm."""
    nodes_of_msm = []
    for path in (nodes / "dri").glob("renderD*"):
        number = path.name.removeprefix("renderD")
        driver = sysfs / path.name / "device" / "driver"
        if number.isdecimal() and driver.exists() and driver.resolve().name.startswith("msm"):
            nodes_of_msm.append((int(number) - FIRST_MINOR, path))
    return sorted(nodes_of_msm)
