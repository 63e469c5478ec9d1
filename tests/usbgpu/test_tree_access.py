"""Configuration space behind the bridge: a write of some bytes leaves those beside them alone."""

from __future__ import annotations

import pytest

from tests.support.usb.usb_script import In, Out
from tests.usbgpu.test_asm24 import bridge
from ugpu.usbgpu.bridge.tree import Function

HALF = bytes.fromhex("10000004 00000000 0000cdab")  # at 0x0400_0010: dword, and its upper half
BYTE = bytes.fromhex("10000004 00000000 00ab0000")


@pytest.mark.parametrize(
    ("offset", "width", "value", "enable", "data"),
    [(0x12, 2, 0xABCD, 0b1100, HALF), (0x11, 1, 0xAB, 0b0010, BYTE)],
)
def test_only_the_bytes_written_are_enabled(
    offset: int, width: int, value: int, enable: int, data: bytes
) -> None:
    sent = Out(0xF0, enable << 8 | 0x45, 0, data)
    with bridge(sent, In(0xF0, 0, 0, 8, bytes(8))) as one:
        Function(one, 4).write(offset, value, width)
    with bridge(sent) as one:
        Function(one, 4).post(offset, value, width)
