"""Answers that make no sense: whatever the kernel driver says while a GPU is opened, it ends in an
error of ours or in a device, and nothing is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import random

import pytest

from tests.support.nvidia.nv_machine import left_behind, opened, powered, work
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.transport.node import Node, NodeAttachment, NodeMapping
from ugpu.nv.device.device import open_device
from ugpu.nv.work import queue as queue_module
from ugpu.virtual.nvidia.node import VirtualNode

CALLS = 150  # ioctls of an opening, about
_SET_OBJECTS = (0xC030_462B, 0xC010_4629)  # RM_ALLOC and RM_FREE: what lives is told by them


class Garbling:
    """A node that changes some bytes of one answer."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.name = node.name
        self.clock = node.clock
        self.random = random.Random(seed)
        self.left = self.random.randrange(CALLS)

    def ioctl(self, handle: int, request: int, argument: bytearray | memoryview) -> None:
        self.node.ioctl(handle, request, argument)
        self.left -= 1
        if self.left == 0 and request not in _SET_OBJECTS:
            for _ in range(self.random.randint(1, 8)):
                at = self.random.randrange(len(argument))
                argument[at] = self.random.choice((0, 1, 0x7F, 0xFF, self.random.randrange(256)))

    def open(self, path: str) -> int:
        return self.node.open(path)

    def map(self, handle: int, size: int, offset: int = 0) -> NodeMapping:
        return self.node.map(handle, size, offset)

    def release(self, handle: int) -> None:
        self.node.release(handle)

    def read_text(self, path: str) -> str:
        return self.node.read_text(path)

    def close(self) -> None:
        self.node.close()


def test_answers_that_make_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "_SETUP_LIMIT_S", 0.2)
    with powered() as machine:
        clean = left_behind(machine)
        for seed in range(60):
            node = Garbling(VirtualNode(machine), seed)
            with contextlib.suppress(UgpuError):
                device = open_device("virtual:gh100", NodeAttachment(node, "nvrm"))
                device.limit_s = 0.2
                device.close()
            assert left_behind(machine) == clean, seed
        with opened(machine) as device:
            work(device)


class Answering(Garbling):
    """A node whose controls answer with blocks of noise."""

    def ioctl(self, handle: int, request: int, argument: bytearray | memoryview) -> None:
        self.node.ioctl(handle, request, argument)
        if request == 0xC020_462A:  # RM_CONTROL: what was asked lies behind a pointer
            self.left -= 1
            if self.left == 0:
                address = int.from_bytes(argument[16:24], "little")
                size = int.from_bytes(argument[24:28], "little")
                noise = self.random.randbytes(size)
                ctypes.memmove(address, noise, size)


def test_controls_that_answer_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "_SETUP_LIMIT_S", 0.2)
    with powered() as machine:
        clean = left_behind(machine)
        for seed in range(24):
            node = Answering(VirtualNode(machine), seed)
            node.left = seed + 1
            with contextlib.suppress(UgpuError):
                device = open_device("virtual:gh100", NodeAttachment(node, "nvrm"))
                device.limit_s = 0.2
                device.sensors()
                device.info()
                device.close()
            assert left_behind(machine) == clean, seed
