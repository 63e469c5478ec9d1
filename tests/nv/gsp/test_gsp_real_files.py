"""Headers of the real firmware files, if Debian's package firmware-nvidia-graphics is installed.

Only containers are read: the licence allows no more without a GPU of NVIDIA's. UGPU_FIRMWARE names
a folder that holds `nvidia`, for example of the unpacked package.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.state.config import config
from ugpu.nv.chips import boot_facts
from ugpu.nv.gsp.boot.files import PACKAGE, read_files

# Sizes measured with another reader: image, boot loader; of booter_load: data, code and data parts,
# signature's place, number of signatures; engines and ucode id.
MEASURED = {
    ("ad102", "570.144"): (0x3C99000, 0x9000, 0xDE00, 0x7E00, 0x6000, 0x7E10, 2, 1, 3),
    ("ad102", "535.113.01"): (0x2448000, 0x8000, 0xD700, 0x7700, 0x6000, 0x7710, 2, 1, 3),
    ("ga102", "570.144"): (0x3C99000, 0x6000, 0xEC00, 0x8A00, 0x6200, 0x8A10, 2, 1, 3),
    ("ga102", "535.113.01"): (0x2448000, 0x5000, 0xE600, 0x8400, 0x6200, 0x8410, 2, 1, 3),
    ("tu102", "570.144"): (0x1B34EA0, 0x1000, 0xE700, 0x8500, 0x6200, 0x8700, 1, 1, 13),
    ("ga100", "570.144"): (0x1B34EA0, 0x1000, 0xEB00, 0x8700, 0x6400, 0x8900, 1, 1, 3),
    ("gh100", "570.144"): (0x3C99000, 0x29000),
    ("gb202", "570.144"): (0x3C99000, 0x31000),
}


@pytest.fixture(scope="module")
def source() -> FirmwareSource:
    folders = config().firmware_folders
    if not any((folder / "nvidia/ga102/gsp").is_dir() for folder in folders):
        pytest.skip("package firmware-nvidia-graphics is not installed")
    return FirmwareSource(PACKAGE, None, folders)


@pytest.mark.slow
@pytest.mark.parametrize(("chip", "release"), MEASURED)
def test_headers_of_the_real_files(source: FirmwareSource, chip: str, release: str) -> None:
    boot = boot_facts(chip)
    assert boot is not None
    found = read_files(source, replace(boot, releases=(release,)))
    numbers = [len(found.gsp.image), len(found.boot_loader.data)]
    load = found.load
    if load is not None:
        assert load.application[0] == 0x100
        numbers += [len(load.data), sum(load.application), load.contents[1], load.signature_at]
        numbers += [len(load.signatures), load.engines, load.ucode]
    assert tuple(numbers) == MEASURED[chip, release]
