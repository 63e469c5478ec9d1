"""Linked code objects (.hsaco): loaded and run; null pointers, local memory sized at launch."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amd.am_navi31 import build_chip, opened
from tests.support.amd.linked_object import linked, relocatable
from ugpu.am.device.device import AmDevice
from ugpu.hcq.errors import BadArgument, BadCodeObject, NotSupported
from ugpu.hcq.objects.code_object import parse_amdhsa
from ugpu.hcq.work.program import Program

SHARED = 1024 * 4  # bytes of local memory that the kernel uses
BOTH = pytest.mark.parametrize("make", [linked, relocatable], ids=["linked", "relocatable"])


@pytest.fixture(scope="module")
def device() -> Iterator[AmDevice]:
    chip = build_chip()
    with opened(chip) as device:
        yield device
    assert chip.violations == []
    chip.close()


def run(device: AmDevice, program: Program, marks: object, index: int) -> np.ndarray:
    with device.alloc(4096) as out:
        with device.queue() as queue:
            queue.launch(
                program["linked"], grid=(1,), block=(1024,), args=(out, marks, np.uint32(index)),
                dynamic_local=SHARED,
            )  # fmt: skip
        device.synchronize()
        return out.numpy(np.uint32)


@BOTH
@pytest.mark.parametrize("index", [0, 3])
def test_linked_objects_run(device: AmDevice, make: Callable[[], bytes], index: int) -> None:
    with device.load(make()) as program, device.alloc(4096) as marks:
        marks.fill(0)
        base = (1000, 2000, 3000, 4000)[index] + (10, 20)[index & 1]
        expected = base + 1023 - np.arange(1024)
        assert (run(device, program, marks, index) == expected).all()
        assert (marks.numpy(np.uint32) == 1).all()
        for null in (None, 0, np.uint64(0)):
            assert (run(device, program, null, index) == expected).all()


def test_what_is_no_null_pointer_is_refused(device: AmDevice) -> None:
    with device.load(linked()) as program, device.alloc(4096) as out:
        for wrong in (7, np.uint64(8), False, np.float64(0)):
            with pytest.raises(BadArgument, match="argument 1"):
                run(device, program, wrong, 0)
        with pytest.raises(BadArgument, match="argument 2"):
            device.queue().launch(program["linked"], grid=(1,), block=(32,), args=(out, out, None))


def test_local_memory_has_its_limit(device: AmDevice) -> None:
    with device.load(linked()) as program, device.alloc(4096) as out:
        args = (out, None, np.uint32(0))
        for size, reason in ((65537, "at most 65536 bytes"), (-4, "got -4")):
            with pytest.raises(BadArgument, match=reason):
                device.queue().launch(
                    program["linked"], grid=(1,), block=(32,), args=args, dynamic_local=size
                )


def test_both_forms_say_the_same() -> None:
    one, other = parse_amdhsa(linked()), parse_amdhsa(relocatable())
    assert one.target == other.target and set(one.kernels) == set(other.kernels)
    mine, theirs = one.kernels["linked"], other.kernels["linked"]
    assert mine.arguments == theirs.arguments
    assert mine.descriptor.rsrc1 == theirs.descriptor.rsrc1
    base = 0x2000_0010_0000
    image = one.link(base)
    inner = image.index(struct.pack("<4I", 10, 20, 30, 40))
    assert struct.pack("<2Q", base + inner, base + inner + 4) in image
    assert struct.pack("<Q", base + image.index(struct.pack("<I", 1000))) in image
    with pytest.raises(BadCodeObject, match="not aligned"):
        one.link(base + 256)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_flipped_bytes_of_a_linked_object(data: st.DataObject) -> None:
    image = bytearray(linked())
    for _ in range(data.draw(st.integers(1, 4))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    try:
        code = parse_amdhsa(bytes(image))
        whole = code.link(code.align * 16)
    except (BadCodeObject, NotSupported):
        return
    for kernel in code.kernels.values():
        assert 0 <= kernel.entry < len(whole) and 0 <= kernel.descriptor_at <= len(whole) - 64


@given(length=st.integers(0, 6000))
@settings(max_examples=100, deadline=None)
def test_a_linked_object_that_is_cut_off(length: int) -> None:
    image = linked()
    if length < len(image):
        with pytest.raises(BadCodeObject):
            parse_amdhsa(image[:length])
