"""The two lines between us and a running guest: QEMU's monitor, and the guest's own requests."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

# Any: JSON values, both ways.
Handler = Callable[..., Any]


class Monitor:
    """QMP over a connected socket (QEMU docs/interop/qmp-spec). Safe to call from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._lock = threading.Lock()
        self._ready = False

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run one command; its return value. OSError with QEMU's words when it is refused."""
        with self._lock:
            if not self._ready:
                self._lines.readline()  # the greeting
                self._exchange("qmp_capabilities", {})
                self._ready = True
            return self._exchange(command, arguments)

    def _exchange(self, command: str, arguments: Mapping[str, Any]) -> Any:
        request = json.dumps({"execute": command, "arguments": arguments})
        self._connection.sendall(request.encode() + b"\n")
        while True:
            line = self._lines.readline()
            if not line:
                raise OSError("QEMU closed its monitor")
            answer = json.loads(line)
            if "error" in answer:
                raise OSError(answer["error"].get("desc", "refused"))
            if "return" in answer:
                return answer["return"]
            # anything else is an event


def serve_requests(connection: socket.socket, handlers: Mapping[str, Handler]) -> None:
    """Answer the guest's requests until its end: lines {"do": name, "with": {...}}.

    The answer is one line, {"result": ...} or {"error": text}. What is not a request (the guest's
    kernel may write to the line as well) is passed over.
    """
    with connection.makefile("rb") as lines:
        for line in lines:
            try:
                request = json.loads(line)
                name, arguments = request["do"], request.get("with", {})
            except (ValueError, KeyError, TypeError):
                continue
            answer: dict[str, Any]
            try:
                answer = {"result": handlers[name](**arguments)}
            except KeyError:
                answer = {"error": f"no handler {name}; there are {', '.join(sorted(handlers))}"}
            except (OSError, TypeError, ValueError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            try:
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                return  # the guest is gone
