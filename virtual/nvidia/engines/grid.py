"""Run one grid: find its memory and the PTX of its program, and report how it ended."""

from __future__ import annotations

import ctypes
import re
import struct
import time
import zlib
from collections.abc import Callable

from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.hcq.state.instruction import Culprit
from ugpu.nv.abi.note import NOTE_FORMAT, NOTE_MAGIC, NOTE_SIZE, NOTE_VERSION, VARIABLE_FORMAT
from ugpu.virtual.nvidia.engines.coherence import GRID_SCOPES, Scope
from ugpu.virtual.nvidia.engines.qmd import LaunchDescriptor, Release, refuse, system_share
from ugpu.virtual.nvidia.faults import Fault, Xid
from ugpu.virtual.nvidia.host.errors import Aborted, ChannelError
from ugpu.virtual.nvidia.host.semaphore import reduce, store
from ugpu.virtual.nvidia.host.state import ChannelState, Engine
from ugpu.virtual.nvidia.memory.faults import Client, FaultAccess, FaultType, MmuFault, Stall
from ugpu.virtual.nvidia.memory.space import FaultError, GridMemory
from ugpu.virtual.nvidia.memory.watched import PAGE, WatchedMemory
from ugpu.virtual.nvidia.sm.ptx.source import instruction_in
from ugpu.virtual.nvidia.sm_contract import GridLaunch, SmEnding, SmOutcome

_NOTE = struct.Struct(NOTE_FORMAT)
_LINE = re.compile(r"PTX line (\d{1,9})\b")
_VARIABLE = struct.Struct(VARIABLE_FORMAT)
_LONGEST_TABLE = 1 << 20
_LONGEST_PTX = 16 << 20
# Byte offsets in constant bank 0 where code reads %envreg0 to 15, and 16 to 31. Source: code that
# ptxas 13.5.37 generates for each register for sm_75, sm_80, sm_89, sm_90, sm_100 and sm_120.
_ENVIRONMENT = {
    "turing": (0x88, 0xC8), "ampere": (0x88, 0xC8), "ada": (0x88, 0xC8), "hopper": (0x40, 0x80),
    "blackwell": (0x250, 0xD0),
}  # fmt: skip

_FAULTS = {
    Fault.UNMAPPED: (FaultType.PTE, FaultAccess.READ),
    Fault.READ_ONLY: (FaultType.RO_VIOLATION, FaultAccess.WRITE),
    Fault.BAD_KIND: (FaultType.UNSUPPORTED_KIND, FaultAccess.READ),
    Fault.POISON: (FaultType.POISONED, FaultAccess.READ),
}
_EXCEPTIONS = {
    Fault.ILLEGAL_INSTRUCTION: SmEnding.ILLEGAL_INSTRUCTION,
    Fault.MISALIGNED: SmEnding.MISALIGNED_ADDRESS,
    Fault.OUT_OF_RANGE: SmEnding.ILLEGAL_ADDRESS,
    Fault.ASSERTION: SmEnding.ASSERT,
}
_XIDS = {
    Fault.CONTEXT_SWITCH: (Xid.CONTEXT_SWITCH_TIMEOUT, "CTX SWITCH TIMEOUT"),
    Fault.ECC_UNCORRECTED: (Xid.ECC_UNCORRECTED, "DBE (double bit error) ECC Error"),
    Fault.ECC_CONTAINED: (Xid.ECC_CONTAINED, "Contained ECC error"),
}
PLANTED_ADDRESS = 0x6B_ADAD_D000  # address in planted MMU faults


class GridRunner:
    """Runs the grids of one compute object, one at a time, on its runlist's thread.

    pair: returns a 64-bit value from the methods NAME_A and NAME_B of the object.
    """

    def __init__(self, engine: Engine, channel: ChannelState, pair: Callable[[str], int]) -> None:
        self._engine = engine
        self._channel = channel
        self._pair = pair
        self._gpu = channel.gpu
        self._coherence = self._gpu.machine.coherence
        self._name = ""  # of the running grid
        space, stop = self._channel.space, self._channel.attention.set
        self.memory = GridMemory(space, stop, self._stall)
        if self._coherence is not None:
            self.memory = WatchedMemory(space, stop, self._stall, self._on_read)
        self._texts: dict[bytes, str] = {}

    def run(self, launch: LaunchDescriptor) -> None:
        """Run a grid to its end. Raises ChannelError, FaultError or Aborted if it fails."""
        attention = self._channel.attention
        attention.clear()
        if self._channel.stopped:
            raise Aborted
        if attention.aside:
            attention.wait_aside()
        self._check_local(launch)
        grid = self._launch(launch)
        self._plant(grid)
        memory = self.memory
        memory.begin()
        self._name = grid.entry
        if launch.invalidates_data:
            self._gpu.data_cache.invalidate()
        attention.in_program = True
        try:
            with attention.translation():  # of code that all programs share
                multiprocessors = self._gpu.multiprocessors
            outcome = multiprocessors.run(grid, memory, attention)
        except (BadCodeObject, NotSupported) as error:
            gap = NotSupported(f"{grid.entry}: {error}", **_line_of(grid.ptx, str(error)))
            text = f"{grid.entry}: {error}"
            raise ChannelError(Xid.GR_EXCEPTION, text, gap=gap) from error
        finally:
            attention.in_program = False
        self._gpu.violations.extend(f"{grid.entry}: {text}" for text in outcome.violations)
        if self._coherence is not None and isinstance(memory, WatchedMemory):
            scope = GRID_SCOPES[launch.membar]
            self._coherence.wrote(self._engine, self._gpu.index, grid.entry, memory.written, scope)
        if memory.fault is not None:
            culprit = _culprit_of(grid, outcome)
            raise ChannelError(Xid.MMU_FAULT, str(memory.fault), memory.fault, culprit=culprit)
        if outcome.ending is not SmEnding.DONE:
            self._end(grid, outcome)

    def release(self, release: Release) -> None:
        """Write one semaphore of a completed grid."""
        space = self._channel.space
        if release.barrier:
            self._channel.barrier(self._engine, Scope.SYSTEM)
        self._channel.released(release.address, f"the release of {self._name}")
        payload = release.payload
        if release.reduction is not None:
            bits = 8 * release.payload_size
            old = space.read_word(release.address, release.payload_size, Client.SKED)
            # RED_ADD, MIN, MAX, INC, DEC, AND, OR, XOR in the numbering of SEM_EXECUTE
            code = (5, 0, 1, 6, 7, 3, 4, 2)[release.reduction]
            payload = reduce(code, old, payload, bits, release.signed)
        stamp = self._gpu.time_ns() if release.words == 4 else None
        size = 8 if release.words == 2 or release.payload_size == 8 else 4
        store(space, Client.SKED, release.address, payload, size, stamp)

    def _stall(self, fault: MmuFault) -> Stall:
        """Let an access wait while its fault may be replayed."""
        unit, space = self._gpu.fault_unit, self._channel.space
        if unit is None or not space.replayable:
            return Stall.FINAL
        return unit.stall(self._channel, space.root, fault)

    def _on_read(self, page: int, host_page: int) -> None:
        """Record that a grid reads a page for the first time."""
        assert self._coherence is not None
        gpu = self._gpu
        content = zlib.crc32(ctypes.string_at(host_page * PAGE, PAGE))
        # A page at a new place is a new page: mapping it was the driver's responsibility.
        gpu.data_cache.fetch((self._channel.space.serial, host_page), page * PAGE, content,
                             self._name)  # fmt: skip
        gpu.violations.extend(
            self._coherence.read(self._engine, gpu.index, self._name, {host_page})
        )

    def _end(self, grid: GridLaunch, outcome: SmOutcome) -> None:
        if self._channel.stopped or outcome.ending is SmEnding.ABORTED:
            raise self._aborted()
        if outcome.ending is SmEnding.BAD_LAUNCH:
            raise refuse(f"{grid.entry}: {outcome.detail}")
        if outcome.ending is SmEnding.MMU_FAULT:
            raise ChannelError(Xid.MMU_FAULT, outcome.detail)
        self._gpu.latch_exception(self._channel.number, grid, outcome)
        raise ChannelError(
            Xid.GR_EXCEPTION,
            f"SM warp exception: {outcome.ending.value} in {grid.entry}"
            f" at {grid.program_address + outcome.program_counter:#x}: {outcome.detail}",
            culprit=_culprit_of(grid, outcome),
        )

    def _launch(self, launch: LaunchDescriptor) -> GridLaunch:
        entry, ptx, start, size, variables = self._program(launch.program_address)
        bank = launch.constants[0]
        if size and (bank is None or start + size > bank[1]):
            have = 0 if bank is None else bank[1]
            raise refuse(
                f"{entry} requires {size} bytes at byte {start} of constant bank 0, which has "
                f"{have} bytes"
            )
        content = self._fetch(launch, entry, ptx)
        parameters = content[start : start + size]
        if len(parameters) < size and bank is not None:  # they extend beyond mapped memory
            parameters = self._channel.space.read(bank[0] + start, size, Client.SM)
        facts = self._gpu.facts
        return GridLaunch(
            ptx=ptx,
            entry=entry,
            target=facts.target,
            grid=launch.grid,
            block=launch.block,
            parameters=parameters,
            shared_size=max(launch.shared_size - system_share(facts), 0),
            local_size=launch.local_size,
            shared_window=self._pair("SET_SHADER_SHARED_MEMORY_WINDOW"),
            local_window=self._pair("SET_SHADER_LOCAL_MEMORY_WINDOW"),
            program_address=launch.program_address,
            sm_count=facts.sm_count,
            variables=variables,
            cluster=launch.cluster,
            registers=launch.registers,
            environment=self._environment(content),
        )

    def _environment(self, content: bytes) -> tuple[int, ...]:
        """Return %envreg0 to 31, as far as the content of bank 0 extends."""
        low, high = _ENVIRONMENT[self._gpu.facts.family]
        words = (content[at : at + 64].ljust(64, b"\0") for at in (low, high))
        registers = b"".join(words)
        return struct.unpack("<32I", registers) if registers.strip(b"\0") else ()

    def _fetch(self, launch: LaunchDescriptor, entry: str, ptx: str) -> bytes:
        """Fetch code and banks through the caches; return bank 0. A bank is fetched when it is
        read: a bank that ends beyond mapped memory is not an error by itself."""
        first = b""
        gpu, space = self._gpu, self._channel.space
        if launch.invalidates_code:
            gpu.instruction_cache.invalidate()
        if launch.invalidates_constants:
            gpu.constant_cache.invalidate()
        gpu.instruction_cache.fetch(space.serial, launch.program_address, ptx, entry)
        banks = zip(launch.constants, launch.invalidates_banks, strict=True)
        for number, (bank, invalidated) in enumerate(banks):
            if bank is None:
                continue
            content = self._mapped(*bank)
            if invalidated:
                gpu.constant_cache.forget(space.serial, bank[0])
            gpu.constant_cache.fetch(space.serial, bank[0], content, entry)
            if not number:
                first = content
        return first

    def _mapped(self, address: int, size: int) -> bytes:
        """Return the bytes of a bank up to the first page that is not mapped."""
        space = self._channel.space
        try:
            return space.read(address, size, Client.SM)
        except FaultError:
            content = b""
        while len(content) < size:
            at = address + len(content)
            try:
                content += space.read(at, min(PAGE - at % PAGE, size - len(content)), Client.SM)
            except FaultError:
                break
        return content

    def _program(self, address: int) -> tuple[str, str, int, int, tuple[tuple[str, int], ...]]:
        """Read the note before a program: entry, PTX, offset and size of the parameters in bank 0,
        addresses of variables."""
        space = self._channel.space
        space.read(address, 16, Client.SM)  # the program itself must be mapped
        note = space.read(address - NOTE_SIZE, NOTE_SIZE, Client.SM)
        magic, version, start, size, length, where, ptx_size, *rest = _NOTE.unpack_from(note)
        *table, name_at = rest
        if magic != NOTE_MAGIC or version != NOTE_VERSION:
            raise refuse(
                f"expected the loader's note before the program at {address:#x}, found none:"
                " the model executes PTX placed by the loader, not machine code"
            )
        if not ptx_size:
            raise refuse(f"the program at {address:#x} was loaded without its PTX")
        if ptx_size > _LONGEST_PTX:
            raise refuse(
                f"the note of the program at {address:#x} states an invalid PTX size: "
                f"{ptx_size} bytes"
            )
        if length > ptx_size:
            raise refuse(
                f"the note of the program at {address:#x} states a name longer than its PTX"
            )
        name = space.read(name_at, length, Client.SM)
        raw = space.read(where, ptx_size, Client.SM)
        text = self._texts.get(raw)
        try:
            if text is None:
                text = self._texts[raw] = raw.decode()
            return name.decode(), text, start, size, self._variables(*table)
        except UnicodeDecodeError as error:
            raise refuse(
                f"the note before {address:#x} does not contain valid text: {error}"
            ) from error

    def _variables(self, address: int, size: int) -> tuple[tuple[str, int], ...]:
        """Read the table of variables. Raises UnicodeDecodeError for names that are not text."""
        if size > _LONGEST_TABLE:
            raise refuse(f"the table of variables has an invalid size: {size} bytes")
        raw = self._channel.space.read(address, size, Client.SM) if size else b""
        found, at = [], 0
        while at + _VARIABLE.size <= len(raw):
            where, length = _VARIABLE.unpack_from(raw, at)
            at += _VARIABLE.size
            found.append((raw[at : at + length].decode(), where))
            at += length
        return tuple(found)

    def _check_local(self, launch: LaunchDescriptor) -> None:
        """Check that local memory is set up for as many threads as the chip can hold."""
        if not launch.local_size:
            return
        facts = self._gpu.facts
        per_warp = -(-launch.local_size * 32 // 0x200) * 0x200
        need = per_warp * facts.warps_per_sm * self._gpu.sm_per_tpc
        have = self._pair("SET_SHADER_LOCAL_MEMORY_NON_THROTTLED")
        base = self._pair("SET_SHADER_LOCAL_MEMORY")
        if have < need:
            raise refuse(
                f"{launch.local_size} bytes of local memory per thread require {need} per TPC,"
                f" SET_SHADER_LOCAL_MEMORY_NON_THROTTLED provides {have}"
            )
        total = have * -(-facts.sm_count // self._gpu.sm_per_tpc)
        for at in (base, base + total - 1):
            found = self._channel.space.translate(at, FaultAccess.WRITE, Client.SM)
            if isinstance(found, MmuFault):
                raise ChannelError(Xid.MMU_FAULT, f"local memory: {found}", found)

    def _plant(self, grid: GridLaunch) -> None:
        """Apply a planted fault to this grid."""
        faults, index = self._gpu.machine.faults, self._gpu.index
        bad_page = faults.take_any(tuple(_FAULTS), index)
        if bad_page is not None:
            kind, access = _FAULTS[bad_page]
            fault = MmuFault(kind, access, PLANTED_ADDRESS, Client.SM)
            raise ChannelError(Xid.MMU_FAULT, str(fault), fault)
        exception = faults.take_any(tuple(_EXCEPTIONS), index)
        if exception is not None:
            self._end(grid, SmOutcome(_EXCEPTIONS[exception], "planted", lane_mask=1))
        error = faults.take_any(tuple(_XIDS), index)
        if error is not None:
            xid, text = _XIDS[error]
            if error in (Fault.ECC_UNCORRECTED, Fault.ECC_CONTAINED):
                self._gpu.ecc_uncorrected += 1
            raise ChannelError(xid, text)
        if faults.take(Fault.HANG, index):
            attention = self._channel.attention
            attention.in_program = True
            try:
                while not attention.ending:  # an endless loop
                    if attention.in_grid_aside:
                        attention.wait_aside()
                    time.sleep(1e-3)
            finally:
                attention.in_program = False
            raise self._aborted()

    def _aborted(self) -> Exception:
        """Return why a grid was ended from outside: its channel is gone, or it kept the engine."""
        if self._channel.attention.timed_out and not self._channel.stopped:
            return ChannelError(*_XIDS[Fault.CONTEXT_SWITCH])
        return Aborted()


def _culprit_of(grid: GridLaunch, outcome: SmOutcome) -> Culprit | None:
    """Return the instruction at which a grid ended."""
    if not outcome.line:
        return None
    pc = grid.program_address + outcome.program_counter
    return Culprit(outcome.address, pc, *instruction_in(grid.ptx, outcome.line), outcome.line)


def _line_of(ptx: str, message: str) -> dict[str, object]:
    """Return the line of PTX that a message names, as attributes of an error."""
    found = _LINE.search(message)
    lines = ptx.splitlines()
    if found is None or not 0 < int(found[1]) <= len(lines):
        return {}
    return {"ptx": lines[int(found[1]) - 1].strip()}
