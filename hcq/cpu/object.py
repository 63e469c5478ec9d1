"""Host code objects: relocatable ELF files for this machine, linked and made executable.

A kernel `name` has a data symbol `name.ugpu`, see hcq.cpu.mark. Facts: System V ABI, AMD64
Architecture Processor Supplement, 4.4 "Relocation"; AArch64's are in hcq.cpu.aarch64. Jumps take 16
bytes on both. A kernel is entered by a jump through a word, so that its code can be replaced while
threads launch it (hcq.cpu.program). The object is checked before any of it is used.
Its machine code is not restricted: the host has no page tables between a kernel and this process.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ugpu.hcq.cpu.aarch64 import EM_AARCH64, JUMP_SIZE, RELOCATIONS_AARCH64, jump, jump_through
from ugpu.hcq.cpu.mark import MARK, declared
from ugpu.hcq.cpu.memory import CodeMemory
from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.hcq.objects.argument import Argument
from ugpu.hcq.objects.elf import SHF_EXECINSTR, SHF_WRITE, ElfObject, read_object
from ugpu.hcq.objects.linking import Layout, Rule, lay_out, link
from ugpu.hcq.objects.stack import frame_at

EM_X86_64 = 62
MOST = 4096  # kernels of an object: their entries are near the words they jump through
RELOCATIONS_X86_64 = {
    1: Rule(8),  # R_X86_64_64
    2: Rule(4, minus="place", signed=True),  # R_X86_64_PC32
    4: Rule(4, minus="place", through="call", signed=True),  # R_X86_64_PLT32
    9: Rule(4, minus="place", through="slot", signed=True),  # R_X86_64_GOTPCREL
    10: Rule(4, signed=False),  # R_X86_64_32
    11: Rule(4, signed=True),  # R_X86_64_32S
    24: Rule(8, minus="place"),  # R_X86_64_PC64
    25: Rule(8, minus="origin"),  # R_X86_64_GOTOFF64
    27: Rule(8, minus="origin", through="slot"),  # R_X86_64_GOT64
    29: Rule(8, minus="place", through="origin"),  # R_X86_64_GOTPC64
    31: Rule(8, minus="origin", through="call"),  # R_X86_64_PLTOFF64
    41: Rule(4, minus="place", through="slot", signed=True),  # R_X86_64_GOTPCRELX
    42: Rule(4, minus="place", through="slot", signed=True),  # R_X86_64_REX_GOTPCRELX
}


def _jump_x86_64(address: int) -> bytes:
    """Return `jmp [rip+0]` followed by the address: it reaches code anywhere."""
    return b"\xff\x25\0\0\0\0" + struct.pack("<Q", address)


def _jump_through_x86_64(distance: int) -> bytes:
    """Return `jmp [rip+...]`: a jump to the address stored `distance` bytes after its start."""
    return b"\xff\x25" + struct.pack("<i", distance - 6)


@dataclass(frozen=True)
class Machine:
    """Linking of objects for one kind of processor.

    Attributes:
        number: its e_machine.
        rules: by relocation type.
        jump: returns code that jumps to an address.
        jump_through: returns code that jumps to the address stored so many bytes after its start.
    """

    number: int
    rules: Mapping[int, Rule]
    jump: Callable[[int], bytes]
    jump_through: Callable[[int], bytes]


MACHINES = {
    "x86_64": Machine(EM_X86_64, RELOCATIONS_X86_64, _jump_x86_64, _jump_through_x86_64),
    "aarch64": Machine(EM_AARCH64, RELOCATIONS_AARCH64, jump, jump_through),
}


@dataclass(frozen=True)
class HostKernel:
    """A kernel of a loaded object.

    Attributes:
        name: of the kernel.
        address: where it is entered.
        code: address of its code.
        word: number of the word of its memory that holds that address.
        kernarg_size: bytes of its arguments.
        arguments: if the object declares them.
        frame: bytes of stack that it takes; 0 for few, and where that is not known.
    """

    name: str
    address: int
    code: int
    word: int
    kernarg_size: int
    arguments: tuple[Argument, ...] | None
    frame: int


def load_object(image: bytes) -> tuple[CodeMemory, dict[str, HostKernel]]:
    """Check, link and place an object. The caller owns the memory. BadCodeObject for a bad one."""
    elf = read_object(image)
    machine = MACHINES.get(platform.machine())
    if machine is None:
        raise NotSupported(f"linking code objects is not supported on {platform.machine()}")
    if elf.machine != machine.number:
        raise BadCodeObject(
            "not an object for this machine", machine=elf.machine, want=machine.number
        )
    for section in elf.sections:
        writable = section.is_loaded and section.flags & SHF_WRITE and section.size
        if writable and not section.name.startswith(".data.rel.ro"):
            raise BadCodeObject(
                "objects with writable data are not supported", section=section.name
            )
    marks = _kernels(elf)
    layout = lay_out(elf, machine.rules, JUMP_SIZE)
    outside = {}
    for relocation in elf.relocations:
        symbol = elf.symbols[relocation.symbol]
        if relocation.section not in layout.offsets or symbol.is_defined or not relocation.symbol:
            continue
        if machine.rules[relocation.kind].through != "origin":
            outside[symbol.name] = _find_outside(symbol.name)
    start = -(-layout.size // JUMP_SIZE) * JUMP_SIZE  # of the kernels' entries
    memory = CodeMemory(start + JUMP_SIZE * len(marks), len(marks))
    try:
        kernels, entries = _entered(elf, machine, layout, memory, start)
        code = link(layout, memory.address, outside, machine.jump)
        memory.fill(code.ljust(start, b"\0") + entries)
    except BaseException:
        memory.close()
        raise
    return memory, kernels


def _entered(
    elf: ElfObject, machine: Machine, layout: Layout, memory: CodeMemory, start: int
) -> tuple[dict[str, HostKernel], bytes]:
    """Write the words that kernels are entered through; return the kernels, and the jumps, which
    are at `start` of the memory."""
    kernels = {}
    entries = b""
    for word, (name, (size, arguments)) in enumerate(_kernels(elf).items()):
        symbol = elf.find(name)
        assert symbol is not None and symbol.section is not None
        code = memory.address + layout.offsets[symbol.section] + symbol.value
        entry = start + JUMP_SIZE * word
        entries += machine.jump_through(memory.words_at + 8 * word - entry).ljust(JUMP_SIZE, b"\0")
        frame = frame_at(elf.sections[symbol.section].data, symbol.value)
        kernels[name] = HostKernel(name, memory.address + entry, code, word, size, arguments, frame)
        memory.put_word(word, code)
    return kernels, entries


def _kernels(elf: ElfObject) -> dict[str, tuple[int, tuple[Argument, ...] | None]]:
    """Return the arguments of the marked kernels; check that each kernel is code of this object."""
    kernels: dict[str, tuple[int, tuple[Argument, ...] | None]] = {}
    for mark in elf.symbols:
        if not mark.name.endswith(MARK) or mark.section is None:
            continue
        name = mark.name[: -len(MARK)]
        kernels[name] = declared(name, elf.sections[mark.section].data[mark.value :])
        code = elf.find(name)
        if code is None or code.section is None:
            raise BadCodeObject("a .ugpu symbol has no kernel with that name", kernel=name)
        section = elf.sections[code.section]
        if not (section.is_loaded and section.flags & SHF_EXECINSTR) or code.value >= section.size:
            raise BadCodeObject("the kernel's symbol is not in an executable section", kernel=name)
    if len(kernels) > MOST:
        raise BadCodeObject("the object has too many kernels", kernels=len(kernels), limit=MOST)
    if not kernels:
        raise BadCodeObject(
            f"the object contains no kernels: it has no symbol that ends with {MARK}"
        )
    return kernels


@functools.cache
def _find_outside(name: str) -> int:
    """Return the address of a function of the C or mathematics library, or the compiler's
    run-time."""
    for library in (None, "libm.so.6", "libgcc_s.so.1"):
        try:
            function = getattr(ctypes.CDLL(library), name)
        except (OSError, AttributeError):
            continue
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise BadCodeObject(
        f"the object requires the symbol {name!r}, which this process does not define", symbol=name
    )
