"""Facts about how a chip is booted without NVIDIA's kernel driver, for nv/gsp and the models.

Sources: Linux 7.3 nova-core gpu/hal, fb/hal, falcon/hal, gsp/hal, and nouveau subdev/gsp/{tu102,
ga100,ga102,ad102,gh100,gb100,gb202}.c; open-gpu-kernel-modules 570.144 kernel_gsp_*.c,
kern_mem_sys_*.c.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class BootWay(enum.Enum):
    """Who makes the protected region and starts the GSP: FWSEC of the VBIOS and booter, booter
    alone, or FSP, which checks a chain of trust."""

    FWSEC = "fwsec"
    BOOTER = "booter"
    FSP = "fsp"


@dataclass(frozen=True)
class FlushPage:
    """Registers for the page of host memory that the GPU reads to flush its writes. low: for the
    address >> shift; high: for the bits above those 32, "" if there is none."""

    low: str
    high: str = ""
    shift: int = 8


_NISO = "NV_PFB_NISO_FLUSH_SYSMEM_ADDR"
NISO_LOW = FlushPage(_NISO)


@dataclass(frozen=True)
class BootFacts:
    """One chip. chip_ids: BOOT_42's architecture << 4 | implementation, also of its siblings that
    use the same files. pci_ids: devices that the driver opens. firmware: folder of its files.
    image: folder of the GSP's image. family: of the image's signature. libos: the firmware's
    operating system. dma: falcons are loaded by DMA and checked by a boot ROM. fuses: they
    choose booter's signature. core: the register with the RISC-V core's state.
    memory_mib: VRAM's size is a register in MiB. display_fuse: register that is 1 without a
    display; "" where the VGA workspace is not the driver's concern. mirror: of configuration space
    in BAR 0. bus_bits: of addresses that the chip emits. wide_window: PRAMIN is aimed by the newer
    register. rearm: a write to the mirror re-arms MSI. doorbell_enable: bit 30 of a doorbell.
    prescrubbed: bytes at the end of VRAM that are ready at the start, 0 for all. releases: of
    firmware, preferred first. pmu_reserved, non_wpr, frts_from_end: sizes that FSP is told;
    trust_version: of its message."""

    way: BootWay
    chip_ids: tuple[int, ...]
    pci_ids: tuple[int, ...]
    firmware: str
    image: str
    family: str
    libos: int = 3
    dma: bool = True
    fuses: bool = True
    core: str = "RISCV_CPUCTL"
    memory_mib: bool = True
    display_fuse: str = "NV_FUSE_STATUS_OPT_DISPLAY"
    flush_page: FlushPage = FlushPage(_NISO, f"{_NISO}_HI")
    mirror: int = 0x88000
    bus_bits: int = 47
    wide_window: bool = False
    rearm: bool = True
    doorbell_enable: bool = False
    prescrubbed: int = 256 << 20
    releases: tuple[str, ...] = ("570.144", "535.113.01")
    non_wpr: int = 1 << 20
    pmu_reserved: int = 0
    frts_from_end: int = 0
    trust_version: int = 0
