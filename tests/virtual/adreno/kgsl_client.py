"""A client of KGSL for tests: calls by structures of msm_kgsl.h, packets by hand."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ugpu.qcom.regs import constants, structs
from ugpu.virtual.adreno.gpu import build_machine
from ugpu.virtual.adreno.machine import VirtualMachine
from ugpu.virtual.adreno.node import VirtualNode
from ugpu.virtual.adreno.options import MachineOptions

CODES = constants("msm_kgsl")
PREAMBLE = 0x12  # KGSL_CONTEXT_PREAMBLE | KGSL_CONTEXT_NO_GMEM_ALLOC
CACHED = 3 << 26
RANGE = 1 << 31


def parity(value: int) -> int:
    return bin(value).count("1") + 1 & 1


def pkt4(first: int, *values: int) -> list[int]:
    """Type 4: written by hand from freedreno_pm4.h."""
    count = len(values)
    return [4 << 28 | parity(first) << 27 | first << 8 | parity(count) << 7 | count, *values]


def pkt7(code: int, *values: int) -> list[int]:
    """Type 7."""
    count = len(values)
    return [7 << 28 | parity(code) << 23 | code << 16 | parity(count) << 15 | count, *values]


class Client:
    """One program with the device file open."""

    def __init__(self, machine: VirtualMachine) -> None:
        self.node = VirtualNode(machine)
        self.handle = self.node.open("/dev/kgsl-3d0")

    def call(self, name: str, structure: str | None = None, **values: Any) -> Any:
        made = structs("msm_kgsl")[structure or f"kgsl_{name.lower()}"].new(**values)
        raw = bytearray(bytes(made))
        try:
            self.node.ioctl(self.handle, CODES[f"IOCTL_KGSL_{name}"], raw)
        finally:
            self.last = made.layout.view(raw) if hasattr(made, "layout") else raw
        return structs("msm_kgsl")[structure or f"kgsl_{name.lower()}"].view(raw)

    def alloc(self, size: int = 4096, flags: int = 0) -> Buffer:
        made = self.call("GPUOBJ_ALLOC", size=size, flags=flags)
        info = self.call("GPUOBJ_INFO", id=made.id)
        return Buffer(self, made.id, info.gpuaddr, made.mmapsize)

    def context(self, flags: int = PREAMBLE) -> int:
        return int(self.call("DRAWCTXT_CREATE", flags=flags).drawctxt_id)

    def submit(self, context: int, *buffers: tuple[int, int], syncs: Any = (), **more: Any) -> int:
        layout = structs("msm_kgsl").kgsl_command_object
        objects = b"".join(
            bytes(layout.new(gpuaddr=address, size=size, flags=1)) for address, size in buffers
        )
        points, keep = b"", []
        for other, timestamp in syncs:
            point = ctypes.create_string_buffer(struct.pack("<II", other, timestamp))
            keep.append(point)
            points += struct.pack("<QQII", ctypes.addressof(point), 8, 0, 0)
        raw, list_ = ctypes.create_string_buffer(objects), ctypes.create_string_buffer(points)
        values = {
            "flags": 4, "cmdlist": ctypes.addressof(raw), "cmdsize": 32, "numcmds": len(buffers),
            "synclist": ctypes.addressof(list_), "syncsize": 24, "numsyncs": len(syncs),
            "context_id": context, **more,
        }  # fmt: skip
        return int(self.call("GPU_COMMAND", **values).timestamp)

    def wait(self, context: int, timestamp: int, limit_ms: int = 10_000) -> None:
        self.call(
            "DEVICE_WAITTIMESTAMP_CTXTID", context_id=context, timestamp=timestamp,
            timeout=limit_ms,
        )  # fmt: skip

    def retired(self, context: int, kind: int = 2) -> int:
        call = self.call("CMDSTREAM_READTIMESTAMP_CTXTID", context_id=context, type=kind)
        return int(call.timestamp)

    def property(self, kind: int, size: int, value: bytes = b"") -> bytes:
        raw = ctypes.create_string_buffer(value.ljust(size, b"\0"), size)
        self.call("DEVICE_GETPROPERTY", type=kind, value=ctypes.addressof(raw), sizebytes=size)
        return raw.raw

    def reset_status(self, context: int) -> int:
        return int(struct.unpack("<I", self.property(9, 4, struct.pack("<I", context)))[0])

    def sync(self, buffer: Buffer, op: int, offset: int = 0, length: int = 0) -> None:
        raw = ctypes.create_string_buffer(struct.pack("<QQII", offset, length, buffer.id, op))
        self.call("GPUOBJ_SYNC", objs=ctypes.addressof(raw), obj_len=24, count=1)

    def run(self, words: list[int], context: int | None = None) -> tuple[int, int]:
        """Submit words and wait; the context and its timestamp."""
        context = self.context() if context is None else context
        commands = self.alloc(max(4096, 4 * len(words)))
        commands.write(words)
        timestamp = self.submit(context, (commands.address, 4 * len(words)))
        self.wait(context, timestamp)
        return context, timestamp


class Buffer:
    def __init__(self, client: Client, number: int, address: int, size: int) -> None:
        self.id, self.address, self.size = number, address, size
        self.mapping = client.node.map(client.handle, size, number << 12)
        if not address:
            self.address = self.mapping.address

    def write(self, words: list[int], offset: int = 0) -> None:
        assert self.mapping.view is not None
        struct.pack_into(f"<{len(words)}I", self.mapping.view, offset, *words)

    def read(self, count: int = 1, offset: int = 0) -> list[int]:
        assert self.mapping.view is not None
        return list(struct.unpack_from(f"<{count}I", self.mapping.view, offset))


@contextmanager
def machine_of(name: str = "a630", **options: Any) -> Iterator[VirtualMachine]:
    """A machine that is switched off at the end."""
    made = build_machine(name, MachineOptions(**options))
    try:
        yield made
    finally:
        for node in list(made.nodes):
            assert isinstance(node, VirtualNode)
            node.close()
        made.close()


@contextmanager
def fails(code: int) -> Iterator[None]:
    """A call that the kernel refuses with this errno."""
    with pytest.raises(OSError) as caught:
        yield
    assert caught.value.errno == code, (errno.errorcode[caught.value.errno or 0], caught.value)
