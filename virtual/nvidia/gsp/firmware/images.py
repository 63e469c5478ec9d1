"""The synthetic firmware files of a chip, under the names of Debian's firmware-nvidia-graphics."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from ugpu.virtual.nvidia.gsp.facts import BootFacts, boot_facts
from ugpu.virtual.nvidia.gsp.firmware.containers import bin_file, bootloader_file, elf_file, hs_file
from ugpu.virtual.nvidia.gsp.firmware.programs import SEC2, Program, head, secure_program
from ugpu.virtual.nvidia.gsp.firmware.sign import SIZE, Terms, sign
from ugpu.virtual.nvidia.gsp.options import FIRMWARES

GSP_MAGIC, BOOTLOADER_MAGIC = b"UGPUGSP1", b"UGPUBOOT"
IMAGE_SIZE = 0x10000
BOOTLOADER_SIZE = 0x9000
MANIFEST, MONITOR_DATA, MONITOR_CODE = (0, 0x800), (0x800, 0x4000), (0x4800, 0x2900)
FMC_SIZE = 0x1000
SIGNATURE_SIZE = 0x1000  # of the GSP's image
_SECURE = {
    Program.BOOTER_LOAD: Terms(1, SEC2, 3), Program.BOOTER_UNLOAD: Terms(1, SEC2, 3),
    Program.SCRUBBER: Terms(1, SEC2, 0xD),
}  # fmt: skip
IMAGE_TERMS, FMC_TERMS = Terms(0, 0x400, 0x100), Terms(0, 0x400, 0x101)
FAMILIES = ("gb20x", "gb10x", "gh100", "ad10x", "ga10x", "tu10x", "tu11x", "ga100")
LOADER_TAG = 0xFD  # start tag of the generic loader


def gsp_image(version: str) -> bytes:
    """Return the GSP's image: its version, then filler."""
    return (GSP_MAGIC + version.encode().ljust(32, b"\0")).ljust(IMAGE_SIZE, b"\x5a")


def bootloader_image(version: str) -> bytes:
    """Return the GSP's boot loader; its last 0x180 bytes sign the rest."""
    body = (BOOTLOADER_MAGIC + version.encode().ljust(32, b"\0")).ljust(
        BOOTLOADER_SIZE - SIZE, b"\0"
    )
    return body + sign(IMAGE_TERMS, body)


def fmc_key(facts: BootFacts) -> tuple[bytes, int]:
    """Return the public key of a chip's FMC, and the bytes of its signature."""
    size, signature = (384, 384) if facts.cot == 1 else (97, 96)
    return (b"key of " + facts.folder.encode()).ljust(size, b"\0"), signature


def fmc_sections(facts: BootFacts, version: str) -> list[tuple[str, bytes]]:
    """Return the sections of a chip's FMC: hash, key, signature, image."""
    key, size = fmc_key(facts)
    body = (b"UGPUFMC1" + version.encode().ljust(32, b"\0")).ljust(FMC_SIZE, b"\0")
    return [
        ("hash", hashlib.sha384(body).digest()),
        ("publickey", key),
        ("signature", sign(FMC_TERMS, body, size)),
        ("image", body),
    ]


def gsp_sections(version: str, families: Sequence[str]) -> list[tuple[str, bytes]]:
    """Return the sections of the GSP's image, with a signature for each family of chips."""
    image = gsp_image(version)
    sections = [(".fwimage", image), (".fwversion", version.encode() + b"\0")]
    for family in families:
        signature = sign(IMAGE_TERMS, family.encode() + image, SIGNATURE_SIZE)
        sections.append((f".fwsignature_{family}", signature))
    return sections


def synthetic_set(name: str, version: str) -> dict[str, bytes]:
    """Return a chip's files by name, such as "nvidia/ad102/gsp/booter_load-570.144.bin"."""
    facts = boot_facts(name)
    files = {"gsp": elf_file(gsp_sections(version, FAMILIES), wide=True)}
    parts = (MANIFEST, MONITOR_DATA, MONITOR_CODE)
    files["bootloader"] = bootloader_file(4 if facts.pio else 5, bootloader_image(version), parts)
    if facts.way == "fsp":
        files["fmc"] = elf_file(fmc_sections(facts, version), wide=False)
    else:
        files |= _booters(facts)
    made = {f"nvidia/{facts.folder}/gsp/{key}-{version}.bin": data for key, data in files.items()}
    if facts.image != facts.folder:  # Debian's packages link one to the other
        made[f"nvidia/{facts.image}/gsp/gsp-{version}.bin"] = files["gsp"]
    if facts.pio:
        code = head(Program.LOADER, 0) + b"generic loader"
        loader = struct.pack("<6I", LOADER_TAG, 0, 0, 0x200, 0x200, 0x100)
        made[f"nvidia/{facts.folder}/acr/bl.bin"] = bin_file(
            loader.ljust(0xE8, b"\0"), code.ljust(0x300, b"\0")
        )
    return made


def whole_set(name: str) -> dict[str, bytes]:
    """Return a chip's files of every firmware version."""
    made: dict[str, bytes] = {}
    for version in FIRMWARES:
        made |= synthetic_set(name, version)
    return made


def _booters(facts: BootFacts) -> dict[str, bytes]:
    number, size = facts.booter
    old = dict.fromkeys((Program.BOOTER_LOAD, Program.BOOTER_UNLOAD), Terms(0, SEC2, number))
    programs = [
        secure_program(program, terms, old=size if facts.pio else 0)
        for program, terms in (old if facts.pio else _SECURE).items()
    ]
    return {program.name: hs_file(program) for program in programs}
