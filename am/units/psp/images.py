"""Firmware images: check them, and cut them into the parts the PSP takes.

Every image is checked before anything is sent: sizes and offsets against the file, header versions
against the known layouts. Layouts: Linux 6.12 amdgpu_ucode.h; meaning of the parts: amdgpu_ucode.c.
Sizes and offsets are bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ugpu.am import chips
from ugpu.am.chip import remedies as advice
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.chips.generations import FirmwareFile
from ugpu.am.regs import structs
from ugpu.hcq.bare import firmware
from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.errors import FirmwareInvalid, FirmwareNotFound
from ugpu.hcq.registers.layout import Layout, Struct

log = logging.getLogger(__name__)

_MOST_PIPES = 4


@dataclass
class FirmwareSet:
    """Checked parts by ugpu's names (see am/generations), and what else the boot needs.

    boot: PSP bootloader components by fw_type. starts: byte addresses at which the command
    processor's engines (MEC, and PFP and ME where they are loaded) start, by their names. versions:
    image name -> version, for people. boot_versions: as `boot`, versions of the components.
    """

    boot: dict[int, bytes] = field(default_factory=dict)
    parts: dict[str, bytes] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    boot_versions: dict[int, int] = field(default_factory=dict)


# ---- parsing -----------------------------------------------------------------------------------


class Image(firmware.Image):
    """One file with its common header checked. `header(name)` views it as a longer layout."""

    def __init__(self, name: str, data: bytes) -> None:
        super().__init__(name, data)
        self.common = self.header("common_firmware_header")
        stated, least = self.common.size_bytes, self.layout("common_firmware_header").size
        text = "the size stated in the header differs from the size of the file"
        self.check(stated == len(data), text, stated=stated)
        stated = self.common.header_size_bytes
        valid = least <= stated <= len(data)
        self.check(valid, "the header states an invalid header size", stated=stated)

    @property
    def version(self) -> tuple[int, int]:
        return self.common.header_version_major, self.common.header_version_minor

    def invalid(self, what: str, **facts: object) -> FirmwareInvalid:
        known = {"name": self.name, "size": len(self.data), "remedy": advice.FIRMWARE}
        return super().invalid(what, **known | facts)

    def layout(self, name: str) -> Layout[Struct]:
        return structs("amdgpu_ucode")[name]

    def header(self, name: str) -> Struct:
        layout = self.layout(name)
        return layout.view(self.cut(0, layout.size, f"its header {name}"))

    def expect(self, *versions: tuple[int, int]) -> None:
        text = "the version of the header is not supported"
        self.check(self.version in versions, text, found=self.version, known=versions)

    def part(self, offset: int, size: int, what: str) -> bytes:
        self.check(size > 0, f"{what} is empty", offset=offset)
        outside = offset < self.layout("common_firmware_header").size
        self.check(not outside, f"{what} lies in the header", offset=offset, length=size)
        return bytes(self.cut(offset, size, what))

    def payload(self) -> bytes:
        common = self.common
        return self.part(common.ucode_array_offset_bytes, common.ucode_size_bytes, "payload")


def parse_sos(image: Image, out: FirmwareSet) -> None:
    """Parse the PSP's container: bootloader components by fw_type."""
    image.expect((2, 0), (2, 1))
    name = f"psp_firmware_header_v2_{image.version[1]}"
    header = image.header(name)
    entry = image.layout("psp_fw_bin_desc")
    first = image.layout(name).size
    count = header.psp_fw_bin_count
    if not 1 <= count <= 64 or first + count * entry.size > len(image.data):
        raise image.invalid("the image states an invalid number of components", count=count)
    base = image.common.ucode_array_offset_bytes
    for position in range(count):
        part = entry.view(image.data, first + position * entry.size)
        if part.size_bytes:  # the first of a type counts; auxiliary sets follow on other chips
            content = image.part(base + part.offset_bytes, part.size_bytes, f"component {position}")
            out.boot.setdefault(part.fw_type, content)
            out.boot_versions.setdefault(part.fw_type, part.fw_version)


def parse_smu(image: Image, out: FirmwareSet) -> None:
    """Parse the SMU's image: one part."""
    image.expect((1, 0), (2, 0), (2, 1))
    out.parts["smu"] = image.payload()


def parse_toc(image: Image, out: FirmwareSet) -> None:
    out.parts["toc"] = image.payload()


def parse_sdma(image: Image, out: FirmwareSet) -> None:
    """Parse SDMA's image: the code of its two threads, or of one (gfx12)."""
    image.expect((2, 0), (3, 0))
    start = image.common.ucode_array_offset_bytes
    if image.version == (3, 0):
        header = image.header("sdma_firmware_header_v3_0")
        out.parts["sdma_ucode_th0"] = image.part(start, header.ucode_size_bytes, "code")
        return
    header = image.header("sdma_firmware_header_v2_0")
    out.parts["sdma_ucode_th0"] = image.part(start, header.ctx_ucode_size_bytes, "context thread")
    out.parts["sdma_ucode_th1"] = image.part(
        header.ctl_ucode_offset, header.ctl_ucode_size_bytes, "control thread"
    )


def _parse_engine(image: Image, out: FirmwareSet, engine: str) -> None:
    """Parse an engine's image: code, and data that each of its pipes has a copy of."""
    image.expect((2, 0))
    header = image.header("gfx_firmware_header_v2_0")
    start = image.common.ucode_array_offset_bytes
    out.parts[f"rs64_{engine}"] = image.part(start, header.ucode_size_bytes, "code")
    stack = image.part(header.data_offset_bytes, header.data_size_bytes, "data")
    for pipe in range(_MOST_PIPES):
        out.parts[f"rs64_{engine}_p{pipe}_stack"] = stack
    out.starts[engine] = header.ucode_start_addr_lo | header.ucode_start_addr_hi << 32


def parse_imu(image: Image, out: FirmwareSet) -> None:
    """Parse the IMU's image: instructions and data, one after the other."""
    image.expect((1, 0))
    header = image.header("imu_firmware_header_v1_0")
    start = image.common.ucode_array_offset_bytes
    out.parts["imu_i"] = image.part(start, header.imu_iram_ucode_size_bytes, "instructions")
    out.parts["imu_d"] = image.part(
        start + header.imu_iram_ucode_size_bytes, header.imu_dram_ucode_size_bytes, "data"
    )


# part name -> (stem of the size and offset fields, first minor version that has them)
_RLC_PARTS = {
    "rlc_iram": ("rlc_iram_ucode", 2),
    "rlc_dram_boot": ("rlc_dram_ucode", 2),
    "rlc_p": ("rlcp_ucode", 3),
    "rlc_v": ("rlcv_ucode", 3),
}


def parse_rlc(image: Image, out: FirmwareSet) -> None:
    """Parse the RLC's image, and those of its helpers that its version has."""
    image.expect((2, 2), (2, 3), (2, 4))
    minor = image.version[1]
    out.parts["rlc_g"] = image.payload()
    for name, (stem, since) in _RLC_PARTS.items():
        if minor < since:
            continue
        header = image.header(f"rlc_firmware_header_v2_{since}")
        size, offset = header[f"{stem}_size_bytes"], header[f"{stem}_offset_bytes"]
        out.parts[name] = image.part(offset, size, name)


_PARSERS: tuple[tuple[str, Callable[[Image, FirmwareSet], None]], ...] = (
    ("_sos", parse_sos),
    ("smu_", parse_smu),
    ("_toc.bin", parse_toc),
    ("sdma_", parse_sdma),
    ("_mec.bin", partial(_parse_engine, engine="mec")),
    ("_pfp.bin", partial(_parse_engine, engine="pfp")),
    ("_me.bin", partial(_parse_engine, engine="me")),
    ("_imu", parse_imu),
    ("_rlc", parse_rlc),
)


def parse_image(name: str, data: bytes, out: FirmwareSet) -> None:
    """Check image `name` and add its parts to `out`; FirmwareInvalid if anything is wrong."""
    image = Image(name, data)
    for mark, parser in _PARSERS:
        if mark in name:
            parser(image, out)
            out.versions[name] = image.common.ucode_version
            return
    raise image.invalid("this kind of image is not supported")


def check_owner(image: Image, file: FirmwareFile, facts: ChipFacts) -> None:
    """FirmwareInvalid for an image of another generation's block, or of another chip. One whose
    version has a mark that no chip has is left to the PSP."""
    if file.headers:
        image.expect(*file.headers)
    stated, own = image.common.ip_version_major, facts.versions[file.block][0]
    if stated != own:
        raise image.invalid(
            f"expected an image for {file.block} {own}, found one for {file.block} {stated}",
            expected=own,
            found=stated,
        )
    mark = image.common.ucode_version >> 16
    if not file.marked or mark == facts.marks.get(file.name):
        return
    for other in chips.all_facts():
        if other.marks.get(file.name) == mark:
            raise image.invalid(
                f"expected an image for {facts.title}, found one for {other.title}",
                expected=facts.title,
                found=other.title,
                version=image.common.ucode_version,
            )


def load_firmware(source: FirmwareSource, facts: ChipFacts, *, kicker: bool = False) -> FirmwareSet:
    """Read and check everything the chip needs; nothing is sent anywhere yet. kicker: the board is
    one of ChipFacts.kickers."""
    found, generation = FirmwareSet(), facts.generation
    for file in generation.firmware:
        name = facts.image(file, kicker=kicker)
        try:
            data = source.read(name)
        except FirmwareNotFound:
            if file.optional:
                continue
            raise
        check_owner(Image(name, data), file, facts)
        parse_image(name, data, found)
    needed = [name for _, name in (generation.smu_firmware, *generation.ip_firmware)]
    for part in needed:
        if part not in found.parts:
            raise FirmwareInvalid(f"expected part {part} in the images, found none", part=part)
    for what, _, kind in generation.boot_components:
        if kind not in found.boot:
            log.debug("bootloader component %s is not in the set; skipped", what)
    if generation.secure_os_type not in found.boot:
        raise FirmwareInvalid(
            "expected a secure OS in the PSP container, found none",
            fw_type=generation.secure_os_type,
        )
    return found
