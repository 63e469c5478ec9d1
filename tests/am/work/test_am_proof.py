"""What a reset proves: queues compute and copy what they should; else the next rung follows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_navi31 import build_chip, opened
from tests.support.shader_memory import ArrayMemory
from ugpu.am.chips import facts_of
from ugpu.am.generations.record import generation_of
from ugpu.hcq.errors import ChipError, OutOfMemory
from ugpu.hcq.state.memory import Placement
from ugpu.virtual.amd.engines import transfer
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.decoder.disassembly import text
from ugpu.virtual.amd.isa.targets.target import target as find_target
from ugpu.virtual.amd.isa.translator.program import load
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.amd.shader import Dispatch, Ending, Outcome, ShaderMemory, ShaderWave
from ugpu.virtual.shader.memory import Abort

ASSEMBLY = """
s_load_b32 s2, s[0:1], 0x8
s_load_b64 s[0:1], s[0:1], 0x0
{wait}
v_mad_u32_u24 v1, v0, 3, s2
v_lshlrev_b32_e32 v0, 2, v0
global_store_b32 v0, v1, s[0:1]
s_endpgm
"""


class Core:
    """Shader cores that execute nothing, for as long as `broken`."""

    def __init__(self) -> None:
        self.broken = False
        self._core = GfxCore(1)

    def run(self, dispatch: Dispatch, memory: ShaderMemory, abort: Abort) -> Outcome:
        if self.broken:
            return Outcome(Ending.DONE)
        return self._core.run(dispatch, memory, abort)

    def look(self, abort: Abort, limit_s: float) -> list[ShaderWave]:
        return self._core.look(abort, limit_s)

    def close(self) -> None:
        self._core.close()


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def chip(core: Core) -> Iterator[Any]:
    made = build_chip(ChipOptions(shader_core=lambda: core))
    mode1 = made.mode1_reset

    def cured() -> None:
        core.broken = False
        mode1()

    made.mode1_reset = cured  # type: ignore[method-assign]
    yield made
    made.close()
    assert made.violations == []


@pytest.mark.parametrize(
    ("chip_name", "wait"), [("navi31", "s_waitcnt lgkmcnt(0)"), ("navi48", "s_wait_kmcnt 0x0")]
)
def test_the_kernel_is_what_its_text_says(chip_name: str, wait: str) -> None:
    generation = facts_of(chip_name).generation
    kernel = generation_of(generation).proof
    memory = ArrayMemory()
    code = np.frombuffer(struct.pack(f"<{len(kernel.words)}I", *kernel.words), np.uint8)
    memory.map(0x10000, code, executable=True)
    program = load(memory, 0x10000, target=find_target(generation.name))
    lines = [text(one) for block in program.blocks.values() for one in block.instructions]
    assert lines == ASSEMBLY.format(wait=wait).strip().splitlines()
    assert kernel.descriptor.is_wave32
    wanted = [name for name, given in kernel.descriptor.user_sgprs.items() if given]
    assert wanted == ["kernarg_segment_ptr"]


@pytest.mark.parametrize("level", ["queue", "mode1"])
def test_a_reset_is_proven_by_a_kernel_and_copies(chip: Any, level: str) -> None:
    with opened(chip) as device, device.alloc(4096) as buffer:
        used = device.driver.memory.used
        launches = chip.gfx.mec.array.launches
        found = device.reset(level).attempts[-1].proof
        assert found["kernel"] == "right on compute 0.0"
        assert found["copy"] == "right on SDMA0, SDMA1"
        assert chip.gfx.mec.array.launches == launches + 1
        assert device.driver.memory.used == used
        buffer.fill(7)
        assert buffer.numpy(np.uint32)[5] == 7


def test_a_core_that_computes_nothing_does_not_pass(chip: Any, core: Core) -> None:
    with opened(chip) as device:
        core.broken = True
        recovery = device.reset()
        tried = {one.name: one for one in recovery.attempts if not one.refused}
        detail = tried["take queues off"].detail
        assert not tried["take queues off"].worked and "compute 0.0: a kernel stored 0x0" in detail
        assert "expected 0x5eed0000" in detail
        assert tried["mode1 reset"].worked


def test_a_copy_that_arrives_changed_does_not_pass(
    chip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(hub: Any, vmid: int, source: int, destination: int, *rest: Any) -> Any:
        return copy(hub, vmid, source + 4, destination, *rest)

    with opened(chip) as device:
        copy: Callable[..., Any] = transfer.copy
        monkeypatch.setattr(transfer, "copy", changed)
        with pytest.raises(ChipError, match=r"SDMA0: byte 0 of a copy is 0x2, expected 0x0"):
            device.reset("queue")
        monkeypatch.undo()
        assert device.reset("queue").attempts[-1].worked


def test_without_memory_a_reset_is_proven_by_signals(
    chip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(chip) as device:
        used = device.driver.memory.used
        room = [True]  # for one mapping

        def scarce(size: int, placement: Placement, *, code: bool = False) -> Any:
            if not room:
                raise OutOfMemory("device memory is full", size=size)
            room.pop()
            return mapped(size, placement, code=code)

        mapped = device.driver.map
        monkeypatch.setattr(device.driver, "map", scarce)
        found = device.reset("queue").attempts[-1].proof
        monkeypatch.undo()
        assert found["kernel"] == "not run: device memory is full (size=4096 bytes (4 KiB))"
        assert device.driver.memory.used == used
