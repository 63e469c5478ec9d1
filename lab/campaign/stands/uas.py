"""The virtual Navi31 behind a bridge with the vendor's firmware, whose commands go wrong."""

from __future__ import annotations

from collections.abc import Callable

from lab.campaign.stands.amd import UsbStand
from ugpu.virtual.usb.uas import COMMAND

READ, WRITE, WRITE_16 = 0xE4, 0xE5, 0x8A
#: takes what the firmware sends for a command, and its tag; returns what is sent instead, None
#: where another command is to be struck
Change = Callable[[bytes, int], bytes | None]


class UasStand(UsbStand):
    """See UsbStand. struck: whether the fault has struck."""

    firmware = "uas"  # of the bridge
    name = "virtual:navi31+usb-stock"
    struck = False

    def halt(self, pipe: int) -> None:
        """Have a pipe answer with STALL until the port is reset."""
        self.struck = True
        self.box.firmware._halted.add(pipe)

    def refuse_command(self) -> None:
        """Take no command."""
        firmware = self.box.firmware
        put = firmware.put

        def refuse(pipe: int, stream: int, data: memoryview) -> int:
            self.struck = self.struck or pipe == COMMAND
            return 0 if pipe == COMMAND else put(pipe, stream, data)

        firmware.put = refuse

    def change(self, pipe: int, opcode: int, change: Change) -> None:
        """Have `change` replace what the first command with `opcode` sends on a pipe."""
        firmware, opcodes = self.box.firmware, dict[int, int]()
        put, take = firmware.put, firmware.take

        def watch(place: int, stream: int, data: memoryview) -> int:
            if place == COMMAND:
                opcodes[data[3]] = data[16]
            return put(place, stream, data)

        def changed(place: int, stream: int, room: int) -> bytes:
            found = take(place, stream, room)
            if self.struck or not found or place != pipe or opcodes.get(stream) != opcode:
                return found
            new = change(found, stream)
            self.struck = new is not None
            return found if new is None else new

        firmware.put, firmware.take = watch, changed

    def cure(self) -> None:
        """Restore the firmware's methods."""
        for name in ("put", "take"):
            self.box.firmware.__dict__.pop(name, None)
