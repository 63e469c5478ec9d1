"""Programs that NVIDIA's own kernel module carries inside, known by their digests alone.

The model cannot verify NVIDIA's signatures, and does not execute the programs. It knows their exact
bytes, and their signatures for each fuse version, by SHA-256; everything else is refused. Source:
open-gpu-kernel-modules 550.163.01 src/nvidia/generated/g_bindata_kgspGetBinArchive{BooterLoadUcode,
BooterUnloadUcode,GspRmBoot}_{AD102,GA102}.c, unpacked: image_prod, sig_prod, patch_loc, patch_meta,
ucode_image_prod.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from ugpu.virtual.nvidia.gsp.facts import boot_facts
from ugpu.virtual.nvidia.gsp.firmware.containers import gsp_file
from ugpu.virtual.nvidia.gsp.firmware.images import FAMILIES, gsp_sections
from ugpu.virtual.nvidia.gsp.firmware.programs import SEC2, Program
from ugpu.virtual.nvidia.gsp.firmware.sign import Terms

VERSION = "550.163.01"


@dataclass(frozen=True)
class BuiltIn:
    """A program. covered: bytes of its data. content: digest of code and data, with zeros in the
    place of the signature. signatures: their digests by fuse version."""

    program: Program
    covered: int
    content: str
    signatures: Mapping[int, str]
    engine: int = SEC2
    number: int = 3


# By the digest of the code.
PROGRAMS: Mapping[str, BuiltIn] = {
    "e15c1d836dc294312da1503bf4bb3a82b55a389cba98159a893e83e11dcb09c3": BuiltIn(
        Program.BOOTER_LOAD,
        0x6000,
        "695426f4c54150c7be65fc3f7f6337d0e80aeef57c0faa468ef3f812194ec664",
        {
            1: "bf048992503194818fb42d635a7b474f2ab75559adbe4c57835d837a6823c483",
            0: "6267ae046eafae7cac494587fe587b0de760eaff9a5f4d3a6099e02d19bf4f76",
        },
    ),
    "3f6a53e89b8d50e317fb002f20efb61b8e5a7e0aa060dfdd6177693e7bb5c616": BuiltIn(
        Program.BOOTER_UNLOAD,
        0x4E00,
        "637d07faf58ae72ed5efde7469db18db98efcd09a935476c60558b1e0b348de2",
        {
            1: "93f958cb476d395e6473b0fe2b8b38fb07874e587c2b3f8ec85b4589f9988ced",
            0: "0331b0517427634b312ad40a8022a51a110cfa96cf8551ad28fe1ba62383ff58",
        },
    ),
    "331d30400fd38d4c10f2a1abaa93e605b18fb573f343254096fdb0bcca459fc5": BuiltIn(
        Program.BOOTER_LOAD,
        0x6200,
        "25bfbae99da233b03da01c4b1a78027bb2f52115e9436fae14f1a92defc9ea1b",
        {
            1: "07525ed391c6ea46c413ebf5ff2ce605c972d9ffd03c11673bdbc413392d2d1f",
            0: "a1a4f5721c1c4610af7f71078f3a68c330536d679803b0e0507ee8dc10c5dfca",
        },
    ),
    "8c7af0d1f5e5ad8a033f12aa38cdde81ee4eecf6ce52ac4c5ea784e1e4b01ca0": BuiltIn(
        Program.BOOTER_UNLOAD,
        0x4D00,
        "c0bef66996eb73b1aea2e2062489aaedce2ecb6daef5d578a0a2fb6cebb21b07",
        {
            1: "d63ac939513e6f8cc679086121e787312ec54f1cb7885437ce52c613527bcb37",
            0: "a1a4f5721c1c4610af7f71078f3a68c330536d679803b0e0507ee8dc10c5dfca",
        },
    ),
}
_BOOT_LOADERS = {
    "45d6335a8185d6ff13e8d1484cea73f68d3d13aa1c19dc080ed1c3482dd5bac0": (0x4800, 0x800, 0),
    "3df651acb174fd5f5561a1996965b192f50c5d763168446ed0d4ead19d895768": (0x1800, 0x800, 0),
}  # offsets of monitor code, monitor data, manifest


def parse(code: bytes) -> tuple[Program, int] | None:
    """Return the program and the signed bytes of its data; None for code that is not known."""
    known = PROGRAMS.get(_digest(code))
    return (known.program, known.covered) if known is not None else None


def problem(field: bytes, terms: Terms, code: bytes, content: bytes) -> str | None:
    """Return why a signature is not valid, or "" if it is; None for code that is not known."""
    known = PROGRAMS.get(_digest(code))
    if known is None:
        return None
    if (terms.engine, terms.program) != (known.engine, known.number):
        return f"made for engine {known.engine:#x}, program {known.number:#x}"
    if known.content != _digest(content):
        return "its data are not those that were signed"
    if known.signatures.get(terms.fuse) != _digest(field):
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
    return {f"nvidia/{VERSION}/gsp_{family}.bin": gsp_file(sections)}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
