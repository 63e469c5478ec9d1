"""A generation is a folder on each side: one of a test has other page tables and SDMA packets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.am import chips, generations
from ugpu.am.device.device import AmDevice, open_device
from ugpu.hcq.errors import DeviceHang
from ugpu.virtual.amd import generations as models
from ugpu.virtual.amd.gpu import attach, build_chip
from ugpu.virtual.amd.options import ChipOptions

# Bit 63 marks entries that map memory, on all levels, in place of bit 54 above the last one. The
# operations of the copy engines have other numbers.
FACTS = """
from dataclasses import replace

from ugpu.am.chips.navi31.facts import FACTS as NAVI31

FACTS = replace(
    NAVI31, name="toychip", title="Toy", pci_ids=(0x7FFD,),
    generation=replace(NAVI31.generation, name="toygen"),
    board=replace(NAVI31.board, vram=1 << 30, shader_engines=1, wgps_per_array=3),
)
"""
DRIVER = """
from dataclasses import replace

import numpy as np

from ugpu.am.generations.gfx11.driver import GENERATION as GFX11
from ugpu.am.packets.page_table import PDE_AS_PTE, Gfx11Format
from ugpu.am.packets.sdma import Sdma
from ugpu.am.work.queue import CopyQueue


class Format(Gfx11Format):
    def leaf(self, level, physical, flags, fragment):
        entries = super().leaf(level, physical, flags, fragment)
        return entries & np.uint64(~PDE_AS_PTE & (1 << 64) - 1) | np.uint64(1 << 63)

    def is_table(self, level, entry):
        last = level == len(self.levels) - 1
        return bool(entry & 1) and not last and not entry >> 63


class Packets(Sdma):
    @classmethod
    def number(cls, name):
        return super().number(name) ^ 0x40 if name.startswith("OP_") else super().number(name)


class Copies(CopyQueue):
    packets = Packets


GENERATION = replace(
    GFX11, units=replace(GFX11.units, page_format=Format), copy_queue=Copies
)
"""
MODEL = """
from dataclasses import replace

from ugpu.virtual.amd.engines.sdma.packets import Operation
from ugpu.virtual.amd.generations.gfx11.model import GENERATION as GFX11

LEAF = 1 << 63
tables, packets = GFX11.page_tables, GFX11.copy_packets
numbers = {
    name: number ^ 0x40 if name is not Operation.NOP else number
    for name, number in packets.opcodes.items()
}
GENERATION = replace(
    GFX11,
    page_tables=replace(
        tables, leaf=LEAF, leaf_at_last=True, table_defined=tables.table_defined & ~LEAF,
        entry_defined=tables.entry_defined & ~(1 << 54) | LEAF,
    ),
    copy_packets=replace(packets, opcodes=numbers),
)
"""


@dataclass
class Folder:
    """Where a test puts the files of a package's generation or chip."""

    package: ModuleType
    name: str
    file: str
    text: str

    def place(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        """Write the folder and let the package find it."""
        parent = root / self.package.__name__
        folder = parent / self.name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text('"""Of a test."""\n')
        (folder / f"{self.file}.py").write_text(self.text)
        patch.setattr(self.package, "__path__", [*self.package.__path__, str(parent)])

    def forget(self) -> None:
        """Unload its modules."""
        start = f"{self.package.__name__}.{self.name}"
        for name in [name for name in sys.modules if name.startswith(start)]:
            del sys.modules[name]


CHIP = Folder(chips, "toychip", "facts", FACTS)
SIDES = (Folder(generations, "toygen", "driver", DRIVER), Folder(models, "toygen", "model", MODEL))


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for folder in (CHIP, *SIDES):
        folder.place(tmp_path, monkeypatch)
    yield "toychip"
    for folder in (CHIP, *SIDES):
        folder.forget()


def check_works(device: AmDevice) -> None:
    """A kernel reads what a copy engine wrote, and a copy engine reads what the kernel wrote."""
    values = np.arange(1 << 16, dtype=np.uint32)
    with (
        device.load(contract_object(device.target)) as program,
        device.alloc(values.nbytes) as source,
        device.alloc(values.nbytes) as between,
        device.alloc(values.nbytes) as out,
    ):
        source.copy_from(values)
        between.copy_from(source)
        device.synchronize()
        arguments = (out, between, np.uint32(len(values)), np.uint32(7))
        grid = (len(values) // 64,)
        with device.queue() as queue:
            queue.launch(program["scale"], grid=grid, block=(64,), args=arguments)
        device.synchronize()
        assert np.array_equal(out.numpy(np.uint32), values * np.uint32(7))


def queues(card: Any) -> list[Any]:
    """Return the queues of all copy engines."""
    return [queue for engine in card.sdma for queue in engine.queues()]


def test_a_generation_is_a_folder_on_each_side(toy: str) -> None:
    """It boots, computes and copies, twice: from power-on and taken over."""
    card = build_chip(chips.facts_of(toy), ChipOptions(vram=1 << 30, noise=0))
    try:
        for start in ("cold", "warm"):
            with open_device(f"virtual:{toy}", attach(toy, card), leave="warm") as device:
                assert device.info()["start"] == start
                check_works(device)
                assert any(queue.copied for queue in queues(card)), "no copy engine was used"
        assert card.violations == []
    finally:
        card.close()
    with hcq.open(f"virtual:{toy}") as device:
        assert isinstance(device, AmDevice)
        check_works(device)


@pytest.mark.parametrize("side", SIDES, ids=("driver", "model"))
def test_both_sides_must_agree(side: Folder, tmp_path: Path) -> None:
    """With gfx11's folder on one side only, the first copy faults: the sides share no format."""
    gfx11 = {
        generations: "from ugpu.am.generations.gfx11.driver import GENERATION\n",
        models: "from ugpu.virtual.amd.generations.gfx11.model import GENERATION\n",
    }
    other = next(folder for folder in SIDES if folder is not side)
    plain = Folder(other.package, other.name, other.file, gfx11[other.package])
    with pytest.MonkeyPatch.context() as patch:
        for folder in (CHIP, side, plain):
            folder.place(tmp_path, patch)
        card = build_chip(chips.facts_of("toychip"), ChipOptions(vram=1 << 30, noise=0))
        try:
            with (
                pytest.raises(DeviceHang),
                open_device("virtual:toychip", attach("toychip", card)) as device,
            ):
                device.limit_s = 0.2  # of work that the model has stopped already
                check_works(device)
            assert "page fault while fetching" in " ".join(card.notes)
        finally:
            card.close()
            for folder in (CHIP, side, plain):
                folder.forget()
