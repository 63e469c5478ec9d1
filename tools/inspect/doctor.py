"""`ugpu doctor`: what this machine lacks to reach real hardware, each finding with its remedy.

It reads sysfs and procfs below a root that tests replace. It changes nothing and accesses no
device.
"""

from __future__ import annotations

import importlib.util
import os
import resource
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ugpu.am import chips
from ugpu.am.chips.facts import ChipFacts
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.find.catalogue import pci_drivers
from ugpu.hcq.state.config import Config, config
from ugpu.hcq.transport.pci import function as pci_function
from ugpu.hcq.transport.system import System
from ugpu.hcq.transport.vfio.container import ACCESS_REMEDY
from ugpu.tools.base import display
from ugpu.tools.base.console import Output
from ugpu.tools.base.finding import Finding
from ugpu.tools.base.progress import shown
from ugpu.tools.control.pci import CHECKS
from ugpu.tools.inspect import doctor_adreno, doctor_nvidia
from ugpu.tools.inspect import doctor_path as doctor_way
from ugpu.tools.inspect.nvidia import NvidiaMachine

SMALL_BAR = 256 << 20
NVIDIA = 0x10DE


@dataclass(frozen=True)
class PciFunction:
    """A display-class function found in sysfs."""

    address: str
    vendor: int
    device: int
    driver: str | None
    group: str | None
    bar_sizes: tuple[int, ...]

    @property
    def known(self) -> bool:
        """Return whether ugpu drives the function itself. NVIDIA's GPUs may also be used through
        the stock driver: they count once they are bound to vfio-pci."""
        return self.chip is not None or (self.bare and self.driver == "vfio-pci")

    @property
    def bare(self) -> bool:
        """Return whether it is an NVIDIA GPU that ugpu boots without a kernel driver."""
        return self.vendor == NVIDIA and (self.vendor, self.device) in pci_drivers()

    @property
    def chip(self) -> ChipFacts | None:
        """The facts of the function's chip, if ugpu supports it."""
        return chips.find(self.vendor, self.device)


def _number(path: Path) -> int:
    return int(path.read_text().strip(), 0)


def pci_functions(root: Path) -> Iterator[PciFunction]:
    """Yield the AMD and NVIDIA display-class functions below root/sys/bus/pci/devices."""
    folder = root / "sys/bus/pci/devices"
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            vendor, device = _number(entry / "vendor"), _number(entry / "device")
            kind = _number(entry / "class")
            lines = (entry / "resource").read_text().splitlines()
            ranges = [[int(word, 16) for word in line.split()[:2]] for line in lines[:6]]
            bars = tuple(end - start + 1 if end else 0 for start, end in ranges)
        except (OSError, ValueError):  # ValueError: an empty file
            continue  # hot-unplugged meanwhile
        if not bars:
            continue
        if kind >> 16 != 0x03 and kind >> 8 != 0x1200:  # display; processing accelerator
            continue
        if vendor not in (0x1002, NVIDIA):
            continue
        driver, group = entry / "driver", entry / "iommu_group"
        yield PciFunction(
            entry.name,
            vendor,
            device,
            driver.resolve().name if driver.exists() else None,
            group.resolve().name if group.exists() else None,
            bars,
        )


class Doctor:
    """Check one machine. `root` stands for "/".

    firmware_folders: the folders in which the driver searches for images: those of UGPU_FIRMWARE,
    or lib/firmware below `root`, as in `hcq.state.config`."""

    def __init__(
        self, root: Path = Path("/"), firmware_folders: tuple[Path, ...] | None = None
    ) -> None:
        self.root = root
        if firmware_folders is None:
            firmware_folders = config().firmware_folders
            if firmware_folders == Config().firmware_folders:
                firmware_folders = (root / "lib/firmware",)
        self.firmware_folders = firmware_folders

    def findings(self) -> list[Finding]:
        functions = list(pci_functions(self.root))
        ours = [function for function in functions if function.known]
        nvidia = NvidiaMachine(self.root)
        bare_metal = [
            *self.iommu(),
            *self.vfio(),
            *self.type1(),
            *self.no_iommu(),
            *self.memory_lock(),
            *self.firmware([card.chip for card in ours if not card.bare]),
            *(self.firmware_of(card) for card in ours if card.bare),
        ]
        if not ours and doctor_nvidia.usable(nvidia):
            # No device on this machine needs them: its GPUs are reached through the kernel's
            # driver.
            bare_metal = [
                replace(finding, state="note") if finding.state == "missing" else finding
                for finding in bare_metal
            ]
        expected = any(card.vendor == NVIDIA and not card.known for card in functions)
        return [
            *self.packages(),
            *self.devices(functions),
            *doctor_nvidia.findings(nvidia, expected=expected),
            *doctor_adreno.findings(self.root),
            *bare_metal,
            *doctor_way.machine(System(self.root)),
            *(item for function in ours for item in self.function(function)),
        ]

    def packages(self) -> Iterator[Finding]:
        for module, extra, purpose in (
            ("sklearn", "demo", "the digits of `ugpu demo`"),
            ("zstandard", "firmware", "firmware images compressed by zstd"),
        ):
            if importlib.util.find_spec(module):
                yield Finding("python package", "ok", f"{module} is installed")
            else:
                yield Finding(
                    "python package",
                    "note",
                    f"{module} is not installed; needed for {purpose}",
                    f"pip install 'ugpu[{extra}]'",
                )

    def devices(self, functions: list[PciFunction]) -> Iterator[Finding]:
        if not functions:
            yield Finding(
                "device",
                "note",
                "no AMD or NVIDIA GPU on the PCI bus; virtual devices work without one",
                "lspci -nn | grep -Ei 'vga|display|accelerator'",
            )
        for function in functions:
            name = f"pci:{function.address} {function.vendor:04x}:{function.device:04x}"
            if function.known:
                yield Finding("device", "ok", f"{name} is supported")
                chip = pci_drivers()[function.vendor, function.device].chip
                if chip is not None and not chip.proven:
                    yield Finding(
                        "device",
                        "note",
                        f"the driver has not been tested on a board with {chip.title} yet",
                    )
            elif function.vendor == NVIDIA and function.driver == "nvidia":
                yield Finding("device", "ok", f"{name} is used through the nvidia driver")
            elif function.bare:
                what = f"{name} is supported through the nvidia driver, or bound to vfio-pci"
                yield Finding("device", "note", what, bind(function))
            else:
                yield Finding("device", "note", f"{name} is not supported yet")

    def iommu(self) -> Iterator[Finding]:
        groups = self.root / "sys/kernel/iommu_groups"
        if groups.is_dir() and any(groups.iterdir()):
            yield Finding("iommu", "ok", "the IOMMU is on")
            return
        yield Finding(
            "iommu",
            "missing",
            "the IOMMU is off; VFIO requires it to limit the device's DMA",
            "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&intel_iommu=on iommu=pt /' /etc/default/grub "
            "&& sudo update-grub && sudo reboot   # AMD hosts: enable IOMMU in the BIOS",
        )

    def vfio(self) -> Iterator[Finding]:
        if not (self.root / "sys/bus/pci/drivers/vfio-pci").is_dir():
            yield Finding(
                "vfio-pci", "missing", "the vfio-pci driver is not loaded", "sudo modprobe vfio-pci"
            )
        else:
            yield Finding("vfio-pci", "ok", "vfio-pci is loaded")
        control = self.root / "dev/vfio/vfio"
        if not control.exists():
            yield Finding(
                "vfio access", "missing", "/dev/vfio/vfio does not exist", "sudo modprobe vfio"
            )
        elif not os.access(control, os.R_OK | os.W_OK):
            yield Finding(
                "vfio access",
                "missing",
                "this user has no permission to open /dev/vfio/vfio",
                ACCESS_REMEDY,
            )
        else:
            yield Finding("vfio access", "ok", "this user can open /dev/vfio/vfio")

    def memory_lock(self) -> Iterator[Finding]:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if soft != resource.RLIM_INFINITY and soft < 1 << 30 and os.geteuid() != 0:
            yield Finding(
                "locked memory",
                "missing",
                f"the limit of locked memory is {soft >> 10} KiB; DMA buffers are locked memory",
                'echo "$USER - memlock unlimited" | sudo tee /etc/security/limits.d/ugpu.conf'
                "   # then log in again",
            )
        else:
            yield Finding("locked memory", "ok", "the limit of locked memory is sufficient for DMA")

    def firmware(self, present: Sequence[ChipFacts | None]) -> Iterator[Finding]:
        """Yield findings about the firmware images of each chip that is present, or of the default
        chip if there is none."""
        by_name = {chip.name: chip for chip in present if chip is not None}
        for chip in by_name.values() or (chips.facts_of(chips.DEFAULT),):
            yield self._images(chip)

    def firmware_of(self, card: PciFunction) -> Finding:
        """Return the finding about the images of an NVIDIA GPU without a kernel driver."""
        missing = doctor_nvidia.missing_images(self.firmware_folders, card.vendor, card.device)
        where = ", ".join(str(folder) for folder in self.firmware_folders)
        title = f"pci:{card.address}"
        if not missing:
            return Finding("firmware", "ok", f"all images of {title} are in {where}")
        return Finding(
            "firmware",
            "missing",
            f"images of {title} not in {where}: {', '.join(missing)}",
            "sudo apt install firmware-nvidia-graphics   # Debian, non-free-firmware; "
            "Ubuntu: sudo apt install linux-firmware",
        )

    def _images(self, chip: ChipFacts) -> Finding:
        folders = [place for top in self.firmware_folders for place in (top / "amdgpu", top)]
        where = ", ".join(str(folder) for folder in self.firmware_folders)
        missing = [
            name
            for name in chip.firmware_files
            if not any(
                (folder / (name + suffix)).is_file()
                for folder in folders
                for suffix in ("", ".xz", ".zst")
            )
        ]
        if not missing:
            return Finding("firmware", "ok", f"all {chip.title} images are in {where}")
        return Finding(
            "firmware",
            "missing",
            f"{chip.title} images not in {where}: {', '.join(missing)}",
            "sudo apt install firmware-amd-graphics   # Debian, non-free-firmware; "
            "Ubuntu: sudo apt install linux-firmware",
        )

    def function(self, function: PciFunction) -> Iterator[Finding]:
        """Findings about one supported device."""
        check = f"pci:{function.address}"
        if function.driver == "vfio-pci":
            yield Finding(check, "ok", "bound to vfio-pci")
            node = self.root / f"dev/vfio/{function.group}"
            if node.exists() and not os.access(node, os.R_OK | os.W_OK):
                what = f"/dev/vfio/{function.group}, its group's node, cannot be opened"
                yield Finding(check, "missing", f"{what} by this user", ACCESS_REMEDY)
        else:
            holder = "unbound"
            if function.driver is not None:
                holder = f"bound to the kernel driver {function.driver}"
            lost = display.warning(pci_function.PciFunction(System(self.root), function.address))
            if lost:
                yield Finding(check, "note", lost, display.REMEDY)
            yield Finding(check, "missing", f"{holder}; must be bound to vfio-pci", bind(function))
        vram = function.bar_sizes[1 if function.bare else 0]
        if vram == 0:
            yield Finding(
                check,
                "missing",
                "the VRAM BAR has no address; the bridge above it has no room",
                "add pci=realloc to the kernel command line, or plug the card in before booting",
            )
        elif vram <= SMALL_BAR:
            yield Finding(
                check,
                "note",
                f"the VRAM BAR is {vram >> 20} MiB; uploads go through a small window",
                "enable Resizable BAR (Above 4G decoding) in the BIOS",
            )
        else:
            yield Finding(check, "ok", f"the VRAM BAR is {vram >> 30} GiB")
        if function.group is None:
            yield Finding(
                check, "missing", "the device does not belong to an IOMMU group; see iommu above"
            )
        yield from self.reachable(function)

    def reachable(self, function: PciFunction) -> Iterator[Finding]:
        """Run the transport's own checks: link, power, BARs, the group's other members, other
        users."""
        check = f"pci:{function.address}"
        member = pci_function.PciFunction(System(self.root), function.address)
        for look in CHECKS:
            try:
                look(member)
            except UgpuError as error:
                yield Finding(check, "missing", str(error.message), str(error.facts["remedy"]))
        yield from doctor_way.card(member)

    def no_iommu(self) -> Iterator[Finding]:
        switch = self.root / "sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
        if switch.is_file() and switch.read_text().strip() == "Y":
            yield Finding(
                "no-IOMMU mode",
                "note",
                "enabled: any process with access to /dev/vfio can make a device read and "
                "write all memory",
                f"echo N | sudo tee {switch}",
            )

    def type1(self) -> Iterator[Finding]:
        if (self.root / "sys/module/vfio").is_dir() and not (
            self.root / "sys/module/vfio_iommu_type1"
        ).is_dir():
            yield Finding(
                "vfio_iommu_type1",
                "missing",
                "VFIO's IOMMU driver is not loaded",
                "sudo modprobe vfio_iommu_type1",
            )


def bind(function: PciFunction) -> str:
    """Return the command that hands a function to vfio-pci."""
    path = f"/sys/bus/pci/devices/{function.address}"
    unbind = f"echo {function.address} > {path}/driver/unbind; " if function.driver else ""
    return (
        f"sudo ugpu bind pci:{function.address}   # or by hand: "
        f"sudo sh -c 'modprobe vfio-pci; echo vfio-pci > {path}/driver_override; {unbind}"
        f"echo {function.address} > /sys/bus/pci/drivers_probe'"
    )


def as_json(findings: list[Finding]) -> dict[str, object]:
    return {
        "ready": all(finding.state != "missing" for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }


# The mark of a finding: the word, and its style on a terminal.
MARKS = {"ok": ("ok", "green"), "missing": ("MISSING", "red"), "note": ("note", "yellow")}


def run(out: Output) -> int:
    """Show the findings; return 1 if one of them prevents the use of real hardware."""
    with shown(out, "doctor"):
        findings = Doctor().findings()
    for finding in findings:
        mark, style = MARKS[finding.state]
        out.say(f"{mark:>8}  {finding.check}: {finding.detail}", style=style)
        if finding.remedy:
            out.say(f"          {finding.remedy}")
    report = as_json(findings)
    out.result(report)
    return 0 if report["ready"] else 1
