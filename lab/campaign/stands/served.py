"""A vfio-user server and our client of it as a stand: faults of the device, the server, the wire.

The server runs in a thread of this process. What it sends goes through `DamagedSocket`, which
changes, drops or cuts off the next reply as planned.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.campaign.stands.pci import PciStand
from tests.support.pci.vfio_user_device import MemoryDevice, _Function
from ugpu.hcq.errors import TransportError, UgpuError
from ugpu.hcq.transport.base import ResetKind, Transport
from ugpu.hcq.transport.vfio_user.client import VfioUserTransport
from ugpu.virtual.serve.server import Server

#: bytes of a message -> what is sent in its place; None ends the connection after half of it
Damage = Callable[[bytes], bytes | None]
_END_S = 60.0
_REPLY = 1
_SILENCE = struct.pack("@ll", 0, 50_000)  # how long a client waits for an answer that never comes


class RefusingDevice(MemoryDevice):
    """A device that refuses a request, by its name, with the error of `refuses`."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: dict[str, UgpuError] = {}
        self.struck = False
        self.function = _RefusingFunction(self, 1 << 16)

    def check(self, request: str) -> None:
        if request in self.refuses:
            self.struck = True
            raise self.refuses[request]

    def attach(self, client: Any) -> Transport:
        self.check("attach")
        return super().attach(client)

    def map_dma(self, address: int, size: int, host: int | None) -> None:
        self.check("map_dma")
        super().map_dma(address, size, host)

    def unmap_dma(self, address: int, size: int) -> None:
        super().unmap_dma(address, size)
        self.check("unmap_dma")


class _RefusingFunction(_Function):
    device: RefusingDevice

    def reset(self, kind: ResetKind) -> None:
        self.device.check("reset")
        super().reset(kind)

    def config_read(self, offset: int, width: int = 4) -> int:
        self.device.check("config_read")
        return super().config_read(offset, width)


class DamagedSocket(socket.socket):
    """The server's end of a connection. plan: what happens to the next reply; taken once."""

    machine: ServedMachine

    def send(self, data: Any, flags: int = 0, /) -> int:
        return self._send([bytes(data)], (), flags)

    def sendmsg(self, parts: Any, carried: Any = (), flags: int = 0, address: Any = None, /) -> int:
        return self._send([bytes(part) for part in parts], carried, flags)

    def _send(self, parts: list[bytes], carried: Any, flags: int) -> int:
        whole = b"".join(parts)
        damage = self.machine.take(whole)
        if damage is None:
            return super().sendmsg([whole], carried, flags)
        sent = damage(whole)
        if sent is None:
            super().sendall(whole[: len(whole) // 2], flags)
            self.shutdown(socket.SHUT_RDWR)
        elif sent:
            super().sendall(sent, flags)
        return len(whole)


class DamagedServer(Server):
    machine: ServedMachine

    def _admit(self, connection: socket.socket) -> None:
        damaged = DamagedSocket(fileno=connection.detach())
        damaged.machine = self.machine
        super()._admit(damaged)


class ServedMachine:
    """A device, its server, and what is planted in both."""

    def __init__(self, root: Path) -> None:
        self.path = root / "s"
        self.device = RefusingDevice()
        self.plan: Damage | None = None
        self.hit = False
        self.server: DamagedServer | None = None
        self.serve()

    def serve(self) -> None:
        """Start a server; nothing where one runs."""
        if self.server is not None:
            return
        self.server = DamagedServer(self.path, self.device)
        self.server.machine = self
        self._thread = threading.Thread(target=self.server.run, name="served", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the server, its client's connection with it."""
        if self.server is not None:
            self.server.stop()
            self._thread.join(_END_S)
            self.server = None

    def damage(self, what: Damage) -> None:
        """Have `what` change the next reply."""
        self.plan, self.hit = what, False

    def take(self, message: bytes) -> Damage | None:
        """The damage for a message that is about to be sent."""
        (_, _, _, flags, _) = struct.unpack_from("<HHIII", message)
        if self.plan is None or not flags & _REPLY:
            return None
        damage, self.plan, self.hit = self.plan, None, True
        return damage

    def cure(self) -> None:
        """Take all causes away."""
        self.plan = None
        self.device.refuses.clear()
        self.serve()

    def free(self) -> None:
        self.end()

    @property
    def open_files(self) -> list[str]:
        """What a client that has gone has left in the server."""
        session = None if self.server is None else self.server._session
        if session is not None and not session.ended.wait(_END_S):
            return ["a session"]
        return [f"memory at {address:#x}" for address in self.device.maps]


class ServedStand(PciStand):
    """The client. Stages as those of other transports."""

    machine: ServedMachine

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.resets = 0
        self.other: VfioUserTransport | None = None

    def build(self, root: Path) -> ServedMachine:
        return ServedMachine(root)

    def connect(self) -> VfioUserTransport:
        return VfioUserTransport(str(self.machine.path))

    def bars(self) -> tuple[int, ...]:
        return (0, 5)

    def open(self, stage: str = "", plant: Callable[[], object] | None = None) -> None:
        self.close()
        super().open(stage, plant)

    def reset(self) -> None:
        super().reset()
        self.resets += 1

    @property
    def memory_lost(self) -> bool:
        return self.resets > 0

    def impatient(self) -> None:
        """Have the open client wait for answers briefly: one that never comes is planned."""
        channel = self.transport._connection._channel
        channel.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SILENCE)

    def take_up(self) -> None:
        """Have another client use the device."""
        self.other = self.connect()

    def leave(self) -> None:
        if self.other is not None:
            self.other.close()
            self.other = None

    def stop(self) -> None:
        self.leave()
        with contextlib.suppress(TransportError):
            self.close()
        super().stop()
