"""The process of one shared lease (tools.daemon.apart): a ugpud with one device and one client,
whose connection is passed to it. It ends when the client disconnects."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from pathlib import Path

from hcq.log import configure
from hcq.remote.channel import Channel
from hcq.remote.wire import STRANGER

from .config import DeviceSettings, Settings
from .daemon import Daemon
from .leases import Policy
from .peers import peer_of

_FOREVER_S = 1e9  # the outer daemon's lease has the limit


def main() -> None:
    """Serve one connection to its end. Arguments: its descriptor, and the device as JSON."""
    configure("warning")
    connection = socket.socket(fileno=int(sys.argv[1]))
    name, options, memory, drain_s = json.loads(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="ugpud-") as folder:
        settings = Settings(
            devices=(DeviceSettings(name, memory=memory, options=options, shares=0),),
            socket=Path(folder), state=Path(folder), clients=1, rest_s=0, drain_s=drain_s,
            grace_s=0, policy=Policy(_FOREVER_S, _FOREVER_S),
        )  # fmt: skip
        with Daemon(settings) as daemon:
            daemon.wait_until_booted()
            daemon.serve(Channel(connection, STRANGER), peer_of(connection))
            daemon.wait_until_left()
    sys.stderr.flush()
    os._exit(0)  # a normal exit would wait for threads in hung kernels
