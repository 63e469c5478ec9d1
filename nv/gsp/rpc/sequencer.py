"""The CPU sequencer: a short program of register accesses that the GSP asks the host to run.

It comes as an event while the GSP starts, on chips before Hopper. Source: open-gpu-kernel-modules
570.144 rmgspseq.h, kernel_gsp.c (kgspExecuteSequencerBuffer_IMPL) and kernel_gsp_tu102.c.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from ugpu.hcq.errors import FirmwareError, FirmwareSilent, UnitTimeout
from ugpu.nv.abi.firmware import FirmwareAbi

_MOST_WORDS = 1 << 14  # of a program; a queue's largest message has as many
_DEFAULT_POLL_S = 4.0  # where the program states 0, as RM's default
_MOST_POLL_S = 30.0
_MOST_DELAY_S = 1.0
_SAVED = 8


class Machine(Protocol):
    """What the program acts on: registers by byte address, and the GSP's core."""

    def read(self, address: int) -> int: ...
    def write(self, address: int, value: int) -> None: ...
    def poll(self, address: int, mask: int, value: int, limit_s: float) -> None:
        """Wait until the register has a value under a mask; UnitTimeout after `limit_s`."""
        ...

    def delay(self, seconds: float) -> None: ...
    def reset_core(self) -> None: ...
    def start_core(self) -> None: ...
    def await_halt(self) -> None: ...
    def resume_core(self) -> None: ...


class BadProgram(FirmwareError):
    """The GSP's program for the CPU is not well-formed; nothing of it after that place was run."""


# Operations by name: the number of their operands.
_OPERANDS = {
    "REG_WRITE": 2, "REG_MODIFY": 3, "REG_POLL": 5, "DELAY_US": 1, "REG_STORE": 2, "CORE_RESET": 0,
    "CORE_START": 0, "CORE_WAIT_FOR_HALT": 0, "CORE_RESUME": 0,
}  # fmt: skip


class _Run:
    """One run of a program: its operations as methods, by name in lower case."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.saved = [0] * _SAVED
        self.reg_write = machine.write
        self.core_reset, self.core_start = machine.reset_core, machine.start_core
        self.core_wait_for_halt, self.core_resume = machine.await_halt, machine.resume_core

    def reg_modify(self, address: int, mask: int, value: int) -> None:
        self.machine.write(address, self.machine.read(address) & ~mask & 0xFFFF_FFFF | value)

    def reg_poll(self, address: int, mask: int, value: int, limit_us: int, _: int) -> None:
        limit_s = min(limit_us / 1e6, _MOST_POLL_S) if limit_us else _DEFAULT_POLL_S
        self.machine.poll(address, mask, value, limit_s)

    def delay_us(self, time: int) -> None:
        self.machine.delay(min(time / 1e6, _MOST_DELAY_S))

    def reg_store(self, address: int, index: int) -> None:
        if index >= _SAVED:
            raise BadProgram("a register is saved outside of the area", index=index)
        self.saved[index] = self.machine.read(address)


def parse(abi: FirmwareAbi, payload: bytes) -> list[tuple[str, Sequence[int]]]:
    """Return the program's commands, name and operands; BadProgram before anything is run."""
    layout, number = abi.structs.rpc_run_cpu_sequencer_v17_00, abi.constants
    if len(payload) < layout.size:
        raise BadProgram("the program's header is cut short", length=len(payload))
    head = layout.view(payload[: layout.size])
    count, room = int(head.cmdIndex), (len(payload) - layout.size) // 4
    if count > min(room, _MOST_WORDS):
        raise BadProgram("the program is longer than its message", words=count, have=room)
    words = struct.unpack_from(f"<{count}I", payload, layout.size)
    names = {number[f"GSP_SEQ_BUF_OPCODE_{name}"]: name for name in _OPERANDS}
    commands: list[tuple[str, Sequence[int]]] = []
    at = 0
    while at < count:
        name = names.get(words[at])
        if name is None:
            raise BadProgram("unknown operation", operation=words[at], position=at)
        end = at + 1 + _OPERANDS[name]
        if end > count:
            raise BadProgram("the last operation is cut short", operation=name, position=at)
        commands.append((name, words[at + 1 : end]))
        at = end
    return commands


def run(commands: Sequence[tuple[str, Sequence[int]]], machine: Machine) -> None:
    """Run a program. An error carries the position of the operation that failed."""
    state = _Run(machine)
    for position, (name, operands) in enumerate(commands):
        place = f"operation {position} of {len(commands)}, {name}"
        try:
            getattr(state, name.lower())(*operands)
        except FirmwareError:
            raise
        except UnitTimeout as error:
            text = f"the GSP's program for the CPU timed out: {place}"
            raise FirmwareSilent(text, **error.facts) from error
        except Exception as error:
            error.add_note(f"CPU sequencer: {place}")
            raise
