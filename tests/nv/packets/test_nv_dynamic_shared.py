"""Dynamic shared memory: a size in the launch, fields of the descriptor, and what the SMs give."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.nvidia.nv_machine import opened, powered
from ugpu import hcq
from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.hcq.state.target import ptx_target
from ugpu.hcq.work.command import Launch
from ugpu.hcq.work.program import Kernel, Program
from ugpu.nv.device.device import NvDevice
from ugpu.nv.packets.clusters import Bits
from ugpu.nv.rm.session import Region

# Each of 128 threads writes its number to the last words of the array, and reads the next one's.
OPEN = """
.version {version}
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 ring[];
.visible .entry last(.param .u64 .ptr .global .align 16 out, .param .u32 size) .reqntid 128, 1, 1
{{
  .reg .b32 %r<9>; .reg .b64 %rd<4>;
  .shared .align 4 .b8 own[{static}];
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [size];
  mov.u32 %r2, %tid.x; shl.b32 %r3, %r2, 2;
  mov.u32 %r4, own; st.shared.u32 [%r4], %r2;
  mov.u32 %r4, ring; add.u32 %r4, %r4, %r1; sub.u32 %r4, %r4, 512; add.u32 %r5, %r4, %r3;
  st.shared.u32 [%r5], %r2; bar.sync 0;
  add.u32 %r6, %r3, 4; and.b32 %r6, %r6, 511; add.u32 %r6, %r6, %r4;
  ld.shared.u32 %r7, [%r6];
  cvt.u64.u32 %rd2, %r3; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r7; ret;
}}
"""


def ring(device: NvDevice, static: int = 100) -> Kernel:
    target = device.target.cpu
    version = "8.7" if int(target[3:].rstrip("a")) >= 100 else "8.0"
    text = OPEN.format(version=version, target=target, static=static)
    return device.load(text.encode())["last"]


@pytest.mark.parametrize("chip", ["tu102", "ga102", "gh100", "gb202"])
def test_a_group_has_what_its_launch_asks_for(chip: str) -> None:
    with powered(chip) as machine, opened(machine) as device:
        kernel = ring(device)
        out = device.alloc(512)
        most = device.target.dynamic_local_memory - kernel.local_size
        for size in (512, 4096, 48 << 10, most // 4096 * 4096):
            if size > most:
                continue
            out.copy_from(np.zeros(128, np.uint32))
            with device.queue() as queue:
                queue.launch(
                    kernel, grid=(2,), block=(128,), args=(out, np.uint32(size)), dynamic_local=size
                )
            device.synchronize()
            found = np.zeros(128, np.uint32)
            out.copy_to(found)
            np.testing.assert_array_equal(found, (np.arange(128) + 1) % 128)


@pytest.mark.parametrize("chip", ["tu102", "gh100", "gb202"])
@pytest.mark.parametrize(("given", "used"), [(4096, 8192), (4096, 4224), (0, 512), (512, 640)])
def test_too_little_is_out_of_range(chip: str, given: int, used: int) -> None:
    """Behind what the launch gives, in whole units of 128 bytes, there is nothing: what the system
    has of a group's memory is not the program's."""
    with powered(chip) as machine, opened(machine) as device:
        kernel = ring(device)
        out = device.alloc(512)
        with device.queue() as queue:
            queue.launch(
                kernel, grid=(1,), block=(128,), args=(out, np.uint32(used)), dynamic_local=given
            )
        with pytest.raises(hcq.errors.PageFault, match="OOR_ADDR"):
            device.synchronize()
        assert any("is out of range" in report.text for report in machine.log)


def test_more_than_a_group_may_have_is_refused(gh100: NvDevice) -> None:
    kernel = ring(gh100)
    out = gh100.alloc(512)
    for size in (227 << 10, 1 << 30, -128):
        with pytest.raises(BadArgument):
            gh100.queue().launch(
                kernel, grid=(1,), block=(128,), args=(out, np.uint32(512)), dynamic_local=size
            )
    raw = Launch(kernel, (1, 1, 1), (128, 1, 1), bytes(kernel.kernarg_size), (), 1 << 20)
    with pytest.raises(BadArgument, match="shared memory"):
        gh100.driver.compute_queue.encoder.encode([raw])


def test_devices_without_it_say_so() -> None:
    with hcq.open("cpu") as device:
        assert device.target.dynamic_local_memory == 0
        queue = device.queue()
        kernel = Kernel("none", Program(device.driver.core, None), 0, 0, ())
        with pytest.raises(NotSupported, match="dynamic"):
            queue.launch(kernel, grid=(1,), block=(1,), dynamic_local=16)


# chip -> (word and bits of SHARED_MEMORY_SIZE, its shift), of MIN, and of TARGET; by hand from
# open-gpu-doc clc5c0qmd.h, clc6c0qmd.h, clcbc0qmd.h and clcdc0qmd.h
FIELDS = {
    "tu102": ((17, 0, 18, 0), (17, 18, 7), (20, 17, 7)),
    "ga102": ((17, 0, 18, 0), (17, 18, 7), (20, 17, 7)),
    "gh100": ((18, 8, 18, 0), (19, 0, 6), (19, 12, 6)),
    "gb202": ((36, 0, 11, 7), (36, 11, 6), (36, 23, 6)),
}


@pytest.mark.parametrize("chip", FIELDS)
def test_fields_of_the_descriptor(chip: str) -> None:
    with powered(chip) as machine, opened(machine) as device:
        kernel = ring(device)
        details = kernel.details

        def fields(dynamic: int) -> list[int]:
            launch = Launch(kernel, (1, 1, 1), (128, 1, 1), bytes(kernel.kernarg_size), (), dynamic)
            encoded = device.driver.compute_queue.encoder.encode([launch])
            values = np.full(len(encoded.symbols), Region.COMMANDS.value[0], np.uint64)
            out = np.zeros(len(encoded.words), np.uint32)
            encoded.patch(out, values)
            qmd = out[(256 + -(-len(details.bank) // 256) * 256) // 4 :]
            (word, bit, width, shift), *others = FIELDS[chip]
            found = [(int(qmd[word]) >> bit & (1 << width) - 1) << shift]
            return found + [int(qmd[w]) >> b & (1 << n) - 1 for w, b, n in others]

        static = fields(0)[0]
        size, least, wanted = fields(40_000)
        assert size == static + 40_064  # whole units of 128 bytes
        carveouts = device.driver.carveouts
        assert least == next(c for c in carveouts if c >= size) // 4096 + 1
        assert wanted >= least and (wanted - 1) * 4096 in carveouts
        assert fields(0)[0] == static  # the template is as it was


def test_bits_are_replaced() -> None:
    held = bytearray(b"\xff" * 8)
    Bits(13, 18).insert(held, 0x2_0001)
    number = int.from_bytes(held, "little")
    assert number >> 13 & 0x3_FFFF == 0x2_0001
    assert number | 0x3_FFFF << 13 == (1 << 64) - 1


def test_sizes_by_architecture() -> None:
    sizes = {"sm_75": 64, "sm_80": 163, "sm_86": 99, "sm_90a": 227, "sm_103": 227, "sm_121": 99}
    for cpu, kib in sizes.items():
        assert ptx_target(cpu).dynamic_local_memory == kib << 10
