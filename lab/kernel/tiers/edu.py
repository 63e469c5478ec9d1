"""Tier "edu": the transports on QEMU's teaching device, under a real kernel's VFIO and sysfs."""

from __future__ import annotations

from lab.kernel.lab import Lab, Run, guest_tests

# By default QEMU's device (docs/specs/edu.rst) drops address bits from 28 on and meets another
# page; this guest has memory beyond that, and the kernel chooses what sysfs gives the device.
REACHED = (1 << 32) - 1
TESTS = (
    "smoke", "edu_vfio", "edu_msix", "edu_sysfs", "edu_power", "edu_refused", "edu_tools",
    "edu_unplug",
)  # fmt: skip


def run(lab: Lab) -> list[Run]:
    """One boot. The first device is alone behind a root port, so that it can be unplugged and its
    bus reset; the second shares a plain PCI bus, and so its IOMMU group, with a network card, the
    third with a disk. One more card, which no driver has, is there for its MSI-X vectors and for
    its power; a serial line has a kernel driver that may be taken from it."""
    devices = (
        *("-device", "pcie-root-port,id=port0,chassis=1,slot=1"),
        *("-device", f"edu,id=edu0,bus=port0,dma_mask={REACHED:#x}"),
        *("-device", "pcie-root-port,id=port1,chassis=2,slot=2"),
        *("-device", "pcie-pci-bridge,id=bridge0,bus=port1"),
        *("-device", "edu,id=edu1,bus=bridge0,addr=1"),
        *("-device", "e1000,bus=bridge0,addr=2,romfile="),
        *("-device", "pcie-root-port,id=port2,chassis=3,slot=3"),
        *("-device", "e1000e,bus=port2,romfile="),
        *("-device", "pcie-root-port,id=port3,chassis=4,slot=4"),
        *("-device", "pcie-pci-bridge,id=bridge1,bus=port3"),
        *("-device", "edu,id=edu2,bus=bridge1,addr=1"),
        *("-drive", "if=none,id=disk0,driver=null-co,size=64M"),
        *("-device", "virtio-blk-pci,drive=disk0,bus=bridge1,addr=2"),
        *("-chardev", "null,id=nobody", "-device", "pci-serial,chardev=nobody"),
    )
    tests = guest_tests(*TESTS)
    modules = ("vfio_pci", "vfio_iommu_type1", "e1000", "virtio_blk")
    return [lab.boot("edu", tests=tests, devices=devices, modules=modules, limit_s=300)]
