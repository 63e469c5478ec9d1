"""What a kernel's needs come to in a launch: shared memory, its carve-outs, threads of a group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.nvidia import ptx_kernels
from tests.support.nvidia.nv_machine import opened, powered
from ugpu.hcq.state.memory import Placement
from ugpu.nv.code.cubin import KernelCode
from ugpu.nv.device.device import NvDevice
from ugpu.nv.packets.families import FAMILIES, Family
from ugpu.nv.packets.launch import LaunchDetails, shape_of, shared_size, threads_limit
from ugpu.nv.rm.memory import allocate
from ugpu.nv.rm.session import Region

CODE = KernelCode(
    "made", text=1, code_size=256, registers=32, barriers=0, stack_size=0, shared_size=0,
    parameters_at=0x160, parameters_size=8, arguments=None, constants={}, max_threads=0,
    required_block=None,
)  # fmt: skip
KIB = 1 << 10


def family(name: str) -> Family:
    return next(found for found in FAMILIES if found.name == name)


def test_the_carve_out_fits_the_groups_of_an_sm_exactly() -> None:
    """64 warps hold 16 groups of 128 threads; 32 KiB are 16 times 2 KiB."""
    details = LaunchDetails(
        code=CODE, qmd=b"", bank=b"", shape=shape_of("4.0"), send=(0, 0, 0), block_at=0, grid_at=0,
        environment_at=0, cluster_at=None, threads_limit=1024, shared_size=2 * KIB, local_size=0,
        warps_per_sm=64, carveouts=(8 * KIB, 32 * KIB, 100 * KIB),
    )  # fmt: skip
    assert details.carveout(128) == 32 * KIB
    assert details.carveout(129) == 32 * KIB  # 12 groups
    assert details.carveout(64) == 100 * KIB  # 32 groups
    assert details.carveout(128, 1) == 100 * KIB
    assert details.carveout(1024) == 8 * KIB  # 2 groups, 4 KiB
    assert details.carveout(1024, 62 * KIB) == 100 * KIB  # more than there is: all of it


@pytest.mark.parametrize(
    ("name", "size", "counted", "taken"),
    [
        ("turing", 0, False, 0),
        ("turing", 1, False, 128),
        ("hopper", 0, False, 1024),
        ("hopper", 0, True, 1024),  # the assembler counts none where a kernel has none of its own
        ("hopper", 1100, True, 1152),
        ("hopper", 100, False, 1152),
    ],
)
def test_shared_memory_of_a_group(name: str, size: int, counted: bool, taken: int) -> None:
    """CUDA C++ Programming Guide, "Shared Memory" of 8.x on: 1 KiB of each group is reserved."""
    code = replace(CODE, shared_size=size)
    assert shared_size(code, family(name), counts_reserved=counted) == taken


@pytest.mark.parametrize(
    ("registers", "declared", "most"),
    [(32, 0, 1024), (64, 0, 1024), (65, 0, 896), (128, 0, 512), (255, 0, 256), (255, 64, 64),
     (32, 96, 96)],
)  # fmt: skip
def test_threads_of_a_group(registers: int, declared: int, most: int) -> None:
    """64 Ki registers of an SM, given to warps in units of 256, to groups by four warps."""
    assert threads_limit(replace(CODE, registers=registers, max_threads=declared)) == most


def test_addresses_behind_memory_belong_to_nobody(gh100: NvDevice) -> None:
    """An overrun of one object does not reach the next."""
    for region, placement in ((Region.HOST, Placement.HOST), (Region.DEVICE, Placement.DEVICE)):
        made = [allocate(gh100.driver.gpu, 4096, placement, region) for _ in range(8)]
        ends = {memory.address + memory.size for memory in made}
        assert not ends & {memory.address for memory in made}
        for memory in made:
            memory.close()


DEEP = """
.visible .entry deep{size}(.param .u64 out)
{{ .local .b32 %stack[{size}]; .reg .b64 %rd<4>; .reg .b32 %r<3>; .reg .pred %p;
   ld.param.u64 %rd0, [out]; mov.u64 %rd1, %stack; mov.u32 %r0, 0;
again: mul.wide.u32 %rd2, %r0, 4; add.u64 %rd3, %rd1, %rd2; st.local.u32 [%rd3], %r0;
   add.u32 %r0, %r0, 1; setp.lt.u32 %p, %r0, {size}; @%p bra again;
   ld.local.u32 %r1, [%stack + {last}]; st.global.u32 [%rd0], %r1; ret; }}
"""


def test_local_memory_grows_with_the_neediest_kernel() -> None:
    with powered("tu102") as machine, opened(machine) as device, device.alloc(4) as out:
        for size in (16, 4096, 1024):
            text = DEEP.format(size=size, last=4 * (size - 1))
            with device.load(ptx_kernels.text(text, device.target.cpu)) as program:
                with device.queue() as queue:
                    queue.launch(program[f"deep{size}"], grid=(2,), block=(64,), args=(out,))
                device.synchronize()
                assert int.from_bytes(out.numpy().tobytes(), "little") == size - 1
        assert machine.violations == []
