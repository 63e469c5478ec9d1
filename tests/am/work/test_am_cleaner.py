"""What one holder's kernels leave in LDS, vector registers and scratch, and the cleaner that
overwrites it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_tenants import SECRET, driver_of, opened, tenant, work
from tests.support.kernels import compile_ir
from tests.support.shader_memory import ArrayMemory
from ugpu.am import chips
from ugpu.am.chips import facts_of
from ugpu.am.generations.record import generation_of
from ugpu.am.packets.dispatch import LaunchDetails, encode_setup
from ugpu.hcq.device.device import Device
from ugpu.hcq.objects.code_object import Descriptor, KernelImage
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.program import Kernel, Program
from ugpu.virtual.amd.gpu import build_chip
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.decoder.disassembly import text
from ugpu.virtual.amd.isa.targets.target import target as find_target
from ugpu.virtual.amd.isa.translator.program import load
from ugpu.virtual.amd.options import ChipOptions

SCRATCH = """
target triple = "amdgcn-amd-amdhsa"
define amdgpu_kernel void @scratch(ptr addrspace(1) %out, i32 %value) #0 {
  %a = alloca [64 x i32], addrspace(5)
  %tid = call i32 @llvm.amdgcn.workitem.id.x()
  %i = and i32 %tid, 63
  %p = getelementptr i32, ptr addrspace(5) %a, i32 %i
  store volatile i32 %value, ptr addrspace(5) %p
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = { "amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id"
  "amdgpu-no-dispatch-ptr" "amdgpu-flat-work-group-size"="256,256" }
"""
# A compiler writes each register first: so these are by hand, from the RDNA3 and RDNA4 ISA
# documents. Instructions that differ: s_barrier, or s_barrier_signal and s_barrier_wait;
# s_load_b64 s[0:1], s[0:1], 0x0 and the wait for it; the wait for LDS; rsrc1.
_END = {"gfx11": (0xBFBD_0000,), "gfx12": (0xBE80_4EC1, 0xBF94_FFFF)}
_LOAD = {
    "gfx11": (0xF404_0000, 0xF800_0000, 0xBF89_FC07),
    "gfx12": (0xF400_2000, 0xF800_0000, 0xBFC7_0000),
}
_WAIT = {"gfx11": 0xBF89_FC07, "gfx12": 0xBFC6_0000}
_RSRC1 = {"gfx11": 0xC0AF_0005, "gfx12": 0xC00F_0005}
_ENDPGM = 0xBFB0_0000


def _store(generation: str, register: int, offset: int) -> tuple[int, ...]:
    """global_store_b32 v2, v<register>, s[0:1] offset:<offset>."""
    if generation == "gfx11":
        return 0xDC6A_0000 | offset, register << 8 | 2
    return 0xEE06_8000, register << 23, offset << 8 | 2


def plant(generation: str) -> tuple[int, ...]:
    """A kernel that leaves SECRET in LDS and registers."""
    return (
        0x3004_0082,  # v_lshlrev_b32_e32 v2, 2, v0
        0x7E02_02FF, SECRET,  # v_mov_b32_e32 v1, SECRET
        0xD834_0000, 0x0000_0102,  # ds_store_b32 v2, v1
        0xD834_F000, 0x0000_0102,  # ds_store_b32 v2, v1 offset:61440
        0x7E28_02FF, SECRET,  # v_mov_b32_e32 v20, SECRET
        0x7E50_02FF, SECRET,  # v_mov_b32_e32 v40, SECRET
        _WAIT[generation], *_END[generation], _ENDPGM,
    )  # fmt: skip


def find(generation: str) -> tuple[int, ...]:
    """A kernel that stores what it finds there."""
    return (
        *_LOAD[generation],
        0x3004_0082,  # v_lshlrev_b32_e32 v2, 2, v0
        0xD8D8_0000, 0x0300_0002,  # ds_load_b32 v3, v2
        0xD8D8_F000, 0x0400_0002,  # ds_load_b32 v4, v2 offset:61440
        _WAIT[generation],
        *_store(generation, 3, 0), *_store(generation, 4, 1024),
        *_store(generation, 20, 2048), *_store(generation, 40, 3072),
        *_END[generation], _ENDPGM,
    )  # fmt: skip


GROUPS = 4
THREADS = 256


@pytest.fixture(params=chips.virtual_names())
def chip(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One host thread runs all groups: what one leaves there, the next one finds."""
    facts = facts_of(request.param)
    target = find_target(facts.generation.name)
    options = ChipOptions(
        vram=512 << 20,
        noise=0,
        shader_core=lambda: GfxCore(1, keep_registers=True, target=target),
    )
    made = build_chip(facts, options)
    yield made
    made.close()
    assert made.violations == []


def launch(device: Device, make: Callable[[str], tuple[int, ...]]) -> Any:
    """Run machine code of the device's generation in groups that have 64 KiB of LDS and 48
    registers; what it stored, by kinds: the start of LDS, its end, v20 and v40."""
    driver = driver_of(device)
    generation = driver.facts.generation.name
    words = make(generation)
    code = driver.map(4096, Placement.DEVICE, code=True)
    driver.programs.write(code, struct.pack(f"<{len(words)}I", *words))
    descriptor = Descriptor(65536, 0, 8, 0, 0, _RSRC1[generation], 0x4, 0x408, 0)
    image = KernelImage("by hand", 0, 0, descriptor, (), (), THREADS, {})
    setup = encode_setup(descriptor, int(code.address), None, driver.programs.registers)
    kernel = Kernel(
        "by hand", Program(driver.core, None), int(code.address), 8, None,
        details=LaunchDetails(image, int(code.address), THREADS, setup),
    )  # fmt: skip
    with device.alloc(16 * THREADS) as out:
        out.fill(0)
        with device.queue() as queue:
            queue.launch(kernel, grid=(GROUPS,), block=(THREADS,), args=(out,))
        device.synchronize()
        found = out.numpy(np.uint32).reshape(4, THREADS)
    driver.unmap(code)
    return found


def run_scratch(device: Device) -> None:
    image = compile_ir(SCRATCH, "amdgcn-amd-amdhsa", device.target.cpu)
    with device.load(image) as program, device.alloc(4096) as out:
        with device.queue() as queue:
            arguments = (out, np.uint32(SECRET))
            queue.launch(program["scratch"], grid=(GROUPS,), block=(THREADS,), args=arguments)
        device.synchronize()


def clean(device: Device) -> None:
    core = device.driver.core
    with core.lock:
        ended = core.driver.clean()
    assert ended is not None
    ended[0].wait(ended[1])


def test_what_is_left_is_found_by_the_next_and_cleaned(chip: Any) -> None:
    with opened(chip) as device:
        one = tenant(device, "one")
        launch(one, plant)
        one.close()
        with tenant(device, "other") as other:
            found = launch(other, find)
            assert (found == SECRET).all(axis=1).all(), "the model keeps what was there"
            launch(other, plant)
            clean(other)
        with tenant(device, "third") as third:
            assert not launch(third, find).any()
            work(third)
        launch(device, plant)
        clean(device)
        assert not launch(device, find).any()


def test_scratch_of_an_exclusive_holder_is_cleaned(chip: Any) -> None:
    with opened(chip) as device:
        run_scratch(device)
        memory = device.driver.programs._scratch_memory[0]
        content = [chip.vram.read(start, size) for start, size in memory.pieces]
        secret = SECRET.to_bytes(4, "little")
        assert any(secret in bytes(each) for each in content)
        clean(device)
        for start, size in memory.pieces:
            assert secret not in bytes(chip.vram.read(start, size))


def test_the_cleaner_works_after_a_reset_that_loses_memory() -> None:
    made: Any = build_chip(facts_of("navi31"), ChipOptions(vram=512 << 20, noise=0, psp_mode1=True))
    with opened(made) as device:
        clean(device)
        used = device.driver.memory.used
        device.reset("mode1")
        launches = made.gfx.mec.array.launches
        clean(device)
        assert made.gfx.mec.array.launches == launches + 1
        assert device.driver.memory.used == used
    assert made.violations == []
    made.close()


@pytest.mark.parametrize(
    ("chip_name", "wait", "barrier", "count"),
    [
        ("navi31", "s_waitcnt lgkmcnt(0)", ["s_barrier"], 96),
        ("navi33", "s_waitcnt lgkmcnt(0)", ["s_barrier"], 64),
        ("navi48", "s_wait_dscnt 0x0", ["s_barrier_signal -1", "s_barrier_wait 0xffff"], 96),
    ],
)
def test_the_kernel_is_what_its_text_says(
    chip_name: str, wait: str, barrier: list[str], count: int
) -> None:
    facts = facts_of(chip_name)
    found = generation_of(facts.generation).cleaner(facts.board.vector_registers)
    memory = ArrayMemory()
    code = np.frombuffer(struct.pack(f"<{len(found.words)}I", *found.words), np.uint8)
    memory.map(0x10000, code, executable=True)
    blocks = load(memory, 0x10000, target=find_target(facts.generation.name)).blocks.values()
    scalars = [f"s{n}" for n in range(106)] + ["vcc_lo", "vcc_hi"]
    assert [text(one) for block in blocks for one in block.instructions] == [
        "v_lshlrev_b32_e32 v4, 4, v0",
        *(f"v_mov_b32_e32 v{n}, 0" for n in range(4)),
        "ds_store_b128 v4, v[0:3]",
        *(f"ds_store_b128 v4, v[0:3] offset:{n}" for n in (16384, 32768, 49152)),
        wait,
        *(f"v_mov_b32_e32 v{n}, 0" for n in range(4, count)),
        *(f"s_mov_b32 {name}, 0" for name in scalars),
        *barrier,
        "s_endpgm",
    ]


def test_the_cleaner_is_of_the_holder_that_asks(chip: Any) -> None:
    with opened(chip) as device, tenant(device, "one") as one:
        used = driver_of(one).memory.used
        clean(one)
        assert driver_of(one).memory.used > used
