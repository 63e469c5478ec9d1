"""Data of NVIDIA's headers: the stock driver's interface, methods, descriptors, codes.

    table = select("580.142")                      table.structs.NVOS64_PARAMETERS.new(hRoot=1)
    methods(0xCBC0).SEND_PCAS_A.encode(...)        qmd("4.0").set(raw, "GRID_WIDTH", 5)
    mmu().descriptor("VER3_PTE")                   status_name(0x1F)

The tables in nv/abi/tables are written by `make regen` from open-gpu-kernel-modules and
open-gpu-doc (docs/nv-abi.md) and never edited by hand. Each is read once, when first used.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.registers.constants import Constants
from ugpu.nv.abi.bits import BitField, BitTable, Descriptor, Method
from ugpu.nv.abi.interface import Abi, ClassRule, Ioctl

__all__ = [
    "Abi",
    "BitField",
    "BitTable",
    "ClassRule",
    "Descriptor",
    "Ioctl",
    "Method",
    "branches",
    "fault_codes",
    "fault_entry",
    "methods",
    "mmu",
    "qmd",
    "select",
    "status_name",
    "userd",
    "xid_name",
]

_FOLDER = Path(__file__).parent / "tables"
_VERSION = re.compile(r"(\d+)(?:\.(\d+))?(\.\d+)*")
#: branch -> minor of the first release that has the branch's channel block: 535.54.03 and betas
#: have 304 bytes of NV_CHANNEL_ALLOC_PARAMS, not 360. Source: alloc_channel.h of the tags.
_SETTLED = {"535": 86}


@cache
def branches() -> tuple[str, ...]:
    """The driver branches that have tables, oldest first."""
    found = (path.name[3:].split(".")[0] for path in _FOLDER.glob("rm_*.structs.txt"))
    return tuple(sorted(found, key=int))


@cache
def select(version: str) -> Abi:
    """The interface of a driver version such as "580.142", or of the branch nearest to it.

    `exact` is True if the tables are those of this version; of two equally near branches the older
    one is used. BadArgument for text that is not a version.
    """
    match = _VERSION.fullmatch(version)
    if match is None:
        raise BadArgument("version must be a driver version such as 570.133.07", version=version)
    asked, minor = int(match[1]), int(match[2] or 0)
    branch = min(branches(), key=lambda known: (abs(int(known) - asked), int(known)))
    exact = int(branch) == asked and minor >= _SETTLED.get(branch, 0)
    return Abi(_FOLDER, version, branch, exact=exact)


@cache
def _bits(name: str) -> BitTable:
    path = _FOLDER / f"{name}.txt"
    if not path.is_file():
        kind = name.partition("_")[0]
        known = sorted(p.stem.removeprefix(f"{kind}_") for p in _FOLDER.glob(f"{kind}_*.txt"))
        raise NotSupported(f"table must be one of {', '.join(known)}, got {name!r}")
    return BitTable(path.read_text(encoding="ascii"), name)


# The table of `fault_codes` for each generation.
FAULT_TABLES = {"turing": "tu102", "ampere": "ga100", "ada": "ga100", "hopper": "gh100",
                "blackwell": "gb100"}  # fmt: skip


def methods(class_id: int) -> BitTable:
    """The methods of a channel, compute or copy class, by its number; NotSupported lists all."""
    return _bits(f"methods_{class_id:04x}")


def qmd(version: str) -> Descriptor:
    """The launch descriptor of a version such as "4.0"; NotSupported lists all versions."""
    return _bits(f"qmd_{version.replace('.', '_')}").descriptor("QMD")


def mmu() -> BitTable:
    """Page table entries: VER2_ (Turing to Ada) and VER3_ (Hopper on) PDE, DUAL_PDE and PTE."""
    return _bits("mmu")


def fault_entry() -> Descriptor:
    """One entry of the fault buffer, 32 bytes (class c369)."""
    return _bits("fault_entry").descriptor("BUF_ENTRY")


def fault_codes(chip: str) -> Descriptor:
    """Fault types, accesses and clients of tu102, ga100, gh100 or gb100, as named values."""
    return _bits(f"fault_{chip}").descriptor("PFAULT")


def access_name(name: str | None, number: int) -> str:
    """ "read", "write", "atomic" or "prefetch" from the header's name of an access type."""
    if name is None:
        return f"access of type {number}"
    return next(
        (plain for plain in ("read", "write", "atomic", "prefetch") if plain.upper() in name),
        name.lower(),
    )


def userd() -> Descriptor:
    """A channel's USERD, 512 bytes: GP_GET and GP_PUT."""
    return _bits("userd").descriptor("RAMUSERD")


@cache
def _names(table: str) -> dict[int, str]:
    text = (_FOLDER / f"{table}.constants.txt").read_text(encoding="ascii")
    constants = Constants(text, table)
    found: dict[int, str] = {}
    for name, number in constants.values().items():
        found.setdefault(number, name)
    return found


def status_name(code: int) -> str:
    """The name of a status code of the resource manager, such as NV_ERR_INVALID_ARGUMENT."""
    return _names("status").get(code, f"NV_STATUS {code:#x}")


def xid_name(number: int) -> str:
    """The header's name of an Xid, such as FIFO_ERROR_MMU_ERR_FLT for 31."""
    name = _names("xid").get(number)
    return name.removeprefix("ROBUST_CHANNEL_") if name else f"Xid {number}"
