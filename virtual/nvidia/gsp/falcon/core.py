"""A falcon with its RISC-V core beside it: reset, memories, DMA, boot ROM, mailboxes.

Sources: Linux 7.3.4 nouveau nvkm/falcon/{base,gm200,tu102,ga100,ga102}.c; open-gpu-kernel-modules
570.144 dev_falcon_v4.h, dev_falcon_second_pri.h, dev_riscv_pri.h, dev_fbif_v4.h, kernel_falcon_*.c;
open-gpu-doc manuals. Programs are not executed: a program of the model's own firmware has its
effect, any other stops the falcon.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ugpu.virtual.nvidia.gsp.firmware import module, programs
from ugpu.virtual.nvidia.gsp.firmware.programs import BLOCK, Program
from ugpu.virtual.nvidia.gsp.firmware.sign import SIZE, Terms, problem, short

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

(
    IRQSSET, IRQSCLR, IRQSTAT, IRQMSET, IRQMCLR, IRQMASK, IRQDEST, MAILBOX0, MAILBOX1, ITFEN, OS,
    RM,
) = (0x0, 0x4, 0x8, 0x10, 0x14, 0x18, 0x1C, 0x40, 0x44, 0x48, 0x80, 0x84)  # fmt: skip
WAYFINDER, HWCFG2, CPUCTL, BOOTVEC, HWCFG, DMACTL = 0x94, 0xF4, 0x100, 0x104, 0x108, 0x10C
DMA_BASE, DMA_MEMORY, DMA_COMMAND, DMA_OFFSET, DMA_BASE_HIGH = 0x110, 0x114, 0x118, 0x11C, 0x128
HWCFG1, CPUCTL_ALIAS, RETRIGGER, ENGINE = 0x12C, 0x130, 0x3E8, 0x3C0
IMEM_PORTS, DMEM_PORTS, TRANSCFG, FBIF_CTL = 0x180, 0x1C0, 0x600, 0x624
MOD_SEL, PROGRAM_ID, ENGINE_MASK, SIGNATURE_AT = 0x1180, 0x1198, 0x119C, 0x1210
RISCV_CPUCTL, RISCV_OLD_ACTIVE, BCR_CTRL = 0x1388, 0x1240, 0x1668
DEBUG = 0x408  # bit 20: a part for development, which takes other signatures
# Masks of interrupts that the RISC-V core's firmware sends to the host: GA102 and later; before
RISCV_IRQMASK, RISCV_IRQDEST = (0x1528, 0x12B4), (0x152C, 0x12B8)
SWGEN0, HALT = 1 << 6, 1 << 4  # its messages; its crash report
SIZE_OF_BLOCK = 2 * 0x1000  # registers of one falcon
HALTED, STARTCPU, ACTIVE, RISCV_HALTED = 1 << 4, 1 << 1, 1 << 7, 1 << 4
_RISCV_SELECTED, _VALID, _PHYSICAL_WITHOUT_CONTEXT = 1 << 4, 1 << 0, 1 << 7
_INCREMENT_WRITE, _INCREMENT_READ, _SECURE = 1 << 24, 1 << 25, 1 << 28
_MEMORY = 0x10000  # bytes of IMEM, and of DMEM
_TURING = Terms(0, programs.SEC2, 0xD)  # of the signatures of 16 bytes, which state none
_PLAIN = frozenset(
    (IRQMSET, IRQMASK, IRQDEST, MAILBOX0, MAILBOX1, ITFEN, OS, RM, WAYFINDER, BOOTVEC, DMA_BASE,
     DMA_MEMORY, DMA_OFFSET, DMA_BASE_HIGH, FBIF_CTL, MOD_SEL, PROGRAM_ID, ENGINE_MASK,
     SIGNATURE_AT, 0x148, 0x14C, 0x240, 0x24, 0x166C,
     *range(TRANSCFG, TRANSCFG + 32, 4), *range(0x300, 0x340, 4))
)  # fmt: skip


PLANTED = "planted"


class Refused(Exception):
    """A program, or FSP, refuses what it is given. code: what it reports."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = int(code)


def require(fits: object, code: int, why: str) -> None:
    """Raise Refused unless `fits`."""
    if not fits:
        raise Refused(code, why)


@contextmanager
def refusing(
    card: Card, who: str, answer: Callable[[int], object] = lambda code: None
) -> Iterator[None]:
    """Record a refusal in the block, unless it is planted, and report its code by `answer`."""
    try:
        yield
    except Refused as refusal:
        if str(refusal) != PLANTED:
            card.violation(f"{who}: {refusal}")
        answer(refusal.code)


@dataclass
class Block:
    """A block of IMEM. tag: its virtual address >> 8."""

    tag: int
    secure: bool
    content: bytearray = field(default_factory=lambda: bytearray(BLOCK))


class Falcon:
    """One falcon. The card's lock protects it. engine: its mask in signatures. dma: whether it
    loads by DMA and has a boot ROM and a core selector; else by its ports (Turing, GA100). signed:
    what a signature in data must be for, without a boot ROM; None for one of 16 bytes without terms
    (Turing)."""

    def __init__(self, card: Card, name: str, engine: int, signed: Terms | None = None) -> None:
        self.name = name
        self.engine, self.signed = engine, signed
        self.dma: bool = not card.boot.pio
        self._card = card
        self.active: bool = False  # its RISC-V core runs
        self.riscv_halted = False
        self.lockdown = False  # HWCFG2: the core's boot ROM keeps others out
        self.programs_run: list[Program] = []
        self.power_on()

    def power_on(self) -> None:
        """Enter the state after power-on."""
        self.in_reset = False
        self.halted = True
        self.active = self.riscv_halted = False
        self._clear()

    def _clear(self) -> None:
        self.registers: dict[int, int] = {}  # as written
        self.imem: dict[int, Block] = {}
        self.dmem = bytearray(_MEMORY)
        self._selected = 0  # BCR_CTRL
        self._scrubbing = self._card.options.scrub_reads
        self._moving = 0
        self._stuck = False  # no block of DMA arrives
        self.interrupts: int = 0

    def never_clean(self) -> None:
        """Have the scrubbing after a reset not end: a planted fault."""
        self._scrubbing = 1 << 60

    def never_moves(self) -> None:
        """Have no block of DMA arrive until the next reset: a planted fault."""
        self._stuck = True

    @property
    def selects_riscv(self) -> bool:
        """Whether the RISC-V core is selected. Turing has no selector."""
        return not self.dma or bool(self._selected & _RISCV_SELECTED)

    @property
    def mailbox(self) -> int:
        """Both mailboxes as one number."""
        return self.registers.get(MAILBOX0, 0) | self.registers.get(MAILBOX1, 0) << 32

    def answer(self, low: int, high: int = 0) -> None:
        """Set both mailboxes."""
        self.registers[MAILBOX0], self.registers[MAILBOX1] = low, high

    # Registers

    def read(self, offset: int) -> int | None:
        """Read a register; None if there is none."""
        handler = _READS.get(offset)
        if handler is not None:
            return handler(self)
        if offset in _PLAIN:
            return self.registers.get(offset, 0)
        if IMEM_PORTS <= offset < DMEM_PORTS + 0x40:
            return self._read_port(offset)
        return None

    def write(self, offset: int, value: int) -> bool:
        """Write a register; return whether there is one."""
        if self.in_reset and offset != ENGINE:
            self._card.violation(f"{self.name}: write of {offset:#x} while it is in reset")
            return True
        handler = _WRITES.get(offset)
        if handler is not None:
            handler(self, value)
        elif offset in _PLAIN:
            self.registers[offset] = value
        elif IMEM_PORTS <= offset < DMEM_PORTS + 0x40:
            return self._write_port(offset, value)
        else:
            return offset in _READS
        return True

    def _scrubs(self, shown: bool) -> bool:
        """Return whether its memory is being scrubbed, in the register that shows it."""
        scrubbing = shown and self._scrubbing > 0
        self._scrubbing -= scrubbing
        return scrubbing

    def _hwcfg2(self) -> int:
        return 1 << 31 | self.lockdown << 13 | self._scrubs(self.dma) << 12 | 1 << 10

    def _dmactl(self) -> int:
        return self.registers.get(DMACTL, 0) & 1 | self._scrubs(not self.dma) * 0b110

    def _bcr_write(self, value: int) -> None:
        if self.dma:
            self._selected = value & (_RISCV_SELECTED | 1 << 8)

    def _riscv(self) -> int | None:
        if not self.dma:
            return None
        return (ACTIVE if self.active else 0) | (RISCV_HALTED if self.riscv_halted else 0)

    def interrupt(self, bits: int) -> None:
        """Raise interrupts; the host is told when the first one becomes pending."""
        before, self.interrupts = self.interrupts, self.interrupts | bits
        if not before:
            self._card.falcon_interrupts(self)

    def _retrigger(self, value: int) -> None:
        if value & 1 and self.interrupts:
            self._card.falcon_interrupts(self)

    def _to_host(self, before_ga102: bool) -> int | None:
        if before_ga102 == self.dma:
            return None
        return SWGEN0 | HALT if self.active else 0

    def _engine(self, value: int) -> None:
        """Hold the falcon in reset, or let it go."""
        if value & 1:
            self.in_reset = True
        elif self.in_reset:
            self.in_reset = False
            self.halted, self.active, self.riscv_halted = True, False, False
            self._clear()
            self._card.falcon_reset(self)

    # Memories, by port

    def _port(self, offset: int) -> tuple[bool, int, int]:
        """Return whether a port is of DMEM, the offset of its control register, and which of its
        registers is meant."""
        if offset < DMEM_PORTS:
            return False, offset & ~0xF, offset & 0xF
        return True, offset & ~0x7, offset & 0x7

    def _read_port(self, offset: int) -> int | None:
        data, control, which = self._port(offset)
        setting = self.registers.get(control, 0)
        if which == 0:
            return setting
        if which != 4 or not data:  # code cannot be read back where it may be secure
            return 0
        at = setting & 0xFFFC
        if setting & _INCREMENT_READ:
            self.registers[control] = setting & ~0xFFFF | at + 4 & 0xFFFF
        return int(struct.unpack_from("<I", self.dmem, at)[0]) if at + 4 <= len(self.dmem) else 0

    def _write_port(self, offset: int, value: int) -> bool:
        data, control, which = self._port(offset)
        if which == 0 or which == 8:
            self.registers[offset] = value
            if which == 8:
                self._tag(self.registers.get(control, 0), value)
            return True
        if which != 4:
            return False
        setting = self.registers.get(control, 0)
        at = setting & 0xFFFC
        if self._scrubbing:
            self._card.violation(f"{self.name}: write of its memory while it is scrubbed")
        if at + 4 > _MEMORY:
            self._card.violation(f"{self.name}: write at {at:#x}, past its memory")
        elif data:
            struct.pack_into("<I", self.dmem, at, value)
        else:
            block = self._block(at // BLOCK)
            block.secure = bool(setting & _SECURE)
            struct.pack_into("<I", block.content, at % BLOCK, value)
        if setting & _INCREMENT_WRITE:
            self.registers[control] = setting & ~0xFFFF | at + 4 & 0xFFFF
        return True

    def _block(self, number: int) -> Block:
        return self.imem.setdefault(number, Block(number, False))

    def _tag(self, setting: int, value: int) -> None:
        self._block((setting & 0xFFFC) // BLOCK).tag = value & 0xFFFF

    # Memories, by DMA

    def _dma_command(self) -> int:
        if self._stuck:
            return 0
        if self._moving:
            self._moving -= 1
            return 0
        return 1 << 1  # idle

    def _start_dma(self, command: int) -> None:
        with refusing(self._card, f"{self.name}: DMA {command:#x}"):
            self._check_dma(command)
            self._copy_block(command)

    def _copy_block(self, command: int) -> None:
        self._moving = self._card.options.dma_reads
        where = self.registers
        base = where.get(DMA_BASE, 0) << 8 | (where.get(DMA_BASE_HIGH, 0) & 0x1FF) << 40
        source = base + where.get(DMA_OFFSET, 0)
        target = where.get(TRANSCFG + 4 * (command >> 12 & 7), 0) & 3
        content = self._card.falcon_read(target, source, BLOCK)
        if content is None:
            raise Refused(0, f"{source:#x} of target {target} cannot be read")
        at = where.get(DMA_MEMORY, 0)
        if command & 1 << 4:
            tag = where.get(DMA_OFFSET, 0) >> 8
            self.imem[at // BLOCK] = Block(tag, bool(command >> 2 & 3), bytearray(content))
        else:
            self.dmem[at : at + BLOCK] = content

    def _check_dma(self, command: int) -> None:
        where = self.registers
        setting = where.get(TRANSCFG + 4 * (command >> 12 & 7), 0)
        at = where.get(DMA_MEMORY, 0)
        allowed = where.get(FBIF_CTL, 0) & _PHYSICAL_WITHOUT_CONTEXT
        require(self.dma, 0, "Turing's programs are not loaded this way")
        require(not self._scrubbing, 0, "its memory is being scrubbed")
        require(not self._moving, 0, "the block before it has not arrived")
        require(not command & 1 << 5, 0, "a write to memory is not modelled")
        require(command >> 8 & 7 == 6, 0, "blocks have 256 bytes (size 6)")
        require(setting & 4, 0, "the context is not physical (FBIF_TRANSCFG bit 2)")
        text = "physical access needs FBIF_CTL bit 7 and DMACTL bit 0 clear"
        require(allowed and not where.get(DMACTL, 0) & 1, 0, text)
        fits = not at % BLOCK and at + BLOCK <= _MEMORY
        require(fits, 0, f"its target {at:#x} is not a block of the memory")

    # Start

    def _start(self, value: int) -> None:
        if not value & STARTCPU:
            return
        if self.selects_riscv and self.dma:
            return  # the other core: it halts at once, as nova-core expects
        found = self._code()
        if found is None:
            vector = self.registers.get(BOOTVEC, 0)
            self._card.violation(f"{self.name}: start at {vector:#x}, where no program is loaded")
            return
        program, code, covered = found
        # UNSURE: a board's falcon halts with an error that only its own registers tell.
        with refusing(self._card, f"{self.name}: {program.name} does not start"):
            why = self._boot_rom(code, covered) if self.dma else self._check_old(code, covered)
            require(not why, 0, why)
            self.programs_run.append(program)
            self._card.run_program(self, program)

    def _code(self) -> tuple[Program, bytes, int] | None:
        """Return the program at the boot vector, its code, and how much of its data is signed."""
        by_tag = {block.tag: block for block in self.imem.values()}
        start = self.registers.get(BOOTVEC, 0) >> 8
        # Without a boot ROM a small part that is not secure may come first.
        for tag in (start,) if self.dma else (start, start + 1):
            code = b""
            while tag in by_tag and (not code or by_tag[tag].secure or not self.dma):
                code += by_tag[tag].content
                tag += 1
            found = programs.parse(code) or module.parse(code)
            if found is not None:
                return found[0], code, found[1]
        return None

    def _boot_rom(self, code: bytes, covered: int) -> str:
        """Verify a program as the boot ROM does; return why its signature is refused, or "". Raises
        Refused for its registers."""
        choice, number, engine, at = (
            self.registers.get(place, 0)
            for place in (MOD_SEL, PROGRAM_ID, ENGINE_MASK, SIGNATURE_AT)
        )
        mask, first = self.engine, next(iter(self.imem.values()))
        require(choice == 1, 0, f"MOD_SEL must be 1 (RSA3K), is {choice}")
        require(engine == mask, 0, f"engine mask must be {mask:#x}, is {engine:#x}")
        require(1 <= number <= 16, 0, f"program number must be 1 to 16, is {number}")
        require(first.secure, 0, "its code was not loaded as secure")
        inside = at + SIZE <= len(self.dmem)
        require(inside, 0, f"its signature at {at:#x} is past the memory")
        data = bytes(self.dmem[:covered])
        content = programs.signed_content(code, data, at, SIZE)
        field, terms = bytes(self.dmem[at : at + SIZE]), Terms(self._card.burnt, engine, number)
        why = module.problem(field, terms, code, content)
        return problem(field, terms, content) if why is None else why

    def _check_old(self, code: bytes, covered: int) -> str:
        """Verify a program of Turing or GA100: its signature is in its data."""
        if not covered:
            return ""  # FWSEC and the loader carry their signature in the code
        at, terms = programs.OLD_PATCH_IN_DATA, self.signed
        size = 16 if terms is None else SIZE
        field = bytes(self.dmem[at : at + size])
        content = programs.signed_content(code, bytes(self.dmem[:covered]), at, size)
        why = module.problem(field, terms or _TURING, code, content)
        if why is not None:
            return why
        if terms is not None:
            return problem(field, terms, content)
        return "" if field == short(content) else "the signature does not match the content"


_READS: dict[int, Callable[[Falcon], int | None]] = {
    HWCFG2: Falcon._hwcfg2,
    HWCFG: lambda falcon: _MEMORY // BLOCK | _MEMORY // BLOCK << 9,
    HWCFG1: lambda falcon: 6 | 3 << 4 | 1 << 8 | 1 << 12,
    CPUCTL: lambda falcon: HALTED if falcon.halted else 0,
    DMACTL: Falcon._dmactl,
    DMA_COMMAND: Falcon._dma_command,
    ENGINE: lambda falcon: int(falcon.in_reset),
    BCR_CTRL: lambda falcon: falcon._selected | _VALID if falcon.dma else None,
    RISCV_CPUCTL: Falcon._riscv,
    RISCV_OLD_ACTIVE: lambda falcon: None if falcon.dma else int(falcon.active),
    IRQSTAT: lambda falcon: falcon.interrupts,
    **{at: lambda falcon: falcon._to_host(False) for at in (RISCV_IRQMASK[0], RISCV_IRQDEST[0])},
    **{at: lambda falcon: falcon._to_host(True) for at in (RISCV_IRQMASK[1], RISCV_IRQDEST[1])},
    **dict.fromkeys((DEBUG, CPUCTL_ALIAS, RETRIGGER, IRQSSET, IRQSCLR, IRQMCLR), lambda falcon: 0),
}
_WRITES: dict[int, Callable[[Falcon, int], object]] = {
    CPUCTL: Falcon._start,
    CPUCTL_ALIAS: Falcon._start,
    DMACTL: lambda falcon, value: falcon.registers.__setitem__(DMACTL, value & 1),
    DMA_COMMAND: Falcon._start_dma,
    ENGINE: Falcon._engine,
    BCR_CTRL: Falcon._bcr_write,
    IRQSCLR: lambda falcon, value: setattr(falcon, "interrupts", falcon.interrupts & ~value),
    RETRIGGER: Falcon._retrigger,
    IRQMCLR: lambda falcon, value: None,
}
