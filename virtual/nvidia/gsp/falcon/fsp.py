"""The FSP of Hopper and Blackwell: a mailbox with MCTP packets, and the chain of trust.

Sources: Linux 7.3.4 nouveau nvkm/subdev/fsp/{base,gh100,gb202}.c and nova-core fsp.rs;
open-gpu-kernel-modules 570.144 kern_fsp_gh100.c, fsp_nvdm_format.h, fsp_mctp_format.h,
kern_fsp_cot_payload.h, kern_fsp_retval.h, gspifpub.h.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
from functools import partial
from typing import TYPE_CHECKING

from ugpu.virtual.nvidia.gsp.falcon import chain, wpr
from ugpu.virtual.nvidia.gsp.falcon.core import PLANTED, Refused, refusing, require
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.gsp.firmware import images
from ugpu.virtual.nvidia.gsp.firmware.sign import problem

if TYPE_CHECKING:
    from ugpu.virtual.nvidia.gsp.card import Card

BASE, SIZE = 0x8F0000, 0x4000
_EMEM_CONTROL, _EMEM_DATA = 0x2AC0, 0x2AC4
_QUEUE_HEAD, _QUEUE_TAIL, _REPLY_HEAD, _REPLY_TAIL = 0x2C00, 0x2C04, 0x2C80, 0x2C84
_SCRATCH, _VERSION = range(0x320, 0x330, 4), 0x334
_EMEM = 1024
_INCREMENT_WRITE, _INCREMENT_READ = 1 << 24, 1 << 25
_START, _END = 1 << 31, 1 << 30
_VENDOR = 0x7E | 0x10DE << 8
COT, RESPONSE = 0x14, 0x15
PAYLOAD = 860
_FRTS_OFFSETS = {1: 0x20_0000, 2: 0x1C0_0000}  # from the end of memory, by version of the message


class FspError(enum.IntEnum):
    """Codes of a response (kern_fsp_retval.h)."""

    INVALID_STATE = 0x9E
    NOT_FOUND = 0x9F
    NOT_SUPPORTED = 0xA0
    INVALID_DATA = 0xA1


class Fsp:
    """The mailbox. The card's lock protects it."""

    def __init__(self, board: Card) -> None:
        self._board = board
        self.reset()

    def reset(self) -> None:
        """Enter the state after power-on."""
        self._emem = bytearray(_EMEM)
        self._control = 0
        self._registers: dict[int, int] = {}
        self._packets = b""
        self._next = 0  # sequence number of the packet that continues a message

    def stall(self) -> None:
        """Have a message in the queue that is not read: a planted fault."""
        self._registers[_QUEUE_TAIL] = PAYLOAD

    # Registers

    def read(self, offset: int) -> int | None:
        """Read a register; None if there is none."""
        if offset == _EMEM_CONTROL:
            return self._control
        if offset == _EMEM_DATA:
            at = self._control & 0xFFFC
            if self._control & _INCREMENT_READ:
                self._control += 4
            return int(struct.unpack_from("<I", self._emem, at)[0]) if at < _EMEM else 0
        if offset == _VERSION:
            return 1 << 8
        if offset in _SCRATCH or offset in (_QUEUE_HEAD, _QUEUE_TAIL, _REPLY_HEAD, _REPLY_TAIL):
            return self._registers.get(offset, 0)
        return None

    def write(self, offset: int, value: int) -> bool:
        """Write a register; return whether there is one."""
        if offset == _EMEM_CONTROL:
            self._control = value
        elif offset == _EMEM_DATA:
            at = self._control & 0xFFFC
            if at < _EMEM:
                struct.pack_into("<I", self._emem, at, value)
            else:
                self._board.violation(f"FSP: a packet goes past {_EMEM} bytes")
            if self._control & _INCREMENT_WRITE:
                self._control += 4
        elif offset in (_QUEUE_TAIL, _REPLY_HEAD, _REPLY_TAIL):
            self._registers[offset] = value
        elif offset == _QUEUE_HEAD:
            self._registers[offset] = value
            self._take()
        else:
            return False
        return True

    def _take(self) -> None:
        """Handle a packet: the host has written the queue's head."""
        where = self._registers
        head, tail = where.get(_QUEUE_HEAD, 0), where.get(_QUEUE_TAIL, 0)
        if where.get(_REPLY_HEAD, 0) != where.get(_REPLY_TAIL, 0):
            self._board.violation("FSP: a packet while a response was not taken")
        packet = bytes(self._emem[head : tail + 4])
        where[_QUEUE_HEAD] = where[_QUEUE_TAIL] = 0
        faults = self._board.faults
        if faults.take(CardFault.FSP_SILENT):
            return
        kind = packet[7] if len(packet) > 7 else 0
        with refusing(self._board, "FSP", partial(self._respond, kind)):
            refused = faults.take(CardFault.FSP_REFUSES)
            require(not refused, FspError.INVALID_STATE, PLANTED)
            message = self._join(packet)
            if message is not None:
                self._dispatch(message)
                self._respond(COT, 0)

    def _join(self, packet: bytes) -> bytes | None:
        """Collect a message's packets; return it, from its NVDM header on, once it is whole."""
        require(len(packet) >= 8, FspError.INVALID_DATA, f"a packet of {len(packet)} bytes")
        (head,) = struct.unpack_from("<I", packet)
        number = head >> 28 & 3
        if head & _START:
            self._packets, self._next = b"", 0
        follows = number == self._next
        require(follows, FspError.INVALID_DATA, f"packet {number}, expected {self._next}")
        self._packets += packet[4:]
        self._next = number + 1 & 3
        return self._packets if head & _END else None

    def _dispatch(self, message: bytes) -> None:
        (head,) = struct.unpack_from("<I", message)
        vendor, kind = head & 0x00FF_FFFF, head >> 24
        require(vendor == _VENDOR, FspError.INVALID_DATA, f"NVDM header {head:#x}")
        require(kind == COT, FspError.NOT_SUPPORTED, f"NVDM type {kind:#x} is not modelled")
        self._chain_of_trust(message[4:])

    def _respond(self, kind: int, error: int) -> None:
        faults = self._board.faults
        kind = kind - 1 if faults.take(CardFault.FSP_REPLY_KIND) else kind
        words = (_START | _END, _VENDOR | RESPONSE << 24, 0, kind, error)
        struct.pack_into("<5I", self._emem, 0, *words)
        size = 8 if faults.take(CardFault.FSP_REPLY_SIZE) else 4 * len(words)
        self._registers[_REPLY_HEAD], self._registers[_REPLY_TAIL] = 0, size - 4

    # Chain of trust

    def _chain_of_trust(self, payload: bytes) -> None:
        board, bad, size = self._board, FspError.INVALID_DATA, len(payload)
        require(size >= PAYLOAD, bad, f"a chain of trust of {size} bytes")
        trust = wpr.read("NVDM_PAYLOAD_COT", payload)
        version, offset, length = trust.version, trust.frtsVidmemOffset, trust.frtsVidmemSize
        stopped = not board.gsp.active and not board.wpr.up
        require(stopped, FspError.INVALID_STATE, "the GSP runs already, or WPR2 is set")
        text = f"version must be {board.boot.cot}, size {PAYLOAD}; are {version}, {trust.size}"
        require((version, trust.size) == (board.boot.cot, PAYLOAD), bad, text)
        on_card = not trust.frtsSysmemSize
        require(on_card, FspError.NOT_SUPPORTED, "FRTS in host memory is not modelled")
        resuming = board.sleeper is not None and not length
        below, given = _FRTS_OFFSETS[version], f"is {offset:#x}, {length:#x}"
        text = f"FRTS must be {below:#x} below the end of memory, with 0x100000 bytes; {given}"
        require(resuming or (offset, length) == (below, chain.FRTS_SIZE), bad, text)
        fields = (bytes(trust[name]) for name in ("hash384", "publicKey", "signature"))
        self._verify(board.bus_read(trust.gspFmcSysmemOffset, images.FMC_SIZE), *fields)
        # The FMC refuses after the FSP has accepted it: its code is in the GSP's mailbox.
        with refusing(board, "FMC", self._fail_fmc):
            require(not board.faults.take(CardFault.FMC_FAILS), 0x7F, PLANTED)
            below = 0 if resuming else offset
            chain.start(board, trust.gspBootArgsSysmemOffset, board.memory_size - below)

    def _fail_fmc(self, code: int) -> None:
        self._board.gsp.answer(code)
        self._board.release(lockdown=False)

    def _verify(self, fmc: bytes | None, digest: bytes, key: bytes, signature: bytes) -> None:
        facts = self._board.boot
        if fmc is None:
            raise Refused(FspError.NOT_FOUND, "the FMC cannot be read")
        expected, size = images.fmc_key(facts)
        bad, same = FspError.INVALID_DATA, key.rstrip(b"\0") == expected.rstrip(b"\0")
        require(same, bad, "the public key is not this chip's")
        matches = hmac.compare_digest(hashlib.sha384(fmc).digest(), digest)
        require(matches, bad, "the hash does not match the FMC")
        why = problem(signature[:size], images.FMC_TERMS, fmc)
        require(not why, bad, f"the FMC: {why}")
