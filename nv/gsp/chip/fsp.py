"""FSP's mailbox: messages to the processor that checks firmware on Hopper and Blackwell.

A message is an MCTP packet with NVIDIA's message type, written into the processor's memory; head
and tail of a queue announce it. Sources: open-gpu-kernel-modules 570.144 kern_fsp.c,
kern_fsp_gh100.c, fsp_mctp_format.h; Linux 7.3 nouveau subdev/fsp/gh100.c, nova-core fsp.rs.
"""

from __future__ import annotations

import struct

from ugpu.hcq.bare.stages import or_silent
from ugpu.hcq.errors import BadArgument, DeviceBusy, FirmwareError
from ugpu.nv.gsp.chip.chip import GspChip

_MOST_BYTES = 1024  # of a packet: the memory of channel 0
_WHOLE = 1 << 31 | 1 << 30  # start and end of a message
_VENDOR = 0x7E | 0x10DE << 8
_REPLY_WORDS = 5
REPLY = 0x15  # kind of a reply
_LIMIT_S = 4.0  # TIMEOUT: as nouveau's; the chain of trust takes tens of milliseconds


class Fsp:
    """The mailbox of one chip."""

    def __init__(self, chip: GspChip) -> None:
        self.chip = chip
        self.regs = chip.fsp

    def ask(self, kind: int, payload: bytes) -> None:
        """Send a message and wait for the reply; FirmwareError if FSP refuses it.

        DeviceBusy if another message is under way, FirmwareSilent if no reply comes.
        """
        head, tail = self._queue("QUEUE")
        if head != tail:
            raise DeviceBusy("FSP has a message that it has not read", holder="FSP")
        self._write(struct.pack("<II", _WHOLE, _VENDOR | kind << 24) + payload)
        with or_silent("FSP does not answer", self.state):
            self.chip.clock.wait_until(
                self._has_reply, unit="FSP", waiting_for="its reply", limit_s=_LIMIT_S
            )
        self._check(kind, self._read())

    def _write(self, packet: bytes) -> None:
        if len(packet) > _MOST_BYTES or len(packet) % 4:
            raise BadArgument("the message must be whole words of one packet", size=len(packet))
        regs = self.regs
        regs.NV_PFSP_EMEMC0.write(AINCW=1)
        for (word,) in struct.iter_unpack("<I", packet):
            regs.NV_PFSP_EMEMD0.write(word)
        # ORDER: the tail first; writing the head announces the message.
        regs.NV_PFSP_QUEUE_TAIL0.write(len(packet) - 4)
        regs.NV_PFSP_QUEUE_HEAD0.write(0)

    def _queue(self, name: str) -> tuple[int, int]:
        """Read head and tail of a queue."""
        head, tail = (int(self.regs[f"NV_PFSP_{name}_{end}0"].read()) for end in ("HEAD", "TAIL"))
        return head, tail

    def _has_reply(self) -> bool:
        head, tail = self._queue("MSGQ")
        return head != tail

    def _read(self) -> tuple[int, ...]:
        """Take the reply out of the mailbox, as words."""
        regs, (head, tail) = self.regs, self._queue("MSGQ")
        size = tail - head + 4
        if size < 4 * _REPLY_WORDS or size > _MOST_BYTES:
            raise FirmwareError("FSP's reply has an impossible size", size=size)
        regs.NV_PFSP_EMEMC0.write(AINCR=1)
        words = tuple(int(regs.NV_PFSP_EMEMD0.read()) for _ in range(_REPLY_WORDS))
        regs.NV_PFSP_MSGQ_TAIL0.write(0)
        regs.NV_PFSP_MSGQ_HEAD0.write(0)
        return words

    def _check(self, kind: int, words: tuple[int, ...]) -> None:
        packet, message, _, command, error = words
        if packet & _WHOLE != _WHOLE or message != _VENDOR | REPLY << 24 or command != kind:
            raise FirmwareError(
                "FSP's reply is not the one to the message",
                expected=f"{_VENDOR | REPLY << 24:#x} to {kind:#x}",
                found=f"{message:#x} to {command:#x}",
            )
        if error:
            raise FirmwareError(
                f"FSP refuses message {kind:#x} with error {error:#x}", status=error, **self.state()
            )

    def state(self) -> dict[str, object]:
        """Return what explains a failure."""
        first = self.regs.NV_PFSP_FALCON_COMMON_SCRATCH_GROUP_2.index
        return {
            "scratch": [f"{self.chip.bus.read32(first + number):#x}" for number in range(4)],
            "version": int(self.regs.NV_PFSP_VERSION.read().VALUE),
        }
