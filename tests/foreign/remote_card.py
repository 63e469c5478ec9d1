"""Serve a transport to tinygrad: its remote PCI protocol over TCP, for one client at a time.

tinygrad reaches a card of another machine by a protocol of its own (`REMOTE=host:port`; tinygrad
0.14.0, runtime/support/system.py, RemotePCIDevice). A request is `<BIIQQQ`: command, device number,
BAR or memory handle, three arguments; the payload of a write follows. An answer is `<BQQ`: status
(0: done), two values; what was read follows. Writes of BARs and memory get no answer.

The server turns memory decoding on, as the kernel does for a file `enable`; each request becomes
accesses of the transport. Registers and doorbells are written in pieces of the width that the
client used, VRAM in blocks.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType
from typing import Self

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.transport.base import DmaMemory, ResetKind, Transport

REQUEST, ANSWER = struct.Struct("<BIIQQQ"), struct.Struct("<BQQ")
(
    PROBE, MAP_BAR, MAP_SYSMEM_FD, CFG_READ, CFG_WRITE, RESET, MMIO_READ, MMIO_WRITE, MAP_SYSMEM,
    SYSMEM_READ, SYSMEM_WRITE, RESIZE_BAR, PING,
) = range(13)  # fmt: skip
_SILENT = (MMIO_WRITE, SYSMEM_WRITE)
_PAGE, _WIDE = 4096, 0x4
_COMMAND, _MEMORY = 4, 2


class RemoteCard:
    """Owns `transport` and a listening socket; `port` is the number to connect to.

    Each connection gets the card as the one before left it: only memory of the host is given back.
    memory_bar: the BAR that is memory; the others are registers. `refused` has what the transport
    refused, as text. `close` ends the thread and the transport.
    """

    def __init__(self, transport: Transport, *, memory_bar: int = 0) -> None:
        self.transport = transport
        self._memory_bar = memory_bar
        self.refused: list[str] = []
        self._memory: list[DmaMemory] = []
        self._client: socket.socket | None = None
        transport.config_write(_COMMAND, transport.config_read(_COMMAND, 2) | _MEMORY, 2)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="remote-card", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect the client, end the thread, close the transport; idempotent."""
        for end in (self._listener, self._client):
            with contextlib.suppress(OSError):
                if end is not None:
                    end.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self.transport.close()

    # ---- the connection -----------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                self._client = client
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with client.makefile("rb") as requests, contextlib.suppress(OSError):
                    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
                        command, _, bar, *arguments = REQUEST.unpack(head)
                        counted = command in _SILENT or command == PROBE
                        payload = requests.read(arguments[1]) if counted else b""
                        self._take(client, command, bar, arguments, payload)
                self._client = None
            while self._memory:
                self._memory.pop().close()

    def _take(
        self, client: socket.socket, command: int, bar: int, arguments: list[int], payload: bytes
    ) -> None:
        try:
            first, second, content = self._answer(command, bar, arguments, payload)
        except (UgpuError, IndexError) as error:
            text = repr(error).encode()
            self.refused.append(f"command {command}, BAR {bar}, {arguments}: {error!r}")
            if command not in _SILENT:
                client.sendall(ANSWER.pack(1, len(text), 0) + text)
            return
        if command not in _SILENT:
            client.sendall(ANSWER.pack(0, first, second) + content)

    def _answer(
        self, command: int, bar: int, arguments: list[int], payload: bytes
    ) -> tuple[int, int, bytes]:
        """Carry out a request: two values and the bytes behind them."""
        offset, size, _ = arguments
        transport = self.transport
        if command == PROBE:
            identity = transport.identity
            pairs = struct.unpack(f"<{len(payload) // 4}I", payload)
            wanted = zip(pairs[::2], pairs[1::2], strict=True)
            known = any(identity.device & mask == device for mask, device in wanted)
            name = b"0" if known and identity.vendor == arguments[2] else b""
            return len(name), 0, name
        if command == MAP_BAR:
            low = transport.config_read(0x10 + 4 * bar)
            high = transport.config_read(0x14 + 4 * bar) if low & _WIDE else 0
            return high << 32 | low & ~0xF, transport.window(bar).size, b""
        if command == CFG_READ:
            return transport.config_read(offset, size), 0, b""
        if command == CFG_WRITE:
            transport.config_write(offset, arguments[2], size)
        elif command == RESET:
            transport.reset(ResetKind.BUS)
        elif command == MMIO_READ:
            return 0, 0, self._read(bar, offset, size)
        elif command == MMIO_WRITE:
            self._write(bar, offset, payload)
        elif command == MAP_SYSMEM:
            return self._allocate(arguments[0], contiguous=bool(arguments[1]))
        elif command == SYSMEM_READ:
            return 0, 0, bytes(self._memory[bar].view[offset : offset + size])
        elif command == SYSMEM_WRITE:
            self._memory[bar].view[offset : offset + size] = payload
        elif command == MAP_SYSMEM_FD:
            raise IndexError("memory of the host by descriptor: expected MAP_SYSMEM")
        return 0, 0, b""  # RESIZE_BAR, PING: all of VRAM is in the BAR

    def _allocate(self, size: int, *, contiguous: bool) -> tuple[int, int, bytes]:
        memory = self.transport.allocate_dma(size, contiguous=contiguous)
        self._memory.append(memory)
        pages = [
            segment.address + at
            for segment in memory.segments
            for at in range(0, segment.size, _PAGE)
        ]
        return 8 * len(pages), len(self._memory) - 1, struct.pack(f"<{len(pages)}Q", *pages)

    # ---- BARs ---------------------------------------------------------------------------------

    def _read(self, bar: int, offset: int, size: int) -> bytes:
        window = self.transport.window(bar)
        first, end = offset & ~3, (offset + size + 3) & ~3
        if bar == self._memory_bar:
            return window.read(first, end - first)[offset - first :][:size]
        words = (window.read32(at) for at in range(first, end, 4))
        return b"".join(word.to_bytes(4, "little") for word in words)[offset - first :][:size]

    def _write(self, bar: int, offset: int, payload: bytes) -> None:
        window = self.transport.window(bar)
        if bar == self._memory_bar:
            head = self._read(bar, offset & ~3, offset & 3)
            end = offset + len(payload)
            tail = self._read(bar, end, -end & 3)
            window.write(offset & ~3, head + payload + tail)
        elif len(payload) == 8:  # one access, as a doorbell wants
            window.write64(offset, int.from_bytes(payload, "little"))
        else:
            for at in range(0, len(payload), 4):
                window.write32(offset + at, int.from_bytes(payload[at : at + 4], "little"))
