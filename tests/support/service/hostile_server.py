"""A ugpud that replies with anything: the values of a real one, changed at random."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import random
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.remote.channel import Channel
from ugpu.hcq.remote.request import Grant
from ugpu.hcq.remote.wire import Limits, Message
from ugpu.hcq.state.target import TargetSpec

# What may be in the place of any value.
WRONG: tuple[object, ...] = (
    None, True, -1, 0, 1 << 40, 2**64 - 1, 1.5, float("nan"), float("inf"), -1e300, "", "x" * 500,
    "\x1b[2J", b"\xff", [], {}, [[]], {"a": [1]}, [None, None], ["x", 1, 2.0, {}],
)  # fmt: skip


class Hostile:
    """Serves one client after another at `path`. seed: of the changes. rate: of each reply's
    change."""

    def __init__(self, path: Path, target: TargetSpec, seed: int, rate: float) -> None:
        self.path = str(path)
        self._random = random.Random(seed)
        self._rate = rate
        self._replies = _replies(target)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(8)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                made, _ = self._listener.accept()
            except OSError:
                return
            channel = Channel(made, Limits())
            with contextlib.suppress(UgpuError):
                self._serve(channel)
            channel.close()
            channel.release()

    def _serve(self, channel: Channel) -> None:
        while (message := channel.receive(30.0)) is not None:
            if self._random.random() < self._rate / 4:
                return
            if self._random.random() < self._rate / 2:
                kind = self._random.choice(("reached", "failed", "ended", "position", "noise"))
                values = [self._random.choice(WRONG) for _ in range(self._random.randrange(4))]
                channel.send(Message(kind, values))
            if message.call:
                channel.send(self._reply(message))

    def _reply(self, message: Message) -> Message:
        good = copy.deepcopy(self._replies.get(message.operation))
        data = bytes(int(message.arguments[1])) if message.operation == "read" else b""
        if self._random.random() < self._rate:
            good = self._changed(good)
        if self._random.random() < self._rate / 4:
            name = self._random.choice(("DeviceBusy", "Nothing", "PageFault", "UgpuError", "x"))
            facts = {self._random.choice(("message", "args", "a", "", "self")): 1}
            return Message("error", [name, "\x1b[2J", facts], message.call)
        return Message("reply", [good], message.call, data)

    def _changed(self, value: Any) -> Any:
        if isinstance(value, dict) and value and self._random.random() < 0.9:
            key = self._random.choice(list(value))
            if self._random.random() < 0.2:
                del value[key]
            else:
                value[key] = self._changed(value[key])
            return value
        if isinstance(value, list) and value and self._random.random() < 0.8:
            place = self._random.randrange(len(value))
            value[place] = self._changed(value[place])
            return value
        return self._random.choice(WRONG)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _replies(target: TargetSpec) -> dict[str, Any]:
    grant = Grant(1, "cpu", "exclusive", target, 1e9, {"compute": [4096], "copy": [4160]}, 1 << 20)
    plain = grant.to_map()
    plain["target"] = dataclasses.asdict(target) | {"max_grid": list(target.max_grid)}
    return {
        "hello": {"version": 1, "role": "use", "session": 0, "grace_s": 0.0},
        "lease": plain,
        "allocate": [7, 8192],
        "load": [8, 16384, 64, [["scale", 9, 24, [[0, 8, "out", True, "u64"]], 0, 0]]],
        "sensors": [["power_watts", "W", "", 1.0]],
        "info": {"name": "x"},
        "plan": [1, "why", [["reset", 1, "none", "", 0]]],
        "reset": [1, "why", [["reset", 1, True, 0.1, "", False, {}]], ["device"]],
        "extend": 5.0,
        "diagnose": {"a": 1},
        "watch": True,
    }
