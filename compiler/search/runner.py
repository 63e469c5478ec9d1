"""The measuring process: opens the device separately, so that a kernel that crashes or never ends
does not affect the user's process.

    python -m ugpu.compiler.search.runner SOCKET DEVICE OPTIONS

Messages (hcq.objects.child) are pickles, exchanged only with our own process: the
parameters of a computation, or a Candidate; the answer to each is an Outcome.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import sys

from ugpu import hcq
from ugpu.compiler.search.measure import Bench, Candidate, Outcome
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.objects.child import receive, send


def serve(channel: socket.socket, device: Device) -> None:
    """Answer until the other side closes the connection."""
    bench: Bench | None = None
    while True:
        try:
            asked = pickle.loads(receive(channel))
        except (EOFError, ConnectionError):
            return
        try:
            if isinstance(asked, Candidate):
                assert bench is not None
                answer = bench.run(asked)
            else:
                if bench is not None:
                    bench.close()
                bench, answer = Bench(device, asked), Outcome(None)
        except UgpuError as error:
            answer = Outcome(None, f"{type(error).__name__}: {error.message}")
        send(channel, pickle.dumps(answer))


if __name__ == "__main__":
    with (
        socket.socket(fileno=int(sys.argv[1])) as given,
        hcq.open(sys.argv[2], **json.loads(sys.argv[3])) as opened,
        contextlib.suppress(KeyboardInterrupt),
    ):
        serve(given, opened)
