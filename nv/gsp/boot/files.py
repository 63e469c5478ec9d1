"""Firmware files of a start: all are found and checked before the chip is touched."""

from __future__ import annotations

import contextlib
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
    failures: list[FirmwareNotFound] = []
    for release in boot.releases:
        try:
            read_first(source, file_names(boot, release)[0])
            return release
        except FirmwareNotFound as error:
            failures.append(error)
    raise failures[0]


def read_first(source: FirmwareSource, names: tuple[str, ...]) -> tuple[str, bytes]:
    """Read the file that the source has under one of `names`; return its name, too."""
    *others, last = names
    for name in others:
        with contextlib.suppress(FirmwareNotFound):
            return name, source.read(name)
    try:
        return last, source.read(last)
    except FirmwareNotFound as error:
        if others:
            error.add_facts(also=others[0])
        raise


def file_names(boot: BootFacts, release: str) -> list[tuple[str, ...]]:
    """Return the names of the files that a start needs; of each tuple, one is enough: the GSP's
    image may lie in the folder of the chip that it is named after, as distributions link it."""
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
    image, first, *programs = (read_first(source, names) for names in file_names(boot, release))
    gsp, boot_loader = read_gsp(*image, boot.family, release), read_boot_loader(*first)
    abi = firmware(release)
    if boot.way is BootWay.FSP:
        return BootFiles(abi, gsp, boot_loader, fmc=read_fmc(*programs[0]))
    load, unload = (read_heavy_secure(*program) for program in programs[:2])
    loader = None if boot.dma else read_generic_loader(*programs[2])
    return BootFiles(abi, gsp, boot_loader, load, unload, loader)
