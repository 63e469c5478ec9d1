"""Images that kernels store texels to and load them from, from LLVM IR on; on virtual GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.support.adreno.mesa import compiled, disassembly, needs_mesa
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadCodeObject, CompileError
from ugpu.hcq.objects.ir3_object import Ir3Kernel, Ir3Sampler, Ir3Texture, pack_ir3, parse_ir3
from ugpu.hcq.work.command import Launch
from ugpu.hcq.work.program import Kernel
from ugpu.qcom import chips
from ugpu.qcom.packets import dispatch, textures
from ugpu.qcom.packets.pm4 import Stream, Tables

pytestmark = needs_mesa
WIDTH, HEIGHT = 21, 9
FORMS = (
    # format of the image, type of a component in the kernel, NumPy's type in memory
    ("8_unorm", "float", "u1"), ("8_8_unorm", "float", "u1"), ("8_8_8_8_unorm", "half", "u1"),
    ("16_unorm", "float", "u2"), ("16_16_16_16_unorm", "float", "u2"), ("16_float", "half", "f2"),
    ("16_16_16_16_float", "float", "f2"), ("32_float", "float", "f4"),
    ("32_32_float", "float", "f4"), ("32_32_32_32_float", "float", "f4"), ("8_uint", "i32", "u1"),
    ("8_8_8_8_uint", "i16", "u1"), ("16_16_uint", "i32", "u2"), ("32_32_32_32_uint", "i32", "u4"),
)  # fmt: skip


@pytest.fixture(params=["a630", "a740"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with hcq.open(f"virtual:{request.param}") as opened:
        yield opened


def chip_of(device: Device) -> str:
    return str(device.info()["chip"])


def image(form: str, pitch: int, size: str = f"{WIDTH}x{HEIGHT}") -> str:
    return f'ptr addrspace(1) "adreno-image"="{form} {size} {pitch}"'


def module(body: str, parameters: str, texel: str = "<4 x float>") -> str:
    """LLVM IR: body for the thread %x of the group %y."""
    return f"""define spir_kernel void @k({parameters}) #0 {{
  %x = call i32 @adreno.thread()
  %y = call i32 @adreno.group.x()
{body}
  ret void
}}
declare i32 @adreno.thread()
declare i32 @adreno.group.x()
declare {texel} @adreno.image.load(ptr addrspace(1), i32, i32)
declare void @adreno.image.store(ptr addrspace(1), i32, i32, {texel})
attributes #0 = {{ nounwind "adreno-threads"="64" }}
"""


def mirrored(form: str, pitch: int, kind: str) -> str:
    """LLVM IR: each texel of %in goes to the mirrored place of %out, its first two components
    exchanged."""
    texel = f"<4 x {kind}>"
    swapped = "<4 x i32> <i32 1, i32 0, i32 2, i32 3>"
    body = f"""  %t = call {texel} @adreno.image.load(ptr addrspace(1) %in, i32 %x, i32 %y)
  %s = shufflevector {texel} %t, {texel} poison, {swapped}
  %m = sub i32 {WIDTH - 1}, %x
  call void @adreno.image.store(ptr addrspace(1) %out, i32 %m, i32 %y, {texel} %s)"""
    return module(body, f"{image(form, pitch)} %out, {image(form, pitch)} %in", texel)


@pytest.mark.parametrize(("form", "kind", "memory"), FORMS)
def test_texels_are_loaded_and_stored(device: Device, form: str, kind: str, memory: str) -> None:
    """All formats; threads beyond the image store nothing, and nothing between the rows changes."""
    count = form.count("_")
    pitch = -(-WIDTH * count * np.dtype(memory).itemsize // 64) * 64 + 64
    kernel = compiled(mirrored(form, pitch, kind), chip_of(device))
    assert [one.parameter for one in kernel.images] == [1, 0]
    assert {"ldib", "stib"} <= {
        line.split(".b.typed")[0].split()[-1]
        for line in disassembly(kernel, chip_of(device)).splitlines()
        if ".b.typed" in line
    }
    line = pitch // np.dtype(memory).itemsize
    rng = np.random.default_rng(7)
    if memory[0] == "f":
        rows = (rng.random((HEIGHT, line)) * 8 - 4).astype(memory)
    else:
        rows = rng.integers(0, np.iinfo(memory).max, (HEIGHT, line), memory, endpoint=True)
    with device.alloc(rows.nbytes) as source, device.alloc(rows.nbytes) as target:
        source.copy_from(rows)
        target.fill(0x5A5A5A5A)
        program = device.load(pack_ir3([kernel]))
        with device.queue() as queue:
            queue.launch(program["k"], grid=(HEIGHT + 2,), block=(64,), args=(target, source))
        device.synchronize()
        found = target.numpy(memory).reshape(HEIGHT, line)
    texels = rows[:, : WIDTH * count].reshape(HEIGHT, WIDTH, count)[:, ::-1]
    if count > 1:
        wanted = texels[:, :, [1, 0, 2, 3][:count]]
    else:
        wanted = np.zeros_like(texels)  # the second component of a load is 0
    assert np.array_equal(found[:, : WIDTH * count].reshape(wanted.shape), wanted)
    assert (found[:, WIDTH * count :].view(np.uint8) == 0x5A).all()
    assert not device.driver.interface.node.machine.violations  # type: ignore[attr-defined]


def painting(size: str = f"{WIDTH}x{HEIGHT}") -> str:
    """LLVM IR: %out has x + 64 y, below zero and beyond the image too."""
    body = """  %left = sub i32 %x, 20
  %up = sub i32 %y, 2
  %row = mul i32 %up, 64
  %sum = add i32 %left, %row
  %number = sitofp i32 %sum to float
  %t = insertelement <4 x float> zeroinitializer, float %number, i32 0
  call void @adreno.image.store(ptr addrspace(1) %out, i32 %left, i32 %up, <4 x float> %t)"""
    return module(body, f"{image('32_float', 128, size)} %out")


PAINTED = np.arange(HEIGHT)[:, None] * 64 + np.arange(WIDTH)


def sampling(sampler: str, kind: str, form: str = "32_float") -> str:
    """LLVM IR: an image of 32 x 16 texels of the size of four floats; each is what a sampler finds
    in %in at (1.5 x - 8, 0.75 y - 2), in texels, divided by the sides where coordinates are so."""
    scale = (1.0, 1.0) if sampler.endswith("texels") else (1 / 16, 1 / 8)
    texel = f"<4 x {kind}>"
    floats = [f"0x{np.float64(n).view(np.uint64):016X}"
              for n in (1.5 * scale[0], -8 * scale[0], 0.75 * scale[1], -2 * scale[1])]  # fmt: skip
    body = f"""  %xf = sitofp i32 %x to float
  %yf = sitofp i32 %y to float
  %xs = fmul float %xf, {floats[0]}
  %xm = fadd float %xs, {floats[1]}
  %ys = fmul float %yf, {floats[2]}
  %ym = fadd float %ys, {floats[3]}
  %t = call {texel} @adreno.image.sample.f(ptr addrspace(1) %in, float %xm, float %ym)
  call void @adreno.image.store(ptr addrspace(1) %out, i32 %x, i32 %y, {texel} %t)"""
    source = f'{image(form, 256, "16x8")} "adreno-sampler"="{sampler}" %in'
    target = f"{image('32_32_32_32_float', 512, '32x16')} %out"
    text = module(body, f"{target}, {source}", texel)
    return f"{text}declare {texel} @adreno.image.sample.f(ptr addrspace(1), float, float)\n"


def wrapped(at: np.ndarray, size: int, wrap: str) -> np.ndarray:
    """Texel numbers in an image of `size` texels, -1 for the border."""
    if wrap == "repeat":
        return at % size
    if wrap == "edge":
        return at.clip(0, size - 1)
    if wrap == "mirror":
        return np.where(at % (2 * size) < size, at % (2 * size), 2 * size - 1 - at % (2 * size))
    return np.where((at < 0) | (at >= size), -1, at)


@pytest.mark.parametrize("kind", ["float", "half"])
@pytest.mark.parametrize(
    "sampler",
    ["nearest repeat", "nearest edge texels", "linear edge", "linear mirror texels",
     "linear border", "nearest border texels", "linear repeat texels"],
)  # fmt: skip
def test_images_are_sampled(device: Device, sampler: str, kind: str) -> None:
    kernel = compiled(sampling(sampler, kind), chip_of(device))
    way, wrap = sampler.split()[:2]
    assert [one.parameter for one in kernel.textures] == [1]
    assert kernel.samplers == (Ir3Sampler(way == "linear", wrap, not sampler.endswith("texels")),)
    texels = np.zeros((8, 64), np.float32)
    texels[:, :16] = np.random.default_rng(5).integers(0, 64, (8, 16))
    with device.alloc(texels.nbytes) as source, device.alloc(512 * 16) as target:
        source.copy_from(texels)
        program = device.load(pack_ir3([kernel]))
        with device.queue() as queue:
            queue.launch(program["k"], grid=(16,), block=(32,), args=(target, source))
        device.synchronize()
        found = target.numpy(np.float32).reshape(16, 32, 4)
    x, y = 1.5 * np.arange(32) - 8, (0.75 * np.arange(16) - 2)[:, None]
    if way == "linear":
        x, y = x - 0.5, y - 0.5
    padded = np.pad(texels[:, :16], (0, 1))  # number -1 is the border
    wanted = np.zeros((16, 32))
    for dy in (0, 1)[: 1 + (way == "linear")]:
        for dx in (0, 1)[: 1 + (way == "linear")]:
            column = wrapped(np.floor(x).astype(int) + dx, 16, wrap)
            row = wrapped(np.floor(y).astype(int) + dy, 8, wrap)
            share = [part if d else 1 - part for part, d in ((x % 1, dx), (y % 1, dy))]
            weight = share[0] * share[1] if way == "linear" else 1
            wanted += padded[row, column] * weight
    assert np.allclose(found[:, :, 0], wanted, atol=0.05 if kind == "half" else 1e-4)
    assert np.array_equal(found[:, :, 1:], np.broadcast_to([0, 0, 1], (16, 32, 3)))


def test_what_is_outside_is_not_stored(device: Device) -> None:
    """Also at coordinates below zero."""
    kernel = compiled(painting(), chip_of(device))
    with device.alloc(128 * (HEIGHT + 4)) as around:
        around.fill(0)
        program = device.load(pack_ir3([kernel]))
        with device.queue() as queue:
            args = (around[256:],)
            queue.launch(program["k"], grid=(HEIGHT + 4,), block=(64,), args=args)
        device.synchronize()
        found = around.numpy(np.float32).reshape(HEIGHT + 4, 32)
    wanted = np.zeros((HEIGHT + 4, 32))
    wanted[2:-2, :WIDTH] = PAINTED
    assert np.array_equal(found, wanted)


def test_a_replay_stores_to_another_buffer(device: Device) -> None:
    kernel = compiled(painting(), chip_of(device))
    size = 128 * HEIGHT
    with device.alloc(size) as first, device.alloc(3 * size) as other:
        other.fill(0)
        program = device.load(pack_ir3([kernel]))
        with device.capture() as graph, device.queue() as queue:
            queue.launch(program["k"], grid=(HEIGHT + 4,), block=(64,), args=(first,))
        with pytest.raises(BadArgument, match="multiple of 64 bytes"):
            graph.replay(inputs={first: other[32:]})
        graph.replay(inputs={first: other[size : 2 * size]})
        graph.wait()
        found = other.numpy(np.float32).reshape(3, HEIGHT, 32)
        assert np.array_equal(found[1, :, :WIDTH], PAINTED)
        assert not found[[0, 2]].any()
        graph.close()


def test_a_launch_checks_where_an_image_lies(device: Device) -> None:
    kernel = compiled(painting(), chip_of(device))
    program = device.load(pack_ir3([kernel]))
    with device.alloc(4096) as memory:
        refusal = "image 0 of k: expected an address"
        with pytest.raises(BadArgument, match=refusal), device.queue() as queue:
            queue.launch(program["k"], grid=(1,), block=(64,), args=(memory[4:],))
        refusal = "image 0 of k needs 1108 bytes"
        with pytest.raises(BadArgument, match=refusal), device.queue() as queue:
            queue.launch(program["k"], grid=(1,), block=(64,), args=(memory[4096 - 1024 :],))


@pytest.mark.parametrize("generation", [6, 7])
def test_a_descriptor_and_its_packets_by_hand(generation: int) -> None:
    """As a6xx.xml and adreno_pm4.xml have them: format 0x30 (8_8_8_8_UNORM), swizzle x y z w, pitch
    at bit 7, type 1 (2D) at bit 29; CP_LOAD_STATE6 with type 3 (IBO) at bit 14, source 2 (indirect)
    at 16, block 13 (compute) at 18, one unit; SP_CS_IBO is 0xa9f2, from generation 7 on 0xa9f8."""
    tables = Tables.of(generation)
    picture = Ir3Texture(0, "unorm", 8, 4, 640, 480, 2560)
    swizzle = 0 << 4 | 1 << 7 | 2 << 10 | 3 << 13
    words = [0x30 << 22 | swizzle, 640 | 480 << 15, 2560 << 7 | 1 << 29, *[0] * 13]
    assert textures._words(tables, picture, stored=True) == words
    single = Ir3Texture(0, "float", 32, 1, 640, 480, 2560)
    assert textures._words(tables, single, stored=True)[0] == 0x4A << 22 | swizzle
    chip = "a630" if generation == 6 else "a740"
    kernel = compiled(painting(), chip)
    stream = Stream(tables)
    loaded = mock.create_autospec(Kernel)
    launch = Launch(loaded, (1, 1, 1), (64, 1, 1), (0x1_2345_6780_00).to_bytes(8, "little"))
    textures.bind(stream, launch, kernel)
    load, base = stream.words[:4], stream.words[4:]
    assert load[0] >> 28 == 7 and load[0] >> 16 & 0x7F == 0x34  # CP_LOAD_STATE6_FRAG
    assert load[1] == 3 << 14 | 2 << 16 | 13 << 18 | 1 << 22
    assert base[0] >> 28 == 4 and base[0] >> 8 & 0x3FFFF == (0xA9F2 if generation == 6 else 0xA9F8)
    shared = Stream(tables)
    dispatch.program(
        shared, chips.facts(chip), dispatch.Prepared(kernel, 0, dispatch.NO_PRIVATE_MEMORY)
    )
    config = next(n for n, word in enumerate(shared.words) if word >> 8 & 0x3FFFF == 0xA9BB)
    assert shared.words[config + 1] >> 22 & 0x7F == 1  # NIBO
    count = next(n for n, word in enumerate(shared.words) if word >> 8 & 0x3FFFF == 0xAA00)
    assert shared.words[count + 1] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (painting("21x9x1"), "adreno-image"),
        (painting().replace("32_float", "8_float"), "not supported"),
        (painting().replace("32_float", "32_16_float"), "must be like"),
        (painting().replace("32_float", "32_snorm"), "must be like"),
        (painting().replace("32_float", "24_float"), "must be like"),
        (painting().replace("32_float", "32_32_32_float"), "must be like"),
        (painting().replace("32_float", "32_uint"), "four i32 or i16"),
        (painting().replace(' "adreno-image"="32_float 21x9 128"', ""), "attribute"),
        (painting("21x0"), "malformed"),
        (painting().replace("i32 %left, i32 %up, <", "float %number, i32 %up, <"), "type i32"),
        (
            painting().replace("@adreno.image.store(", "@adreno.image.fill("),
            "load, store or sample",
        ),
        (sampling("cubic edge", "float"), "must be like"),
        (sampling("linear edge", "i32", "32_uint"), "cannot be sampled"),
        (sampling("linear edge", "float").replace("%out, i32 %x", "%in, i32 %x"), "one kernel"),
        (painting("0x9"), "malformed"),
        (painting("40x9"), "malformed"),
        (painting().replace("21x9 128", "21x9 96"), "multiple of 64"),
        (painting().replace("21x9 128", "16385x1 65600"), "at most 16384"),
    ],
)
def test_what_no_image_can_be_is_refused(text: str, message: str) -> None:
    with hcq.open("virtual:a630") as device, pytest.raises((CompileError, BadCodeObject),
                                                           match=message):  # fmt: skip
        device.load(pack_ir3([compiled(text, "a630")]))


def test_an_object_keeps_images() -> None:
    kernel: Ir3Kernel = compiled(painting(), "a740")
    assert kernel.images == (Ir3Texture(0, "float", 32, 1, WIDTH, HEIGHT, 128),)
    assert parse_ir3(pack_ir3([kernel])) == (kernel,)
    bare = replace(kernel, images=())
    assert b"images" not in pack_ir3([bare])
    assert parse_ir3(pack_ir3([bare])) == (bare,)
    with hcq.open("virtual:a740") as device:
        with pytest.raises(BadCodeObject, match="33 images, expected at most 32"):
            device.load(pack_ir3([replace(kernel, images=kernel.images * 33)]))
        with pytest.raises(BadCodeObject, match="image of two dimensions is malformed"):
            device.load(pack_ir3([replace(kernel, images=(replace(kernel.images[0], height=0),))]))


def test_the_example_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[3] / "docs" / "adreno.md"
    (text,) = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    exec(compile(text, "adreno.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "True\n"
