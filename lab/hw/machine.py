"""What a machine says of itself, its NVIDIA driver and its GPUs: to read when a run went wrong.

python -m lab.hw.machine            the same as JSON

Reads files and asks programs that are there; changes nothing. Whatever cannot be had is left out,
with the reason where that tells something.
"""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from lab.hw import process
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.transport.system_node import SystemNode
from ugpu.nv.rm.client import RmClient

ROOT = Path("/")
MOST_TEXT = 4000
MOST_LINES = 60
MOST_OUTPUT = 12_000
PACKAGES = (
    "numpy", "llvmlite", "msgpack", "rich", "pytest", "hypothesis", "nvidia-nvjitlink",
    "nvidia-nvjitlink-cu12", "torch", "triton", "cupy-cuda13x", "cupy-cuda12x",
)  # fmt: skip
PROGRAMS = ("nvidia-smi", "nvcc", "ptxas", "cc", "gcc", "clang", "nvidia-modprobe", "dmesg")
_KERNEL_WORDS = re.compile(r"NVRM|Xid|nvidia|IOMMU|oom-killer", re.IGNORECASE)
#: what names one board; reports are published
_IDENTITY = re.compile(r"Serial Number|GPU-[0-9a-f]{8}|GPU PDI|\bUUID\b", re.IGNORECASE)


def _read(path: Path, most: int = MOST_TEXT) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:most].strip()
    except OSError:
        return None


def system(root: Path = ROOT) -> dict[str, object]:
    """Kernel, processor, memory, limits, and whether this is a sandbox."""
    words = platform.uname()
    version = _read(root / "proc/version") or ""
    found: dict[str, object] = {
        "kernel": f"{words.system} {words.release} {words.version}",
        "machine": words.machine,
        "processors": os.cpu_count(),
        "python": sys.version.split()[0],
        "sandbox": "gVisor" if "gvisor" in (version + words.release + words.version).lower()
        or words.release == "4.4.0" else "",
        "user": os.getuid(),
        "locked memory": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "open files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }  # fmt: skip
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            found["processor"] = line.partition(":")[2].strip()
            break
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        if line.startswith(("MemTotal", "MemAvailable")):
            name, _, value = line.partition(":")
            found[name] = value.strip()
    return found


def software(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of packages, and where programs and libraries are."""
    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    for name in PROGRAMS:
        path = shutil.which(name)
        if path:
            found[name] = path
    for library in ("cuda", "nvidia-ml"):
        path = ctypes.util.find_library(library)
        if path:
            found[f"lib{library}"] = path
    return found


def nodes(root: Path = ROOT) -> dict[str, str]:
    """NVIDIA's device files: numbers, mode, and what this user may do."""
    found = {}
    folder = root / "dev"
    for path in sorted([*folder.glob("nvidia*"), *folder.glob("nvidia-caps/*")]):
        try:
            info = path.stat()
        except OSError as error:
            found[str(path)] = str(error)
            continue
        if not (stat.S_ISCHR(info.st_mode) or stat.S_ISREG(info.st_mode)):
            continue
        may = "".join(
            word for word, bit in (("r", os.R_OK), ("w", os.W_OK)) if os.access(path, bit)
        )
        numbers = f"{os.major(info.st_rdev)}:{os.minor(info.st_rdev)}"
        found[str(path)] = f"{stat.filemode(info.st_mode)} {numbers} may {may or 'nothing'}"
    return found


def files(root: Path = ROOT) -> dict[str, str]:
    """What the driver says in procfs and sysfs."""
    found = {}
    folder = root / "proc/driver/nvidia"
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    paths += [root / "sys/module/nvidia/version", root / "sys/module/nvidia_uvm/version"]
    for path in paths:
        text = _read(path)
        if text:
            found[str(path)] = "\n".join(anonymous(text.splitlines()))
    return found


def kernel_log(root: Path = ROOT) -> list[str] | str:
    """Lines of the kernel log about the driver, the newest last; or why there are none."""
    asked = process.run(["dmesg", "--color=never"], 10, folder=root)
    if asked.trouble:
        return f"not readable: {asked.trouble}"
    return anonymous(filter(_KERNEL_WORDS.search, asked.output.splitlines()))[-MOST_LINES:]


def anonymous(lines: Iterable[str]) -> list[str]:
    """Leave out the lines that name one board: serial number, UUID."""
    return [line for line in lines if not _IDENTITY.search(line)]


def management() -> str:
    """What nvidia-smi says, where it is."""
    if shutil.which("nvidia-smi") is None:
        return "not there"
    asked = process.run(["nvidia-smi", "-q"], 30, folder=ROOT)
    return asked.trouble or "\n".join(anonymous(asked.output.splitlines()))[:MOST_OUTPUT]


def resource_manager() -> dict[str, object]:
    """What the resource manager itself tells a client of ours: its version and its GPUs."""
    node = SystemNode("nvidia")
    try:
        client = RmClient(node)
        try:
            cards = [
                {
                    "minor": int(card.minor_number),
                    "pci": f"{card.pci_info.domain:04x}:{card.pci_info.bus:02x}:"
                    f"{card.pci_info.slot:02x}",
                    "ids": f"{card.pci_info.vendor_id:04x}:{card.pci_info.device_id:04x}",
                }
                for card in client.cards()
            ]
            return {
                "version": client.version, "branch": client.abi.branch, "exact": client.abi.exact,
                "cards": cards,
            }  # fmt: skip
        finally:
            client.close()
    except (UgpuError, OSError) as error:
        return {"trouble": f"{type(error).__name__}: {error}"}
    finally:
        node.close()


def facts() -> dict[str, object]:
    """Everything."""
    return {
        "system": system(),
        "software": software(),
        "nodes": nodes(),
        "files": files(),
        "resource manager": resource_manager(),
        "kernel log": kernel_log(),
        "nvidia-smi": management(),
    }


if __name__ == "__main__":
    json.dump(facts(), sys.stdout, indent=1)
