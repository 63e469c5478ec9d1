"""Drivers above a stock kernel driver, which owns the GPU: their names, entries and nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class NodeDriver(NamedTuple):
    """A driver above a stock kernel driver. Entry points are texts: "module:function".

    Attributes:
        description: of the device, for people.
        entry: called with name, attachment (a NodeAttachment) and the driver's options.
        attach: makes the attachment of a real device from its index.
        node: the prefix before the index in the name of a device's node.
        listed: used if that name does not identify the device: called with the folder of nodes,
            returns (index, path) of each.
    """

    description: str
    entry: str
    attach: str
    node: str
    listed: str = ""


# Kinds of device names that go through a stock kernel driver's nodes: `nvrm:0`.
NODE_DRIVERS: dict[str, NodeDriver] = {
    "nvrm": NodeDriver(
        "NVIDIA GPU",
        "ugpu.nv.device.device:open_device",
        "ugpu.nv.device.attach:attach",
        "nvidia",
    ),
    "kgsl": NodeDriver(
        "Adreno GPU",
        "ugpu.qcom.device.device:open_device",
        "ugpu.qcom.device.attach:attach_kgsl",
        "kgsl-3d",
    ),
    "msm": NodeDriver(
        "Adreno GPU",
        "ugpu.qcom.device.device:open_device",
        "ugpu.qcom.device.attach:attach_msm",
        "dri/renderD",
        "ugpu.qcom.device.attach:listed_msm",
    ),
}


def nodes_of(
    driver: NodeDriver, folder: Path, load: Callable[[str], Callable[..., Any]]
) -> list[tuple[int, Path]]:
    """Return index and path of each node of a driver below `folder` (/dev). load: finds an entry
    point."""
    if driver.listed:
        if not any(folder.glob(f"{driver.node}*")):
            return []
        nodes: list[tuple[int, Path]] = load(driver.listed)(folder)
        return nodes
    names = [path.name for path in folder.glob(f"{driver.node}*")]
    numbers = [name.removeprefix(driver.node) for name in names]
    return [
        (number, folder / f"{driver.node}{number}")
        for number in sorted(int(text) for text in numbers if text.isdecimal())
    ]
