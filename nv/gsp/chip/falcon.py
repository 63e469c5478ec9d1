"""Falcons: small processors of the GPU. The GSP's and SEC2's run signed programs of the boot.

From GA102 on a program is loaded by DMA, and a boot ROM in the falcon checks its signature before
it runs. Before, the host writes it through ports (chip.ports). The GSP has a RISC-V core beside its
falcon; a bit selects which one a start means.
Sources: Linux 7.3 nouveau nvkm/falcon/ga102.c, nova-core falcon.rs, falcon/hal/ga102.rs; open-gpu-
kernel-modules 570.144 kernel_falcon_ga102.c, kernel_gsp_falcon_ga102.c.
"""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass

from ugpu.hcq.errors import FirmwareInvalid, FirmwareRejected, UnitTimeout
from ugpu.hcq.registers.fields import BoundRegister, RegisterBlock
from ugpu.nv.gsp.chip.chip import GspChip
from ugpu.nv.gsp.chip.ports import BLOCK, PortProgram, write_code, write_data

_SIZE_256 = 6  # in DMATRFCMD
_COHERENT, _PHYSICAL = 1, 1
_RSA3K = 1
_READY_LIMIT_S = 150e-6  # TIMEOUT: kernel_falcon_ga102.c; not an error
_RESET_PAUSE_S = 10e-6
_SCRUB_LIMIT_S = 20e-3
_SELECT_LIMIT_S = 10e-3
_DMA_LIMIT_S = 2.0
RUN_LIMIT_S = 2.0  # TIMEOUT: nouveau's for a signed program


@dataclass(frozen=True)
class Program:
    """A program to load by DMA. address: of its image on the bus, a multiple of 256. code, data:
    offset in the image and size of the secure code and of the data. start: virtual address of the
    first block of code, where the program begins. parameters: of the boot ROM's signature check in
    the data."""

    name: str
    address: int
    code: tuple[int, int]
    start: int
    data: tuple[int, int]
    parameters: int
    engines: int
    ucode: int


class Falcon:
    """One falcon of a chip. chip_id: BOOT_0's value, which a program finds in a register."""

    def __init__(self, chip: GspChip, name: str, regs: RegisterBlock) -> None:
        self.chip = chip
        self.name = name
        self.regs = regs
        self.chip_id = 0

    # ---- reset -------------------------------------------------------------------------------

    def reset(self) -> None:
        """Reset the unit and wait until its memories are cleared."""
        regs, by_dma = self.regs, self.chip.boot.dma
        if by_dma:
            with contextlib.suppress(UnitTimeout):
                self._await(regs.HWCFG2, "readiness for a reset", _READY_LIMIT_S, RESET_READY=1)
        regs.ENGINE.write(RESET=1)
        self.chip.clock.sleep(_RESET_PAUSE_S)
        regs.ENGINE.write(RESET=0)
        what, limit_s = "end of memory scrubbing", _SCRUB_LIMIT_S
        if by_dma:
            self._await(regs.HWCFG2, what, limit_s, MEM_SCRUBBING=0)
        else:
            self._await(regs.DMACTL, what, limit_s, DMEM_SCRUBBING=0, IMEM_SCRUBBING=0)

    def _await(self, register: BoundRegister, what: str, limit_s: float, **fields: int) -> None:
        self.chip.await_fields(self.name, register, what, limit_s, **fields)

    def reset_to_falcon(self) -> None:
        """Reset the unit; the next start means the falcon."""
        self.reset()
        regs, choice = self.regs, self.regs.RISCV_BCR_CTRL
        if self.chip.boot.dma and regs.HWCFG2.read().RISCV and choice.read().CORE_SELECT:
            choice.write(0)
            self._await(choice, "the choice of the falcon core", _SELECT_LIMIT_S, VALID=1)
        regs.RM.write(self.chip_id)

    def reset_to_riscv(self) -> None:
        """Reset the unit; the next start means the RISC-V core."""
        self.reset()
        if self.chip.boot.dma:
            self.regs.RISCV_BCR_CTRL.write(VALID=1, CORE_SELECT=1, BRFETCH=1)

    # ---- programs ----------------------------------------------------------------------------

    def load(self, program: Program | PortProgram) -> None:
        """Load a program, by DMA or through the ports."""
        if isinstance(program, Program):
            self._load_by_dma(program)
            return
        regs = self.regs
        self.allow_physical()
        regs.FBIF_TRANSCFG4.update(TARGET=_COHERENT, MEM_TYPE=_PHYSICAL)  # the loader's context
        for part in program.code:
            write_code(regs, part)
        write_data(regs, program.data)

    def _load_by_dma(self, program: Program) -> None:
        """Load a program, and tell the boot ROM what to check."""
        regs = self.regs
        if program.address % BLOCK or program.code[0] % BLOCK or program.data[0] % BLOCK:
            raise FirmwareInvalid(
                f"{program.name}: its parts must begin at multiples of {BLOCK} bytes",
                code=program.code[0],
                data=program.data[0],
            )
        self.allow_physical()
        regs.FBIF_TRANSCFG0.update(TARGET=_COHERENT, MEM_TYPE=_PHYSICAL)
        source, size = program.code
        self._transfer(program.address + source - program.start, program.start, size, imem=True)
        source, size = program.data
        self._transfer(program.address + source, 0, size, imem=False)
        regs.BROM_PARAADDR0.write(program.parameters)
        regs.BROM_ENGIDMASK.write(program.engines)
        regs.BROM_CURR_UCODE_ID.write(program.ucode)
        regs.MOD_SEL.write(ALGO=_RSA3K)

    def allow_physical(self) -> None:
        """Let the unit's DMA use addresses of the bus."""
        self.regs.FBIF_CTL.update(ALLOW_PHYS_NO_CTX=1)
        self.regs.DMACTL.write(0)

    def _transfer(self, base: int, tag: int, size: int, *, imem: bool) -> None:
        """Copy blocks of 256 bytes from the bus to the start of a memory. tag: offset from `base`,
        which code remembers."""
        regs = self.regs
        command = regs.DMATRFCMD.register.encode(SIZE=_SIZE_256, IMEM=imem, SEC=imem, CTXDMA=0)
        regs.DMATRFBASE.write(base >> 8 & 0xFFFF_FFFF)
        regs.DMATRFBASE1.write(base >> 40)
        for done in range(0, size, BLOCK):
            regs.DMATRFMOFFS.write(done)
            regs.DMATRFFBOFFS.write(tag + done)
            regs.DMATRFCMD.write(command)
            what = f"DMA of block {done // BLOCK}"
            self._await(regs.DMATRFCMD, what, _DMA_LIMIT_S, IDLE=1)

    def read_data(self, offset: int, size: int) -> bytes:
        """Read from the data memory; both numbers are multiples of 4."""
        self.regs.DMEMC0.write(OFFS=offset >> 2 & 0x3F, BLK=offset >> 8, AINCR=1)
        words = [int(self.regs.DMEMD0.read()) for _ in range(size // 4)]
        return struct.pack(f"<{len(words)}I", *words)

    def start(self) -> None:
        """Start the core, by the alias if the register itself is locked."""
        if self.regs.CPUCTL.read().ALIAS_EN:
            self.regs.CPUCTL_ALIAS.write(STARTCPU=1)
        else:
            self.regs.CPUCTL.write(STARTCPU=1)

    def await_halt(self, limit_s: float = RUN_LIMIT_S) -> None:
        """Wait until the core has halted by itself."""
        self._await(self.regs.CPUCTL, "end of its program", limit_s, HALTED=1)

    def set_mailboxes(self, value: int) -> None:
        """Write a number of 64 bits, or an address, into both mailboxes."""
        self.regs.MAILBOX0.write(value & 0xFFFF_FFFF)
        self.regs.MAILBOX1.write(value >> 32)

    def run(
        self, program: Program | PortProgram, mailboxes: int = 0, limit_s: float = RUN_LIMIT_S
    ) -> None:
        """Reset the unit to its falcon, load a program and run it. FirmwareRejected with its error;
        UnitTimeout if it does not end."""
        self.reset_to_falcon()
        self.load(program)
        self.set_mailboxes(mailboxes)
        self.regs.BOOTVEC.write(program.start)
        self.start()
        try:
            self.await_halt(limit_s)
        except UnitTimeout as error:
            error.add_facts(program=program.name, **self.evidence())
            raise
        self.check(program.name)

    def check(self, program: str) -> None:
        """Raise FirmwareRejected if a program's result, in mailbox 0, is not 0."""
        result = int(self.regs.MAILBOX0.read())
        if result:
            raise FirmwareRejected(
                f"{program} ended with error {result:#x}; NVIDIA does not publish its meaning",
                image=program,
                stage=self.name,
                status=result,
                **self.evidence(),
            )

    def evidence(self) -> dict[str, object]:
        """Return registers for the report of a program that failed."""
        regs = self.regs
        return {
            "mailbox1": int(regs.MAILBOX1.read()),
            "irqstat": int(regs.IRQSTAT.read()),
            "cpuctl": int(regs.CPUCTL.read()),
            "trace_pc": int(regs.TRACEPC.read()),
        }

    @property
    def code_size(self) -> int:
        """Bytes of IMEM."""
        return int(self.regs.HWCFG.read().IMEM_SIZE) * BLOCK

    @property
    def riscv_active(self) -> bool:
        """Return whether the RISC-V core runs."""
        return bool(self.regs[self.chip.boot.core].read().ACTIVE_STAT)

    def __repr__(self) -> str:
        return f"<Falcon {self.name}>"
