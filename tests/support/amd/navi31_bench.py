"""Drives a virtual Navi31 by register sequences written down from the documents, not by a driver.

Every index, bit and sequence here is typed from the public headers and the kernel's order, so that
a wrong generated map or a driver's misreading cannot agree with the model by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.waiting import until
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.virtual.amd.bus.pci import VirtualTransport
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.firmware.images import synthetic_set
from ugpu.virtual.amd.options import ChipOptions

GC, MMHUB, NBIO, MP, IH = 0x1260, 0x1A000, 0xD20, 0x16000, 0x10A0
# gc_11_0_0_offset.h and mmhub_3_0_0_offset.h, segment 0.
HUBS = {
    "gc": {
        "base": GC,
        "CONTEXT0_CNTL": 0x1688,
        "PAGE_TABLE_BASE": 0x16F3,
        "PAGE_TABLE_START": 0x1713,
        "PAGE_TABLE_END": 0x1733,
        "ENG17_SEM": 0x16AA,
        "ENG17_REQ": 0x16BC,
        "ENG17_ACK": 0x16CE,
        "ENG17_RANGE": 0x16CF + 34,
        "FAULT_CNTL": 0x15C4,
        "FAULT_STATUS": 0x15C8,
        "FAULT_ADDR": 0x15C9,
        "AGP_TOP": 0x167A,
        "APERTURE_LOW": 0x167D,
        "L1_TLB": 0x167F,
        "FB_BASE": 0x1678,
    },
    "mmhub": {
        "base": MMHUB,
        "CONTEXT0_CNTL": 0x0740,
        "PAGE_TABLE_BASE": 0x07AB,
        "PAGE_TABLE_START": 0x07CB,
        "PAGE_TABLE_END": 0x07EB,
        "ENG17_SEM": 0x0762,
        "ENG17_REQ": 0x0774,
        "ENG17_ACK": 0x0786,
        "ENG17_RANGE": 0x0787 + 34,
        "FAULT_CNTL": 0x0708,
        "FAULT_STATUS": 0x070C,
        "FAULT_ADDR": 0x070D,
        "AGP_TOP": 0x08EE,
        "APERTURE_LOW": 0x08F1,
        "L1_TLB": 0x08F3,
        "FB_BASE": 0x08EC,
    },
}
FRAME_BUFFER = 0x80_0000_0000
STAGING = 0x10_0000  # offset in VRAM of the 1 MiB buffer for firmware
RING, COMMAND, FENCE = 0x20_0000, 0x20_1000, 0x20_2000
TMR = 0x80_0000
SMALL = 256 << 20


def options(**changes: Any) -> ChipOptions:  # the fields of ChipOptions
    """Options for tests: 256 MB of VRAM, little noise, time that moves by hand."""
    defaults: dict[str, Any] = {"vram": SMALL, "noise": 4 << 20, "manual_time": True}
    return ChipOptions(**(defaults | changes))


class Bench:
    """A chip, a transport, and the steps of bring-up as bare register accesses."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.transport = VirtualTransport(chip)
        self.registers = self.transport.window(5)
        self.vram = self.transport.window(0)
        self.firmware = synthetic_set(NAVI31, 7)
        self._fence = 0

    # ---- accesses -----------------------------------------------------------------------------

    def read(self, index: int) -> int:
        """Read a register by dword index."""
        return self.registers.read32(index * 4)

    def write(self, index: int, value: int) -> None:
        """Write a register by dword index."""
        self.registers.write32(index * 4, value)

    def psp(self, number: int) -> int:
        """The index of MP0_SMN_C2PMSG_n (mp_13_0_0_offset.h)."""
        return MP + 0x40 + number

    def smu(self, number: int) -> int:
        """The index of MP1_SMN_C2PMSG_n."""
        return MP + 0x240 + number

    def hub(self, hub: str, name: str) -> int:
        """The index of a hub's register."""
        return HUBS[hub]["base"] + HUBS[hub][name]

    def flush_hdp(self) -> None:
        """Write to the place that BIF_BX0_REMAP_HDP_MEM_FLUSH_CNTL names."""
        self.registers.write32(self.read(NBIO + 0x12D), 0)

    def pass_time(self, seconds: float = 1.0) -> None:
        """Let the chip's firmware work; with the chip's own clock, until it has nothing to do."""
        if self.chip.options.manual_time:
            self.chip.scheduler.advance(seconds)
            return
        until(lambda: self.chip.scheduler.idle, "the firmware to come to rest")

    # ---- steps --------------------------------------------------------------------------------

    def enable(self) -> None:
        """Memory space and bus master on; then the board firmware finishes."""
        self.transport.config_write(4, 0x6, 2)
        self.pass_time()

    def open_hub(self, hub: str) -> None:
        """System aperture over VRAM, AGP off, L1 TLB on with access mode 3, ranges all."""
        top = FRAME_BUFFER + self.chip.vram.size - 1
        self.write(self.hub(hub, "AGP_TOP"), 0)
        self.write(self.hub(hub, "AGP_TOP") + 1, 0xFFFFFF)
        self.write(self.hub(hub, "APERTURE_LOW"), FRAME_BUFFER >> 18)
        self.write(self.hub(hub, "APERTURE_LOW") + 1, top >> 18)
        self.write(self.hub(hub, "L1_TLB"), 1 | 3 << 3 | 1 << 6 | 3 << 11)
        self.write(self.hub(hub, "ENG17_RANGE"), 0xFFFF_FFFF)
        self.write(self.hub(hub, "ENG17_RANGE") + 1, 0x1F)

    def boot_part(self, kind: int) -> bytes:
        """One component of the SOS container, by its type."""
        image = self.firmware["psp_13_0_0_sos.bin"]
        count = struct.unpack_from("<I", image, 32)[0]
        for entry in range(count):
            number, _, offset, size = struct.unpack_from("<IIII", image, 36 + 16 * entry)
            if number == kind:
                return image[256 + offset : 256 + offset + size]
        raise KeyError(kind)

    def load(self, command: int, image: bytes) -> int:
        """Hand a component to the boot loader; return what C2PMSG_35 says then."""
        self.vram.write(STAGING, image.ljust(1 << 20, b"\x00"))
        self.flush_hdp()
        self.write(self.psp(36), (FRAME_BUFFER + STAGING) >> 20)
        with self.chip.lock:  # the firmware has to wait, however slow we are
            self.write(self.psp(35), command)
            assert self.read(self.psp(35)) == command  # busy
        self.pass_time()
        return self.read(self.psp(35))

    def boot_secure_os(self) -> None:
        """All components in order."""
        for command, kind in (
            (0x80000, 3),
            (0x10000000, 3),
            (0x10000, 2),
            (0xB0000, 7),
            (0xD0000, 8),
            (0xC0000, 9),
            (0xE0000, 10),
            (0x20000, 1),
        ):
            assert self.load(command, self.boot_part(kind)) == 0x8000_0000
        assert self.read(self.psp(81)) != 0

    def create_ring(self, size: int = 0x1000) -> int:
        """Create the ring; return the answer."""
        self.write(self.psp(69), (FRAME_BUFFER + RING) & 0xFFFF_FFFF)
        self.write(self.psp(70), (FRAME_BUFFER + RING) >> 32)
        self.write(self.psp(71), size)
        self.write(self.psp(64), 2 << 16)
        self.pass_time()
        return self.read(self.psp(64))

    def command(self, number: int, *words: int, frames: int = 64) -> tuple[int, ...]:
        """Run one ring command; return status, session, address low and high, TMR size."""
        self._fence += 1
        buffer = bytearray(1024)
        struct.pack_into("<I", buffer, 8, number)
        struct.pack_into(f"<{len(words)}I", buffer, 28, *words)
        frame = struct.pack(
            "<QIQI", FRAME_BUFFER + COMMAND, 1024, FRAME_BUFFER + FENCE, self._fence
        ).ljust(64, b"\x00")
        pointer = self.read(self.psp(67))
        self.vram.write(COMMAND, bytes(buffer))
        self.vram.write32(FENCE, 0)
        self.vram.write(RING + 4 * pointer, frame)
        self.flush_hdp()
        with self.chip.lock:
            self.write(self.psp(67), (pointer + 16) % (frames * 16))
            assert self.vram.read32(FENCE) == 0
        self.pass_time()
        assert self.vram.read32(FENCE) == self._fence, "fence not written"
        return struct.unpack("<5I", self.vram.read(COMMAND + 864, 20))

    def load_firmware(self, number: int, image: bytes) -> int:
        """LOAD_IP_FW of one image; return the status."""
        self.vram.write(STAGING, image + bytes(-len(image) % 4))
        address = FRAME_BUFFER + STAGING
        return self.command(6, address & 0xFFFF_FFFF, address >> 32, len(image), number)[0]

    def parts(self) -> dict[int, bytes]:
        """All images for LOAD_IP_FW by psp_gfx_fw_type, cut out as amdgpu_ucode.h says."""
        files = self.firmware

        def cut(name: str, offset: int, size: int) -> bytes:
            return files[name][offset : offset + size]

        def word(name: str, at: int) -> int:
            return int(struct.unpack_from("<I", files[name], at)[0])

        sdma, mec = "sdma_6_0_0.bin", "gc_11_0_0_mec.bin"
        imu, rlc, smu = "gc_11_0_0_imu.bin", "gc_11_0_0_rlc.bin", "smu_13_0_0.bin"
        data = cut(mec, word(mec, 48), word(mec, 44))
        return {
            18: cut(smu, 256, word(smu, 20)),
            71: cut(sdma, 256, word(sdma, 36)),
            72: cut(sdma, word(sdma, 48), word(sdma, 52)),
            89: cut(mec, 256, word(mec, 36)),
            94: data,
            95: data,
            96: data,
            97: data,
            68: cut(imu, 256, word(imu, 32)),
            69: cut(imu, 256 + word(imu, 32), word(imu, 40)),
            26: cut(rlc, word(rlc, 160), word(rlc, 156)),
            48: cut(rlc, word(rlc, 168), word(rlc, 164)),
            25: cut(rlc, word(rlc, 184), word(rlc, 180)),
            7: cut(rlc, word(rlc, 200), word(rlc, 196)),
            8: cut(rlc, 256, word(rlc, 20)),
        }

    def setup_tmr(self) -> int:
        """LOAD_TOC, then SETUP_TMR of the size it answers; return the status of the latter."""
        toc = self.boot_part(4)
        self.vram.write(STAGING, toc)
        address = FRAME_BUFFER + STAGING
        answer = self.command(0x20, address & 0xFFFF_FFFF, address >> 32, len(toc))
        assert answer[0] == 0
        address = FRAME_BUFFER + TMR
        return self.command(
            5, address & 0xFFFF_FFFF, address >> 32, answer[4], 2, TMR & 0xFFFF_FFFF, TMR >> 32
        )[0]

    def boot(self) -> None:
        """Everything up to RLC autoload."""
        self.enable()
        self.open_hub("mmhub")
        self.boot_secure_os()
        assert self.create_ring() & 0x8000_FFFF == 0x8000_0000
        parts = self.parts()
        assert self.load_firmware(18, parts.pop(18)) == 0
        assert self.setup_tmr() == 0
        for number, image in parts.items():
            assert self.load_firmware(number, image) == 0, number
        assert self.command(0x21)[0] == 0

    def message(self, number: int, argument: int = 0) -> tuple[int, int]:
        """One SMU message by the book; return (response, argument register)."""
        assert self.read(self.smu(90)) != 0
        self.write(self.smu(90), 0)
        self.write(self.smu(82), argument)
        with self.chip.lock:
            self.write(self.smu(66), number)
            assert self.read(self.smu(90)) == 0  # busy
        self.pass_time()
        return self.read(self.smu(90)), self.read(self.smu(82))

    def invalidate(self, hub: str, vmid: int, flags: int = 0xF80000) -> bool:
        """Invalidate a VMID's translations on a hub; whether it was acknowledged."""
        if hub == "mmhub":
            while not self.read(self.hub(hub, "ENG17_SEM")) & 1:
                pass
        self.write(self.hub(hub, "ENG17_REQ"), 1 << vmid | flags)
        done = any(self.read(self.hub(hub, "ENG17_ACK")) >> vmid & 1 for _ in range(10))
        if hub == "mmhub":
            self.write(self.hub(hub, "ENG17_SEM"), 0)
        return done

    def close(self) -> None:
        """Detach and end the chip."""
        self.transport.close()
        self.chip.close()


@contextmanager
def bench(facts: ChipFacts = NAVI31, **changes: Any) -> Iterator[Bench]:
    """A bench over a new small chip; the engines are those that a test puts into it."""
    made = Bench(Chip(facts, options(**changes)))
    try:
        yield made
    finally:
        made.close()
