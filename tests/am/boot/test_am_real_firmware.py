"""The vendor's firmware files, where package firmware-amd-graphics is installed: each chip's are
checked, cut and laid out, and a virtual card takes exactly these parts.

UGPU_FIRMWARE names a folder that holds `amdgpu`, for example of the unpacked package. The model
cannot check the vendor's signatures: here its security processor compares what it gets with the
parts that `vendor_parts` cuts, a reader of its own (Linux 6.12 amdgpu_ucode.h and amdgpu_ucode.c).
"""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from tests.am.chips.test_am_chips import check_works
from ugpu.am import chips
from ugpu.am.chip.remedies import PACKAGE
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.device.device import open_device
from ugpu.am.units.psp.images import load_firmware
from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.errors import FirmwareInvalid
from ugpu.hcq.state.config import config
from ugpu.virtual.amd.firmware import psp, pspcommands
from ugpu.virtual.amd.firmware.images import HEADER
from ugpu.virtual.amd.gpu import attach, build_chip
from ugpu.virtual.amd.options import ChipOptions

COMPONENTS = {
    1: "SOS", 2: "SYS_DRV", 3: "KDB", 4: "TOC", 5: "SPL", 7: "SOC_DRV", 8: "INTF_DRV", 9: "DBG_DRV",
    10: "RAS_DRV", 11: "IPKEYMGR_DRV",
}  # fmt: skip
RLC = {"RLC_IRAM": 156, "RLC_DRAM": 164, "RLC_P": 180, "RLC_V": 196}  # places of size and offset
SINCE = {"RLC_IRAM": 2, "RLC_DRAM": 2, "RLC_P": 3, "RLC_V": 3}  # minor version of the header


def _source(facts: ChipFacts, *, kicker: bool) -> FirmwareSource:
    source = FirmwareSource(PACKAGE, None, config().firmware_folders)
    wanted = [facts.image(file, kicker=kicker) for file in facts.generation.firmware]
    if not any((folder / "amdgpu" / wanted[0]).is_file() for folder in config().firmware_folders):
        pytest.skip(f"{wanted[0]} is not installed (package firmware-amd-graphics)")
    return source


def vendor_parts(source: FirmwareSource, facts: ChipFacts, *, kicker: bool) -> dict[str, bytes]:
    """What the security processor is to get, by kind of image."""
    parts: dict[str, bytes] = {}
    for file in facts.generation.firmware:
        if file.optional:
            continue
        data = source.read(facts.image(file, kicker=kicker))
        minor, size, start = struct.unpack_from("<10xH8xII", data)
        words = struct.unpack_from("<8I", data, 32)
        stem = file.name.rpartition("{}_")[2].removesuffix(".bin")
        if stem == "sos":
            for at in range(36, 36 + 16 * words[0], 16):
                number, _, offset, length = struct.unpack_from("<4I", data, at)
                if number in COMPONENTS:
                    parts[COMPONENTS[number]] = data[start + offset :][:length]
        elif stem in ("mec", "pfp", "me"):
            parts[f"RS64_{stem.upper()}"] = data[start:][: words[1]]
            parts[f"RS64_{stem.upper()}_STACK"] = data[words[4] :][: words[3]]
        elif stem == "imu":
            parts["IMU_I"] = data[start:][: words[0]]
            parts["IMU_D"] = data[start + words[0] :][: words[2]]
        elif stem == "rlc":
            parts["RLC_G"] = data[start:][:size]
            for kind, at in RLC.items():
                if minor >= SINCE[kind]:
                    length, offset = struct.unpack_from("<II", data, at)
                    parts[kind] = data[offset:][:length]
        elif file.name.startswith("smu"):
            parts["SMU"] = data[start:][:size]
        elif facts.generation.name == "gfx12":
            parts["SDMA_TH0"] = data[start:][: words[2]]
        else:
            parts["SDMA_TH0"] = data[start:][: words[1]]
            parts["SDMA_TH1"] = data[words[4] :][: words[5]]
    return parts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kicker"),
    [
        (facts.name, kicker)
        for facts in chips.all_facts()
        for kicker in {False, bool(facts.kickers)}
    ],
)
def test_a_card_boots_with_the_vendor_s_files(
    name: str, kicker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cold and warm, with each part whole, of its kind, and once in the place that is named."""
    facts = chips.facts_of(name)
    source = _source(facts, kicker=kicker)
    parts = vendor_parts(source, facts, kicker=kicker)
    sizes = {part[:HEADER]: len(part) for part in parts.values()}
    taken: set[str] = set()

    def verify(kind: str, image: bytes) -> bool:
        if parts.get(kind) == image:
            taken.add(kind)
            return True
        return False

    monkeypatch.setattr(psp, "verify", verify)
    monkeypatch.setattr(pspcommands, "verify", verify)
    monkeypatch.setattr(psp, "image_size", sizes.get)
    version = load_firmware(source, facts, kicker=kicker).boot_versions[1]
    options = ChipOptions(vram=256 << 20, secure_os_version=version)
    board = build_chip(facts, options)
    for _ in ("cold", "warm"):
        attachment = replace(attach(name, board), firmware=None)
        transport = attachment.transport
        if kicker:
            device_id, revision = sorted(facts.kickers)[0]
            transport.identity = replace(transport.identity, device=device_id, revision=revision)
        with open_device(f"virtual:{name}", attachment) as device:
            check_works(device)
        # psp_v13_0.c passes the key database to the SPL step (Linux 6.12).
        assert taken == set(parts) - ({"SPL"} if facts.generation.name == "gfx11" else set())
    board.close()
    assert board.violations == []


@pytest.mark.parametrize("name", chips.names())
def test_files_of_another_chip_are_refused(name: str) -> None:
    """Under the chip's names, by the versions in their headers."""
    facts = chips.facts_of(name)
    source = _source(facts, kicker=False)
    good = {image: source.read(image) for image in facts.firmware_files if "toc" not in image}
    for other in chips.all_facts():
        if other is facts:
            continue
        for file in facts.generation.firmware:
            if not file.marked:
                continue
            image = _source(other, kicker=False).read(other.image(file))
            images = good | {facts.image(file): image}
            with pytest.raises(FirmwareInvalid, match=f"{facts.image(file)}: expected an image"):
                load_firmware(FirmwareSource(PACKAGE, images), facts)
