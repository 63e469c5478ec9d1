"""Record ugpu's own driver: a node that forwards every call and records it.

The recording has the format of the other recorders. Therefore the behaviour of ugpu's driver, on a
board or on a virtual device, can be compared with that of CUDA.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from ugpu.hcq import outfile
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, DeviceNotFound, NotSupported
from ugpu.hcq.find import catalogue, registry
from ugpu.hcq.find.node_drivers import NODE_DRIVERS
from ugpu.hcq.state.instruction import Culprit, take_culprit
from ugpu.hcq.transport.node import Node, NodeAttachment, NodeMapping
from ugpu.tools.debug.sniff.driver import rules_of
from ugpu.tools.debug.sniff.memory import PAGE
from ugpu.tools.debug.sniff.recording import KIND, header
from ugpu.tools.debug.sniff.rules import LIMIT, Rules

_DOORBELL = 0x90  # NVC361_NOTIFY_CHANNEL_PENDING, open-gpu-kernel-modules 580.142 clc361.h
_ZEROS = hash(bytes(PAGE))


class RecordingNode:
    """A node on top of another one, which it owns; see hcq.transport.node.Node.

    The caller owns the file; a line is written when a call has ended. memory: the number of
    doorbells at which to record the pages of mapped memory that changed.
    """

    def __init__(self, node: Node, file: IO[str], rules: Rules, memory: int = 0) -> None:
        self.name = node.name
        self.clock = node.clock
        self._node = node
        self._file = file
        self._rules = rules
        self._paths: dict[int, str] = {}
        self._lock = threading.Lock()
        self._shots = memory
        self._views: dict[NodeMapping, dict[int, int]] = {}  # hashes of pages, by offset

    def open(self, path: str) -> int:
        line = self._line("open", path)
        try:
            handle = self._node.open(path)
        except OSError as error:
            self._write(line, -1, error.errno or 0)
            raise
        self._paths[handle] = path
        self._write(line, handle)
        return handle

    def ioctl(self, handle: int, request: int, argument: bytearray | memoryview) -> None:
        line = self._line("ioctl", self._paths.get(handle, ""))
        before = bytes(argument)
        line |= {"fd": handle, "request": request, "argument": 0, "before": before.hex()}
        blocks = [
            (block, read(block.address, block.size))
            for block in self._rules.blocks(request, before, read)
        ]
        if request in self._rules.submits:
            self._rung()
        error = 0
        try:
            self._node.ioctl(handle, request, argument)
        except OSError as raised:
            error = raised.errno or 0
            raise
        finally:
            line["after"] = bytes(argument).hex()
            line["blocks"] = [
                {
                    "at": block.at,
                    "inside": block.inside,
                    "address": block.address,
                    "size": block.size,
                    "before": _hex(old),
                    "after": _hex(read(block.address, block.size)),
                }
                for block, old in blocks
            ]
            self._write(line, -1 if error else 0, error)

    def map(self, handle: int, size: int, offset: int = 0) -> NodeMapping:
        line = self._line("mmap", self._paths.get(handle, ""))
        mapping = self._node.map(handle, size, offset)
        line |= {"fd": handle, "length": size, "access": 3, "flags": 1, "offset": offset}
        self._write(line, mapping.address)
        if not self._shots:
            return mapping
        if mapping.view is not None:
            self._views[mapping] = {}
        return _WatchedMapping(mapping, self._rung, self._views)

    def release(self, handle: int) -> None:
        line = self._line("close", self._paths.pop(handle, ""))
        self._node.release(handle)
        self._write({**line, "fd": handle}, 0)

    def read_text(self, path: str) -> str:
        return self._node.read_text(path)

    @property
    def gaps(self) -> list[NotSupported]:
        """See hcq.transport.node.take_gap."""
        gaps: list[NotSupported] = getattr(self._node, "gaps", [])
        return gaps

    def culprit(self, *, address: int | None = None, pc: int | None = None) -> Culprit | None:
        """See hcq.state.instruction.Witness."""
        return take_culprit(self._node, address=address, pc=pc)

    def close(self) -> None:
        self._node.close()

    def _rung(self) -> None:
        """Record memory before a doorbell is written."""
        if not self._shots:
            return
        self._shots -= 1
        self._write({**self._line("doorbell", ""), "address": 0}, 0)
        for mapping, hashes in self._views.items():
            view = mapping.view
            if view is None:
                continue
            for at in range(0, len(view) - PAGE + 1, PAGE):
                page = bytes(view[at : at + PAGE])
                if hashes.get(at, _ZEROS) != hash(page):
                    hashes[at] = hash(page)
                    line = self._line("memory", "")
                    line |= {"address": mapping.address + at, "length": PAGE, "after": page.hex()}
                    self._write(line, 0)

    def _line(self, call: str, path: str) -> dict[str, Any]:
        return {
            "call": call,
            "path": path,
            "time": time.monotonic(),
            "pid": os.getpid(),
            "thread": threading.get_native_id(),
        }

    def _write(self, line: dict[str, Any], result: int, error: int = 0) -> None:
        text = json.dumps({**line, "result": result, "errno": error}) + "\n"
        with self._lock:
            self._file.write(text)


class _WatchedMapping:
    """A mapping that reports when its doorbell is about to be written."""

    def __init__(
        self, mapping: NodeMapping, rung: Callable[[], None], views: dict[NodeMapping, Any]
    ) -> None:
        self._mapping = mapping
        self._rung = rung
        self._views = views
        self.size, self.address = mapping.size, mapping.address
        self.view = mapping.view

    def read32(self, offset: int) -> int:
        return self._mapping.read32(offset)

    def write32(self, offset: int, value: int) -> None:
        if offset == _DOORBELL:
            self._rung()
        self._mapping.write32(offset, value)

    def close(self) -> None:
        self._views.pop(self._mapping, None)
        self.view = None
        self._mapping.close()


def read(address: int, size: int) -> bytes | None:
    """Read this process's own memory; None if any of it is not mapped."""
    count = min(size, LIMIT)
    try:
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            content = os.pread(memory.fileno(), count, address)
    except (OSError, OverflowError):
        return None
    return content if len(content) == count else None


def _hex(raw: bytes | None) -> str | None:
    return None if raw is None else raw.hex()


def _load(path: str) -> Callable[..., Any]:  # an entry point named in the registry
    module, _, function = path.partition(":")
    entry: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return entry


def attach(name: str) -> NodeAttachment:
    """Return the attachment of a device behind a kernel driver's node, real or virtual."""
    kind, _, rest = name.partition(":")
    if kind == "virtual" and rest in catalogue.virtual_chips():
        model = registry.attach_virtual(rest)
        if isinstance(model, NodeAttachment):
            return model
        model.transport.close()
        raise NotSupported(f"{name} is not opened through a kernel driver's node")
    if kind in NODE_DRIVERS and rest.isdecimal():
        attachment: NodeAttachment = _load(NODE_DRIVERS[kind].attach)(int(rest))
        return attachment
    raise DeviceNotFound(f"{name} is not a device opened through a kernel driver's node")


def record_device(
    attachment: NodeAttachment,
    name: str,
    path: Path,
    driver: str,
    work: Callable[[Device], None],
    memory: int = 0,
) -> None:
    """Open a device through a recording node, do `work` with it, close it.

    driver: as for `rules_of`. memory: see RecordingNode; command images are then kept in host
    memory, where they can be read completely at each doorbell.
    """
    rules, start = rules_of(driver)
    outfile.check_file(path, KIND)
    try:
        opened_file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise BadArgument(f"{path}: {error.strerror}") from None
    with opened_file as file:
        file.write(header(driver, "node", start, ["ugpu", "sniff", "device", name]))
        node = RecordingNode(attachment.node, file, rules, memory)
        options = {"commands": "host"} if memory and attachment.driver == "nvrm" else {}
        opened: Device = _load(NODE_DRIVERS[attachment.driver].entry)(
            name, replace(attachment, node=node), **options
        )
        with opened:
            work(opened)
