"""Interfaces of the GPU system processor's firmware, each of exactly one release.

A firmware's interface has no stable part: offsets of boot arguments and messages change between two
releases of one branch. Each release therefore has a folder of tables (nv/abi/gsp), which contains
the differences from branch 570 of the stock driver's interface and everything that only firmware
and driver share: boot arguments, queues, messages, events, the CPU sequencer's program.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ugpu.hcq.errors import NotSupported
from ugpu.nv.abi.interface import BASE, Abi, merge

_TABLES = Path(__file__).parent / "tables"
_FOLDER = Path(__file__).parent / "gsp"


class FirmwareAbi(Abi):
    """The interface of one firmware release: controls and classes as in Abi, and in `structs` and
    `constants` also what passes between driver and firmware. `exact` is always True."""

    def __init__(self, version: str) -> None:
        super().__init__(_TABLES, version, version.partition(".")[0], exact=True)

    def _text(self, kind: str, words: int = 1) -> str:
        base = (self._folder / f"rm_{BASE}.{kind}.txt").read_text(encoding="ascii")
        change = (_FOLDER / self.version / f"{kind}.txt").read_text(encoding="ascii")
        return merge(base, change, words)


@cache
def firmware_versions() -> tuple[str, ...]:
    """The firmware releases that have tables, oldest first."""
    names = (path.name for path in _FOLDER.iterdir() if (path / "structs.txt").is_file())
    return tuple(sorted(names, key=lambda name: [int(part) for part in name.split(".")]))


@cache
def firmware(version: str) -> FirmwareAbi:
    """The interface of a firmware release, such as "570.144".

    NotSupported for any other: the nearest release's offsets would let firmware read arguments at
    wrong places, which it does not report.
    """
    if version not in firmware_versions():
        raise NotSupported(
            f"GSP firmware must be one of {', '.join(firmware_versions())}, got {version!r}"
        )
    return FirmwareAbi(version)
