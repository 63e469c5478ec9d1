"""Every chip's folder: its virtual card boots with the real driver, and nothing else names it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.am import chips
from ugpu.am.chip import discovery
from ugpu.am.chips import facts_of
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.device.device import AmDevice, open_device
from ugpu.am.regs import load
from ugpu.hcq.errors import BadArgument, DeviceNotFound, DiscoveryError
from ugpu.hcq.find import catalogue
from ugpu.virtual.amd.gpu import attach, build_chip
from ugpu.virtual.amd.options import ChipOptions

ROOT = Path(__file__).resolve().parents[3]
TOY = """
from dataclasses import replace

from ugpu.am.chips.navi31.facts import FACTS as NAVI31

FACTS = replace(
    NAVI31, name="toy", title="Toy", pci_ids=(0x7FFE,),
    board=replace(NAVI31.board, vram=1 << 30, shader_engines=1, wgps_per_array=3),
)
"""


def opened(chip: Any, **options: Any) -> AmDevice:
    name = chip.facts.name
    return open_device(f"virtual:{name}", attach(name, chip), **options)


def check_works(device: AmDevice) -> None:
    """A kernel compiled for the chip runs, and a copy engine copies its result."""
    values = np.arange(128, dtype=np.uint32)
    with (
        device.load(contract_object(device.target)) as program,
        device.alloc(values.nbytes) as source,
        device.alloc(values.nbytes) as out,
    ):
        source.copy_from(values)
        arguments = (out, source, np.uint32(128), np.uint32(7))
        with device.queue() as queue:
            queue.launch(program["scale"], grid=(2,), block=(64,), args=arguments)
        device.synchronize()
        assert np.array_equal(out.numpy(np.uint32), values * np.uint32(7))


@pytest.fixture(params=chips.virtual_names())
def facts(request: pytest.FixtureRequest) -> ChipFacts:
    return facts_of(request.param)


@pytest.fixture
def chip(facts: ChipFacts) -> Iterator[Any]:
    made = build_chip(facts)
    yield made
    made.close()


def test_a_folder_says_what_is_asked_of_it(facts: ChipFacts) -> None:
    assert set(facts.versions) == {*facts.generation.register_tables, "SDMA0"}
    for block in facts.generation.register_tables:
        assert len(load(facts.table(block)))
    assert f"psp_{'_'.join(map(str, facts.versions['MP0']))}_sos.bin" in facts.firmware_files
    vendor = facts.generation.vendor
    assert [chips.find(vendor, device) for device in facts.pci_ids] == [facts] * len(facts.pci_ids)
    described = [catalogue.pci_drivers()[vendor, device].description for device in facts.pci_ids]
    assert described == [f"AMD {facts.title}"] * len(facts.pci_ids)
    assert catalogue.virtual_chips()[facts.name] == "am"
    driver = catalogue.pci_drivers()[vendor, facts.pci_ids[0]]
    shared = facts.generation
    by_clock = {
        (shared.register_bar, 4 * (shared.typical_bases[block][register.segment] + register.offset))
        for block, name in (("OSSSYS", "IH_RB_RPTR"), ("MP0", f"{shared.psp_mailbox}_81"))
        for register in [load(facts.table(block))[name]]
    }
    assert set(driver.by_clock) == {
        *by_clock,
        (shared.register_bar, 4 * shared.memory_size_register),
    }


def test_the_step_of_the_security_patch_level(chip: Any, facts: ChipFacts) -> None:
    """Linux 6.12 amdgpu_psp.c leaves it out where the container has no such part, as MP0 13.0.10's
    has none in linux-firmware (April 2025, September 2026)."""
    commands: list[int] = []
    load = chip.psp._loader_command

    def note(command: int) -> None:
        commands.append(command)
        load(command)

    chip.space.on_write("mp", chip.psp.mailbox(35), note)
    with opened(chip):
        pass
    assert (0x10000000 in commands) == (facts.versions["MP0"] != (13, 0, 10))
    assert commands[-1] == 0x20000 and chip.violations == []


def test_cold_warm_and_reset(chip: Any, facts: ChipFacts) -> None:
    """From power-on, taken over, and reset as a whole, without a violation."""
    board = facts.board
    for start, leave in (("cold", "warm"), ("warm", "cold"), ("cold", "warm")):
        with opened(chip, leave=leave) as device:
            info = device.info()
            assert (info["chip"], info["isa"], info["start"]) == (facts.name, facts.isa, start)
            units = 2 * board.shader_engines * board.arrays_per_engine * board.wgps_per_array
            assert (info["compute_units"], info["vram_bytes"]) == (units, board.vram)
            assert len(device.driver.queues.copy) == facts.copy_engines
            check_works(device)
    assert chip.violations == []


def test_clocks_are_gated_as_the_kernel_does(chip: Any, facts: ChipFacts) -> None:
    """Fields of gfx_v11_0.c, features of a chip by soc21.c; what it lacks keeps its clock."""
    register = load(facts.table("GC"))["RLC_CGTT_MGCG_OVERRIDE"]
    fields = {
        "GFX_MGCG": ("GRBM_CGTT_SCLK_OVERRIDE", "RLC_CGTT_SCLK_OVERRIDE", "GFXIP_MGCG_OVERRIDE"),
        "GFX_FGCG": ("GFXIP_FGCG_OVERRIDE",),
        "REPEATER_FGCG": ("GFXIP_REPEATER_FGCG_OVERRIDE",),
        "GFX_PERF_CLK": ("PERFMON_CLOCK_STATE",),
    }
    everything = {name: 1 for names in fields.values() for name in names}
    with chip.lock:
        chip.autoload_listeners.append(lambda: chip.gfx.set("RLC_CGTT_MGCG_OVERRIDE", **everything))
    with opened(chip):
        found = register.decode(chip.gfx.get("RLC_CGTT_MGCG_OVERRIDE"))
    for feature, names in fields.items():
        gated = feature in facts.clock_gates
        assert {found[name] for name in names} == {int(not gated)}, feature
    space = chip.space
    athub = load(facts.table("ATHUB"))["ATHUB_MISC_CNTL"]
    control = athub.decode(space.peek(space.index("athub", "ATHUB_MISC_CNTL")))
    assert ("ATHUB_MGCG" in facts.clock_gates) == control.CG_ENABLE
    assert ("ATHUB_LS" in facts.clock_gates) == control.CG_MEM_LS_ENABLE
    assert chip.violations == []


def test_a_block_of_another_version_ends_the_boot(facts: ChipFacts) -> None:
    """Not a warning, and no register of the block is written by the wrong table."""
    for block, version in (("MMHUB", (3, 3, 0)), ("GC", (11, 5, 0)), ("SDMA0", (6, 1, 0))):
        tables = {**facts.generation.register_tables}
        if block in tables:
            tables[block] = {**tables[block], version: facts.table(block)}
        generation = replace(facts.generation, register_tables=tables)
        versions = {**facts.versions, block: version}
        board = replace(facts, versions=versions, generation=generation)
        chip = build_chip(board, ChipOptions(vram=1 << 30, noise=0))
        with pytest.raises(DiscoveryError, match=f"{block}: expected version .*, got") as caught:
            opened(chip)
        assert (caught.value.facts["block"], caught.value.facts["found"]) == (block, version)
        chip.close()


def test_another_version_that_the_same_table_describes_is_driven() -> None:
    """As Linux has several versions in one case; firmware is not named after HDP."""
    navi31 = facts_of("navi31")
    other = replace(navi31, versions={**navi31.versions, "HDP": (6, 0, 1), "NBIF": (4, 3, 1)})
    chip = build_chip(other, ChipOptions(vram=1 << 30))
    with opened(chip) as device:
        check_works(device)
    chip.close()


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""A chip of a test."""\n')
    (folder / "facts.py").write_text(TOY)
    monkeypatch.setattr(chips, "__path__", [*chips.__path__, str(tmp_path)])
    yield "toy"
    for name in [name for name in sys.modules if name.startswith("ugpu.am.chips.toy")]:
        del sys.modules[name]


def test_a_chip_is_one_folder(toy: str) -> None:
    """Its name, its PCI id and its model are found, and it works."""
    assert f"virtual:{toy}" in [entry.name for entry in hcq.list_devices()]
    assert catalogue.pci_drivers()[0x1002, 0x7FFE].description == "AMD Toy"
    with hcq.open(f"virtual:{toy}") as device:
        assert isinstance(device, AmDevice)
        assert device.info()["compute_units"] == 12
        check_works(device)
    with pytest.raises(BadArgument, match="expected a virtual navi31, got a virtual toy"):
        attach("navi31", build_chip(facts_of(toy)))


def test_an_unknown_chip_is_named() -> None:
    with pytest.raises(DeviceNotFound, match=r"expected the name .*navi31.*, got 'navi99'"):
        attach("navi99")


def test_importing_the_registry_imports_no_chip() -> None:
    code = (
        "import sys, ugpu.hcq.find.registry; "
        "assert not [m for m in sys.modules if m.startswith('ugpu.am')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_chip_is_named_outside_the_folders() -> None:
    """The generator's list of headers names tables, as does what a source of facts is called."""
    named = []
    floors = ("boot", "chip", "device", "failure", "offline", "packets", "units", "work")
    for folder in (*(f"am/{floor}" for floor in floors), "virtual/amd", "hcq", "tools"):
        words = chips.names() if folder == "virtual/amd" else [*chips.names(), "gc_11_0_[0-9]"]
        word = re.compile("|".join(words), re.IGNORECASE)
        paths = list((ROOT / folder).glob("**/*.py"))
        assert paths, folder
        for path in paths:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if path.name != "catalogue.py" and word.search(line):
                    named.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert named == []


def test_each_instance_of_a_hub_is_set_up_flushed_and_stopped() -> None:
    """A second MMHUB at bases of its own, which answers invalidations and keeps what is written."""
    facts = facts_of(chips.DEFAULT)
    table, second = load(facts.table("MMHUB")), (0x50000, 0x50800)
    chip = build_chip(facts, ChipOptions(vram=1 << 30))
    written: dict[str, list[int]] = {name: [] for name in ("REQ", "SEM")}

    def place(name: str) -> int:
        return second[table[name].segment] + table[name].offset

    with chip.lock:
        engine = "MMVM_INVALIDATE_ENG17"
        chip.space.on_read_at(place(f"{engine}_ACK"), lambda: 0xFFFF)
        for what, values in written.items():
            chip.space.on_write_at(place(f"{engine}_{what}"), values.append)
        chip.space._readers[place(f"{engine}_SEM")] = lambda: 1
    parse = discovery.parse

    def with_another(data: bytes) -> discovery.Discovery:
        found = parse(data)
        another = discovery.IpInstance(34, 1, facts.versions["MMHUB"], second)
        return replace(found, blocks=(*found.blocks, another))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discovery, "parse", with_another)
        device = opened(chip)
    with device:
        first, other = device.driver.units.gmc.mmhubs
        assert (first.name, other.name) == ("MMHUB", "MMHUB1")
        root = chip.space.peek(place("MMVM_CONTEXT8_PAGE_TABLE_BASE_ADDR_LO32"))
        assert root == chip.mm.get("MMVM_CONTEXT8_PAGE_TABLE_BASE_ADDR_LO32") != 0
        flushes = len(written["REQ"])
        device.driver.units.gmc.flush_tlb()
        assert written["REQ"][flushes:] == [1 << vmid | 0x1F << 19 for vmid in (0, 8)]
        assert written["SEM"][-1] == 0, "the semaphore is given back"
        check_works(device)
    assert chip.space.peek(place("MMVM_CONTEXT8_CNTL")) == 0
    chip.close()
