"""Textures and samplers: loads that read them, images with a pitch, filters; on virtual GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.adreno.mesa import compiled, disassembly, fetching, needs_mesa
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadCodeObject
from ugpu.hcq.objects.ir3_object import (
    Ir3Kernel,
    Ir3Parameter,
    Ir3Sampler,
    Ir3Texture,
    pack_ir3,
    parse_ir3,
)
from ugpu.qcom import chips
from ugpu.qcom.packets import textures
from ugpu.qcom.packets.pm4 import Tables

CHIPS = ("a630", "a740")


@pytest.fixture(params=CHIPS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with hcq.open(f"virtual:{request.param}") as opened:
        yield opened


def chip_of(device: Device) -> str:
    return str(device.info()["chip"])


@needs_mesa
@pytest.mark.parametrize(
    ("kind", "size", "align"),
    [
        ("float", 4, 4), ("<4 x float>", 16, 16), ("<4 x float>", 16, 8), ("<4 x float>", 16, 4),
        ("half", 2, 2), ("<4 x half>", 8, 8), ("<4 x half>", 8, 4), ("<2 x half>", 4, 2),
    ],
)  # fmt: skip
def test_marked_loads_read_textures(device: Device, kind: str, size: int, align: int) -> None:
    """All bits come through, also those of no number, from addresses that are not aligned."""
    chip = chip_of(device)
    kernel = compiled(fetching(kind, size, align, size), chip)
    (texture,) = kernel.textures
    assert (texture.parameter, texture.kind, texture.texel) == (1, "uint", align)
    assert "isam" in disassembly(kernel, chip) and "ldg" not in disassembly(kernel, chip)
    data = np.random.default_rng(size).integers(0, 256, 4096, np.uint8)
    data[64:96] = 0xFF  # NaN
    source, target = device.alloc(4096), device.alloc(64 * size)
    source.copy_from(data)
    program = device.load(pack_ir3([kernel]))
    for start in (0, 256, align, 5 * align):
        with device.queue() as queue:
            queue.launch(program["k"], grid=(1,), block=(64,), args=(target, source[start:]))
        device.synchronize()
        expected = data[start : start + 64 * size].reshape(64, size)[np.arange(64) ^ 5]
        assert np.array_equal(target.numpy().reshape(64, size), expected), start
    assert not device.driver.interface.node.machine.violations  # type: ignore[attr-defined]


@needs_mesa
def test_some_lanes_of_a_wave_fetch(device: Device) -> None:
    """Threads whose number is a multiple of three, in a branch; the others keep what they have."""
    branch = """  %rest = urem i32 %i, 3
  %test = icmp eq i32 %rest, 0
  br i1 %test, label %some, label %end
some:
"""
    text = fetching("float", 4, 4, 4).replace("  %value =", f"{branch}  %value =")
    text = text.replace("  ret void", "  br label %end\nend:\n  ret void")
    kernel = compiled(text, chip_of(device))
    assert kernel.textures
    source, target = device.alloc(256), device.alloc(256)
    source.copy_from(np.arange(64, dtype=np.uint32))
    target.fill(0xABABABAB)
    program = device.load(pack_ir3([kernel]))
    with device.queue() as queue:
        queue.launch(program["k"], grid=(1,), block=(64,), args=(target, source))
    device.synchronize()
    numbers = np.arange(64)
    expected = np.where(numbers % 3 == 0, numbers ^ 5, 0xABABABAB)
    assert np.array_equal(target.numpy(np.uint32), expected)


@needs_mesa
def test_a_replay_reads_another_buffer(device: Device) -> None:
    """Its address is aligned otherwise."""
    kernel = compiled(fetching("float", 4, 4, 4), chip_of(device))
    data = np.arange(1024, dtype=np.uint32)
    source, other, target = device.alloc(256), device.alloc(4096), device.alloc(256)
    source.copy_from(data[:64])
    other.copy_from(data)
    program = device.load(pack_ir3([kernel]))
    with device.capture() as graph, device.queue() as queue:
        queue.launch(program["k"], grid=(1,), block=(64,), args=(target, source))
    for first in (0, 9, 64):
        graph.replay(inputs={source: other[4 * first : 4 * first + 256]})
        graph.wait()
        assert np.array_equal(target.numpy(np.uint32), first + (np.arange(64) ^ 5))
    graph.close()


@needs_mesa
def test_a_replay_checks_where_a_texture_lies(device: Device) -> None:
    """The kernel reads 16 bytes a texel: another alignment would read the texels beside."""
    kernel = compiled(fetching("<4 x float>", 16, 16, 16), chip_of(device))
    (texture,) = kernel.textures
    assert texture.texel == 16
    data = np.arange(1024, dtype=np.uint32)
    source, other, target = (device.alloc(size) for size in (1280, 4096, 1024))
    source.copy_from(data[:320])
    other.copy_from(data)
    program = device.load(pack_ir3([kernel]))
    expected = data[:256].reshape(64, 4)[np.arange(64) ^ 5]
    with device.capture() as graph, device.queue() as queue:
        queue.launch(program["k"], grid=(1,), block=(64,), args=(target, source[64:]))
    for wrong in (other[4:], other[72:2000]):
        with pytest.raises(BadArgument, match="multiple of 16 bytes"):
            graph.replay(inputs={source[64:]: wrong})
    graph.replay(inputs={source[64:]: other[32:]})
    graph.wait()
    assert np.array_equal(target.numpy(np.uint32).reshape(64, 4), expected + 8)
    graph.replay(inputs={source: other})
    graph.wait()
    assert np.array_equal(target.numpy(np.uint32).reshape(64, 4), expected + 16)
    graph.close()


def test_a_descriptor_by_hand() -> None:
    """Words as a6xx.xml has them: format 0x4b (32_UINT) at bit 22, swizzle x 0 0 1, 70,000 texels
    as 15 and 15 bits, the type 4 (buffer) at bit 29, one texel of a structure at bit 4."""
    tables = Tables.of(6)
    found = textures._words(tables, Ir3Texture(0, "uint", 32, 1, 70000))
    swizzle = 0 << 4 | 4 << 7 | 4 << 10 | 5 << 13
    assert found == [0x4B << 22 | swizzle, 4464 | 2 << 15, 4 << 29 | 1 << 4, *[0] * 13]
    image = textures._words(tables, Ir3Texture(0, "unorm", 8, 4, 640, 480, 2560))
    swizzle = 0 << 4 | 1 << 7 | 2 << 10 | 3 << 13
    assert image == [0x30 << 22 | swizzle, 640 | 480 << 15, 2560 << 7 | 1 << 29, *[0] * 13]


def sampling(chip: str, texture: Ir3Texture, sampler: Ir3Sampler) -> Ir3Kernel:
    """out[i] = the texture's x at (u, v)[i]."""
    from ugpu.compiler.codegen.adreno.mesa import compiler_for
    from ugpu.compiler.codegen.adreno.nir import TEX_SAMPLE, Builder

    facts = chips.facts(chip)
    compiler = compiler_for(facts.chip_ids[0])
    build = Builder(compiler.mesa.tables)
    zero = build.constant(32, 0)
    out, at = (
        build.alu("pack_64_2x32", 64, build.intrinsic("load_const_ir3", [zero], 2, 32, base=base))
        for base in (0, 2)
    )
    thread = build.alu("mov", 32, build.intrinsic("load_local_invocation_id", [], 3, 32))
    twice = build.alu("iadd", 32, thread, thread)
    place = build.intrinsic("load_global_ir3", [at, twice], 2, 32, align_mul=4)
    texel = build.texture(TEX_SAMPLE, 0, place, 2, 32)
    build.intrinsic("store_global_ir3", [build.channels(texel, 4, 32)[0], out, thread], align_mul=4)
    made = compiler.compile(build.serialise(64, 0), 6)
    names = {field: getattr(made, field) for field in (
        "instructions", "full_registers", "half_registers", "merged_registers", "constants",
        "immediates", "immediates_at", "local_size", "private_size", "private_per_wave",
        "branch_stack", "double_wave", "early_preamble", "barrier", "group_register",
        "thread_register", "code",
    )}  # fmt: skip
    parameters = tuple(Ir3Parameter(name, 8 * n, 8, True) for n, name in enumerate(("o", "a", "t")))
    return Ir3Kernel(
        name="sample", chip_id=facts.chip_ids[0], generation=facts.generation, threads=64,
        parameters=parameters, textures=(texture,), samplers=(sampler,), **names,
    )  # fmt: skip


def bilinear(image: NDArray[np.float32], at: NDArray[np.float32]) -> NDArray[np.float64]:
    """Between the four nearest texels, zeros outside; `at` in texels."""
    padded = np.pad(image.astype(np.float64), 1)
    low = np.floor(at - 0.5).astype(int)
    share = at - 0.5 - low
    total = np.zeros(len(at))
    for dy in (0, 1):
        for dx in (0, 1):
            x = np.clip(low[:, 0] + dx, -1, image.shape[1]) + 1
            y = np.clip(low[:, 1] + dy, -1, image.shape[0]) + 1
            weight = (share[:, 0] if dx else 1 - share[:, 0]) * (
                share[:, 1] if dy else 1 - share[:, 1]
            )
            total += padded[y, x] * weight
    return total


@needs_mesa
def test_an_image_with_a_pitch_is_sampled(device: Device) -> None:
    width, height, pitch = 21, 9, 128
    image = np.random.default_rng(1).random((height, width), np.float32)
    rows = np.full((height, pitch // 4), np.nan, np.float32)  # what lies between is not read
    rows[:, :width] = image
    texture = Ir3Texture(2, "float", 32, 1, width, height, pitch)
    kernel = sampling(chip_of(device), texture, Ir3Sampler(True, "border", normal=False))
    at = np.random.default_rng(2).random((64, 2), np.float32) * (width + 4, height + 4) - 2
    at = at.astype(np.float32)
    with device.alloc(256) as out, device.alloc(512) as where, device.alloc(rows.nbytes) as pixels:
        where.copy_from(at)
        pixels.copy_from(rows)
        program = device.load(pack_ir3([kernel]))
        with device.queue() as queue:
            queue.launch(program["sample"], grid=(1,), block=(64,), args=(out, where, pixels))
        device.synchronize()
        found = out.numpy(np.float32)
        assert np.allclose(found, bilinear(image, at), atol=1e-6)
        with pytest.raises(BadArgument, match="multiple of 64"), device.queue() as queue:
            queue.launch(program["sample"], grid=(1,), block=(64,), args=(out, where, pixels[4:]))
        with pytest.raises(BadArgument, match="needs 1108 bytes"), device.queue() as queue:
            queue.launch(program["sample"], grid=(1,), block=(64,), args=(out, where, where))


@needs_mesa
@pytest.mark.parametrize(
    ("texture", "message"),
    [
        (Ir3Texture(2, "float", 32, 1, 16385, 1, 65600), "at most 16384"),
        (Ir3Texture(2, "float", 32, 1, 5, 16385, 64), "at most 16384"),
        (Ir3Texture(2, "float", 32, 1, 5, 5, 72), "multiple of 64"),
        (Ir3Texture(2, "uint", 32, 1, (1 << 27) + 1), "at most 134217728"),
        (Ir3Texture(2, "float", 8, 1, 64), "not supported"),
        (Ir3Texture(3, "float", 32, 1, 64), "malformed"),
        (Ir3Texture(2, "float", 32, 3, 64), "malformed"),
        (Ir3Texture(2, "float", 32, 1, 64, 4, 128), "malformed"),
    ],
)
def test_what_no_texture_can_be_is_refused(texture: Ir3Texture, message: str) -> None:
    kernel = sampling("a630", texture, Ir3Sampler(False, "edge"))
    with hcq.open("virtual:a630") as device, pytest.raises(BadCodeObject, match=message):
        device.load(pack_ir3([kernel]))


@needs_mesa
def test_an_object_keeps_textures_and_samplers() -> None:
    texture = Ir3Texture(2, "unorm", 8, 4, 640, 480, 2560)
    kernel = sampling("a630", texture, Ir3Sampler(True, "mirror"))
    assert parse_ir3(pack_ir3([kernel])) == (kernel,)
    many = replace(kernel, samplers=kernel.samplers * 17)
    with hcq.open("virtual:a630") as device, pytest.raises(BadCodeObject, match="at most 16"):
        device.load(pack_ir3([many]))
