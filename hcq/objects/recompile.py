"""Compile IR to native code of the host behind the program: hcq.objects.jit in a child process.

Run as a module, this is the child: it reads requests from a socket, and ends when the socket closes
or no request has come for a while. A request is the passes, the level of code generation and the
IR; an answer is a status byte and the object, or a message in UTF-8.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

from ugpu.hcq.errors import CompileError, HostError, UgpuError
from ugpu.hcq.objects import behind, jit
from ugpu.hcq.objects.child import Ended, Process, serve

LIMIT_S = 120.0  # TIMEOUT: of processor time; the largest translated kernels take 10 s
IDLE_S = 60.0  # TIMEOUT: an idle child ends; the next request starts another
_HEAD = struct.Struct("<BB")
_DONE, _REFUSED = b"\0", b"\1"


@dataclass(frozen=True)
class Order:
    """Code to compile.

    Attributes:
        ir: makes its IR; called in another thread.
        passes: as of jit.compile_object.
        optimise: the level of code generation.
        done: called in another thread with the object, or the error; must not raise.
    """

    ir: Callable[[], str]
    passes: int
    optimise: int
    done: Callable[[bytes | UgpuError], None]


class Child:
    """The child process. Only one thread may use it at a time."""

    def __init__(self) -> None:
        self.process = Process(__name__, (str(behind.NICE),))

    def compile(self, ir: str, passes: int, optimise: int) -> bytes:
        """Compile in the child. CompileError reports how it ended otherwise."""
        try:
            answer = self._answer(_HEAD.pack(passes, optimise) + ir.encode())
        except TimeoutError:
            raise CompileError("LLVM exceeded its time limit", limit_s=LIMIT_S) from None
        except Ended as ended:
            raise CompileError(f"LLVM ended its process ({ended})") from None
        except HostError as error:
            raise CompileError(f"cannot start a compiler process: {error}") from None
        if not answer.startswith(_DONE):
            raise CompileError(f"LLVM rejected the code: {answer[1:].decode(errors='replace')}")
        return answer[1:]

    def _answer(self, request: bytes) -> bytes:
        try:
            return self.process.ask(request, LIMIT_S)
        except Ended as ended:
            if ended.code:
                raise
            return self.process.ask(request, LIMIT_S)  # it had ended while idle

    def interrupt(self) -> None:
        """End the process while another thread uses it, which gets a CompileError."""
        self.process.kill()

    def close(self) -> None:
        """End the process; idempotent."""
        self.process.close()


class Recompile(behind.Behind[Child, Order]):
    """A queue of code to compile."""

    def child(self) -> Child:
        """Return a child process."""
        return Child()

    def carry_out(self, child: Child, order: Order) -> None:
        """Compile the code of an order."""
        result: bytes | UgpuError
        try:
            result = child.compile(order.ir(), order.passes, order.optimise)
        except UgpuError as error:
            result = error
        if not self.closed:
            order.done(result)


SHARED = behind.Shared(Recompile)


def answer(request: bytes) -> bytes:
    """Compile what a request asks for."""
    passes, optimise = _HEAD.unpack_from(request)
    try:
        return _DONE + jit.compile_object(request[_HEAD.size :].decode(), passes, optimise)
    except RuntimeError as error:  # LLVM's parser or verifier
        return _REFUSED + str(error).encode()


if __name__ == "__main__":
    os.nice(int(sys.argv[2]))
    serve(socket.socket(fileno=int(sys.argv[1])), answer, IDLE_S, LIMIT_S)
