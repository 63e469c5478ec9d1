"""Firmware images: found, unpacked, checked before use, cut into the right parts."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.am import chips
from ugpu.am.chip.remedies import PACKAGE
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.am.units.psp.images import FirmwareSet, load_firmware, parse_image
from ugpu.hcq.bare.firmware import FirmwareSource
from ugpu.hcq.errors import FirmwareInvalid, FirmwareNotFound

# common_firmware_header: size, header size, header major and minor, IP major and minor, version,
# payload size, payload offset, CRC (Linux 6.12 amdgpu_ucode.h)
COMMON = struct.Struct("<IIHHHHIIII")


def image(
    version: tuple[int, int], extra: bytes, payload: bytes, start: int | None = None, ip: int = 11
) -> bytes:
    """An image: common header, type-specific header, payload at `start` or right behind. ip: major
    version of the block."""
    head = COMMON.size + len(extra)
    start = head if start is None else start
    body = extra.ljust(start - COMMON.size, b"\0") + payload
    return (
        COMMON.pack(COMMON.size + len(body), head, *version, ip, 0, 0x42, len(payload), start, 0)
        + body
    )


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def sos(*parts: tuple[int, bytes]) -> bytes:
    extra, payload = words(len(parts)), b""
    for kind, content in parts:
        extra += words(kind, 1, len(payload), len(content))
        payload += content
    return image((2, 0), extra, payload, ip=13)


A, B, C, D, E, F = (bytes([letter]) * 64 for letter in b"ABCDEF")
# gfx v2.0: feature version, code size and offset, data size and offset, start address lo, hi
MEC = image((2, 0), words(0, 64, 60, 64, 60 + 64, 0x3000, 0x1), A + B)
SDMA = image((2, 0), words(0, 64, 0, 0, 64 + 64, 64, 0, 0), A + B, ip=6)
IMU = image((1, 0), words(64, 0, 64, 0), A + B)
# rlc v2.3: 32 words of v2.0 and v2.1, then iram, dram, rlcp, rlcv
_RLC_HEAD = 32 + 18 * 4 + 13 * 4 + 4 * 4 + 8 * 4
RLC = image(
    (2, 3),
    bytes(31 * 4)
    + words(64, _RLC_HEAD + 64, 64, _RLC_HEAD + 128)
    + words(0, 0, 64, _RLC_HEAD + 192, 0, 0, 64, _RLC_HEAD + 256),
    A + B + C + D + E,
)
SMU = image((2, 0), words(0, 0, 0), F, ip=13)
GOOD = {
    "psp_13_0_0_sos.bin": sos((1, A), (2, B), (3, C), (4, D)),
    "smu_13_0_0.bin": SMU,
    "sdma_6_0_0.bin": SDMA,
    "gc_11_0_0_mec.bin": MEC,
    "gc_11_0_0_imu.bin": IMU,
    "gc_11_0_0_rlc.bin": RLC,
}


def parsed(name: str, data: bytes) -> FirmwareSet:
    found = FirmwareSet()
    parse_image(name, data, found)
    return found


def test_container_components_by_type() -> None:
    assert parsed("psp_13_0_0_sos.bin", GOOD["psp_13_0_0_sos.bin"]).boot == {1: A, 2: B, 3: C, 4: D}


def test_compute_engine_parts() -> None:
    found = parsed("gc_11_0_0_mec.bin", MEC)
    assert found.starts == {"mec": 0x1_0000_3000}
    assert found.parts["rs64_mec"] == A
    assert all(found.parts[f"rs64_mec_p{pipe}_stack"] == B for pipe in range(4))


def test_copy_engine_parts() -> None:
    found = parsed("sdma_6_0_0.bin", SDMA)
    assert found.parts == {"sdma_ucode_th0": A, "sdma_ucode_th1": B}


def test_rlc_parts() -> None:
    found = parsed("gc_11_0_0_rlc.bin", RLC).parts
    assert found["rlc_iram"] == B and found["rlc_dram_boot"] == C
    assert found["rlc_p"] == D and found["rlc_v"] == E
    assert found["rlc_g"] == A + B + C + D + E


def test_imu_parts() -> None:
    assert parsed("gc_11_0_0_imu.bin", IMU).parts == {"imu_i": A, "imu_d": B}


def test_a_whole_set_for_the_chip() -> None:
    found = load_firmware(FirmwareSource(PACKAGE, GOOD), NAVI31)
    assert found.parts["smu"] == F
    assert {name for _, name in NAVI31.generation.ip_firmware} <= set(found.parts)


def test_names_may_have_the_folder_in_front() -> None:
    source = FirmwareSource(PACKAGE, {f"amdgpu/{name}": data for name, data in GOOD.items()})
    assert load_firmware(source, NAVI31).boot[1] == A


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_missing_image_is_named(name: str) -> None:
    rest = {key: data for key, data in GOOD.items() if key != name}
    with pytest.raises(FirmwareNotFound, match=name):
        load_firmware(FirmwareSource(PACKAGE, rest), NAVI31)


@pytest.mark.parametrize("version", [(2, 7), (7, 0)])
@pytest.mark.parametrize("name", sorted(GOOD))
def test_an_unknown_header_version_is_refused(name: str, version: tuple[int, int]) -> None:
    head = bytearray(GOOD[name])
    struct.pack_into("<HH", head, 8, *version)
    with pytest.raises(FirmwareInvalid, match="version"):
        parsed(name, bytes(head))


def test_a_container_without_secure_os() -> None:
    images = GOOD | {"psp_13_0_0_sos.bin": sos((2, B), (3, C))}
    with pytest.raises(FirmwareInvalid, match="secure OS"):
        load_firmware(FirmwareSource(PACKAGE, images), NAVI31)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_an_image_with_more_behind_it_is_refused(name: str) -> None:
    with pytest.raises(FirmwareInvalid, match="size stated in the header"):
        parsed(name, GOOD[name] + b"\0")


@pytest.mark.parametrize("name", sorted(GOOD))
@pytest.mark.parametrize("keep", [0, 8, 31, 40, -1])
def test_a_truncated_image_is_refused(name: str, keep: int) -> None:
    with pytest.raises(FirmwareInvalid):
        parsed(name, GOOD[name][:keep])


@pytest.mark.parametrize("name", sorted(GOOD))
@given(data=st.data())
def test_damaged_headers_are_refused_or_harmless(name: str, data: st.DataObject) -> None:
    """Whatever the header says, parts lie inside the image or it is FirmwareInvalid."""
    damaged = bytearray(GOOD[name])
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, min(len(damaged), _RLC_HEAD) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    try:
        found = parsed(name, bytes(damaged))
    except FirmwareInvalid as error:
        assert error.facts["name"] == name
        return
    for part in [*found.parts.values(), *found.boot.values()]:
        assert part and part in bytes(damaged)


@given(name=st.sampled_from(sorted(GOOD)), data=st.binary(max_size=300))
def test_noise_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(FirmwareInvalid):
        parsed(name, data)


@pytest.mark.parametrize("name", sorted(GOOD))
def test_an_image_for_another_generation_is_refused(name: str) -> None:
    """The header has the major version of the block."""
    head = bytearray(GOOD[name])
    struct.pack_into("<H", head, 12, 10)
    with pytest.raises(FirmwareInvalid, match=rf"{name}: expected an image .* found one .* 10"):
        load_firmware(FirmwareSource(PACKAGE, GOOD | {name: bytes(head)}), NAVI31)


@pytest.mark.parametrize("chip", chips.names())
@pytest.mark.parametrize(
    ("name", "version"),
    [("psp_13_0_0_sos.bin", 0x1234), ("smu_13_0_0.bin", 0x7500), ("gc_11_0_0_imu.bin", 0x4B00)],
)
def test_an_image_for_another_chip_is_refused_by_its_version(
    name: str, version: int, chip: str
) -> None:
    facts, head = chips.facts_of(chip), bytearray(GOOD[name])
    stem = name.replace("_13_0_0", "_{}").replace("_11_0_0", "_{}")
    struct.pack_into("<I", head, 16, facts.marks[stem] << 16 | version)
    source = FirmwareSource(PACKAGE, GOOD | {name: bytes(head)})
    if facts is NAVI31:
        assert load_firmware(source, NAVI31).versions[name] >> 16 == facts.marks[stem]
        return
    with pytest.raises(FirmwareInvalid, match=f"expected an image for Navi31, .* {facts.title}"):
        load_firmware(source, NAVI31)
