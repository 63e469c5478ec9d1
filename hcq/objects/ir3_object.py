"""Objects of Adreno machine code (ir3): kernels, and what a driver needs to launch them.

An object is a relocatable ELF file (64 bits, little endian) without symbols and relocations:

    e_machine        MACHINE; the gABI assigns no number to Adreno
    EI_ABIVERSION    VERSION
    e_flags          CRC-32 of the file with this field zero
    .text.<name>     code of the kernel, a multiple of 8 bytes, aligned to 128
    .ir3.<name>      JSON in UTF-8: an object with the other fields of `Ir3Kernel`

Registers are numbered register * 4 + component; 0xfc means none. The constant file begins with the
parameters, followed by the driver's constants (which our kernels do not use) and the immediates.

A kernel may read memory that a parameter points to as a texture: texture number n of its
instructions is the n-th of `Ir3Kernel.textures`, which the driver describes to the GPU at each
launch; sampler number n is the n-th of `Ir3Kernel.samplers`. Image number n, to which a kernel may
store texels and from which it may load them, is the n-th of `Ir3Kernel.images`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ugpu.hcq.errors import BadCodeObject
from ugpu.hcq.objects.elf import (
    ET_REL,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHT_PROGBITS,
    SHT_STRTAB,
    read_header,
    read_sections,
)

MACHINE = 0x6972  # "ri" in the file
VERSION = 2
_HEAD = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_FLAGS = 48  # where e_flags stands
_CODE, _FACTS = ".text.", ".ir3."
CODE_ALIGN = 128  # sixteen instructions: the unit of the shader's size on gen 6 and 7
NO_REGISTER = 0xFC
INSTRUCTION = 8  # bytes
_LATER = {"textures", "samplers", "images"}  # absent from older objects, and where there are none
TEXEL_KINDS = ("uint", "float", "unorm")
_IMAGE = "image of two dimensions"
WRAPS = ("repeat", "edge", "mirror", "border")
_PARAMETER = {"name", "offset", "size", "is_address"}  # and kind, absent from older objects


@dataclass(frozen=True)
class Ir3Parameter:
    """A kernel's parameter.

    Attributes:
        name: of the parameter.
        offset: in the constant file, in bytes, aligned to its size.
        size: 1, 2, 4 or 8 bytes; 8 for an address.
        is_address: whether it is an address.
        kind: as in hcq.work.program.Argument.
    """

    name: str
    offset: int
    size: int
    is_address: bool
    kind: str = ""


@dataclass(frozen=True)
class Ir3Texture:
    """A parameter's memory as texels.

    Attributes:
        parameter: its number; it is an address.
        kind: "uint", "float" or "unorm".
        bits: per component.
        components: per texel, 1, 2 or 4.
        width: in texels.
        height: in texels; 0 is a buffer of `width` texels.
        pitch: bytes from row to row, 0 for a buffer.
    """

    parameter: int
    kind: str
    bits: int
    components: int
    width: int
    height: int = 0
    pitch: int = 0

    @property
    def texel(self) -> int:
        """Bytes of a texel."""
        return self.bits * self.components // 8

    @property
    def size(self) -> int:
        """Bytes from the first texel to the end of the last one."""
        return max(self.height - 1, 0) * self.pitch + self.width * self.texel


@dataclass(frozen=True)
class Ir3Sampler:
    """Sampling of a texture.

    Attributes:
        linear: between texels; otherwise the nearest one.
        wrap: what coordinates outside give: "repeat", "mirror", "edge" or "border" (zeros).
        normal: whether coordinates are 0 to 1; otherwise texels.
    """

    linear: bool
    wrap: str
    normal: bool = True


@dataclass(frozen=True)
class Ir3Kernel:
    """One kernel.

    Attributes:
        name: of the kernel.
        chip_id: the GPU that the code is for, as its kernel driver reports it.
        generation: 6 or 7.
        threads: per group, along x.
        parameters: in the constant file.
        instructions: number of them.
        full_registers: vec4s of the full register file.
        half_registers: vec4s of the half register file.
        merged_registers: whether half registers are halves of full ones.
        constants: vec4s of the constant file.
        immediates: words that begin at vec4 `immediates_at`.
        immediates_at: vec4 of the constant file.
        local_size: bytes per group.
        private_size: bytes per thread.
        private_per_wave: whether private memory is laid out by wave.
        branch_stack: its depth.
        double_wave: waves of 128 threads, else 64.
        early_preamble: whether the program has an early preamble (Mesa, ir3).
        barrier: whether it has barriers.
        group_register: where the GPU puts the index of the group.
        thread_register: where the GPU puts the index of the thread in it.
        code: the machine code.
        textures: that its instructions refer to by number.
        samplers: that its instructions refer to by number.
        images: that its instructions refer to by number; of two dimensions.
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
    textures: tuple[Ir3Texture, ...] = ()
    samplers: tuple[Ir3Sampler, ...] = ()
    images: tuple[Ir3Texture, ...] = ()

    @property
    def kernarg_size(self) -> int:
        return max((parameter.offset + parameter.size for parameter in self.parameters), default=0)


def pack_ir3(kernels: Sequence[Ir3Kernel]) -> bytes:
    """Return the object that holds `kernels`, whose names must differ."""
    names, content, rows = b"\0", bytearray(_HEAD.size), [bytes(_SECTION.size)]

    def section(name: str, kind: int, flags: int, data: bytes, align: int) -> None:
        nonlocal names
        content.extend(bytes(-len(content) % align))
        place = len(names), kind, flags, 0, len(content), len(data), 0, 0, align, 0
        rows.append(_SECTION.pack(*place))
        content.extend(data)
        names += name.encode() + b"\0"

    for kernel in kernels:
        facts = asdict(kernel)
        code = facts.pop("code")
        facts = {name: value for name, value in facts.items() if value or name not in _LATER}
        header = json.dumps(facts, separators=(",", ":")).encode()
        flags = SHF_ALLOC | SHF_EXECINSTR
        section(_CODE + kernel.name, SHT_PROGBITS, flags, code, CODE_ALIGN)
        section(_FACTS + kernel.name, SHT_PROGBITS, 0, header, 1)
    own = ".shstrtab"
    section(own, SHT_STRTAB, 0, names + own.encode() + b"\0", 1)
    content.extend(bytes(-len(content) % 8))
    table = len(content)
    content.extend(b"".join(rows))
    ident = b"\x7fELF\x02\x01\x01\0" + bytes([VERSION]) + bytes(7)
    _HEAD.pack_into(
        content, 0, ident, ET_REL, MACHINE, 1, 0, 0, table, 0,
        _HEAD.size, 0, 0, _SECTION.size, len(rows), len(rows) - 1,
    )  # fmt: skip
    struct.pack_into("<I", content, _FLAGS, zlib.crc32(content))
    return bytes(content)


# Numbers of a header and their maxima; the minimum is 0.
_LIMITS = {
    "chip_id": (1 << 64) - 1, "generation": 7, "threads": 2048, "instructions": 1 << 20,
    "full_registers": 64, "half_registers": 64, "constants": 1024, "immediates_at": 1024,
    "local_size": 1 << 20, "private_size": 1 << 20, "branch_stack": 64,
    "group_register": 255, "thread_register": 255,
}  # fmt: skip


def parse_ir3(image: bytes) -> tuple[Ir3Kernel, ...]:
    """Read and check an object; return its kernels, at least one. Raises BadCodeObject
    with the defect."""
    header = read_header(image)
    if (header.kind, header.machine) != (ET_REL, MACHINE):
        raise BadCodeObject(
            "not an object of Adreno machine code",
            expected=(ET_REL, MACHINE), found=(header.kind, header.machine),
        )  # fmt: skip
    if header.abi_version != VERSION:
        raise BadCodeObject(
            "unknown version of the ir3 object", expected=VERSION, found=header.abi_version
        )
    if zlib.crc32(image[:_FLAGS] + bytes(4) + image[_FLAGS + 4 :]) != header.flags:
        raise BadCodeObject("the ir3 object is damaged: its CRC-32 does not match")
    sections = {section.name: section.data for section in read_sections(image, header)}
    kernels = []
    for name, code in sections.items():
        if not name.startswith(_CODE):
            continue
        kernel = name.removeprefix(_CODE)
        parsed = _kernel(sections.get(_FACTS + kernel, b""), code)
        if parsed.name != kernel:
            raise BadCodeObject("a section has another kernel's facts", section=name)
        kernels.append(parsed)
    if not kernels:
        raise BadCodeObject("the ir3 object has no kernels")
    return tuple(kernels)


def _kernel(header: bytes, code: bytes) -> Ir3Kernel:
    if len(code) % INSTRUCTION or not code:
        raise BadCodeObject(
            "a kernel's code must be a multiple of 8 bytes, and not empty", size=len(code)
        )
    try:
        facts = json.loads(header)
    except (ValueError, RecursionError):
        raise BadCodeObject("the facts of a kernel in an ir3 object are not JSON") from None
    return _checked(facts, code)


def _checked(facts: Any, code: bytes) -> Ir3Kernel:  # what JSON holds
    names = {field.name for field in fields(Ir3Kernel)} - {"code"}
    if not isinstance(facts, dict) or set(facts) | _LATER != names:
        raise BadCodeObject(
            "a kernel of the ir3 object has unexpected facts", expected=sorted(names)
        )
    facts = {**{name: [] for name in _LATER}, **facts}
    for name, most in _LIMITS.items():
        number = facts[name]
        if type(number) is not int or not 0 <= number <= most:
            raise BadCodeObject(f"ir3 object: {name} is out of range", found=number, most=most)
    for name in names - set(_LIMITS) - _LATER - {"name", "parameters", "immediates"}:
        if type(facts[name]) is not bool:
            raise BadCodeObject(f"ir3 object: {name} must be a bool")
    words = facts["immediates"]
    if not isinstance(words, list) or not all(type(w) is int and 0 <= w < 1 << 32 for w in words):
        raise BadCodeObject("ir3 object: immediates must be 32-bit words")
    if not isinstance(facts["name"], str) or facts["generation"] < 6:
        raise BadCodeObject("ir3 object: expected a name and generation 6 or 7")
    facts["immediates"] = tuple(words)
    facts["parameters"] = _parameters(facts["parameters"])
    facts["textures"] = _textures(facts["textures"], facts["parameters"])
    facts["images"] = _textures(facts["images"], facts["parameters"], _IMAGE)
    facts["samplers"] = _samplers(facts["samplers"])
    return Ir3Kernel(**facts, code=code)


def _parameters(rows: Any) -> tuple[Ir3Parameter, ...]:  # what JSON holds
    if not isinstance(rows, list):
        raise BadCodeObject("ir3 object: expected a list of parameters")
    parameters: list[Ir3Parameter] = []
    end = 0
    for row in rows:
        if not isinstance(row, dict) or set(row) - {"kind"} != _PARAMETER:
            raise BadCodeObject("ir3 object: a parameter has unexpected fields", found=row)
        parameter = Ir3Parameter(**row)
        numbers = (parameter.offset, parameter.size)
        if (
            not isinstance(parameter.name, str) or type(parameter.is_address) is not bool
            or any(type(number) is not int for number in numbers)
            or parameter.kind not in ("", "integer", "float")
            or parameter.size not in (1, 2, 4, 8)
            or parameter.offset < end or parameter.offset % parameter.size
        ):  # fmt: skip
            raise BadCodeObject("ir3 object: parameters overlap or are malformed", found=row)
        end = parameter.offset + parameter.size
        parameters.append(parameter)
    return tuple(parameters)


def _textures(
    rows: Any, parameters: tuple[Ir3Parameter, ...], what: str = "texture"
) -> tuple[Ir3Texture, ...]:
    textures = []
    for row in _records(rows, Ir3Texture):
        texture = Ir3Texture(**row)
        numbers = (
            texture.parameter,
            texture.bits,
            texture.components,
            texture.width,
            texture.height,
            texture.pitch,
        )
        if (
            any(type(number) is not int or number < 0 for number in numbers)
            or texture.parameter >= len(parameters) or not parameters[texture.parameter].is_address
            or texture.kind not in TEXEL_KINDS or texture.bits not in (8, 16, 32)
            or texture.components not in (1, 2, 4) or not texture.width
            or (what == _IMAGE and not texture.height)
            or (texture.height > 1 and texture.pitch < texture.width * texture.texel)
        ):  # fmt: skip
            raise BadCodeObject(f"ir3 object: a {what} is malformed", found=row)
        textures.append(texture)
    return tuple(textures)


def _samplers(rows: Any) -> tuple[Ir3Sampler, ...]:
    samplers = []
    for row in _records(rows, Ir3Sampler):
        sampler = Ir3Sampler(**row)
        if sampler.wrap not in WRAPS or any(
            type(b) is not bool for b in (sampler.linear, sampler.normal)
        ):
            raise BadCodeObject("ir3 object: a sampler is malformed", found=row)
        samplers.append(sampler)
    return tuple(samplers)


def _records(rows: Any, kind: type) -> list[dict[str, Any]]:  # what JSON holds
    names = {field.name for field in fields(kind)}
    if not isinstance(rows, list) or any(
        not isinstance(row, dict) or set(row) != names for row in rows
    ):
        raise BadCodeObject(f"ir3 object: expected a list of {kind.__name__}", fields=sorted(names))
    return rows
