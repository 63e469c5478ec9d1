"""Constant buffers, storage buffers, images and samplers, by descriptors written by hand.

Source of the layouts: Mesa 25.0.7, src/freedreno/registers/adreno/a6xx.xml, A6XX_TEX_CONST,
A6XX_TEX_SAMP, A6XX_UBO.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.adreno.ir3_text import END, OUT, constants, i, k, mov, r, run, stored, words
from tests.support.shader_memory import ArrayMemory
from ugpu.hcq.errors import NotSupported
from ugpu.virtual.adreno.shader import Ending, Table

Array = NDArray[Any]
SETS, IMAGE, SAMPLERS = 0x6000_0000, 0x6100_0000, 0x6200_0000
SS, SY = 1 << 44, 1 << 60
R32_FLOAT, R32_UINT, RGBA8, RGBA16F, RGBA32F, R16_UINT = 0x4A, 0x4B, 0x30, 0x62, 0x82, 0x18


def image(
    form: int, width: int, height: int, pitch: int, base: int = IMAGE, kind: int = 1,
    depth: int = 1, layer: int = 0,
) -> list[int]:  # fmt: skip
    """A descriptor of a linear image, swizzle X, Y, Z, W."""
    swizzle = 1 << 7 | 2 << 10 | 3 << 13
    return [
        swizzle | form << 22, width | height << 15, pitch << 7 | kind << 29, layer >> 12,
        base & 0xFFFFFFFF, base >> 32 | depth << 17, *[0] * 10,
    ]  # fmt: skip


def buffer(form: int, elements: int, base: int = IMAGE, start: int = 0) -> list[int]:
    """A descriptor of a buffer as an image."""
    found = image(form, elements & 0x7FFF, elements >> 15, 0, base, 4)
    found[2] = 4 << 29 | 1 << 4 | start << 16
    return found


def launch(
    code: list[int], descriptors: list[int], data: Array, chip: str = "a630", **more: Any
) -> tuple[Array, Array]:
    """Run 64 threads; the words that each has stored at OUT, and the image then."""
    memory = ArrayMemory()
    out = memory.map(OUT, np.zeros((4, 64), np.uint32))
    memory.map(SETS, np.array(descriptors, np.uint32))
    found = memory.map(IMAGE, data)
    outcome, _ = run(words(*code, END), chip, memory, bindless=(SETS | 3,), **more)
    assert outcome.ending is Ending.DONE, outcome
    assert not memory.faults
    return out, found


def four(source: int, chip: str = "a630") -> list[int]:
    """Store four registers."""
    code = [SY]
    for n in range(4):
        code += stored(source + n, chip)
        code.insert(-1, i("add.u", chip, DST=r(41), SRC1=r(41), SRC2=r(43), FULL=1))
        code.insert(-5, mov(r(43), 256 * n))
    return code


def uav(name: str, chip: str = "a630", **fields: int) -> int:
    return i(name, chip, **{"BINDLESS": 1, "MODE": 0, "D_MINUS_ONE": 0, "SSBO": 0} | fields)


@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_untyped_buffers(chip: str) -> None:
    """Two words from each element on; beyond the end zeros, and nothing is stored."""
    data = np.arange(1000, 1064, dtype=np.uint32)
    load = uav("ldib.b", chip, SRC1=r(5), SRC2=0, TYPE=3, TYPE_SIZE_MINUS_ONE=1)
    double = i("add.u", chip, DST=r(7), SRC1=r(5), SRC2=r(5), FULL=1)
    store = uav("stib.b", chip, SRC1=r(7), SRC2=0, TYPE=3, TYPE_SIZE_MINUS_ONE=0)
    code = [load, SY | double, store, SS, mov(r(5, "z"), 0), mov(r(5, "w"), 0), *four(r(5), chip)]
    out, found = launch(code, buffer(R32_UINT, 40), data, chip)
    element = np.arange(64)
    assert out[0].tolist() == np.where(element < 40, element + 1000, 0).tolist()
    assert out[1].tolist() == np.where(element < 39, element + 1001, 0).tolist()
    assert found.tolist() == np.where(element < 40, 2 * data, data).tolist()


def test_buffers_of_halves_and_starts_within() -> None:
    data = np.arange(128, dtype=np.uint16)
    load = uav("ldib.b", SRC1=2 * r(5), SRC2=0, TYPE=2, TYPE_SIZE_MINUS_ONE=0)
    wide = i("mov-gpr", DST=r(6), SRC_TYPE=2, DST_TYPE=3, SRC=2 * r(5))
    out, _ = launch([load, SY | wide, *four(r(6))[:7]], buffer(R16_UINT, 64, start=3), data)
    assert out[0].tolist() == list(range(3, 67))


@pytest.mark.parametrize(("name", "wanted"), [("add", 7 + 64 * 2), ("max", 7), ("xchg", 2)])
def test_atomic_operations_on_buffers(name: str, wanted: int) -> None:
    """All threads change one word; SRC1 takes what was there, its successor has the operand."""
    code = [mov(r(4), 5), mov(r(5, "y"), 2)]
    code += [uav(f"atomic.b.{name}", SRC1=r(5), SRC2=r(4), TYPE=3), *four(r(5))[:7]]
    out, found = launch(code, buffer(R32_UINT, 40), np.full(40, 7, np.uint32))
    assert found[5] == wanted and (np.delete(found, 5) == 7).all()
    expected = {"add": 7 + 2 * np.arange(64), "max": np.full(64, 7)}.get(name)
    if expected is not None:
        assert sorted(out[0]) == expected.tolist()


def test_compare_and_swap_on_buffers() -> None:
    """SRC1 + 1 has the new value, SRC1 + 2 what must be there."""
    code = [i("mov-gpr", DST=r(5, "y"), SRC_TYPE=3, DST_TYPE=3, SRC=0), mov(r(5, "z"), 9)]
    code += [uav("atomic.b.cmpxchg", SRC1=r(5), SRC2=0, TYPE=3), *four(r(5))[:7]]
    data = np.where(np.arange(64) % 3 == 0, 9, 4).astype(np.uint32)
    out, found = launch(code, buffer(R32_UINT, 64), data)
    assert out[0].tolist() == data.tolist()
    assert found.tolist() == [lane if lane % 3 == 0 else 4 for lane in range(64)]


@pytest.mark.parametrize("name", ["atomic.add", "atomic.g.add"])
def test_atomic_operations_on_memory(name: str) -> None:
    """Each thread adds its number to a word; it gets what was there."""
    code = [mov(r(4), 0), mov(r(6), IMAGE), mov(r(6, "y"), 0)]
    place = r(4) if name == "atomic.add" else r(6)
    code += [i(name, DST=r(5), SRC1=place, SRC2=0, TYPE=3), SS | SY]
    if name == "atomic.add":
        code += [i("ldl", DST=r(5), SRC=r(4), SIZE=1, TYPE=3), SS]
        code = [mov(r(4), 0), mov(r(3), 0), i("stl", SRC=r(3), DST=r(4), SIZE=1, TYPE=3), *code]
    out, found = launch([*code, *four(r(5))[:7]], [0] * 16, np.zeros(4, np.uint32), local_size=64)
    if name == "atomic.add":
        assert (out[0] == sum(range(64))).all()
    else:
        assert found[0] == sum(range(64)) and out[0].max() <= sum(range(63))


def test_constant_buffers() -> None:
    """ldc: vec4 of each thread's number; beyond the end zeros. Both kinds of descriptors."""
    data = np.arange(400, dtype=np.uint32)
    descriptor = [IMAGE, 20 << 17, *[0] * 14]  # 20 vec4
    for more, mode in (({}, {"BINDLESS": 1}), ({"ubos": Table(SETS, 1)}, {"BINDLESS": 0})):
        load = i("ldc", DST=r(5), SRC1=0, SRC2=0, MODE=0, OFFSET=1, TYPE_SIZE_MINUS_ONE=2,
                 **mode)  # fmt: skip
        out, _ = launch([load, SY, mov(r(5, "w"), 0), *four(r(5))], descriptor, data, **more)
        vec4 = np.arange(64)
        for n in range(3):
            assert out[n].tolist() == np.where(vec4 < 20, 4 * vec4 + 1 + n, 0).tolist()


def test_constant_buffers_into_constants() -> None:
    """ldc.k: eight words of a buffer from its second vec4 on, into c4.x and on."""
    data = np.arange(100, dtype=np.uint32)
    code = [i("mov-immed", DST=245, SRC_TYPE=2, DST_TYPE=2, SRC=16), 5 << 40]
    code += [i("ldc.k", SRC1=1, SRC1_IM=1, SRC2=0, MODE=0, BINDLESS=1, LOAD_SIZE_MINUS_ONE=1)]
    code += [
        SY,
        *(i("mov-const", DST=r(5) + n, SRC_TYPE=3, DST_TYPE=3, SRC=19 + n) for n in range(4)),
    ]
    out, _ = launch([*code, *four(r(5))], [IMAGE, 20 << 17, *[0] * 14], data)
    assert out[:, 0].tolist() == [7, 8, 9, 10]


def coordinates() -> list[int]:
    """r1.x: number & 7, r1.y: number >> 3."""
    return [
        i("and.b", DST=r(1), SRC1=0, SRC2=k(7), FULL=1),
        i("shr.b", DST=r(1, "y"), SRC1=0, SRC2=k(3), FULL=1),
    ]


def sampled(name: str, chip: str, **fields: int) -> int:
    given: dict[str, int] = {
        "DST": r(5), "WRMASK": 15, "TYPE": 1, "FULL": 1, "SRC1": r(1), "S2EN_BINDLESS": 1,
        "DESC_MODE": 6, "SRC3": 0,
    }  # fmt: skip
    return i(name, chip, **given | fields)


@pytest.mark.parametrize(("chip", "bit"), [("a630", 0), ("a630", 1), ("a740", 0)])
def test_texels(chip: str, bit: int) -> None:
    """isam: one texel of a 6 x 7 image for each thread, whatever bit 18 ("1D") is; outside of it
    zeros."""
    rng = np.random.default_rng(5)
    data = rng.random((7, 16, 4), np.float32)
    code = [*coordinates(), sampled("isam", chip, **{"1D": bit}), *four(r(5), chip)]
    out, _ = launch(code, image(RGBA32F, 6, 7, 256), data, chip)
    for lane in range(64):
        x, y = lane & 7, lane >> 3
        texel = data[y, x] if x < 6 and y < 7 else np.zeros(4, np.float32)
        assert out[:, lane].view(np.float32).tolist() == texel.tolist()


@pytest.mark.parametrize(("form", "width"), [(R32_UINT, 100), (0x18, 200)])
def test_buffers_as_textures(form: int, width: int) -> None:
    """isam.v: consecutive elements of the access's type, also through 16-bit texels (0x18)."""
    data = np.arange(200, 300, dtype=np.uint32)
    code = [sampled("isam", "a740", SRC1=0, TYPE=3, SV=1, **{"1D": 1}), *four(r(5), "a740")]
    out, _ = launch(code, buffer(form, width), data, "a740")
    assert [row[3] for row in out] == [203, 204, 205, 206]


@pytest.mark.parametrize("chip", ["a630", "a740"])
@pytest.mark.parametrize("half", [0, 1])
def test_texels_of_buffers(chip: str, half: int) -> None:
    """isam of buffers: every format whose bits stay as they are, some starts and widths, all and
    some components; beyond the end zeros. What other swizzles and formats give stays as it was."""
    rng = np.random.default_rng(half)
    data = rng.integers(0, 1 << 32, 512, np.uint32)
    small = data.view(np.uint16 if half else np.uint32)
    forms = {0x18: 1, 0x46: 2, 0x63: 4} if half else {R32_UINT: 1, 0x68: 2, 0x83: 4, 0x82: 4}
    for form, count in forms.items():
        for start, width, mask, swizzle in ((0, 64, 15, None), (3, 20, 1, None), (5, 40, 3, 1)):
            descriptor = buffer(form, width, start=start)
            if swizzle is not None:
                descriptor[0] ^= 1 << 4  # x is the texel's second component
            fetch = sampled("isam", chip, SRC1=r(1), TYPE=2 if half else 3, WRMASK=mask,
                            DST=2 * r(5) if half else r(5))  # fmt: skip
            code = [i("xor.b", chip, DST=r(1), SRC1=0, SRC2=k(6), FULL=1), mov(r(1, "y"), 0)]
            code += [mov(r(5) + n, 0x7777) for n in range(4)]
            out, _ = launch([*code, fetch, *four(r(5), chip)], descriptor, data, chip)
            texels = np.zeros((64, 4), small.dtype)
            used = small[start * count : (start + width) * count].reshape(-1, count)
            inside = (np.arange(64) ^ 6) < len(used)
            texels[inside, :count] = used[(np.arange(64) ^ 6)[inside]]
            order = [1, 1, 2, 3] if swizzle is not None else [0, 1, 2, 3]
            for n in range(4):
                if not mask >> n & 1 or n >= count or (order[n] >= count):
                    continue
                found = out[n // 2] >> np.uint32(16 * (n % 2)) & 0xFFFF if half else out[n]
                assert found.tolist() == texels[:, order[n]].tolist(), (hex(form), start, n)


def test_a_source_of_a_sampler_by_an_alias() -> None:
    """alias.tex: an immediate, a constant or a register in place of r40.x, for one instruction."""
    data = np.arange(200, 300, dtype=np.uint32)
    fetch = sampled("isam", "a740", SRC1=r(40), TYPE=3, SV=1, **{"1D": 1})
    for kind, source, first in ((2, 7, 207), (0, 0, 203)):
        # Bit 54 as Mesa sets it; bits 32 to 39 name the register.
        alias = i("alias", "a740", SRC=source, SRC_REG_TYPE=kind, TYPE_SIZE=1)
        alias |= 1 << 54 | r(40) << 32
        out, _ = launch([alias, fetch, *four(r(5), "a740")], buffer(R32_UINT, 100), data, "a740")
        assert [row[3] for row in out] == [first + k for k in range(4)]


WRAPS = {"repeat": 0, "edge": 1, "mirror": 2, "border": 3}


def expected_linear(data: Array, u: float, v: float, wrap: str) -> Array:
    """Bilinear, computed for one point."""
    height, width = data.shape[:2]
    total = np.zeros(4)
    x0, y0 = np.floor(u * width - 0.5), np.floor(v * height - 0.5)
    for dy in (0, 1):
        for dx in (0, 1):
            share = (1 - abs(u * width - 0.5 - x0 - dx)) * (1 - abs(v * height - 0.5 - y0 - dy))
            x, y = int(x0) + dx, int(y0) + dy
            if wrap == "border" and not (0 <= x < width and 0 <= y < height):
                continue
            if wrap == "repeat":
                x, y = x % width, y % height
            elif wrap == "mirror":
                x, y = (
                    n % (2 * s) if n % (2 * s) < s else 2 * s - 1 - n % (2 * s)
                    for n, s in ((x, width), (y, height))
                )
            else:
                x, y = min(max(x, 0), width - 1), min(max(y, 0), height - 1)
            total += share * data[y, x]
    return total


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("linear", [False, True])
def test_samplers(wrap: str, linear: bool) -> None:
    """sam at points from -0.5 to 1.5 of an image of 8 x 8 bytes."""
    rng = np.random.default_rng(6)
    data = rng.integers(0, 256, (8, 64, 4), np.uint8)
    points = np.linspace(-0.5, 1.5, 64, dtype=np.float32)
    sampler = [(linear << 1 | linear << 3) | WRAPS[wrap] * (1 << 5 | 1 << 8), 0, 0, 0, *[0] * 12]
    load = [
        i("mov-gpr", DST=244, SRC_TYPE=4, DST_TYPE=4, SRC=0), 5 << 40,
        i("mov-relconst", DST=r(1), SRC_TYPE=3, DST_TYPE=3, SRC=4),
        mov(r(1, "y"), int(np.float32(0.3).view(np.uint32))),
    ]  # fmt: skip
    code = [*load, sampled("sam", "a630", SRC3=1), *four(r(5))]
    given = [0, 0, *points.view(np.uint32).tolist()]
    texture = image(RGBA8, 8, 8, 256)
    out, _ = launch(code, texture + sampler, data, constants=constants(*given))
    view = data[:, :8].astype(np.float64) / 255
    for lane, u in enumerate(points):
        if linear:
            wanted = expected_linear(view, float(u), float(np.float32(0.3)), wrap)
        else:
            x = int(np.floor(u * 8))
            place = {"repeat": x % 8, "edge": min(max(x, 0), 7)}.get(wrap)
            if wrap == "mirror":
                place = x % 16 if x % 16 < 8 else 15 - x % 16
            if wrap == "border":
                place = x if 0 <= x < 8 else None
            wanted = view[2, place] if place is not None else np.zeros(4)
        np.testing.assert_allclose(out[:, lane].view(np.float32), wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("form", "kind", "shape"),
    [(RGBA8, np.uint8, 4), (RGBA16F, np.float16, 4), (R32_FLOAT, np.float32, 1)],
)
def test_image_stores_and_loads(form: int, kind: type, shape: int) -> None:
    """stib and ldib of images, typed f32: what is stored comes back as the format holds it."""
    pitch = 8 * shape * np.dtype(kind).itemsize
    data = np.zeros((8, 8, shape), kind)
    convert = i("mov-gpr", DST=r(5), SRC_TYPE=3, DST_TYPE=1, SRC=0)
    scale = [i("mul.f", DST=r(5) + n, SRC1=r(5), SRC2=r(3), FULL=1) for n in (3, 2, 1, 0)]
    code = [*coordinates(), mov(r(3), int(np.float32(1 / 64).view(np.uint32))), convert, *scale]
    typed = {"TYPED": 1, "SRC2": r(1), "TYPE": 1, "D_MINUS_ONE": 1}
    code += [uav("stib.b", SRC1=r(5), TYPE_SIZE_MINUS_ONE=3, **typed), SS]
    code += [uav("ldib.b", SRC1=r(7), TYPE_SIZE_MINUS_ONE=3, **typed), *four(r(7))]
    out, found = launch(code, image(form, 8, 8, pitch), data)
    value = np.arange(64, dtype=np.float32) / 64
    stored_as = np.rint(value * 255) if kind is np.uint8 else value
    for n in range(shape):
        assert found[..., n].reshape(-1).astype(np.float64).tolist() == stored_as.tolist()
    read = (stored_as / 255 if kind is np.uint8 else stored_as).astype(np.float32)
    assert out[0].view(np.float32).tolist() == read.tolist()
    assert out[3].view(np.float32).tolist() == (read if shape == 4 else np.ones(64)).tolist()


def test_sizes() -> None:
    code = [uav("resinfo.b", DST=r(5), TYPE=3), SS, mov(r(5, "w"), 0), *four(r(5))]
    out, _ = launch(code, image(RGBA8, 21, 34, 256, depth=5), np.zeros(4, np.uint32))
    assert out[:3, 9].tolist() == [21, 34, 5]
    out, _ = launch(code, buffer(R32_UINT, 100_000), np.zeros(4, np.uint32))
    assert out[0, 9] == 100_000


@pytest.mark.parametrize(
    ("descriptor", "why"),
    [
        ([3, *image(RGBA8, 8, 8, 256)[1:]], "tiled"), (image(0x9F, 8, 8, 256), "texel format"),
        ([1 << 30 | RGBA8 << 22, *[0] * 15], "swapped"),
    ],
)  # fmt: skip
def test_images_that_are_not_executed_are_named(descriptor: list[int], why: str) -> None:
    code = [*coordinates(), sampled("isam", "a630", **{"1D": 1}), *four(r(5))]
    with pytest.raises(NotSupported, match=why):
        launch(code, descriptor, np.zeros(4, np.uint32))
