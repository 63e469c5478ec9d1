"""Content of the driver's and its GPUs' files in /proc and /sys.

Source: open-gpu-kernel-modules 580.142 kernel-open/nvidia/nv-procfs.c.
"""

from __future__ import annotations

import re

from ugpu.virtual.node.refusal import missing
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.rm.mig import access_files
from ugpu.virtual.nvidia.rm.objects import DriverState

_GPU = re.compile(r"/proc/driver/nvidia/gpus/([0-9a-f:.]+)/information")
_PCI = re.compile(r"/sys/bus/pci/devices/([0-9a-f:.]+)/(\w+)")
NAMES = {
    "tu102": "NVIDIA GeForce RTX 2080 Ti",
    "tu116": "NVIDIA GeForce GTX 1660 Ti",
    "ga100": "NVIDIA A100-SXM4-40GB",
    "ga102": "NVIDIA GeForce RTX 3090",
    "ad102": "NVIDIA GeForce RTX 4090",
    "gh100": "NVIDIA H100 80GB HBM3",
    "gb202": "NVIDIA GeForce RTX 5090",
}


def pci_address(gpu: VirtualGpu) -> str:
    """Return domain, bus, device and function, as the kernel writes them."""
    return f"0000:{gpu.bus:02x}:00.0"


def read_text(machine: DriverState, path: str) -> str:
    """Return the text of a file. Raises FileNotFoundError if there is none."""
    version = machine.options.driver
    module = "Open Kernel Module for x86_64" if machine.options.open_module else "Kernel Module"
    files = {
        "/proc/driver/nvidia/version": (
            f"NVRM version: NVIDIA UNIX {module}  {version}  Release Build  (virtual)\n"
            "GCC version:  none: a model in Python\n"
        ),
        "/sys/module/nvidia/version": f"{version}\n",
        "/sys/module/nvidia_uvm/version": f"{version}\n",
        "/proc/driver/nvidia/params": "RegisterForACPIEvents: 1\nModifyDeviceFiles: 1\n"
        "DeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n",
    }
    for gpu in machine.gpus:
        minor = access_files(gpu).get(path)
        if minor is not None:
            return f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n"
    if path in files:
        return files[path]
    match = _GPU.fullmatch(path)
    for gpu in machine.gpus:
        if match is not None and match[1] == pci_address(gpu):
            return _information(machine, gpu)
        pci = _PCI.fullmatch(path)
        if pci is not None and pci[1] == pci_address(gpu) and pci[2] in _attributes(gpu):
            return _attributes(gpu)[pci[2]]
    raise missing(path)


def _information(machine: DriverState, gpu: VirtualGpu) -> str:
    return (
        f"Model: \t\t {NAMES[gpu.facts.name]}\n"
        "IRQ:   \t\t 0\n"
        f"GPU UUID: \t {gpu.uuid_text}\n"
        "Video BIOS: \t ??.??.??.??.??\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 47 bits\n"
        "DMA Mask: \t 0x7fffffffffff\n"
        f"Bus Location: \t {pci_address(gpu)}\n"
        f"Device Minor: \t {gpu.index}\n"
        "GPU Firmware: \t N/A\n"
        "GPU Excluded:\t No\n"
    )


def _attributes(gpu: VirtualGpu) -> dict[str, str]:
    return {"vendor": "0x10de\n", "device": f"{gpu.facts.pci_device:#06x}\n"}
