"""Launches on the virtual Navi31: what kernels are given, scratch, local memory, refusals."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import astuple

import numpy as np
import pytest

from tests.support.amd.am_navi31 import build_chip, plug_in
from tests.support.amd.am_streams import Decoder
from tests.support.corpus.workloads import Places
from tests.support.kernels import compile_ir
from ugpu import hcq
from ugpu.am.device.device import AmDevice
from ugpu.hcq.errors import BadArgument, BadCodeObject, NotSupported, OutOfMemory
from ugpu.hcq.objects.code_object import Descriptor, parse_amdhsa
from ugpu.hcq.work.command import Launch

TRIPLE = "amdgcn-amd-amdhsa"
NEEDS_LITTLE = (
    '"amdgpu-no-implicitarg-ptr" "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" '
    '"amdgpu-flat-work-group-size"="1,256"'
)
DISPATCH_PACKET = """
define amdgpu_kernel void @packet(ptr addrspace(1) %out) #0 {
  %d = call ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()
  %id = call i32 @llvm.amdgcn.workitem.id.x()
  %from = getelementptr i32, ptr addrspace(4) %d, i32 %id
  %v = load i32, ptr addrspace(4) %from
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %id
  store i32 %v, ptr addrspace(1) %to
  ret void
}
declare ptr addrspace(4) @llvm.amdgcn.dispatch.ptr()
declare i32 @llvm.amdgcn.workitem.id.x()
"""
SCRATCH = """
define amdgpu_kernel void @reverse(ptr addrspace(1) %out, i32 %key) #0 {
entry:
  %own = alloca [64 x i32], align 4, addrspace(5)
  %id = call i32 @llvm.amdgcn.workitem.id.x()
  %group = call i32 @llvm.amdgcn.workgroup.id.x()
  %base = mul i32 %group, 64
  %mine = add i32 %base, %id
  br label %fill
fill:
  %i = phi i32 [ 0, %entry ], [ %i1, %fill ]
  %p = getelementptr [64 x i32], ptr addrspace(5) %own, i32 0, i32 %i
  %v = mul i32 %i, %mine
  store volatile i32 %v, ptr addrspace(5) %p
  %i1 = add i32 %i, 1
  %more = icmp ult i32 %i1, 64
  br i1 %more, label %fill, label %pick
pick:
  %at = xor i32 %id, %key
  %q = getelementptr [64 x i32], ptr addrspace(5) %own, i32 0, i32 %at
  %got = load volatile i32, ptr addrspace(5) %q
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %mine
  store i32 %got, ptr addrspace(1) %to
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
"""
LOCAL = """
@shared = internal addrspace(3) global [64 x i32] poison, align 4
define amdgpu_kernel void @mirror(ptr addrspace(1) %out) #0 {
  %id = call i32 @llvm.amdgcn.workitem.id.x()
  %p = getelementptr [64 x i32], ptr addrspace(3) @shared, i32 0, i32 %id
  store i32 %id, ptr addrspace(3) %p
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %back = sub i32 63, %id
  %q = getelementptr [64 x i32], ptr addrspace(3) @shared, i32 0, i32 %back
  %v = load i32, ptr addrspace(3) %q
  %to = getelementptr i32, ptr addrspace(1) %out, i32 %id
  store i32 %v, ptr addrspace(1) %to
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
declare void @llvm.amdgcn.s.barrier()
"""
HIDDEN = """
define amdgpu_kernel void @sizes(ptr addrspace(1) %out) #1 {
  %a = call ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
  %blocks = load i32, ptr addrspace(4) %a
  %p = getelementptr i8, ptr addrspace(4) %a, i32 12
  %size = load i16, ptr addrspace(4) %p
  %wide = zext i16 %size to i32
  store i32 %blocks, ptr addrspace(1) %out
  %q = getelementptr i32, ptr addrspace(1) %out, i32 1
  store i32 %wide, ptr addrspace(1) %q
  ret void
}
declare ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
"""
LANES = pytest.mark.parametrize(
    "features", ["", "-wavefrontsize32,+wavefrontsize64"], ids=["wave32", "wave64"]
)
PLAIN = "define amdgpu_kernel void @nothing(ptr addrspace(1) %out) #0 {\n  ret void\n}\n"


def built(
    body: str, attributes: str = NEEDS_LITTLE, cpu: str = "gfx1100", features: str = ""
) -> bytes:
    text = f'target triple = "{TRIPLE}"\n{body}\nattributes #0 = {{ {attributes} }}\n'
    more = "nounwind " + attributes.replace('"amdgpu-no-implicitarg-ptr"', "")
    return compile_ir(f"{text}attributes #1 = {{ {more} }}\n", TRIPLE, cpu, features)


@pytest.fixture(scope="module")
def device() -> Iterator[AmDevice]:
    with hcq.open("virtual:navi31") as opened:
        assert isinstance(opened, AmDevice)
        yield opened


def run(
    device: AmDevice, image: bytes, grid: int, block: int, *more: object, words: int
) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Run the one kernel of an image; its first argument is the result buffer."""
    with device.load(image) as program, device.alloc(words * 4) as out:
        out.fill(0)
        (kernel,) = program.values()
        with device.queue() as queue:
            queue.launch(kernel, grid=(grid,), block=(block,), args=(out, *more))
        device.synchronize()
        return out.numpy(np.uint32)


def test_dispatch_packet(device: AmDevice) -> None:
    packet = run(device, built(DISPATCH_PACKET), 3, 16, words=16)
    # header and dimensions, group size, grid in threads
    assert list(packet[:6]) == [0x0003_0002, 0x0001_0010, 1, 48, 1, 1]


@LANES
@pytest.mark.parametrize("groups", [1, 7, 200])
def test_scratch_is_each_threads_own(device: AmDevice, groups: int, features: str) -> None:
    image = built(SCRATCH, features=features)
    found = run(device, image, groups, 64, np.uint32(21), words=groups * 64)
    index = np.arange(groups * 64, dtype=np.uint32)
    assert (found == (index % 64 ^ 21) * index).all()


def test_scratch_counts_all_lanes_of_a_wave(device: AmDevice) -> None:
    """Less than the next power of two of 32 lanes' bytes, and more than half of it: a wave of 64
    lanes needs the next."""
    smaller = SCRATCH.replace("[64 x i32]", "[60 x i32]").replace("%i1, 64", "%i1, 60")
    image = built(smaller, features="-wavefrontsize32,+wavefrontsize64")
    found = run(device, image, 3, 60, np.uint32(3), words=192).reshape(3, 64)[:, :60]
    index = np.arange(192, dtype=np.uint32).reshape(3, 64)[:, :60]
    assert (found == (index % 64 ^ 3) * index).all()


@LANES
def test_local_memory(device: AmDevice, features: str) -> None:
    image = built(LOCAL, features=features)
    assert (run(device, image, 1, 64, words=64) == np.arange(63, -1, -1)).all()


def test_hidden_arguments(device: AmDevice) -> None:
    assert list(run(device, built(HIDDEN), 5, 32, words=2)) == [5, 32]


def test_an_empty_grid_runs_nothing(device: AmDevice) -> None:
    assert not run(device, built(DISPATCH_PACKET), 0, 16, words=16).any()


@pytest.mark.parametrize("block", [257, 1024])
def test_groups_larger_than_the_kernel_allows(device: AmDevice, block: int) -> None:
    with pytest.raises(BadArgument, match="256"):
        run(device, built(PLAIN), 1, block, words=1)
    device.synchronize()


def test_what_is_not_provided_is_refused(device: AmDevice) -> None:
    image = bytearray(built(PLAIN))
    (kernel,) = parse_amdhsa(bytes(image)).kernels.values()
    raw = Descriptor.LAYOUT.pack(*astuple(kernel.descriptor))
    start = image.index(raw[44:])
    image[start + 12] |= 1  # kernel_code_properties: ENABLE_SGPR_PRIVATE_SEGMENT_BUFFER
    with pytest.raises(NotSupported, match="private_segment_buffer"):
        device.load(bytes(image))


def test_dynamic_local_memory_comes_on_top_of_the_static(device: AmDevice) -> None:
    """In granules of 512 bytes, in COMPUTE_PGM_RSRC2.LDS_SIZE."""
    with device.load(built(LOCAL)) as program:
        kernel = program["mirror"]
        assert kernel.local_size == 256
        decoder = Decoder(Places(), lambda _, size: bytes(size))
        for dynamic, granules in ((0, 1), (256, 1), (257, 2), (512, 2), (1024, 3)):
            launch = Launch(kernel, (1, 1, 1), (64, 1, 1), bytes(8), (), dynamic)
            words = device.driver.queues.compute[0].encode([launch])
            text = list(decoder.pm4([int(word) for word in words.words[: words.command_words]]))
            last = [line for line in text if "COMPUTE_PGM_RSRC2" in line][-1]
            assert f"LDS_SIZE={granules:#x}" in last, dynamic


def test_a_grid_of_more_threads_than_a_packet_counts_is_refused(device: AmDevice) -> None:
    """32 bits for each size, in the packet that a kernel may look at."""
    with device.load(built(DISPATCH_PACKET)) as program:
        for grid, fits in ((1 << 26, True), ((1 << 26) - 1, True), (1 << 27, False)):
            launch = Launch(program["packet"], (grid, 1, 1), (32, 1, 1), bytes(8))
            with nullcontext() if fits else pytest.raises(BadArgument, match="threads on each"):
                device.driver.queues.compute[0].encode([launch])


def test_code_for_another_chip(device: AmDevice) -> None:
    with pytest.raises(BadCodeObject, match="another processor"):
        device.load(built(PLAIN, cpu="gfx1030"))


def test_memory_used_up_leaves_everything_as_it_was(device: AmDevice) -> None:
    used = device.driver.memory.used
    with pytest.raises(OutOfMemory):
        device.alloc(device.chip.vram.size)
    assert device.driver.memory.used == used


def test_fragmented_memory_is_put_together(device: AmDevice) -> None:
    """Where no run is long enough a buffer is made of pieces, and still one range of addresses."""
    heap = device.driver.memory.heap
    blocks = [heap.allocate(heap.largest // 2 // 4096 * 4096) for _ in range(6)]
    for start in blocks[::2]:
        heap.free(start)
    try:
        while heap.largest > 32 << 20:
            blocks.insert(1, heap.allocate(heap.largest // 2 // 4096 * 4096 + 4096))
        size = heap.largest + (4 << 20)
        data = np.arange(size // 4, dtype=np.uint32)
        with device.alloc(size) as buffer:
            buffer.copy_from(data)
            assert (buffer.numpy(np.uint32) == data).all()
    finally:
        for start in blocks:
            with contextlib.suppress(BadArgument):  # those that are free already
                heap.free(start)


def test_nothing_stays_mapped_after_close() -> None:
    chip = build_chip()
    try:
        opened = plug_in(chip)
        opened.alloc(4096)
        with opened.load(built(SCRATCH)):
            opened.close()
        opened.close()
        assert chip.violations == []
    finally:
        chip.close()
