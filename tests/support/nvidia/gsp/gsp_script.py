"""A script that boots a register-level NVIDIA card, in the order that Linux's nouveau documents.

It is no driver: it knows the model's synthetic firmware, polls without limits that matter on
hardware, and lets tests change each thing that it writes. Source: Linux 6.12 and 7.3.4
drivers/gpu/drm/nouveau/nvkm/{falcon,subdev/gsp}; open-gpu-kernel-modules 570.144.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from ugpu.virtual.bus.dma import HostMemory
from ugpu.virtual.nvidia.gsp.bus.pci import VirtualTransport
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.firmware.images import synthetic_set

GSP, SEC2, PAGE, MIB = 0x110000, 0x840000, 0x1000, 1 << 20
SYSTEM_INFO = {"535.113.01": 0x298, "570.144": 0x3A0}
STATIC_INFO = {"535.113.01": 0x878, "570.144": 0x678}
ARGUMENTS = {"535.113.01": 0x50, "570.144": 0x48}
ROOT = {"535.113.01": 0x6C, "570.144": 0x78}
FRTS, SB = 0x15, 0x19
_POLLS = 1000


class Message(NamedTuple):
    """What the GSP sent."""

    function: int
    result: int
    body: bytes
    sequence: int


class Script:
    """The boot of one card, step by step; `boot` takes all. Tests change its attributes between."""

    def __init__(self, card: Card, version: str = "570.144") -> None:
        self.card = card
        self.version = version
        self.transport = VirtualTransport(card)
        self.transport.config_write(4, 6, 2)
        self.regs = self.transport.window(0)
        self.files = {
            name.rpartition("/")[2].split("-")[0]: image
            for name, image in synthetic_set(card.facts.name, version).items()
        }
        self.family = card.boot.signature
        self.meta: dict[str, int] = {}
        self.sequence = self.sent = 0
        self.pointer = 0  # of the status queue
        self.events: list[Message] = []
        self.libos: HostMemory | None = None
        self.memory = card.memory_size
        self.commands: list[tuple[int, ...]] = []

    def close(self) -> None:
        """Detach."""
        self.transport.close()

    def boot(self) -> None:
        """Take all steps until INIT_DONE."""
        self.power_on()
        self.layout()
        self.arguments()
        self.send(72, bytes(SYSTEM_INFO[self.version]))
        self.send(73, self.registry())
        self.fwsec(FRTS)
        self.to_riscv()
        self.booter("booter_load", self.meta_at)
        self.until(0x1001)

    # Registers

    def read(self, offset: int) -> int:
        return self.regs.read32(offset)

    def write(self, offset: int, value: int) -> None:
        self.regs.write32(offset, value & 0xFFFF_FFFF)

    def poll(self, offset: int, mask: int, value: int) -> None:
        """Read a register until it has a value."""
        for _ in range(_POLLS):
            if self.read(offset) & mask == value:
                return
        raise AssertionError(f"{offset:#x} & {mask:#x} is not {value:#x}")

    def power_on(self) -> None:
        self.poll(0x118234, 0xFF, 0xFF)

    def host(self, content: bytes, size: int = 0) -> HostMemory:
        """Put content into memory of the host that is contiguous on the bus."""
        memory = self.transport.allocate_dma(max(size, len(content)), contiguous=True)
        memory.view[: len(content)] = content
        return memory

    # Firmware

    def section(self, name: str) -> bytes:
        """Return a section of the GSP's ELF file."""
        raw = self.files["gsp"]
        (table,) = struct.unpack_from("<Q", raw, 0x28)
        count, names = struct.unpack_from("<2H", raw, 0x3C)
        heads = [struct.unpack_from("<IIQQQQ", raw, table + 64 * i) for i in range(count)]
        for head in heads:
            at = heads[names][4] + head[0]
            if raw[at : raw.index(b"\0", at)].decode() == name:
                return raw[head[4] : head[4] + head[5]]
        raise AssertionError(name)

    def layout(self) -> None:
        """Place everything in video memory, from the top down, and describe it."""
        image, signature = self.section(".fwimage"), self.section(f".fwsignature_{self.family}")
        loader = self.files["bootloader"]
        head, at, size = struct.unpack_from("<3I", loader, 12)
        words = struct.unpack_from("<14I", loader, head)
        boot = loader[at : at + size]
        end = self.memory - MIB
        frts = end - MIB
        binary = (frts - len(boot)) & ~0xFFF
        firmware = (binary - len(image)) & ~0xFFFF
        heap = (firmware - 129 * MIB) & ~(MIB - 1)
        start = (heap - 0x100) & ~(MIB - 1)
        self.image = self.host(image)
        self.radix = self.radix3(self.image, len(image))
        self.meta = {
            "magic": 0xDC3AAE21371A60B3, "revision": 1, "image": self.radix,
            "image_size": len(image), "loader": self.host(boot).segments[0].address,
            "loader_size": len(boot), "code": words[12], "data": words[10], "manifest": words[8],
            "signature": self.host(signature).segments[0].address,
            "signature_size": len(signature), "reserved": start - MIB, "other": start - MIB,
            "other_size": MIB, "start": start, "heap": heap,
            "heap_size": (firmware - heap) & ~(MIB - 1), "firmware": firmware, "boot": binary,
            "frts": frts, "frts_size": MIB, "end": end, "memory": self.memory, "vga": end,
            "vga_size": MIB,
        }  # fmt: skip
        self.frts_words = [1, 20, frts >> 12, 0x100, 2]

    def radix3(self, memory: HostMemory, size: int) -> int:
        pages = [memory.segments[0].address + at for at in range(0, size, PAGE)]
        for _ in range(3):
            table = b"".join(page.to_bytes(8, "little") for page in pages)
            held = self.host(table, -(-len(table) // PAGE) * PAGE)
            pages = [held.segments[0].address + at for at in range(0, len(table), PAGE)]
        return pages[0]

    @property
    def meta_at(self) -> int:
        """Write the metadata; return its address."""
        raw = struct.pack(f"<{len(self.meta)}Q", *self.meta.values())
        return self.host(raw, PAGE).segments[0].address

    def arguments(self) -> None:
        """Make the queues, and what the GSP is started with."""
        self.shared = self.host(b"", 129 * PAGE)
        base = self.shared.segments[0].address
        view = self.shared.view
        view[: 8 * 129] = b"".join((base + PAGE * i).to_bytes(8, "little") for i in range(129))
        view[PAGE : PAGE + 32] = struct.pack("<8I", 0, 0x40000, PAGE, 63, 0, 1, 0x20, PAGE)
        block = struct.pack("<QIIQQ", base, 129, 0, PAGE, PAGE + 0x40000)
        block = block.ljust(ARGUMENTS[self.version], b"\0")
        self.rm_arguments = self.host(block, PAGE)
        self.regions = [
            (name, self.host(b"", 0x10000).segments[0].address, 0x10000)
            for name in ("LOGINIT", "LOGINTR", "LOGRM")
        ]
        self.regions.append(("RMARGS", self.rm_arguments.segments[0].address, PAGE))
        self.libos = self.host(b"", PAGE)

    def write_libos(self) -> int:
        """Write the libos arguments; return their address."""
        assert self.libos is not None
        for index, (name, address, size) in enumerate(self.regions):
            number = int.from_bytes(name.encode(), "big")
            entry = struct.pack("<QQQBB6x", number, address, size, 1, 1)
            self.libos.view[32 * index : 32 * index + 32] = entry
        return self.libos.segments[0].address

    def registry(self) -> bytes:
        name = b"RMSecBusResetEnable\0"
        entry = struct.pack("<IB3xII", 24, 1, 1, 4)
        return struct.pack("<II", 24 + len(name), 1) + entry + name

    # Falcons

    def reset(self, base: int) -> None:
        self.write(base + 0x3C0, 1)
        self.write(base + 0x3C0, 0)
        self.poll(base + 0xF4, 1 << 12, 0)

    def load(
        self, base: int, address: int, code: tuple[int, int, int], data: tuple[int, int]
    ) -> None:
        """Load by DMA. code: offset in the image, size, virtual address; data: offset, size."""
        self.write(base + 0x624, 1 << 7)
        self.write(base + 0x10C, 0)
        self.write(base + 0x600, 5)
        for command, source, size, tag in (
            (0x614, address + code[0] - code[2], code[1], code[2]),
            (0x600, address + data[0], data[1], 0),
        ):
            self.write(base + 0x110, source >> 8)
            self.write(base + 0x128, source >> 40)
            for at in range(0, size, 256):
                self.write(base + 0x114, at)
                self.write(base + 0x11C, tag + at)
                self.write(base + 0x118, command)
                self.poll(base + 0x118, 2, 2)

    def start(self, base: int, words: tuple[int, int, int, int], mailbox: int) -> int:
        """Have the boot ROM start. words: signature, engine mask, program number, boot vector."""
        signature, engine, number, vector = words
        for offset, value in ((0x1210, signature), (0x119C, engine), (0x1198, number), (0x1180, 1)):
            self.write(base + offset, value)
        self.write(base + 0x40, mailbox)
        self.write(base + 0x44, mailbox >> 32)
        self.write(base + 0x104, vector)
        self.write(base + 0x100, 2)
        self.poll(base + 0x100, 1 << 4, 1 << 4)
        return self.read(base + 0x40)

    def rom(self) -> bytes:
        return b"".join(
            self.read(0x300000 + at).to_bytes(4, "little") for at in range(0, 0x4000, 4)
        )

    def fwsec(self, command: int) -> None:
        """Run FWSEC on the GSP's falcon."""
        rom = self.rom()
        bit = rom.index(b"\xff\xb8BIT\0")
        (table,) = struct.unpack_from("<I", rom, *struct.unpack_from("<H", rom, bit + 12 + 4))
        (at,) = struct.unpack_from("<I", rom, table + rom[table + 1] + 2)
        words = struct.unpack_from("<9I2xBBH", rom, at)
        whole, code, interface, data = words[0] >> 16, words[5], words[3], words[8]
        number, count, versions = words[9:]
        image = bytearray(rom[at + whole : at + whole + code + data])
        fuse = self.read(0x8241C0 + 4 * (number - 1)).bit_length()
        index = bin(versions & (1 << fuse) - 1).count("1")
        assert versions >> fuse & 1 and index < count
        signature = rom[at + 44 + 384 * index :][:384]
        entries = struct.unpack_from("<4I", image, code + interface + 4)
        mapper = code + entries[3]
        (where,) = struct.unpack_from("<I", image, mapper + 8)
        struct.pack_into("<I", image, mapper + 0x2C, command)
        struct.pack_into("<2IQ2I", image, code + where, 1, 24, 0, 0, 2)
        struct.pack_into("<5I", image, code + where + 24, *self.frts_words)
        image[code + words[2] : code + words[2] + 384] = signature
        self.fwsec_image = image
        self.run_fwsec((words[2], 0x400, number, 0), code, data)

    def run_fwsec(self, words: tuple[int, int, int, int], code: int, data: int) -> None:
        memory = self.host(bytes(self.fwsec_image))
        self.reset(GSP)
        self.write(GSP + 0x1668, 0)
        self.load(GSP, memory.segments[0].address, (0, code, 0), (code, data))
        self.start(GSP, words, 0)

    def to_riscv(self) -> None:
        """Reset the GSP into its RISC-V core, and give it the libos arguments."""
        address = self.write_libos()
        self.reset(GSP)
        self.write(GSP + 0x1668, 0x111)
        self.write(GSP + 0x40, address)
        self.write(GSP + 0x44, address >> 32)

    def booter(self, name: str, mailbox: int, *, signature: int | None = None) -> int:
        """Run a program of SEC2; return its mailbox 0. signature: which of the file's, if not the
        right one."""
        raw = self.files[name]
        head, at, size = struct.unpack_from("<3I", raw, 12)
        fields = struct.unpack_from("<9I", raw, head)
        place, _, count = (struct.unpack_from("<I", raw, fields[i])[0] for i in (2, 3, 6))
        version, engine, number = struct.unpack_from("<3I", raw, fields[4])
        load = struct.unpack_from("<9I", raw, fields[7])
        fuse = self.read(0x824140 + 4 * (number - 1)).bit_length()
        index = (version - fuse if fuse else count - 1) if signature is None else signature
        each = fields[1] // count
        image = bytearray(raw[at : at + size])
        image[place : place + each] = raw[fields[0] + each * index :][:each]
        memory = self.host(bytes(image))
        self.reset(SEC2)
        self.write(SEC2 + 0x1668, 0)
        code, data = (load[5], load[6], load[5]), (load[2], load[3])
        self.load(SEC2, memory.segments[0].address, code, data)
        return self.start(SEC2, (place - load[2], engine, number, load[5]), mailbox)

    # Messages

    def word(self, offset: int) -> int:
        return int(struct.unpack_from("<I", self.shared.view, offset)[0])

    def record(self, function: int, payload: bytes, **changes: int) -> bytes:
        """Return an element with one record; `changes` are fields of its headers."""
        fields: dict[str, Any] = {
            "version": 3 << 24, "signature": 0x43505256, "length": 0x20 + len(payload),
            "function": function, "result": 0xFFFF_FFFF, "private": 0xFFFF_FFFF,
            "sequence": self.sequence, "spare": 0, "number": self.sent, "count": 0, "checksum": 0,
            **changes,
        }  # fmt: skip
        names = ("version", "signature", "length", "function", "result", "private", "sequence")
        rpc = struct.pack("<8I", *(fields[name] for name in names), fields["spare"]) + payload
        count = fields["count"] or -(-(0x30 + len(rpc)) // PAGE)
        head = bytearray(0x30)
        struct.pack_into("<2I", head, 0x24, fields["number"], count)
        total = 0
        whole = bytes(head) + rpc
        for (quad,) in struct.iter_unpack("<Q", whole + bytes(-len(whole) % 8)):
            total ^= quad
        checksum = (total >> 32 ^ total & 0xFFFF_FFFF) ^ fields["checksum"]
        struct.pack_into("<I", head, 0x20, checksum)
        return (bytes(head) + rpc).ljust(-(-len(whole) // PAGE) * PAGE, b"\0")

    def put(self, element: bytes) -> None:
        """Put an element into the command queue and ring."""
        at = self.word(PAGE + 0x10)
        count = len(element) // PAGE
        for index in range(count):
            slot = 2 * PAGE + (at + index) % 63 * PAGE
            self.shared.view[slot : slot + PAGE] = element[PAGE * index : PAGE * (index + 1)]
        struct.pack_into("<I", self.shared.view, PAGE + 0x10, (at + count) % 63)
        self.sent += 1
        self.write(0x110C00, 0)

    def send(self, function: int, payload: bytes, **changes: int) -> None:
        """Send a message, in as many records as it needs."""
        room = 0x10000 - 0x30 - 0x20
        self.put(self.record(function, payload[:room], **changes))
        for at in range(room, len(payload), room):
            self.put(self.record(71, payload[at : at + room]))

    def receive(self) -> Message | None:
        """Take the next message, with its continuation."""
        status = PAGE + 0x40000
        if self.word(status + 0x10) == self.pointer:
            return None
        slots = self.shared.view
        first = bytes(slots[status + PAGE * (1 + self.pointer) :][:PAGE])
        count = int(struct.unpack_from("<I", first, 0x28)[0])
        parts = [
            bytes(slots[status + PAGE * (1 + (self.pointer + i) % 63) :][:PAGE])
            for i in range(count)
        ]
        whole = b"".join(parts)
        self.pointer = (self.pointer + count) % 63
        struct.pack_into("<I", slots, PAGE + 0x20, self.pointer)
        words = struct.unpack_from("<8I", whole, 0x30)
        return Message(words[3], words[4], whole[0x50 : 0x30 + words[2]], words[6])

    def until(self, function: int) -> Message:
        """Take messages until one of a function; run the sequencer on the way."""
        while (message := self.receive()) is not None:
            self.events.append(message)
            if message.function == 0x1002:
                self.run_sequencer(message.body)
            if message.function == function:
                return message
        raise AssertionError(f"no message {function:#x}; the GSP: {self.card.violations}")

    def run_sequencer(self, body: bytes) -> None:
        _, count = struct.unpack_from("<II", body)
        words = iter(struct.unpack_from(f"<{count}I", body, 0x28))
        operands = {0: 2, 1: 3, 2: 5, 3: 1, 4: 2}
        for opcode in words:
            values = tuple(next(words) for _ in range(operands[opcode]))
            self.commands.append((opcode, *values))
            if opcode == 0:
                self.write(*values)
            elif opcode == 1:
                self.write(values[0], self.read(values[0]) & ~values[1] | values[2])
            elif opcode == 2:
                self.poll(*values[:3])

    def call(self, function: int, payload: bytes) -> Message:
        """Make a call and wait for its reply."""
        self.sequence += 1
        self.send(function, payload)
        return self.until(function)

    def allocate(
        self, number: int, parent: int, handle: int, params: bytes = b"", client: int = 0xC1D00000
    ) -> tuple[int, bytes]:
        """GSP_RM_ALLOC: its status and parameters."""
        words = (client, parent, handle, number, 0, len(params), 0)
        reply = self.call(103, struct.pack("<7I4x", *words) + params)
        return struct.unpack_from("<I", reply.body, 16)[0], reply.body[0x20:]

    def control(
        self, number: int, handle: int, params: bytes, client: int = 0xC1D00000
    ) -> tuple[int, bytes]:
        """GSP_RM_CONTROL: its status and parameters."""
        words = (client, handle, number, 0, len(params), 0)
        reply = self.call(76, struct.pack("<6I", *words) + params)
        return struct.unpack_from("<I", reply.body, 12)[0], reply.body[0x18:]

    def free(self, handle: int, client: int = 0xC1D00000) -> int:
        """FREE: the result."""
        return self.call(10, struct.pack("<4I", client, 0, handle, 0)).result

    def unload(self) -> None:
        """Unload as nouveau does: the RPC, FWSEC-SB, booter_unload."""
        self.call(47, bytes(8))
        self.poll(GSP + 0x40, 0xFFFF_FFFF, 0x8000_0000)
        self.fwsec(SB)
        assert self.booter("booter_unload", 0xFF_0000_00FF) == 0
