"""Load a code object; the error names the image's actual kind and how to build a loadable one."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Protocol

from ugpu.hcq.errors import BadCodeObject
from ugpu.hcq.objects.ir3_object import MACHINE
from ugpu.hcq.work.state import DriverPart

if TYPE_CHECKING:
    from ugpu.hcq.work.program import Program


class Loader(DriverPart, Protocol):
    """What loads a program: a driver."""

    def load_program(self, image: bytes) -> Program: ...


# e_machine by the calling convention of its kernels, and the names of its values. ELF gABI,
# "Machine Information"; LLVM AMDGPU usage; NVIDIA's cubins have 190 (EM_CUDA).
_MACHINES = {
    3: "x86", 62: "x86-64", 183: "AArch64", 190: "NVIDIA GPUs", 224: "AMD GPUs", 243: "RISC-V",
    MACHINE: "Adreno GPUs",
}  # fmt: skip
_OF_ABI: dict[str, tuple[int, ...]] = {
    "amdhsa": (224,), "ptx": (190,), "host": (62, 183), "ir3": (MACHINE,),
}  # fmt: skip
_HEADER = struct.Struct("<16sHH")  # e_ident, e_type, e_machine
_KINDS = {1: "relocatable object", 2: "executable", 3: "shared object", 4: "core dump"}
# How to make an object that loads.
_MADE_BY = {
    "amdhsa": "clang -x hip --offload-arch={target} --offload-device-only --no-gpu-bundle-output, "
    "or clang -target amdgcn-amd-amdhsa -mcpu={target}",
    "ptx": "nvcc -ptx or nvcc -cubin -arch={target}",
    "ir3": "Device.compile of LLVM IR (ugpu.compiler.codegen.adreno)",
    "host": "clang -c -fPIC (a relocatable object with a symbol <kernel>.ugpu)",
}


def load_program(driver: Loader, image: bytes) -> Program:
    """Call `driver.load_program`; a BadCodeObject also carries `image` (what it is) and
    `remedy`."""
    try:
        return driver.load_program(image)
    except BadCodeObject as error:
        found = described(image, driver.target.abi)
        if not found:
            raise
        remedy = _MADE_BY[driver.target.abi].format(target=driver.target.name)
        error.add_facts(image=found, remedy=remedy)
        raise


def described(image: bytes, abi: str) -> str:
    """Name the kind of an image that is not for devices of this calling convention; "" if it may
    be."""
    if not image:
        return "empty"
    if not image.startswith(b"\x7fELF"):
        return _not_elf(image, abi)
    if len(image) < _HEADER.size:
        return "a truncated ELF file"
    _, kind, machine = _HEADER.unpack_from(image)
    if machine not in _OF_ABI[abi]:
        where = _MACHINES.get(machine, f"machine {machine}")
        return f"{_KINDS.get(kind, 'file')} for {where}"
    if abi == "host" and kind != 1:
        return f"{_KINDS.get(kind, 'file')}, not a relocatable object"
    return ""


def _not_elf(image: bytes, abi: str) -> str:
    if image.startswith((b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB")):
        return "bundle of objects, which clang-offload-bundler --unbundle takes apart"
    if image.startswith(b"\x50\xed\x55\xba"):
        return "CUDA fat binary, which cuobjdump -xelf all takes apart"
    if image.startswith((b"BC\xc0\xde", b"\xde\xc0\x17\x0b")):
        return "LLVM bitcode; `compile` takes the text that llvm-dis prints"
    try:
        image[:4096].decode()
    except UnicodeDecodeError:
        return ""
    if abi == "ptx" and b".version" in image:
        return ""
    return "text; source goes to `compile`"
