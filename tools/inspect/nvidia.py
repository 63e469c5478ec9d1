"""NVIDIA's stock kernel driver on this machine: its version, GPUs, nodes, MIG instances.

The module reads procfs, sysfs and /dev below a root that tests replace. It opens no node and
changes nothing. Source of the formats: open-gpu-kernel-modules 580.142,
kernel-open/nvidia/nv-procfs.c, nv-caps.c.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ugpu.hcq.find.listing import DeviceEntry
from ugpu.nv import abi
from ugpu.nv.chips import proven

_VERSION = re.compile(r"^NVRM version:.*?(Open )?Kernel Module\b.*?\s(\d+\.\d[\d.]*)\s", re.M)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Node:
    """A device node: whether it exists, and whether this user may open it to read and write."""

    path: Path
    exists: bool
    usable: bool


@dataclass(frozen=True)
class MigInstance:
    """A GPU instance, or with `compute` a compute instance within it; usable by its capability."""

    gpu: int
    compute: int | None
    usable: bool


@dataclass(frozen=True)
class Gpu:
    """A GPU of the kernel driver. `minor` is the number in nvidia<minor> and in nvrm:<minor>."""

    minor: int
    address: str
    model: str
    uuid: str
    firmware: str
    excluded: bool
    power: str
    node: Node
    mig: tuple[MigInstance, ...]

    @property
    def name(self) -> str:
        """Return the name for hcq.open."""
        return f"nvrm:{self.minor}"


@dataclass(frozen=True)
class StockDriver:
    """The loaded driver. `version` is empty if procfs does not report it.

    `is_open` is None if that is not reported. `module` is sysfs's version, for comparison.
    """

    version: str
    is_open: bool | None
    module: str
    control: Node
    uvm: Node
    uvm_tools: Node
    persistence: bool
    gpus: tuple[Gpu, ...]

    @property
    def flavour(self) -> str:
        """Return the kind of the module: open, closed or unknown."""
        return {None: "unknown", True: "open", False: "closed"}[self.is_open]

    @property
    def branch(self) -> str:
        """Return the branch whose tables are used, with a remark if it is not the driver's own."""
        if not self.version:
            return "unknown"
        table = abi.select(self.version)
        return table.branch if table.exact else f"{table.branch} (nearest)"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _facts(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, mark, value in pairs if mark}


def _node(path: Path) -> Node:
    return Node(path, path.exists(), os.access(path, os.R_OK | os.W_OK))


def _number_of(name: str) -> int:
    match = _NUMBER.search(name)
    return int(match[0]) if match else -1


class NvidiaMachine:
    """Inspect one machine; `root` stands for "/"."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.proc = root / "proc/driver/nvidia"

    def driver(self) -> StockDriver | None:
        """Return the loaded driver; None without NVIDIA's kernel module."""
        text = _read(self.proc / "version")
        module = _read(self.root / "sys/module/nvidia/version").strip()
        if not text and not module:
            return None
        match = _VERSION.search(text + "\n")
        return StockDriver(
            match[2] if match else module,
            bool(match[1]) if match else None,
            module,
            _node(self.root / "dev/nvidiactl"),
            _node(self.root / "dev/nvidia-uvm"),
            _node(self.root / "dev/nvidia-uvm-tools"),
            (self.root / "run/nvidia-persistenced/socket").exists(),
            tuple(self._gpus()),
        )

    def _gpus(self) -> list[Gpu]:
        folder = self.proc / "gpus"
        gpus = []
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            facts = _facts(_read(entry / "information"))
            minor = facts.get("Device Minor", "")
            if not minor.isdecimal():
                continue  # being removed, or not a GPU's folder
            power = _facts(_read(entry / "power")).get("Runtime D3 status", "")
            gpus.append(
                Gpu(
                    int(minor),
                    entry.name,
                    facts.get("Model", ""),
                    facts.get("GPU UUID", ""),
                    facts.get("GPU Firmware", ""),
                    facts.get("GPU Excluded") == "Yes",
                    power,
                    _node(self.root / f"dev/nvidia{minor}"),
                    tuple(self._mig(int(minor))),
                )
            )
        return sorted(gpus, key=lambda gpu: gpu.minor)

    def _mig(self, minor: int) -> list[MigInstance]:
        folder = self.proc / f"capabilities/gpu{minor}/mig"
        instances = []
        gpus = folder.glob("gi*") if folder.is_dir() else ()
        for gpu in sorted(gpus, key=lambda path: _number_of(path.name)):
            number = _number_of(gpu.name)
            instances.append(MigInstance(number, None, self._capable(gpu / "access")))
            for compute in sorted(gpu.glob("ci*"), key=lambda path: _number_of(path.name)):
                usable = self._capable(compute / "access")
                instances.append(MigInstance(number, _number_of(compute.name), usable))
        return instances

    def _capable(self, access: Path) -> bool:
        """Return whether this user may use a capability: its node is readable."""
        minor = _facts(_read(access)).get("DeviceFileMinor", "")
        return os.access(self.root / f"dev/nvidia-caps/nvidia-cap{minor}", os.R_OK)


def entries(machine: NvidiaMachine | None = None) -> list[DeviceEntry]:
    """Return the GPUs of the stock driver as `ugpu ls` lists devices; none is opened."""
    driver = (machine or NvidiaMachine()).driver()
    if driver is None:
        return []
    return [
        DeviceEntry(
            gpu.name,
            gpu.model or "NVIDIA GPU",
            {
                "driver": f"nvidia {driver.version}",
                "branch": driver.branch,
                "module": driver.flavour,
                "pci": gpu.address,
                "usable": gpu.node.usable and driver.control.usable,
                "proven_on_silicon": ", ".join(proven()) or "no",
                "mig": f"{len(gpu.mig)} instances" if gpu.mig else None,
            },
        )
        for gpu in driver.gpus
    ]
