"""Firmware files of a start: all are found and checked before the chip is touched."""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.hcq.bare.firmware import FirmwarePackage, FirmwareSource
from ugpu.hcq.errors import FirmwareNotFound
from ugpu.nv.abi.firmware import FirmwareAbi, firmware
from ugpu.nv.chips.boot import BootFacts, BootWay
from ugpu.nv.gsp.images.containers import (
    BootLoader,
    GenericLoader,
    HeavySecure,
    read_boot_loader,
    read_generic_loader,
    read_heavy_secure,
)
from ugpu.nv.gsp.images.gsp_image import FmcImage, GspImage, read_fmc, read_gsp

# The largest known file, of 570.144, has 64 MB.
PACKAGE = FirmwarePackage("nvidia", ("firmware-nvidia-graphics", "linux-firmware"), 256 << 20)


@dataclass(frozen=True)
class BootFiles:
    """The files of one release. load, unload: booter, None where FSP starts the GSP. loader: for
    FWSEC where a falcon is not loaded by DMA."""

    abi: FirmwareAbi
    gsp: GspImage
    boot_loader: BootLoader
    load: HeavySecure | None = None
    unload: HeavySecure | None = None
    loader: GenericLoader | None = None
    fmc: FmcImage | None = None


def find_release(source: FirmwareSource, boot: BootFacts) -> str:
    """Return the preferred release of which the source has the GSP's image."""
    failure: FirmwareNotFound | None = None
    for release in boot.releases:
        try:
            read_file(source, boot, "gsp", release)
            return release
        except FirmwareNotFound as error:
            failure = failure or error
    assert failure is not None  # a chip has at least one release
    raise failure


def read_file(source: FirmwareSource, boot: BootFacts, name: str, release: str) -> bytes:
    """Read a chip's file; the GSP's image may lie in the folder of the chip that it is named
    after, as distributions link it."""
    own = f"{boot.firmware}/gsp/{name}-{release}.bin"
    try:
        return source.read(own)
    except FirmwareNotFound:
        if name != "gsp" or boot.image == boot.firmware:
            raise
        try:
            return source.read(f"{boot.image}/gsp/{name}-{release}.bin")
        except FirmwareNotFound as error:
            error.add_facts(also=own)
            raise


def file_names(boot: BootFacts, release: str) -> list[tuple[str, ...]]:
    """Return the names of the files that a start needs; of each tuple, one is enough."""
    folders = (boot.firmware, boot.image)
    images = dict.fromkeys(f"{folder}/gsp/gsp-{release}.bin" for folder in folders)
    parts = ("fmc",) if boot.way is BootWay.FSP else ("booter_load", "booter_unload")
    names = [(f"{boot.firmware}/gsp/{part}-{release}.bin",) for part in ("bootloader", *parts)]
    if not boot.dma:
        names.append((f"{boot.firmware}/acr/bl.bin",))
    return [tuple(images), *names]


def read_files(source: FirmwareSource, boot: BootFacts) -> BootFiles:
    """Read and check all files of a chip, of the newest release that is installed."""
    release = find_release(source, boot)

    def read(name: str) -> tuple[str, bytes]:
        return f"{boot.firmware}/gsp/{name}-{release}.bin", read_file(source, boot, name, release)

    gsp = read_gsp(*read("gsp"), boot.family, release)
    boot_loader = read_boot_loader(*read("bootloader"))
    abi = firmware(release)
    if boot.way is BootWay.FSP:
        return BootFiles(abi, gsp, boot_loader, fmc=read_fmc(*read("fmc")))
    load, unload = (read_heavy_secure(*read(f"booter_{way}")) for way in ("load", "unload"))
    loader = None
    if not boot.dma:
        name = f"{boot.firmware}/acr/bl.bin"
        loader = read_generic_loader(name, source.read(name))
    return BootFiles(abi, gsp, boot_loader, load, unload, loader)
