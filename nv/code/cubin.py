"""Cubins: reader and checks for NVIDIA's machine code in ELF. nv.code.image lays it out for memory.

Facts: the ELF sections, symbols and attributes that ptxas and nvJitLink of CUDA 12.9 to 13.5 write,
with the names that cuobjdump gives them (EIATTR_*, R_CUDA_*). Machine code itself is not inspected.
A truncated, foreign or inconsistent file raises BadCodeObject.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.hcq.objects.argument import Argument
from ugpu.hcq.objects.elf import Strings, check_disjoint

MAX_SIZE = 256 << 20
MAX_SECTIONS = 1 << 16
MAX_PARAMETERS = 32764  # PTX ISA 8.1, "Kernel Function Parameters"
_UNKNOWN = 0xFFFF_FFFF  # stack of a kernel with recursion or alloca
MAX_STACK = 512 << 10  # bytes of local memory per thread: CUDA C++ Programming Guide, limits
MAX_CLUSTER = 16  # groups, on any GPU: Hopper and Blackwell Tuning Guides
EM_CUDA = 190
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_SYMTAB, _SHT_STRTAB, _SHT_RELA, _SHT_NOBITS, _SHT_REL = 2, 3, 4, 8, 9
_STO_ENTRY = 0x10  # st_other of a kernel
_STT_FUNC = 2
_BARRIERS_SHIFT, _BARRIERS_MASK = 20, 0x7F  # sh_flags of a text section, before CUDA 12.6

# EIATTR_*, in `.nv.info` sections. Format byte: 1 no data, 2 a byte, 3 a half-word, 4 sized data.
_MAX_THREADS, _PARAM_CBANK, _REQUIRED_BLOCK = 0x05, 0x0A, 0x10
_FRAME_SIZE, _MIN_STACK_SIZE, _PARAMETER = 0x11, 0x12, 0x17
_MAX_STACK_SIZE, _REGISTERS, _BARRIERS = 0x23, 0x2F, 0x4C
_CTA_PER_CLUSTER, _EXPLICIT_CLUSTER, _MAX_CLUSTER_RANK = 0x3D, 0x3E, 0x3F
_BLOCKS_ARE_CLUSTERS = 0x5B
_OF_A_SYMBOL = frozenset((_FRAME_SIZE, _MIN_STACK_SIZE, _MAX_STACK_SIZE, _REGISTERS))
_POINTERS = (4, 5)  # in EIATTR_KPARAM_INFO: points to global memory, or anywhere

_CONSTANT = re.compile(r"\.nv\.constant(\d+)(?:\.(.+))?")


@dataclass(frozen=True)
class Section:
    """A section. `data` is empty if the section only reserves space. link, info: as in the ELF
    section header."""

    index: int
    name: str
    kind: int
    flags: int
    size: int
    align: int
    link: int
    info: int
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Symbol:
    """A symbol; section is None if it is defined elsewhere."""

    name: str
    value: int
    size: int
    section: int | None
    is_entry: bool


@dataclass(frozen=True)
class Relocation:
    """A relocation: insert symbol + addend at `offset` of `section`, encoded as `kind` defines.

    addend: None if the place itself contains it.
    """

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int | None


@dataclass(frozen=True)
class KernelCode:
    """One `.entry`. Sizes are bytes; offsets of arguments count from the parameters' start.

    text: number of its section. parameters_at: where parameters start in constant bank 0.
    constants: bank -> number of a section. shared_size includes the system's share if the assembler
    counts it. max_threads: 0 if not declared. required_block: from `.reqntid`. required_cluster:
    from `.reqnctapercluster`. explicit_cluster: launches must give the cluster size. max_cluster:
    most groups of a cluster, 0 if not declared. dynamic_stack: the kernel needs more stack than
    stack_size, and the assembler cannot determine how much (recursion, alloca).
    """

    name: str
    text: int
    code_size: int
    registers: int
    barriers: int
    stack_size: int
    shared_size: int
    parameters_at: int
    parameters_size: int
    arguments: tuple[Argument, ...] | None
    constants: Mapping[int, int]
    max_threads: int
    required_block: tuple[int, int, int] | None
    required_cluster: tuple[int, int, int] | None = None
    explicit_cluster: bool = False
    max_cluster: int = 0
    dynamic_stack: bool = False


@dataclass(frozen=True)
class Cubin:
    """A checked cubin. capability: (9, 0) for sm_90. counts_reserved: whether the kernels'
    shared_size includes the system's share."""

    capability: tuple[int, int]
    counts_reserved: bool
    kernels: Mapping[str, KernelCode]
    sections: tuple[Section, ...] = field(repr=False)
    symbols: tuple[Symbol, ...] = field(repr=False)
    relocations: tuple[Relocation, ...] = field(repr=False)
    constants: Mapping[int, int] = field(default_factory=dict, repr=False)

    def only(self, kernel: str) -> Cubin:
        """Return the cubin without the sections of other kernels, which become empty."""
        empty = Section(0, "", 0, 0, 0, 1, 0, 0, b"")
        sections = tuple(
            replace(empty, index=section.index)
            if (owner := section.name.rpartition(".")[2]) in self.kernels and owner != kernel
            else section
            for section in self.sections
        )
        return replace(self, kernels={kernel: self.kernels[kernel]}, sections=sections)

    @property
    def target(self) -> str:
        return f"sm_{self.capability[0]}{self.capability[1]}"


def parse_cubin(image: bytes) -> Cubin:
    """Read and check a cubin; BadCodeObject describes the defect."""
    capability, table, count, names = _header(image)
    sections = _sections(image, table, count, names)
    symbols = _symbols(sections)
    relocations = _relocations(sections, len(symbols))
    shared_of, constants_of = _by_kernel(sections)
    attributes = _global_attributes(sections, len(symbols))
    by_name = {section.name: section for section in sections}
    kernels: dict[str, KernelCode] = {}
    for number, symbol in enumerate(symbols):
        if symbol.is_entry:
            if symbol.name in kernels:
                raise BadCodeObject("two kernels have the same name", kernel=symbol.name)
            kernels[symbol.name] = _kernel(
                sections, by_name, symbol, attributes.get(number, {}), shared_of,
                {**constants_of.get("", {}), **constants_of.get(symbol.name, {})},
            )  # fmt: skip
    if not kernels:
        raise BadCodeObject(
            "expected at least one kernel in the cubin, found none (PTX declares a kernel with "
            ".entry)"
        )
    # CUDA 13 places the system's share first and declares its size; earlier versions omit it.
    reserved = any(symbol.name.startswith(".nv.reservedSmem.") for symbol in symbols)
    return Cubin(
        capability, reserved and image[8] >= 8, kernels, sections, symbols, relocations,
        constants_of.get("", {}),
    )  # fmt: skip


# ---- ELF -----------------------------------------------------------------------------------------


def _header(image: bytes) -> tuple[tuple[int, int], int, int, int]:
    if not _HEADER.size <= len(image) <= MAX_SIZE:
        raise BadCodeObject("the image is too short for a cubin", size=len(image))
    header = _HEADER.unpack_from(image)
    ident, machine, table, flags = header[0], header[2], header[6], header[7]
    entry_size, count, names = header[11:14]
    if ident[:4] != b"\x7fELF" or ident[4:6] != b"\x02\x01":
        raise BadCodeObject(
            "expected PTX text or a 64-bit little-endian ELF file", magic=ident[:6].hex()
        )
    if machine != EM_CUDA:
        raise BadCodeObject("the ELF file is not for NVIDIA GPUs", machine=machine)
    # CUDA 13 counts its ABI from 8 and moved the architecture one byte up.
    number = flags >> 8 & 0xFF if ident[8] >= 8 else flags & 0xFF
    if entry_size != _SECTION.size or not 0 < count < MAX_SECTIONS:
        raise BadCodeObject(
            "the section headers have an invalid size or number", size=entry_size, count=count
        )
    if table + count * _SECTION.size > len(image):
        raise BadCodeObject(
            "the section table extends past the end of the file", offset=table, count=count
        )
    return divmod(number, 10), table, count, names


def _sections(image: bytes, table: int, count: int, names: int) -> tuple[Section, ...]:
    rows = [_SECTION.unpack_from(image, table + number * _SECTION.size) for number in range(count)]
    check_disjoint([(row[4], row[5]) for row in rows if row[1] not in (0, _SHT_NOBITS)], len(image))
    contents = []
    for number, (_, kind, _, _, offset, size, _, _, align, _) in enumerate(rows):
        if size > MAX_SIZE or align > 1 << 16 or align & align - 1:
            raise BadCodeObject("unexpected section size or alignment", section=number, align=align)
        if kind in (0, _SHT_NOBITS):
            contents.append(b"")
        elif offset + size > len(image):
            raise BadCodeObject(
                "the section extends past the end of the file", section=number, size=size
            )
        else:
            contents.append(image[offset : offset + size])
    if names >= count or rows[names][1] != _SHT_STRTAB:
        raise BadCodeObject("the table of section names is missing", index=names)
    strings = Strings(contents[names], "section name")
    return tuple(
        Section(
            number, strings.at(row[0]), row[1], row[2], row[5],
            max(1, row[8]), row[6], row[7], contents[number],
        )
        for number, row in enumerate(rows)
    )  # fmt: skip


def _symbols(sections: tuple[Section, ...]) -> tuple[Symbol, ...]:
    tables = [section for section in sections if section.kind == _SHT_SYMTAB]
    if len(tables) != 1:
        raise BadCodeObject("expected one symbol table in the cubin", found=len(tables))
    table = tables[0]
    if table.size % _SYMBOL.size:
        raise BadCodeObject("the symbol table is truncated", size=table.size)
    if table.link >= len(sections) or sections[table.link].kind != _SHT_STRTAB:
        raise BadCodeObject("the table of symbol names is missing", link=table.link)
    strings = Strings(sections[table.link].data, "symbol name")
    symbols = []
    for name, info, other, index, value, size in _SYMBOL.iter_unpack(table.data):
        text = strings.at(name)
        section = index if 0 < index < 0xFF00 else None
        if section is not None and (
            section >= len(sections) or value + size > max(sections[section].size, value)
        ):
            raise BadCodeObject(
                "the symbol extends past the end of its section", symbol=text, value=value
            )
        is_entry = bool(other & _STO_ENTRY) and info & 15 == _STT_FUNC and section is not None
        symbols.append(Symbol(text, value, size, section, is_entry))
    return tuple(symbols)


def _relocations(sections: tuple[Section, ...], symbols: int) -> tuple[Relocation, ...]:
    found = []
    for section in sections:
        if section.kind not in (_SHT_REL, _SHT_RELA):
            continue
        layout = "<QQ" if section.kind == _SHT_REL else "<QQq"
        if section.size % struct.calcsize(layout) or not 0 < section.info < len(sections):
            raise BadCodeObject("malformed relocation section", section=section.name)
        target = sections[section.info]
        for row in struct.iter_unpack(layout, section.data):
            if row[1] >> 32 >= symbols or row[0] >= max(1, len(target.data)):
                raise BadCodeObject(
                    "the relocation's symbol or section does not exist", section=target.name
                )
            addend = row[2] if len(row) > 2 else None
            found.append(
                Relocation(target.index, row[0], row[1] & 0xFFFF_FFFF, row[1] >> 32, addend)
            )
    return tuple(found)


# ---- NVIDIA's sections ---------------------------------------------------------------------------


def _by_kernel(
    sections: tuple[Section, ...],
) -> tuple[dict[str, int], dict[str, dict[int, int]]]:
    """Shared memory and constant banks, by kernel; banks of the whole module under ""."""
    shared: dict[str, int] = {}
    constants: dict[str, dict[int, int]] = {}
    for section in sections:
        if section.name.startswith(".nv.shared."):
            shared[section.name.removeprefix(".nv.shared.")] = section.size
            continue
        bank = _CONSTANT.fullmatch(section.name)
        if bank is not None:
            if int(bank[1]) > 7 or section.size > 64 << 10:
                raise BadCodeObject(
                    "the constant bank is not supported", bank=bank[1], size=section.size
                )
            constants.setdefault(bank[2] or "", {})[int(bank[1])] = section.index
    return shared, constants


def _attributes(section: Section) -> Iterator[tuple[int, bytes]]:
    """Yield (attribute, data); a byte or half-word is also returned as data."""
    data, at = section.data, 0
    while at < len(data):
        if at + 4 > len(data):
            raise BadCodeObject("the attributes are truncated", section=section.name)
        form, attribute, value = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == 4:
            if at + value > len(data):
                raise BadCodeObject("the attributes are truncated", section=section.name)
            yield attribute, data[at : at + value]
            at += value
        elif form in (1, 2, 3):
            yield attribute, data[at - 2 : at]
        else:
            raise BadCodeObject("an attribute has an unknown form", section=section.name, form=form)


def _numbers(data: bytes, layout: str, section: Section) -> tuple[int, ...]:
    if len(data) < struct.calcsize(layout):
        raise BadCodeObject(
            "an attribute is shorter than its form requires", section=section.name, size=len(data)
        )
    numbers: tuple[int, ...] = struct.unpack_from(layout, data)
    return numbers


def _global_attributes(sections: tuple[Section, ...], symbols: int) -> dict[int, dict[int, int]]:
    """Return the attributes of single symbols in `.nv.info`: symbol -> attribute -> value."""
    found: dict[int, dict[int, int]] = {}
    for section in sections:
        if section.name == ".nv.info":
            for attribute, data in _attributes(section):
                if attribute in _OF_A_SYMBOL:
                    symbol, value = _numbers(data, "<II", section)
                    if symbol >= symbols:
                        raise BadCodeObject(
                            "an attribute refers to a symbol that does not exist", symbol=symbol
                        )
                    found.setdefault(symbol, {})[attribute] = value
    return found


def _kernel(
    sections: tuple[Section, ...],
    by_name: Mapping[str, Section],
    symbol: Symbol,
    attributes: Mapping[int, int],
    shared_of: Mapping[str, int],
    constants: Mapping[int, int],
) -> KernelCode:
    assert symbol.section is not None
    name, text = symbol.name, sections[symbol.section]
    if not text.name.startswith(".text") or symbol.value or symbol.value + 16 > len(text.data):
        raise BadCodeObject("the kernel must start at offset 0 of its text section", kernel=name)
    own = by_name.get(f".nv.info.{name}")
    registers = attributes.get(_REGISTERS, text.info >> 24)
    if own is None or not 0 < registers <= 255:
        raise BadCodeObject(
            "the kernel has no attributes (.nv.info)", kernel=name, registers=registers
        )
    kinds = _FRAME_SIZE, _MIN_STACK_SIZE, _MAX_STACK_SIZE
    stacks = [attributes.get(kind, 0) for kind in kinds]
    stack = max(size for size in stacks if size != _UNKNOWN)
    if stack > MAX_STACK:
        raise NotSupported(
            f"kernel {name} requires {stack} bytes of stack, the limit is {MAX_STACK}",
            most=MAX_STACK,
        )
    barriers = text.flags >> _BARRIERS_SHIFT & _BARRIERS_MASK
    at = size = threads = 0
    required: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None
    explicit, most_groups = False, 0
    arguments: list[tuple[int, int, Argument]] = []
    for attribute, data in _attributes(own):
        if attribute == _PARAM_CBANK:
            _, at, size = _numbers(data, "<IHH", own)
        elif attribute == _PARAMETER:
            _, ordinal, offset, flags = _numbers(data, "<IHHI", own)
            arguments.append((ordinal, flags >> 8 & 15, Argument(offset, flags >> 18)))
        elif attribute in (_MAX_THREADS, _REQUIRED_BLOCK):
            x, y, z = _numbers(data, "<III", own)
            threads = x * y * z
            if attribute == _REQUIRED_BLOCK:
                required = (x, y, z)
        elif attribute == _BARRIERS:
            barriers = data[0]
        elif attribute == _CTA_PER_CLUSTER:
            x, y, z = _numbers(data, "<III", own)
            cluster = (x, y, z)
        elif attribute == _EXPLICIT_CLUSTER:
            explicit = True
        elif attribute == _MAX_CLUSTER_RANK:
            (most_groups,) = _numbers(data, "<I", own)
        elif attribute == _BLOCKS_ARE_CLUSTERS:
            raise NotSupported(
                f"kernel {name} counts its grid in clusters (.blocksareclusters), which is not "
                "supported"
            )
    bank = constants.get(0)
    if at + size > (sections[bank].size if bank is not None else 0) and size:
        raise BadCodeObject("the parameters lie outside constant bank 0", kernel=name, size=size)
    if at % 4 or barriers > 16 or threads > 1024 or size > MAX_PARAMETERS:
        raise BadCodeObject("the kernel's attributes are out of range", kernel=name)
    if cluster is not None and not 0 < cluster[0] * cluster[1] * cluster[2] <= MAX_CLUSTER:
        raise BadCodeObject(
            "the kernel's cluster size is out of range", kernel=name, cluster=cluster
        )
    return KernelCode(
        name=name,
        text=text.index,
        code_size=len(text.data),
        registers=registers,
        barriers=barriers,
        stack_size=stack,
        dynamic_stack=_UNKNOWN in stacks,
        shared_size=shared_of.get(name, 0),
        parameters_at=at,
        parameters_size=size,
        arguments=_ordered(name, arguments, size),
        constants=dict(constants),
        max_threads=threads,
        required_block=required,
        required_cluster=cluster,
        explicit_cluster=explicit,
        max_cluster=most_groups,
    )


def _ordered(
    name: str, found: list[tuple[int, int, Argument]], size: int
) -> tuple[Argument, ...] | None:
    """Return the arguments by ordinal; None if there are parameters but no declared arguments.

    BadCodeObject if arguments overlap or are missing. PTX marks pointers by `.ptr`, and the
    assembler writes the state space they point to. If an entry has no such mark at all, an argument
    of eight bytes may be a pointer or a number.
    """
    found.sort(key=lambda entry: entry[0])
    if not found and size:
        return None
    marked = any(space for _, space, _ in found)
    end = 0
    arguments = []
    for position, (ordinal, space, argument) in enumerate(found):
        if ordinal != position or argument.offset < end or not argument.size:
            raise BadCodeObject(f"{name}: arguments overlap or are missing", ordinal=ordinal)
        end = argument.offset + argument.size
        unknown = not marked and argument.size == 8
        address = None if unknown else space in _POINTERS
        arguments.append(Argument(argument.offset, argument.size, str(ordinal), address))
    if end > size:
        raise BadCodeObject(
            f"{name}: the arguments end outside the parameter block", end=end, size=size
        )
    return tuple(arguments)
