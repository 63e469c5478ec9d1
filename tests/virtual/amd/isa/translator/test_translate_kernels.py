"""Whole kernels on the cores: barriers, local memory, scratch, atomics, matrices, many groups."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from tests.support.amd.isa import gfx_corpus, gfx_kernels
from tests.support.amd.isa.gfx_run import Machine
from tests.support.kernels import compile_ir
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.shader import Ending
from ugpu.virtual.shader.memory import Access


def image(text: str) -> bytes:
    return compile_ir(text, gfx_kernels.TRIPLE, "gfx1100")


@pytest.fixture(scope="module")
def core() -> GfxCore:
    return GfxCore(2)


def test_reduction_in_local_memory(core: GfxCore) -> None:
    groups = 50
    x = np.random.default_rng(1).random(256 * groups, np.float32)
    machine = Machine(core)
    outcome, views = machine.run(
        image(gfx_kernels.REDUCE), [np.zeros(groups, np.float32), x], groups, 256
    )
    assert outcome.ending is Ending.DONE
    wanted = x.reshape(groups, 256)
    half = 128
    while half:
        wanted = wanted[:, :half] + wanted[:, half : 2 * half]
        half //= 2
    assert np.array_equal(views[0], wanted[:, 0])


def test_scratch_arrays_of_many_waves(core: GfxCore) -> None:
    groups = 40
    index = np.random.default_rng(2).integers(0, 24, 64 * groups).astype(np.uint32)
    machine = Machine(core)
    outcome, views = machine.run(
        image(gfx_kernels.SCRATCH), [np.zeros(64 * groups, np.uint32), index], groups, 64
    )
    assert outcome.ending is Ending.DONE
    assert np.array_equal(views[0], index * 1000 + np.arange(64 * groups))
    assert not machine.memory.faults


def test_ids_in_three_dimensions(core: GfxCore) -> None:
    machine = Machine(core)
    count = 4 * 2 * 3 * 30
    outcome, views = machine.run(
        image(gfx_kernels.IDS), [np.zeros(count, np.uint32)], (4, 2, 3), (5, 3, 2)
    )
    assert outcome.ending is Ending.DONE
    group, z, y, x = np.meshgrid(*map(np.arange, (24, 2, 3, 5)), indexing="ij")
    wanted = group << 24 | z << 16 | y << 8 | x
    assert np.array_equal(views[0], wanted.reshape(-1))


def test_global_atomics_are_atomic_across_threads(core: GfxCore) -> None:
    groups, threads = 200, 64
    machine = Machine(core)
    count = groups * threads
    arguments = [
        np.zeros(8, np.uint32), np.zeros(1, np.uint64), np.zeros(count, np.uint32),
        np.zeros(2, np.float32),
    ]  # fmt: skip
    outcome, views = machine.run(image(gfx_kernels.ATOMICS), arguments, groups, threads)
    assert outcome.ending is Ending.DONE
    assert (views[0] == count // 8).all()
    assert views[1][0] == count
    assert views[2].all()
    assert views[3][0] == count // 8 * sum(range(8))
    assert views[3].view(np.uint32)[1] == threads - 1


def test_histogram_by_local_atomics(core: GfxCore) -> None:
    x = np.random.default_rng(3).integers(0, 1000, 256).astype(np.uint32)
    machine = Machine(core)
    outcome, views = machine.run(image(gfx_kernels.HISTOGRAM), [np.zeros(16, np.uint32), x], 1, 256)
    assert outcome.ending is Ending.DONE
    assert np.array_equal(views[0], np.bincount(x & 15, minlength=16))


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4032, 4093, 4094, 4095, 4096, 8191 - 64])
@pytest.mark.parametrize("threads", [32, 20, 1])
def test_unaligned_accesses_and_page_boundaries(core: GfxCore, offset: int, threads: int) -> None:
    x = np.random.default_rng(4).integers(0, 256, 3 * 4096).astype(np.uint8)
    machine = Machine(core)
    outcome, views = machine.run(
        image(gfx_kernels.UNALIGNED), [np.zeros_like(x), x, offset], 1, threads
    )
    assert outcome.ending is Ending.DONE
    end = offset + 4 * threads
    wanted = np.zeros_like(x)
    wanted[offset:end] = (x[offset:end].view("<u4") + 1).view(np.uint8)
    assert np.array_equal(views[0], wanted)
    assert not machine.memory.faults


@pytest.mark.parametrize("kind", ["half", "bfloat"])
def test_wmma(core: GfxCore, kind: str) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((16, 16)).astype(np.float32) for _ in "ab")
    if kind == "half":
        a16, b16 = a.astype(np.float16), b.astype(np.float16)
        a, b = a16.astype(np.float32), b16.astype(np.float32)
    else:
        a, b = (m.view(np.uint32) & 0xFFFF0000 for m in (a, b))
        a16, b16 = ((m >> 16).astype(np.uint16) for m in (a, b))
        a, b = a.view(np.float32), b.view(np.float32)
    machine = Machine(core)
    packed = np.ascontiguousarray(b16.T)  # lane: a column of B
    outcome, views = machine.run(
        image(gfx_kernels.wmma(kind)), [np.zeros((32, 8), np.float32), a16, packed], 1, 32
    )
    assert outcome.ending is Ending.DONE
    found = np.zeros((16, 16), np.float32)
    for lane in range(32):
        for register in range(8):
            found[2 * register + lane // 16, lane % 16] = views[0][lane, register]
    assert np.allclose(found, a @ b, rtol=1e-5, atol=1e-5)


def test_a_thousand_groups_give_the_same_on_any_number_of_threads() -> None:
    groups = 1000
    x = np.random.default_rng(6).random(256 * groups, np.float32)
    results = []
    for workers in (1, 2, 5):
        machine = Machine(GfxCore(workers))
        for _ in range(2):
            outcome, views = machine.run(
                image(gfx_kernels.REDUCE), [np.zeros(groups, np.float32), x], groups, 256
            )
            assert outcome.ending is Ending.DONE
            results.append(views[0].copy())
        machine.core.close()
    assert all(np.array_equal(result, results[0]) for result in results)
    assert np.allclose(results[0], x.reshape(groups, 256).sum(1), rtol=1e-5)


@pytest.mark.parametrize("index", [0, 7, 15])
def test_registers_chosen_at_run_time(core: GfxCore, index: int) -> None:
    text = gfx_corpus.kernel(
        """  %vector = load <16 x float>, ptr addrspace(1) %a
  %k = and i32 %n, 15
  %q = extractelement <16 x float> %vector, i32 %k
  %changed = insertelement <16 x float> %vector, float %y, i32 %k
  %j = and i32 %i, 15
  %z = extractelement <16 x float> %changed, i32 %j
  %r = fadd float %q, %z"""
    )
    compiled = gfx_corpus.compile_ir(text)
    names = {line.text.split()[0] for line in compiled.listing}
    assert {"v_movrels_b32_e32", "v_movreld_b32_e32"} <= names
    rng = np.random.default_rng(7)
    a, b = (rng.random(64, np.float32) for _ in "ab")
    machine = Machine(core)
    outcome, views = machine.run(compiled.image, [np.zeros(64, np.float32), a, b, index], 1, 64)
    assert outcome.ending is Ending.DONE
    lane = np.arange(64)
    changed = np.where(lane % 16 == index, b, a[lane % 16])
    assert np.array_equal(views[0], a[index] + changed)


def test_raw_buffers_read_zero_beyond_their_records(core: GfxCore) -> None:
    compiled = gfx_corpus.compile_ir(gfx_corpus.corpus()["buffer i32"])
    rng = np.random.default_rng(8)
    a, b, out = (rng.integers(0, 2**32, 4096, np.uint32) for _ in range(3))
    machine = Machine(core)
    outcome, views = machine.run(compiled.image, [out.copy(), a, b, 8], 1, 320)
    assert outcome.ending is Ending.DONE
    assert not machine.memory.faults
    # Lane i copies the dword 8 bytes after 16 i to 16 i through buffers of 4096 bytes, and then
    # stores what it read at 4 i.
    lane = np.arange(320)
    read = np.where(lane < 256, a[4 * lane + 2], 0)
    wanted = out.copy()
    wanted[4 * lane[:256]] = read[:256]
    wanted[lane] = read
    assert np.array_equal(views[0], wanted)


@pytest.mark.parametrize("mode", ["preserve-sign,preserve-sign", "ieee,ieee"])
@pytest.mark.parametrize("operation", ["fmul", "fdiv"])
def test_denormals_by_the_kernels_mode(core: GfxCore, mode: str, operation: str) -> None:
    text = gfx_corpus.kernel(f"  %r = {operation} float %x, %y").replace(
        "#0 = {", f'#0 = {{ "denormal-fp-math-f32"="{mode}"'
    )
    a = np.array([2.0**-100, 2.0**-140, 3.0, 2.0**-126, 7.0], np.float32)
    b = np.array([2.0**-40, 2.0**20, 7.0, 2.0, 2.0**-130], np.float32)
    machine = Machine(core)
    outcome, views = machine.run(
        gfx_corpus.compile_ir(text).image, [np.zeros(5, np.float32), a, b, 0], 1, 5
    )
    assert outcome.ending is Ending.DONE
    flush = mode.startswith("preserve")

    def seen(values: np.ndarray) -> np.ndarray:
        return np.where(np.abs(values) < 2.0**-126, 0, values) if flush else values

    with np.errstate(divide="ignore", over="ignore"):
        x, y = seen(a).astype(np.float32), seen(b).astype(np.float32)
        wanted = seen(x * y if operation == "fmul" else x / y)
    assert np.array_equal(views[0], wanted), (views[0], wanted)


def test_flat_pointers_into_all_apertures(core: GfxCore) -> None:
    text = gfx_kernels.FLAT
    names = {line.text.split()[0] for line in gfx_corpus.compile_ir(text).listing}
    assert {"flat_store_b32", "flat_load_b32"} <= names
    machine = Machine(core)
    x = np.full(64, 3, np.uint32)
    outcome, views = machine.run(image(text), [np.zeros(128, np.uint32), x], 1, 64)
    assert outcome.ending is Ending.DONE
    assert not machine.memory.faults
    lane = np.arange(64)
    assert np.array_equal(views[0][:64], lane * 77)
    elsewhere = lane % 4 == 2  # these stored into their private array, and then added to x
    assert np.array_equal(views[0][64:], np.where(elsewhere, 3, lane * 77) + 1)
    assert np.array_equal(views[1][lane % 4 == 0], lane[lane % 4 == 0] * 77 + 1)
    assert (views[1][lane % 4 == 1] == 3).all()


def test_local_memory_ends_where_the_allocation_does(core: GfxCore) -> None:
    for index, wanted in ((64, 6), (128, 0), (1 << 20, 0), (2**32 - 128, 0)):
        machine = Machine(core)
        outcome, views = machine.run(
            image(gfx_kernels.BEYOND), [np.zeros(64, np.uint32), index], 1, 64
        )
        assert outcome.ending is Ending.DONE
        assert (views[0] == wanted).all(), index


def test_scratch_beyond_the_waves_share_is_a_fault(core: GfxCore) -> None:
    machine = Machine(core)
    index = np.arange(64, dtype=np.uint32) % 24
    index[5] = 100_000
    outcome, views = machine.run(
        image(gfx_kernels.SCRATCH), [np.zeros(64, np.uint32), index], 1, 64
    )
    assert outcome.ending is Ending.DONE
    assert {access for _, access in machine.memory.faults} == {Access.READ}
    others = np.arange(64) != 5
    assert np.array_equal(views[0][others], (index * 1000 + np.arange(64))[others])
    assert views[0][5] == 0


def test_offsets_wrap_at_32_bits(core: GfxCore) -> None:
    machine = Machine(core)
    base = 0x7D00_0000_0000
    low = machine.memory.map(base, np.arange(1024, dtype=np.uint32))
    high = machine.memory.map(base + 2**32 - 4096, np.arange(1024, dtype=np.uint32) + 5000)
    above = machine.memory.map(base + 2**32, np.full(1024, 9, np.uint32))
    kernel = machine.load(image(gfx_kernels.WRAPPED))
    address, out = machine.place(np.zeros(32, np.uint32))
    block = struct.pack("<QQI", address, base, 2**32 - 64)
    dispatch = machine.dispatch(kernel, block, (1, 1, 1), (32, 1, 1))
    for _ in range(2):  # the second time all pages are in the TLB
        assert core.run(dispatch, machine.memory, machine.abort).ending is Ending.DONE
        assert np.array_equal(out, [*high[-16:], *low[:16]])
    assert above[0] == 9
