"""Record by ptrace, if there is no compiler or a program makes system calls directly. x86-64 only.

python -m ugpu.tools.debug.sniff.tracer --log FILE --prefix PATH --driver 580.142 -- CMD

`ugpu sniff` runs it as a separate process, because ptrace belongs to one thread and its waiting
would reap other children. Every thread and every child of the program is traced.
PTRACE_GET_SYSCALL_INFO (Linux 5.3) reports whether a stop is the entry or the exit of a call.
Source: ptrace(2)."""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import platform
import signal
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ugpu.hcq.errors import HostError, NotSupported, UsageError
from ugpu.tools.debug.sniff.driver import rules_of
from ugpu.tools.debug.sniff.rules import LIMIT, Block, Rules

_TRACEME, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
#: SYSGOOD, FORK, VFORK, CLONE, EXEC, EXITKILL
_OPTIONS = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x100000
_WALL = 0x40000000
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_ENTRY, _EXIT = 1, 2
#: x86-64's numbers. Source: arch/x86/entry/syscalls/syscall_64.tbl, Linux 6.12.
_CALLS = {2: "open", 3: "close", 9: "mmap", 16: "ioctl", 257: "openat", 437: "openat"}
_INFO = struct.Struct("<BxxxIQQ7Q")
_MAP_ANONYMOUS = 0x20


@dataclass
class _Pending:
    """A call that has started in one thread."""

    kind: str
    arguments: tuple[int, ...]
    path: str
    before: bytes | None = None
    blocks: list[tuple[Block, bytes | None]] = field(default_factory=list)


class Tracer:
    """Trace one program and record its requests to the watched paths."""

    def __init__(self, log: Path, prefix: str, rules: Rules) -> None:
        if platform.machine() != "x86_64" or sys.platform != "linux":
            raise NotSupported(
                "recording by ptrace supports x86-64 Linux only; "
                "install a C compiler and use the preload backend"
            )
        self._prefix = prefix
        self._rules = rules
        self._file = log.open("a", encoding="ascii")
        self._pending: dict[int, _Pending] = {}
        self._groups: dict[int, int] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.restype = ctypes.c_long
        pointer = ctypes.c_void_p
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, pointer, pointer]

    def _ptrace(self, request: int, thread: int, address: int = 0, data: int = 0) -> bool:
        """Make a request; return False if the thread is gone."""
        ctypes.set_errno(0)
        if self._libc.ptrace(request, thread, address, data) >= 0:
            return True
        error = ctypes.get_errno()
        if error == errno.ESRCH:
            return False
        raise HostError(f"the system does not allow ptrace: {os.strerror(error)}", request=request)

    def run(self, command: Sequence[str]) -> int:
        """Run a program to its end; return its exit code, or 128 + the signal that killed it."""
        child = os.fork()
        if child == 0:
            self._become(command)
        os.waitpid(child, os.WUNTRACED)
        if not self._ptrace(_SETOPTIONS, child, 0, _OPTIONS):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise HostError("the system does not permit ptrace")
        self._ptrace(_SYSCALL, child)
        code = 0
        while True:
            try:
                thread, status = os.waitpid(-1, _WALL)
            except ChildProcessError:
                break
            if os.WIFSTOPPED(status):
                self._stopped(thread, status)
                continue
            self._pending.pop(thread, None)
            if thread == child:
                code = os.waitstatus_to_exitcode(status)
        self._file.close()
        return code if code >= 0 else 128 - code

    def _become(self, command: Sequence[str]) -> None:
        """In the child: allow the parent to trace, then execute the program. Does not return."""
        try:
            self._libc.ptrace(_TRACEME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.execvp(command[0], list(command))
        except OSError as error:
            os.write(2, f"ugpu: {command[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def _stopped(self, thread: int, status: int) -> None:
        stop = os.WSTOPSIG(status)
        deliver = 0
        if stop == _SYSCALL_STOP:
            self._system_call(thread)
        elif status >> 16 == 0 and stop not in (signal.SIGSTOP, signal.SIGTRAP):
            deliver = stop
        self._ptrace(_SYSCALL, thread, 0, deliver)

    def _system_call(self, thread: int) -> None:
        buffer = ctypes.create_string_buffer(_INFO.size)
        if not self._ptrace(_GET_SYSCALL_INFO, thread, _INFO.size, ctypes.addressof(buffer)):
            return
        kind, _, _, _, first, *rest = _INFO.unpack(buffer.raw)
        if kind == _ENTRY:
            name = _CALLS.get(first)
            if name is not None:
                self._begin(thread, name, tuple(rest))
        elif kind == _EXIT:
            pending = self._pending.pop(thread, None)
            if pending is not None:
                self._end(thread, pending, first - (1 << 64) if first >> 63 else first)

    # Meaning of calls -------------------------------------------------------------------------

    def _begin(self, thread: int, name: str, arguments: tuple[int, ...]) -> None:
        if name in ("open", "openat"):
            place = arguments[0] if name == "open" else arguments[1]
            self._pending[thread] = _Pending("open", arguments, self._string(thread, place))
            return
        number = arguments[4] if name == "mmap" else arguments[0]
        if name == "mmap" and arguments[3] & _MAP_ANONYMOUS:
            return
        path = self._path(thread, number)
        if not path.startswith(self._prefix):
            return
        pending = _Pending(name, arguments, path)
        if name == "ioctl":
            request, address = arguments[1] & 0xFFFF_FFFF, arguments[2]
            pending.before = self._read(thread, address, self._rules.own_size(request))
            read = partial(self._read, thread)
            blocks = self._rules.blocks(request, pending.before or b"", read)
            pending.blocks = [(block, read(block.address, block.size)) for block in blocks]
        self._pending[thread] = pending

    def _end(self, thread: int, pending: _Pending, result: int) -> None:
        arguments, path = pending.arguments, pending.path
        line: dict[str, Any] = {
            "call": pending.kind,
            "time": time.monotonic(),
            "pid": self._group(thread),
            "thread": thread,
        }
        if pending.kind == "open":
            path = self._path(thread, result) if result >= 0 else path
            if not path.startswith(self._prefix):
                return
        line["path"] = path
        if pending.kind == "ioctl":
            request, address = arguments[1] & 0xFFFF_FFFF, arguments[2]
            size = self._rules.own_size(request)
            line |= {"fd": arguments[0], "request": request, "argument": address}
            line["before"] = _hex(pending.before)
            line["after"] = _hex(self._read(thread, address, size))
            line["blocks"] = [self._block(thread, *block) for block in pending.blocks]
        elif pending.kind == "mmap":
            _, length, access, flags, number, offset = arguments
            line |= {"fd": number, "length": length, "access": access, "flags": flags}
            line["offset"] = offset
        elif pending.kind == "close":
            line["fd"] = arguments[0]
        failed = -4096 < result < 0
        line |= {"result": -1 if failed else result, "errno": -result if failed else 0}
        self._file.write(json.dumps(line) + "\n")

    def _block(self, thread: int, block: Block, before: bytes | None) -> dict[str, Any]:
        after = self._read(thread, block.address, block.size)
        places = {"at": block.at, "inside": block.inside, "address": block.address}
        return {**places, "size": block.size, "before": _hex(before), "after": _hex(after)}

    # The program's memory and files -----------------------------------------------------------

    def _read(self, thread: int, address: int, size: int) -> bytes | None:
        """Read the program's memory; None if any of it is not mapped."""
        count = min(size, LIMIT)
        try:
            with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
                content = os.pread(memory.fileno(), count, address)
        except (OSError, OverflowError):
            return None
        return content if len(content) == count else None

    def _string(self, thread: int, address: int) -> str:
        """Read a path up to its NUL, in shorter and shorter parts if the memory behind it ends."""
        for size in (4096, 256, 64, 16):
            raw = self._read(thread, address, size)
            if raw is not None and b"\0" in raw:
                return raw.partition(b"\0")[0].decode(errors="replace")
        return ""

    def _path(self, thread: int, number: int) -> str:
        try:
            return os.readlink(f"/proc/{thread}/fd/{number & 0xFFFF_FFFF}")
        except OSError:
            return ""

    def _group(self, thread: int) -> int:
        """Return the process that a thread belongs to."""
        if thread not in self._groups:
            try:
                text = Path(f"/proc/{thread}/status").read_text(encoding="ascii", errors="replace")
            except OSError:
                return thread
            self._groups[thread] = int(text.partition("Tgid:")[2].split()[0])
        return self._groups[thread]


def _hex(raw: bytes | None) -> str | None:
    return None if raw is None else raw.hex()


def main(arguments: Sequence[str] | None = None) -> int:
    """Trace a run of a program; return the program's exit code."""
    parser = argparse.ArgumentParser(prog="python -m ugpu.tools.debug.sniff.tracer")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--driver", required=True)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:
        tracer = Tracer(options.log, options.prefix, rules_of(options.driver)[0])
        return tracer.run(options.command)
    except (HostError, NotSupported, UsageError) as error:
        print(f"ugpu: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
