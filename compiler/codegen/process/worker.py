"""The compiling process: reads requests from a socket, answers each, ends when the socket closes.

LLVM's back ends end the process on IR they cannot handle. To keep the user's process alive,
compiler.codegen.process.children runs this one, and replaces it when it has ended.

Messages are those of hcq.objects.child; compiler.codegen.process.children describes
their content.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from ugpu.compiler.codegen.process.children import ANSWER, DONE, LIMIT_S, MISSING, REFUSED
from ugpu.compiler.codegen.process.objects import compile_here
from ugpu.hcq.errors import MissingDependency, UgpuError
from ugpu.hcq.objects import child
from ugpu.hcq.state.target import TargetSpec

IDLE_S = 60.0  # TIMEOUT: an idle process ends; the next request starts another


def answer(message: bytes) -> bytes:
    """Compile what a request asks for."""
    asked = json.loads(message)
    start = time.perf_counter()
    try:
        target = TargetSpec(**asked["target"])
        image = compile_here(asked["text"], target, first=asked["first"])
    except MissingDependency as error:
        missing = {"message": error.message, "facts": error.facts}
        return ANSWER.pack(MISSING, time.perf_counter() - start) + json.dumps(missing).encode()
    except (RuntimeError, UgpuError) as error:  # LLVM's parser, verifier or target lookup; ours
        return ANSWER.pack(REFUSED, time.perf_counter() - start) + str(error).encode()
    return ANSWER.pack(DONE, time.perf_counter() - start) + image


def serve(channel: socket.socket) -> None:
    """Answer requests until the other side closes the connection, or sends none for a while."""
    child.serve(channel, answer, IDLE_S, LIMIT_S)


if __name__ == "__main__":
    os.nice(int(sys.argv[2]))
    serve(socket.socket(fileno=int(sys.argv[1])))
