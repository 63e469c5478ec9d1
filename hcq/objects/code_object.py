"""AMD code objects as LLVM emits them: kernels, their descriptors and arguments; linking.

Facts: LLVM "User Guide for AMDGPU Backend" (AMDGPUUsage), sections "ELF Code Object", "Relocation
Records", "Kernel Descriptor", "Code Object V3 to V5 Metadata". Input is a relocatable object, or a
linked one (.hsaco). Linking lays out its sections, unless a linker has done that, and applies its
relocations: an external linker is not needed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgpack

from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.hcq.objects.argument import Argument
from ugpu.hcq.objects.elf import (
    ET_REL,
    SHF_EXECINSTR,
    ElfObject,
    ElfSymbol,
    read_header,
    read_object,
)
from ugpu.hcq.objects.linking import Layout, Rule, lay_out, link
from ugpu.hcq.objects.shared_object import read_shared

EM_AMDGPU = 224
ELFOSABI_AMDGPU_HSA = 64
ABI_VERSIONS = {2: 4, 3: 5, 4: 6}  # EI_ABIVERSION -> code object version
NT_AMDGPU_METADATA = 32
DESCRIPTOR_SIZE = 64
CODE_ALIGN = 256  # of a kernel's entry point
MAX_LOCAL_SIZE = 64 << 10
MAX_METADATA = 4 << 20  # bytes of msgpack, each of which may become an object
MAX_KERNARG_SIZE = 64 << 10

RELOCATIONS = {
    1: Rule(4),  # R_AMDGPU_ABS32_LO
    2: Rule(4, shift=32),  # R_AMDGPU_ABS32_HI
    3: Rule(8),  # R_AMDGPU_ABS64
    4: Rule(4, minus="place", signed=True),  # R_AMDGPU_REL32
    5: Rule(8, minus="place"),  # R_AMDGPU_REL64
    6: Rule(4, signed=False),  # R_AMDGPU_ABS32
    7: Rule(4, minus="place", through="slot", signed=True),  # R_AMDGPU_GOTPCREL
    8: Rule(4, minus="place", through="slot"),  # R_AMDGPU_GOTPCREL32_LO
    9: Rule(4, minus="place", through="slot", shift=32),  # R_AMDGPU_GOTPCREL32_HI
    10: Rule(4, minus="place"),  # R_AMDGPU_REL32_LO
    11: Rule(4, minus="place", shift=32),  # R_AMDGPU_REL32_HI
}
SHARED_RELOCATIONS = RELOCATIONS | {13: Rule(8, through="origin")}  # R_AMDGPU_RELATIVE64
# EF_AMDGPU_MACH (e_flags bits 7:0) of supported processors.
MACHINES = {
    0x3F: "gfx90a",
    0x4C: "gfx942",
    0x4F: "gfx950",
    0x36: "gfx1030",
    0x41: "gfx1100",
    0x46: "gfx1101",
    0x47: "gfx1102",
    0x48: "gfx1200",
    0x4E: "gfx1201",
}


@dataclass(frozen=True)
class Descriptor:
    """The 64-byte kernel descriptor. Sizes are bytes.

    Attributes:
        local_size: static local memory of a group.
        private_size: scratch of a thread.
        kernarg_size: of the argument block.
        entry_offset: from the descriptor to the code.
        rsrc3: COMPUTE_PGM_RSRC3.
        rsrc1: COMPUTE_PGM_RSRC1.
        rsrc2: COMPUTE_PGM_RSRC2.
        properties: which registers hold what at the start.
        preload: arguments that are loaded into registers before the start.
    """

    local_size: int
    private_size: int
    kernarg_size: int
    entry_offset: int
    rsrc3: int
    rsrc1: int
    rsrc2: int
    properties: int
    preload: int

    LAYOUT: ClassVar = struct.Struct("<III4xq20xIIIHH4x")

    @staticmethod
    def unpack(data: bytes) -> Descriptor:
        return Descriptor(*Descriptor.LAYOUT.unpack(data))

    @property
    def is_wave32(self) -> bool:
        return bool(self.properties >> 10 & 1)

    @property
    def uses_dynamic_stack(self) -> bool:
        return bool(self.properties >> 11 & 1)

    @property
    def user_sgprs(self) -> Mapping[str, bool]:
        """Return which user SGPR groups the kernel requests, in the order in which they are set
        up."""
        names = (
            "private_segment_buffer",
            "dispatch_ptr",
            "queue_ptr",
            "kernarg_segment_ptr",
            "dispatch_id",
            "flat_scratch_init",
            "private_segment_size",
        )
        return {name: bool(self.properties >> bit & 1) for bit, name in enumerate(names)}


@dataclass(frozen=True)
class HiddenArgument:
    """An argument that the runtime provides.

    Attributes:
        kind: as in the metadata, such as "hidden_block_count_x".
        offset: in the argument block, in bytes.
        size: in bytes.
    """

    kind: str
    offset: int
    size: int


@dataclass(frozen=True)
class KernelImage:
    """One kernel.

    Attributes:
        name: of the kernel.
        entry: offset of the code from the linked image's base.
        descriptor_at: offset of the descriptor from that base.
        descriptor: as decoded.
        arguments: the explicit ones.
        hidden: those that the runtime provides.
        max_threads: per group.
        metadata: the kernel's own map, as in the note.
    """

    name: str
    entry: int
    descriptor_at: int
    descriptor: Descriptor
    arguments: tuple[Argument, ...]
    hidden: tuple[HiddenArgument, ...]
    max_threads: int
    metadata: Mapping[str, Any] = field(repr=False)

    @property
    def kernarg_size(self) -> int:
        return self.descriptor.kernarg_size


@dataclass(frozen=True)
class CodeObject:
    """A checked code object.

    Attributes:
        target: processor name such as "gfx1100".
        kernels: by name.
        size: of the image, in bytes.
        align: of the image, in bytes.
        layout: of the image.
    """

    target: str
    kernels: Mapping[str, KernelImage]
    size: int
    align: int
    layout: Layout = field(repr=False)

    def link(self, base: int) -> bytes:
        """Return the image for device address `base`, a multiple of `align`."""
        return link(self.layout, base)


def parse_amdhsa(image: bytes) -> CodeObject:
    """Read and check a code object; Raises BadCodeObject with the defect."""
    relocatable = read_header(image).kind == ET_REL
    shared = None if relocatable else read_shared(image, SHARED_RELOCATIONS)
    elf = read_object(image) if shared is None else shared.elf
    if elf.machine != EM_AMDGPU or elf.os_abi != ELFOSABI_AMDGPU_HSA:
        raise BadCodeObject("not an AMD HSA code object", machine=elf.machine, os_abi=elf.os_abi)
    if elf.abi_version not in ABI_VERSIONS:
        raise BadCodeObject("unknown code object version", abi_version=elf.abi_version)
    target = MACHINES.get(elf.flags & 0xFF)
    if target is None:
        raise NotSupported("the code object is for an unknown processor", flags=elf.flags)
    metadata = _metadata(elf)
    declared = metadata.get("amdhsa.target")
    if not isinstance(declared, str) or _processor(declared) != target:
        raise BadCodeObject(
            "metadata and ELF header name different targets", metadata=declared, header=target
        )
    layout = lay_out(elf, RELOCATIONS) if shared is None else shared
    layout.align = max(layout.align, CODE_ALIGN)
    linked = link(layout, 0)
    kernels: dict[str, KernelImage] = {}
    for entry in _list(metadata, "amdhsa.kernels"):
        kernel = _kernel(elf, layout, linked, entry)
        kernels[kernel.name] = kernel
    return CodeObject(target, kernels, layout.size, layout.align, layout)


def _processor(target: str) -> str:
    """Return the processor of "amdhsa.target". This is a triple of four parts, the last often
    empty, and the target id, which is the processor and its features."""
    parts = target.split("-", 4)
    return parts[4].partition(":")[0] if len(parts) == 5 else ""


def _metadata(elf: ElfObject) -> dict[str, Any]:
    notes = [
        data for owner, kind, data in elf.notes() if (owner, kind) == ("AMDGPU", NT_AMDGPU_METADATA)
    ]
    if len(notes) != 1:
        raise BadCodeObject("expected one metadata note", found=len(notes))
    if len(notes[0]) > MAX_METADATA:
        raise BadCodeObject(
            "the metadata note is too large", size=len(notes[0]), limit=MAX_METADATA
        )
    try:
        metadata = msgpack.unpackb(notes[0])
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise BadCodeObject("metadata is not valid msgpack", reason=str(error)) from None
    if not isinstance(metadata, dict):
        raise BadCodeObject("expected a map as metadata")
    return metadata


def _kernel(elf: ElfObject, layout: Layout, linked: bytes, entry: object) -> KernelImage:
    if not isinstance(entry, dict):
        raise BadCodeObject("expected a map as a kernel's metadata")
    name, symbol_name = _text(entry, ".name"), _text(entry, ".symbol")
    descriptor_at = _place(layout, _find(elf, symbol_name), DESCRIPTOR_SIZE)
    descriptor = Descriptor.unpack(linked[descriptor_at : descriptor_at + DESCRIPTOR_SIZE])
    code = _find(elf, name)
    start = _place(layout, code, 4)
    assert code.section is not None
    if not elf.sections[code.section].flags & SHF_EXECINSTR or start % CODE_ALIGN:
        raise BadCodeObject("a kernel's code is not executable or not aligned", kernel=name)
    if descriptor_at % DESCRIPTOR_SIZE or descriptor_at + descriptor.entry_offset != start:
        raise BadCodeObject("a kernel descriptor does not point to its kernel", kernel=name)
    for key, value, most in (
        (".kernarg_segment_size", descriptor.kernarg_size, MAX_KERNARG_SIZE),
        (".group_segment_fixed_size", descriptor.local_size, MAX_LOCAL_SIZE),
        (".private_segment_fixed_size", descriptor.private_size, 1 << 24),
    ):
        if _number(entry, key) != value or value > most:
            raise BadCodeObject(f"{name}: descriptor and metadata disagree on {key}", has=value)
    arguments, hidden = _arguments(name, entry, descriptor.kernarg_size)
    return KernelImage(
        name=name,
        entry=start,
        descriptor_at=descriptor_at,
        descriptor=descriptor,
        arguments=arguments,
        hidden=hidden,
        max_threads=_number(entry, ".max_flat_workgroup_size"),
        metadata=entry,
    )


def _arguments(
    name: str, entry: Mapping[str, object], kernarg_size: int
) -> tuple[tuple[Argument, ...], tuple[HiddenArgument, ...]]:
    explicit: list[Argument] = []
    hidden: list[HiddenArgument] = []
    end = 0
    for argument in _list(entry, ".args", optional=True):
        if not isinstance(argument, dict):
            raise BadCodeObject(f"{name}: an argument's metadata is not a map")
        kind = _text(argument, ".value_kind")
        offset, size = _number(argument, ".offset"), _number(argument, ".size")
        if offset < end or size == 0 or offset + size > kernarg_size:
            raise BadCodeObject(
                f"{name}: arguments overlap or do not fit", offset=offset, size=size
            )
        end = offset + size
        if kind.startswith("hidden_"):
            hidden.append(HiddenArgument(kind, offset, size))
            continue
        title = argument.get(".name", "")
        is_address = kind in ("global_buffer", "dynamic_shared_pointer")
        explicit.append(
            Argument(
                offset, size, title if isinstance(title, str) else "", is_address,
                "" if is_address else _kind_of(argument),
            )
        )  # fmt: skip
    return tuple(explicit), tuple(hidden)


def _kind_of(argument: Mapping[str, object]) -> str:
    """Return "integer" or "float" from a scalar's type in the source, as OpenCL C names it, or from
    .value_type, which LLVM wrote up to version 9; empty if neither is known."""
    value_type, type_name = argument.get(".value_type"), argument.get(".type_name")
    if isinstance(value_type, str) and value_type[:1] in "fiu" and value_type[1:].isdigit():
        return "float" if value_type[0] == "f" else "integer"
    kinds = {"half": "float", "float": "float", "double": "float", "bool": "integer"}
    for integer in ("char", "short", "int", "long"):
        kinds[integer] = kinds[f"u{integer}"] = kinds[f"unsigned {integer}"] = "integer"
    return kinds.get(type_name, "") if isinstance(type_name, str) else ""


def _find(elf: ElfObject, name: str) -> ElfSymbol:
    symbol = elf.find(name)
    if symbol is None or symbol.section is None:
        raise BadCodeObject(f"the symbol {name!r} is not defined", symbol=name)
    return symbol


def _place(layout: Layout, symbol: ElfSymbol, size: int) -> int:
    """Return the offset of `symbol` in the image; check that at least `size` bytes of its section
    follow."""
    assert symbol.section is not None
    if symbol.section not in layout.offsets:
        raise BadCodeObject(
            "the symbol belongs to a section that is not loaded", symbol=symbol.name
        )
    if symbol.value + size > layout.elf.sections[symbol.section].size:
        raise BadCodeObject("the symbol extends past the end of its section", symbol=symbol.name)
    return layout.offsets[symbol.section] + symbol.value


def _list(entry: Mapping[str, object], key: str, optional: bool = False) -> list[object]:
    value = entry.get(key, [] if optional else None)
    if not isinstance(value, list):
        raise BadCodeObject(f"metadata: {key} is not a list")
    return value


def _text(entry: Mapping[str, object], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str):
        raise BadCodeObject(f"metadata: {key} is not text")
    return value


def _number(entry: Mapping[str, object], key: str) -> int:
    value = entry.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadCodeObject(f"metadata: {key} is not a natural number")
    return value
