"""The order of a start's and an end's register accesses, by name, against a committed file: what a
reader compares with nouveau's, and what a change of the driver shows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import Golden
from tests.nv.gsp.test_gsp_boot import booted, powered
from ugpu.hcq.bare.stages import Stages
from ugpu.nv.regs import load
from ugpu.virtual.nvidia.gsp.card import Card

_ROM, _WINDOW = (0x30_0000, 0x40_0000), (0x70_0000, 0x80_0000)
_UNITS = (("GSP.", 0x11_0000, "falcon"), ("SEC2.", 0x84_0000, "falcon"), ("", 0, "bar0"),
          ("", 0, "fsp"))  # fmt: skip


def named(offset: int) -> str:
    for (begin, end), name in ((_ROM, "ROM"), (_WINDOW, "PRAMIN")):
        if begin <= offset < end:
            return name
    for prefix, base, table in _UNITS:
        found = load(table).find((offset - base) // 4, 0) if offset >= base else None
        if found is not None:
            return prefix + found.name
    return f"{offset:#x}"


@contextmanager
def recorded(card: Card) -> Iterator[list[str]]:
    """Record the accesses to registers, without values: addresses of memory differ."""
    lines: list[str] = []
    read, write = card.read32, card.write32

    def noted_read(offset: int) -> int:
        name = named(offset)
        if name != "GSP.WAYFINDER":  # looked at by time, while waiting for the firmware
            lines.append(f"R {name}")
        return read(offset)

    def noted_write(offset: int, value: int) -> None:
        lines.append(f"W {named(offset)}")
        write(offset, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(card, "read32", noted_read)
        patch.setattr(card, "write32", noted_write)
        yield lines


@pytest.mark.golden
@pytest.mark.parametrize("chip", ["ad102", "tu102", "gb202"])
def test_order_of_accesses(chip: str, golden: Golden) -> None:
    with powered(chip=chip) as card, recorded(card) as lines:
        stages = Stages(lambda name, _: lines.append(f"# {name} ends"))
        running = booted(card, stages=stages)
        lines.append("# the way back")
        running.end(clean=True)
    shown = []
    for line, repeated in itertools.groupby(lines):
        times = sum(1 for _ in repeated)
        shown.append(line + (f" ({times} times)" if times > 1 else ""))
    golden.check(f"nv-boot-{chip}.txt", "\n".join(_folded(shown)) + "\n")


def _folded(lines: list[str]) -> list[str]:
    """Write a run of the same few accesses once, with how often it is repeated."""
    out: list[str] = []
    at = 0
    while at < len(lines):
        for size in range(2, 9):
            part = lines[at : at + size]
            times = 1
            while lines[at + times * size : at + (times + 1) * size] == part:
                times += 1
            if times > 2:
                out += [f"{times} times:", *(f"  {line}" for line in part)]
                at += times * size
                break
        else:
            out.append(lines[at])
            at += 1
    return out


def test_names() -> None:
    assert named(0x11_0040) == "GSP.MAILBOX0" and named(0x84_0100) == "SEC2.CPUCTL"
    assert named(0x30_0010) == "ROM" and named(0x4) == "NV_PMC_BOOT_1"
