"""The CPU sequencer: a short program of register accesses that the GSP asks the host to run.

It comes as an event while the GSP starts, on chips before Hopper. Source: open-gpu-kernel-modules
570.144 rmgspseq.h, kernel_gsp.c (kgspExecuteSequencerBuffer_IMPL) and kernel_gsp_tu102.c.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
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


def _modify(machine: Machine, saved: list[int], address: int, mask: int, value: int) -> None:
    machine.write(address, machine.read(address) & ~mask & 0xFFFF_FFFF | value)


def _poll(
    machine: Machine, saved: list[int], address: int, mask: int, value: int, limit_us: int, _: int
) -> None:
    limit_s = min(limit_us / 1e6, _MOST_POLL_S) if limit_us else _DEFAULT_POLL_S
    machine.poll(address, mask, value, limit_s)


def _store(machine: Machine, saved: list[int], address: int, index: int) -> None:
    if index >= _SAVED:
        raise BadProgram("a register is saved outside of the area", index=index)
    saved[index] = machine.read(address)


# Operations by opcode: the number of their operands, and what carries them out.
_OPERATIONS: dict[str, tuple[int, Callable[..., None]]] = {
    "REG_WRITE": (2, lambda machine, saved, address, value: machine.write(address, value)),
    "REG_MODIFY": (3, _modify),
    "REG_POLL": (5, _poll),
    "DELAY_US": (1, lambda machine, saved, time: machine.delay(min(time / 1e6, _MOST_DELAY_S))),
    "REG_STORE": (2, _store),
    "CORE_RESET": (0, lambda machine, saved: machine.reset_core()),
    "CORE_START": (0, lambda machine, saved: machine.start_core()),
    "CORE_WAIT_FOR_HALT": (0, lambda machine, saved: machine.await_halt()),
    "CORE_RESUME": (0, lambda machine, saved: machine.resume_core()),
}


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
    names = {number[f"GSP_SEQ_BUF_OPCODE_{name}"]: name for name in _OPERATIONS}
    commands: list[tuple[str, Sequence[int]]] = []
    at = 0
    while at < count:
        name = names.get(words[at])
        if name is None:
            raise BadProgram("unknown operation", operation=words[at], position=at)
        end = at + 1 + _OPERATIONS[name][0]
        if end > count:
            raise BadProgram("the last operation is cut short", operation=name, position=at)
        commands.append((name, words[at + 1 : end]))
        at = end
    return commands


def run(commands: Sequence[tuple[str, Sequence[int]]], machine: Machine) -> None:
    """Run a program. An error carries the position of the operation that failed."""
    saved = [0] * _SAVED
    for position, (name, operands) in enumerate(commands):
        try:
            _OPERATIONS[name][1](machine, saved, *operands)
        except FirmwareError:
            raise
        except UnitTimeout as error:
            raise FirmwareSilent(
                f"the GSP's program for the CPU timed out: operation {position} of "
                f"{len(commands)}, {name}",
                **error.facts,
            ) from error
        except Exception as error:
            error.add_note(f"CPU sequencer: operation {position} of {len(commands)}, {name}")
            raise
