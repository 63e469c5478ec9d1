"""The boot script for chips with an FSP (Hopper, Blackwell): a chain-of-trust message instead of
falcon programs. Source: Linux 7.3.4 nouveau nvkm/subdev/{fsp,gsp}/gh100.c."""

from __future__ import annotations

import struct
from typing import Any

from tests.support.nvidia.gsp.gsp_script import GSP, MIB, PAGE, SYSTEM_INFO, Script
from ugpu.virtual.nvidia.gsp.card import Card

EMEM_CONTROL, EMEM_DATA = 0x8F2AC0, 0x8F2AC4
HEAD, TAIL, REPLY_HEAD, REPLY_TAIL = 0x8F2C00, 0x8F2C04, 0x8F2C80, 0x8F2C84
SINGLE, NVDM = 0xC000_0000, 0x7E | 0x10DE << 8 | 0x14 << 24
FRTS = {"gh100": 0x20_0000, "gb202": 0x1C0_0000}
OTHER_HEAP = {"gh100": 0x20_0000, "gb202": 0x22_0000}
PMU = {"gh100": 0, "gb202": 0x182_0000}


class FspScript(Script):
    """As Script. cot: fields of the message; params: of the FMC's boot parameters."""

    def __init__(self, card: Card, version: str = "570.144") -> None:
        super().__init__(card, version)
        name = card.facts.name
        sections = self.fmc_sections()
        self.image_of_fmc = self.host(sections["image"])
        self.pmu = PMU[name]
        self.cot: dict[str, Any] = {
            "version": card.boot.cot, "size": 860, "fmc": self.image_of_fmc.segments[0].address,
            "frts_sysmem": 0, "frts_sysmem_size": 0, "frts": FRTS[name], "frts_size": MIB,
            "hash": sections["hash"], "key": sections["publickey"],
            "signature": sections["signature"],
        }  # fmt: skip
        self.params: dict[str, int] = {"target": 1, "size": 0x100, "is_rm": 1, "rm_target": 2}
        self.heads = (SINGLE, NVDM)

    def fmc_sections(self) -> dict[str, bytes]:
        raw = self.files["fmc"]
        (table,) = struct.unpack_from("<I", raw, 0x20)
        heads = [struct.unpack_from("<10I", raw, table + 40 * i) for i in range(6)]
        names = raw[heads[1][4] : heads[1][4] + heads[1][5]]
        return {
            names[head[0] : names.index(b"\0", head[0])].decode(): raw[head[4] : head[4] + head[5]]
            for head in heads[2:]
        }

    def power_on(self) -> None:
        self.poll(self.card.boot.boot_done, 0xFF, 0xFF)

    def layout(self) -> None:
        super().layout()
        given = (
            "magic", "revision", "image", "image_size", "loader", "loader_size", "code", "data",
            "manifest", "signature", "signature_size", "frts_size", "vga_size",
        )  # fmt: skip
        self.meta = {key: value if key in given else 0 for key, value in self.meta.items()}
        self.meta |= {"heap_size": 0x8500000, "other_size": OTHER_HEAP[self.card.facts.name]}

    @property
    def meta_at(self) -> int:
        raw = bytearray(struct.pack(f"<{len(self.meta)}Q", *self.meta.values()).ljust(0x100, b"\0"))
        struct.pack_into("<I", raw, 0xF4, self.pmu)
        return self.host(bytes(raw), PAGE).segments[0].address

    def boot(self) -> None:
        self.power_on()
        self.layout()
        self.arguments()
        self.send(72, bytes(SYSTEM_INFO[self.version]))
        self.send(73, self.registry())
        assert self.trust() == 0
        self.release()
        self.until(0x1001)

    def release(self) -> None:
        """Wait until the GSP's registers are released."""
        while self.read(GSP + 0xF4) >> 8 == 0xBADF41:
            pass
        self.poll(GSP + 0xF4, 1 << 13, 0)
        assert self.read(GSP + 0x40) == 0 and self.read(0x111388) >> 7 & 1

    def trust(self) -> int:
        """Send the message; return the response's error."""
        fields = self.params
        raw = bytearray(0x50)
        struct.pack_into("<IIQ", raw, 8, fields["target"], fields["size"], self.meta_at)
        struct.pack_into("<B", raw, 0x24, fields["is_rm"])
        struct.pack_into("<I4xQ", raw, 0x28, fields["rm_target"], self.write_libos())
        arguments = self.host(bytes(raw), PAGE).segments[0].address
        payload = struct.pack("<HHQQIQI48s384s384sQ", *self.cot.values(), arguments)
        packet = struct.pack("<II", *self.heads) + payload
        self.write(EMEM_CONTROL, 1 << 24)
        for at in range(0, len(packet), 4):
            self.write(EMEM_DATA, int.from_bytes(packet[at : at + 4], "little"))
        assert self.read(EMEM_CONTROL) & 0xFFFC == len(packet)
        self.write(TAIL, len(packet) - 4)
        self.write(HEAD, 0)
        head, tail = self.read(REPLY_HEAD), self.read(REPLY_TAIL)
        assert (head, tail) == (0, 16)
        self.write(EMEM_CONTROL, 1 << 25)
        words = [self.read(EMEM_DATA) for _ in range(5)]
        self.write(REPLY_TAIL, 0)
        self.write(REPLY_HEAD, 0)
        assert words[0] == SINGLE and words[1] >> 24 == 0x15
        return words[4]

    def unload(self) -> None:
        self.call(47, bytes(8))
        self.poll(GSP + 0x40, 0xFFFF_FFFF, 0x8000_0000)
        self.poll(0x111388, 1 << 4, 1 << 4)
