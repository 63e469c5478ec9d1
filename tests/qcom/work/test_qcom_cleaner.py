"""What one holder's kernels leave in local memory, registers, constants and private memory of an
Adreno GPU, and the cleaner that overwrites it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.support.adreno.adreno_leaks import SECRET, find, kernel, launch, plant
from tests.support.adreno.mesa import disassembly, needs_mesa
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.objects.ir3_object import pack_ir3
from ugpu.qcom import chips
from ugpu.qcom.device.driver import AdrenoDriver
from ugpu.qcom.work import cleaner
from ugpu.virtual.adreno.gpu import build_machine
from ugpu.virtual.adreno.machine import VirtualMachine
from ugpu.virtual.adreno.options import MachineOptions
from ugpu.virtual.adreno.sp.processors import Processors


def clean(device: Device) -> None:
    core = device.driver.core
    with core.lock:
        ended = core.driver.clean()
    assert ended is not None
    ended[0].wait(ended[1])


@pytest.fixture(params=["a630", "a660", "a740", "a750"])
def machine(request: pytest.FixtureRequest) -> Iterator[VirtualMachine]:
    """One host thread runs all groups: what one leaves there, the next one finds."""
    options = MachineOptions(processors=lambda facts: Processors(1, keep_registers=True))
    made = build_machine(request.param, options)
    yield made
    made.close()
    assert made.violations == []


def test_what_is_left_is_found_by_the_next_and_cleaned(machine: VirtualMachine) -> None:
    chip = machine.facts.name
    with hcq.open(f"virtual:{chip}", chip=machine, kernel_driver="msm") as device:
        with Device(device.driver.open_tenant("one")) as one:
            launch(one, plant(chip), np.uint32(SECRET))
        with Device(device.driver.open_tenant("other")) as other:
            found = launch(other, find(chip))
            assert (found == SECRET).all(axis=1).all(), "the model keeps what was there"
            launch(other, plant(chip), np.uint32(SECRET))
            clean(other)
        with Device(device.driver.open_tenant("third")) as third:
            assert not launch(third, find(chip)).any()
        launch(device, plant(chip), np.uint32(SECRET))
        clean(device)
        assert not launch(device, find(chip)).any()


def test_private_memory_of_an_exclusive_holder_is_cleaned() -> None:
    """On KGSL, which has no other holders."""
    image = pack_ir3([replace(kernel("a630", []), private_size=512)])
    with hcq.open("virtual:a630") as device, device.load(image):
        driver = device.driver
        assert isinstance(driver, AdrenoDriver)
        (block,) = driver.programs._blocks
        block.view[: block.size] = SECRET.to_bytes(4, "little") * (block.size // 4)
        clean(device)
        assert not any(block.view[: block.size])


def test_the_cleaner_runs_again_and_after_a_reset() -> None:
    """Its code is loaded once."""
    with hcq.open("virtual:a630") as device:
        clean(device)
        assert isinstance(device.driver, AdrenoDriver)
        memories = len(device.driver.interface.memories)
        clean(device)
        device.reset()
        clean(device)
        assert len(device.driver.interface.memories) == memories


@needs_mesa
@pytest.mark.parametrize("chip", chips.names())
def test_the_kernel_is_what_its_text_says(chip: str) -> None:
    """By Mesa's disassembler. A group fills the register file, the wave slots and local memory."""
    facts = chips.facts(chip)
    made = cleaner.kernel(facts)
    count = made.full_registers
    waves = facts.registers // count * facts.wave_granularity
    assert made.threads == 1024 == waves * facts.wave_base == facts.max_waves * facts.wave_base
    assert count == {96: 12, 64: 8}[facts.registers] and made.local_size == facts.local_memory
    registers = [f"r{number}.{part}" for number in range(48, 56) for part in "xyzw"]
    assert disassembly(made, chip).splitlines()[1:] == [
        "shl.b r0.x, r0.x, 5",
        "(rpt3)mov.u32u32 r1.x, 0",
        "(rpt5)nop",
        "stl.u32 l[r0.x], r1.x, 4",
        "stl.u32 l[r0.x+16], r1.x, 4",
        *(f"(rpt3)mov.u32u32 r{number}.x, 0" for number in range(2, count)),
        "(ss)(rpt3)mov.u32u32 r0.x, 0",
        "mova a0.x, 0",
        "mova1 a1.x, 0",
        *(f"cmps.u.ne p0.{part}, r2.x, r2.x" for part in "xyzw"),
        *(f"mov.u32u32 {name}, r2.x" for name in registers),
        "(ss)nop",
        "(sy)bar.g",
        "end",
    ]  # fmt: skip
