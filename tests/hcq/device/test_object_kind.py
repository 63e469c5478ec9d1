"""What `Device.load` says of images that it does not take."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

import ugpu
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadCodeObject


def elf(kind: int, machine: int) -> bytes:
    """The header of an ELF file of 64 bits, little-endian, without sections."""
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    return struct.pack("<16sHHI3QI6H", ident, kind, machine, 1, 0, 0, 0, 0, 64, 0, 0, 64, 0, 0)


@pytest.fixture(params=["cpu", "virtual:navi31", "virtual:ga102"], scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with ugpu.open(request.param) as found:
        yield found


@pytest.mark.parametrize(
    ("image", "text"),
    [
        (b"", "empty"),
        (b"\x7fELF", "truncated ELF"),
        (elf(1, 243), "relocatable object for RISC-V"),
        (elf(3, 3), "shared object for x86"),
        (b"__global__ void k() {}", "source goes to `compile`"),
        (b"BC\xc0\xde" + bytes(60), "LLVM bitcode"),
        (b"__CLANG_OFFLOAD_BUNDLE__" + bytes(60), "clang-offload-bundler"),
        (b"\x50\xed\x55\xba" + bytes(60), "fat binary"),
    ],
)
def test_an_error_says_what_the_image_is(device: Device, image: bytes, text: str) -> None:
    with pytest.raises(BadCodeObject) as caught:
        device.load(image)
    assert text in str(caught.value.facts["image"])
    assert device.target.name in str(caught.value.facts["remedy"]) or device.target.abi == "host"


def test_an_object_for_another_kind_of_device(device: Device) -> None:
    others = {"host": (elf(1, 224), "AMD"), "amdhsa": (elf(2, 190), "NVIDIA"),
              "ptx": (elf(3, 62), "x86-64")}  # fmt: skip
    image, text = others[device.target.abi]
    with pytest.raises(BadCodeObject) as caught:
        device.load(image)
    assert text in str(caught.value.facts["image"])


def test_a_program_of_this_machine_on_cpu() -> None:
    with ugpu.open("cpu", threads=1) as device, pytest.raises(BadCodeObject) as caught:
        device.load(elf(3, 62))
    assert "not a relocatable object" in str(caught.value.facts["image"])
