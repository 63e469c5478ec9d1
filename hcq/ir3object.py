"""Objects of Adreno machine code (ir3): one kernel, and what a driver must know to launch it.

Little endian:

    offset 0   8 bytes   "UGPUIR3\\n"
    8          u32       version, 1
    12         u32       bytes of the header
    16         u32       bytes of the code, a multiple of 8
    20         u32       CRC-32 of header and code together
    24                   the header: JSON in UTF-8, an object with the fields of `Ir3Kernel`
    align 128            the code

Registers are numbered register * 4 + component, 0xfc is none. The constant file begins with the
parameters, then come the driver's (which kernels of ours do not use) and the immediates.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import asdict, dataclass, fields
from typing import Any

from hcq.errors import BadCodeObject

MAGIC = b"UGPUIR3\n"
VERSION = 1
_HEAD = struct.Struct("<8sIIII")
CODE_ALIGN = 128  # sixteen instructions: the unit of the shader's size on gen 6 and 7
NO_REGISTER = 0xFC
INSTRUCTION = 8  # bytes
_PARAMETER = {"name", "offset", "size", "is_address"}  # and kind, which older objects lack


@dataclass(frozen=True)
class Ir3Parameter:
    """A kernel's parameter. offset, size: bytes in the constant file; an address has 8. kind: as in
    hcq.program.Argument."""

    name: str
    offset: int
    size: int
    is_address: bool
    kind: str = ""


@dataclass(frozen=True)
class Ir3Kernel:
    """One kernel.

    chip_id: the GPU the code is for, as its kernel driver reports it; generation: 6 or 7.
    threads: of a group, along x. full_registers, half_registers: vec4 of each file. constants: vec4
    of the constant file. immediates: words that stand from vec4 `immediates_at` on. local_size:
    bytes of a group; private_size: bytes of a thread, laid out by wave where `private_per_wave`.
    branch_stack: its depth. double_wave: waves of 128 threads, else 64. group_register,
    thread_register: where the GPU puts the numbers of the group and of the thread in it.
    """

    name: str
    chip_id: int
    generation: int
    threads: int
    parameters: tuple[Ir3Parameter, ...]
    instructions: int
    full_registers: int
    half_registers: int
    merged_registers: bool
    constants: int
    immediates: tuple[int, ...]
    immediates_at: int
    local_size: int
    private_size: int
    private_per_wave: bool
    branch_stack: int
    double_wave: bool
    early_preamble: bool
    barrier: bool
    group_register: int
    thread_register: int
    code: bytes

    @property
    def kernarg_size(self) -> int:
        return max((each.offset + each.size for each in self.parameters), default=0)

    def pack(self) -> bytes:
        """The object."""
        facts = asdict(self)
        del facts["code"]
        header = json.dumps(facts, separators=(",", ":")).encode()
        check = zlib.crc32(header + self.code)
        start = _HEAD.pack(MAGIC, VERSION, len(header), len(self.code), check) + header
        return start + bytes(-len(start) % CODE_ALIGN) + self.code


# Numbers of a header and the most they may be; all are at least 0.
_LIMITS = {
    "chip_id": (1 << 64) - 1, "generation": 7, "threads": 2048, "instructions": 1 << 20,
    "full_registers": 64, "half_registers": 64, "constants": 1024, "immediates_at": 1024,
    "local_size": 1 << 20, "private_size": 1 << 20, "branch_stack": 64,
    "group_register": 255, "thread_register": 255,
}  # fmt: skip


def parse_ir3(image: bytes) -> Ir3Kernel:
    """Read and check an object; BadCodeObject says what is wrong with it."""
    if len(image) < _HEAD.size or not image.startswith(MAGIC):
        raise BadCodeObject("not an object of Adreno machine code", size=len(image))
    _, version, header_size, code_size, check = _HEAD.unpack_from(image)
    if version != VERSION:
        raise BadCodeObject("unknown version of ir3 object", expected=VERSION, found=version)
    end = _HEAD.size + header_size
    start = end + -end % CODE_ALIGN
    if len(image) != start + code_size or code_size % INSTRUCTION or not code_size:
        raise BadCodeObject(
            "the ir3 object is truncated or has trailing bytes",
            expected=start + code_size, found=len(image),
        )  # fmt: skip
    header, code = image[_HEAD.size : end], image[start:]
    if zlib.crc32(header + code) != check:
        raise BadCodeObject("the ir3 object is damaged: its CRC-32 does not match")
    try:
        facts = json.loads(header)
    except (ValueError, RecursionError):
        raise BadCodeObject("the header of an ir3 object is not JSON") from None
    return _checked(facts, code)


def _checked(facts: Any, code: bytes) -> Ir3Kernel:  # what JSON holds
    names = {field.name for field in fields(Ir3Kernel)} - {"code"}
    if not isinstance(facts, dict) or set(facts) != names:
        raise BadCodeObject("the header of an ir3 object has other fields", expected=sorted(names))
    for name, most in _LIMITS.items():
        number = facts[name]
        if type(number) is not int or not 0 <= number <= most:
            raise BadCodeObject(f"ir3 object: {name} is out of range", found=number, most=most)
    for name in names - set(_LIMITS) - {"name", "parameters", "immediates"}:
        if type(facts[name]) is not bool:
            raise BadCodeObject(f"ir3 object: expected a truth value as {name}")
    words = facts["immediates"]
    if not isinstance(words, list) or not all(type(w) is int and 0 <= w < 1 << 32 for w in words):
        raise BadCodeObject("ir3 object: expected words of 32 bits as immediates")
    if not isinstance(facts["name"], str) or facts["generation"] < 6:
        raise BadCodeObject("ir3 object: expected a name, and generation 6 or 7")
    facts["immediates"] = tuple(words)
    facts["parameters"] = _parameters(facts["parameters"])
    return Ir3Kernel(**facts, code=code)


def _parameters(given: Any) -> tuple[Ir3Parameter, ...]:  # what JSON holds
    if not isinstance(given, list):
        raise BadCodeObject("ir3 object: expected a list of parameters")
    found: list[Ir3Parameter] = []
    end = 0
    for one in given:
        if not isinstance(one, dict) or set(one) - {"kind"} != _PARAMETER:
            raise BadCodeObject("ir3 object: a parameter has other fields", found=one)
        parameter = Ir3Parameter(**one)
        numbers = (parameter.offset, parameter.size)
        if (
            not isinstance(parameter.name, str) or type(parameter.is_address) is not bool
            or any(type(number) is not int for number in numbers)
            or parameter.kind not in ("", "integer", "float")
            or parameter.size not in (4, 8) or parameter.offset < end or parameter.offset % 4
        ):  # fmt: skip
            raise BadCodeObject("ir3 object: parameters overlap or are malformed", found=one)
        end = parameter.offset + parameter.size
        found.append(parameter)
    return tuple(found)
