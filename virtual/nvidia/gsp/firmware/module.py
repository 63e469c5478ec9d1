"""Programs that NVIDIA's own kernel module carries inside, known by their digests alone.

The model cannot verify NVIDIA's signatures, and does not execute the programs. It knows their exact
bytes, and their signatures for each fuse version, by SHA-256 (module.txt); everything else is
refused. Source of the GSP's boot loaders: open-gpu-kernel-modules 550.163.01 src/nvidia/generated/
g_bindata_kgspGetBinArchiveGspRmBoot_{AD102,GA102,TU102,GA100}.c, unpacked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ugpu.hcq.registers.malformed import lines_of
from ugpu.virtual.nvidia.gsp.facts import boot_facts
from ugpu.virtual.nvidia.gsp.firmware.containers import elf_file
from ugpu.virtual.nvidia.gsp.firmware.images import FAMILIES, gsp_sections
from ugpu.virtual.nvidia.gsp.firmware.programs import SEC2, Program
from ugpu.virtual.nvidia.gsp.firmware.sign import Terms

VERSION = "550.163.01"


_TABLE = Path(__file__).with_suffix(".txt")


@dataclass(frozen=True)
class BuiltIn:
    """A program. covered: bytes of its data. content: digest of code and data, with zeros in the
    place of the signature. signatures: their digests by fuse version."""

    program: Program
    number: int
    covered: int
    content: str
    signatures: tuple[str, ...]


@cache
def built_in() -> Mapping[str, BuiltIn]:
    """Return the programs, by the digest of their code."""
    rows = (line.split() for line in lines_of(_TABLE.read_text(encoding="ascii")))
    return {
        code: BuiltIn(Program[name], int(number, 0), int(covered, 0), content, tuple(signatures))
        for name, number, covered, code, content, *signatures in rows
    }


# Offsets of monitor code, monitor data, manifest: AD102, GA102; TU102 and GA100 state none.
_BOOT_LOADERS = {
    "45d6335a8185d6ff13e8d1484cea73f68d3d13aa1c19dc080ed1c3482dd5bac0": (0x4800, 0x800, 0),
    "3df651acb174fd5f5561a1996965b192f50c5d763168446ed0d4ead19d895768": (0x1800, 0x800, 0),
    "8765694cd38beaa4e2b8b1b83a31fb7aee6cb9d8b7c6bc7a86e6d931a3a056c2": (0, 0, 0),
    "b80c6623f09df2f155ab335095575c637aef5e66cba6542e047422a6bab094e4": (0, 0, 0),
}


def parse(code: bytes) -> tuple[Program, int] | None:
    """Return the program and the signed bytes of its data; None for code that is not known."""
    known = built_in().get(_digest(code))
    return (known.program, known.covered) if known is not None else None


def problem(field: bytes, terms: Terms, code: bytes, content: bytes) -> str | None:
    """Return why a signature is not valid, or "" if it is; None for code that is not known."""
    known = built_in().get(_digest(code))
    if known is None:
        return None
    if (terms.engine, terms.program) != (SEC2, known.number):
        return f"made for engine {SEC2:#x}, program {known.number:#x}"
    if known.content != _digest(content):
        return "its data are not those that were signed"
    if known.signatures[terms.fuse : terms.fuse + 1] != (_digest(field),):
        return f"the signature is not the one for fuse version {terms.fuse}"
    return ""


def boot_loader_parts(image: bytes) -> tuple[int, int, int] | None:
    """Return the offsets of monitor code, monitor data and manifest in the module's boot loader of
    the GSP; None for another image."""
    return _BOOT_LOADERS.get(_digest(image))


def module_files(name: str) -> dict[str, bytes]:
    """Return the synthetic files that the module loads for a chip, by name."""
    family = "tu10x" if boot_facts(name).pio else "ga10x"
    sections = gsp_sections(VERSION, FAMILIES)
    return {f"nvidia/{VERSION}/gsp_{family}.bin": elf_file(sections, wide=True)}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
