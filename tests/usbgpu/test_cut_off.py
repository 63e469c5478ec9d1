"""The bridge's driver on the virtual bridge, cut off by an exception at any of its lines."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.interrupts import interrupted
from ugpu.usbgpu.bridge.asm24 import CustomBridge
from ugpu.usbgpu.bridge.transport import UsbTransport
from ugpu.virtual.amd.gpu import endpoint
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.usb.attach import plug_in
from ugpu.virtual.usb.enclosure import Enclosure
from ugpu.virtual.usb.memory import SRAM

PAGE = bytes(range(256)) * 16


def test_what_was_cut_off_disturbs_no_later_transfer() -> None:
    card = endpoint("navi31", options=ChipOptions(vram=256 << 20, noise=1 << 20))
    box = Enclosure(card)
    usb, clock = plug_in(None, box)
    bridge = CustomBridge(usb, sleep=clock.sleep)
    sram = box.hardware.memory.shared[SRAM.offset :]
    with UsbTransport(bridge, "usb:0", clock=clock) as transport:
        transport.config_write(4, 2, 2)  # the card decodes memory requests
        vram = transport.window(0)

        def combined() -> None:
            with transport.batch():
                vram.write(0x1000, PAGE[:64])
                vram.write32(0x2000, 1)

        operations: list[Callable[[], object]] = [
            lambda: vram.write(0x1000, PAGE),
            lambda: vram.read(0x1000, 64),
            lambda: bridge.write_sram(16384, 2 * len(PAGE), [PAGE, PAGE]),
            lambda: bridge.read_xdata(0xF000, 300),
            combined,
        ]
        for operation in operations:
            for number, place in enumerate(interrupted(operation)):
                other = bytes([number % 255 + 1]) * 4096
                bridge.write_sram(0, len(other), [other])
                assert bytes(sram[:4096]) == other, place
                vram.write(0x4000, other)
                assert vram.read(0x4000, len(other)) == other, place
    box.close()
    card.chip.close()
    assert box.objections == []
