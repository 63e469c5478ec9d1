"""The GSP's own firmware and, for chips with FSP, the program that starts it (FMC)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from ugpu.hcq.bare.firmware import Image
from ugpu.nv.gsp.images.elf_sections import check_sums, read_sections

SIGNATURE_SIZE = 0x1000
_MOST_IMAGE = 256 << 20  # ample: the largest, of 570.144, has 64 MB
_HASH_SIZE, _MOST_KEY = 48, 384
_SECTIONS = ("hash", "publickey", "signature", "image")


@dataclass(frozen=True)
class GspImage:
    """image: the firmware, copied page by page."""

    image: memoryview
    signature: bytes


def read_gsp(name: str, data: bytes, family: str, version: str) -> GspImage:
    """Read a file `gsp`. family: of the signature, "ad10x". version: the expected release.

    FirmwareInvalid if it is for other chips or another release: its interface would differ.
    """
    file, sections = Image(name, data), read_sections(name, data)
    need(file, sections, (".fwimage", ".fwversion"))
    label = bytes(sections[".fwversion"].data[:64]).partition(b"\0")[0].decode("ascii", "replace")
    text = f"expected firmware {version}, found {label!r}"
    file.check(label == version, text, found=label)
    wanted = f".fwsignature_{family}"
    have = [part for part in sections if part.startswith(".fwsignature_")]
    text = f"not signed for this chip: expected section {wanted}"
    file.check(wanted in have, text, found=", ".join(have) or "none")
    image, signature = sections[".fwimage"].data, bytes(sections[wanted].data)
    fits = 0 < len(signature) <= SIGNATURE_SIZE
    file.check(fits, f"the signature has {len(signature)} bytes")
    file.check(0 < len(image) <= _MOST_IMAGE, f"the firmware has {len(image)} bytes")
    return GspImage(image, signature)


def need(file: Image, sections: Container[str], names: Sequence[str]) -> None:
    """Raise FirmwareInvalid unless a file has all these sections."""
    for name in names:
        file.check(name in sections, f"section {name} is missing")


@dataclass(frozen=True)
class FmcImage:
    """The program that FSP checks and starts on the GSP."""

    image: bytes
    digest: bytes
    key: bytes
    signature: bytes


def read_fmc(name: str, data: bytes) -> FmcImage:
    """Read a file `fmc`; the CRC-32 of each section that states one is checked."""
    file, sections = Image(name, data), read_sections(name, data)
    need(file, sections, _SECTIONS)
    check_sums(name, sections)
    digest, key, signature, image = (bytes(sections[part].data) for part in _SECTIONS)
    valid = len(digest) == _HASH_SIZE and 0 < len(key) <= _MOST_KEY
    file.check(valid, "hash or key has an invalid size", hash=len(digest), key=len(key))
    file.check(image and 0 < len(signature) <= _MOST_KEY, "signature or image has an invalid size")
    return FmcImage(image, digest, key, signature)
