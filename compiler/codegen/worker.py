"""The compiling process: reads requests from a socket, answers each, ends when the socket does.

LLVM's back ends end the process on IR they cannot handle. So that it is not the user's process,
compiler.codegen.children runs this one and gives it another when it is gone.

Messages are those of compiler.codegen.process; what is in them says compiler.codegen.children.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

from compiler.codegen.children import ANSWER, DONE, REFUSED
from compiler.codegen.objects import compile_here
from compiler.codegen.process import receive, send
from hcq.errors import UgpuError
from hcq.target import TargetSpec

IDLE_S = 60.0  # TIMEOUT: an idle process ends; the next request starts another


def answer(message: bytes) -> bytes:
    """Compile what a request asks for."""
    asked = json.loads(message)
    start = time.perf_counter()
    try:
        image = compile_here(asked["text"], TargetSpec(**asked["target"]))
    except (RuntimeError, UgpuError) as error:  # LLVM's parser, verifier or target lookup; ours
        return ANSWER.pack(REFUSED, time.perf_counter() - start) + str(error).encode()
    return ANSWER.pack(DONE, time.perf_counter() - start) + image


def serve(channel: socket.socket) -> None:
    """Answer requests until the other side goes, or asks nothing for a while."""
    while select.select([channel], [], [], IDLE_S)[0]:
        try:
            message = receive(channel)
        except (EOFError, ConnectionError):
            return
        send(channel, answer(message))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
