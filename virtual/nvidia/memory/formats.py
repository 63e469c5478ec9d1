"""Encode and decode page table entries of MMU version 2 (Pascal to Ada) and 3 (Hopper, Blackwell).

Sources: open-gpu-kernel-modules 580.142, kernel-open/nvidia-uvm/hwref/*/dev_mmu.h, and
uvm_pascal_mmu.c, uvm_turing_mmu.c, uvm_hopper_mmu.c for what the kernel driver writes there.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

SIZE_4K, SIZE_64K, SIZE_2M = 1 << 12, 1 << 16, 1 << 21
PAGE_SIZES = (SIZE_2M, SIZE_64K, SIZE_4K)

VIDEO, PEER, SYSTEM, SYSTEM_NONCOHERENT = range(4)  # apertures of a PTE
KIND_PITCH, KIND_GENERIC = 0, 6

READ, WRITE, ATOMIC = 1, 2, 4  # permission bits


class Pte(NamedTuple):
    """A valid leaf. address: bytes, in its aperture."""

    aperture: int
    address: int
    permissions: int
    cached: bool
    privileged: bool
    kind: int
    peer: int


class Level(NamedTuple):
    """One directory level: shift and width in bits of the index, bytes of an entry."""

    shift: int
    bits: int
    entry: int


class Format(Protocol):
    """A version of the page tables. `levels` ends with the dual directory (PDE0)."""

    @property
    def version(self) -> int: ...
    @property
    def address_bits(self) -> int: ...
    @property
    def levels(self) -> tuple[Level, ...]: ...
    def directory(self, table: int) -> int:
        """Return an entry that points to a directory or, as a half of PDE0, to a table in video
        memory."""
        ...

    def big_half(self, table: int) -> int: ...
    def directory_target(self, entry: int) -> int | None:
        """Return the video memory address in a directory entry; None if it is invalid."""
        ...

    def big_target(self, entry: int) -> int | None: ...
    def leaf(self, pte: Pte) -> int:
        """Encode a leaf, of any page size."""
        ...

    def advance(self, first: int, step: int, count: int) -> NDArray[np.uint64]:
        """Return `count` leaves, starting with `first`, each `step` bytes after the previous."""
        ...

    def parse(self, entry: int) -> Pte | None:
        """Decode a leaf; None if it is invalid."""
        ...

    def is_leaf(self, entry: int) -> bool:
        """Return whether an entry of PDE0 is a 2 MiB page."""
        ...


def _field(value: int, high: int, low: int) -> int:
    return value >> low & (1 << high - low + 1) - 1


class Version2:
    """Pascal to Ada: 49 bits of address."""

    version = 2
    address_bits = 49
    levels = (Level(47, 2, 8), Level(38, 9, 8), Level(29, 9, 8), Level(21, 8, 16))

    def directory(self, table: int) -> int:
        # IS_PDE (bit 0 clear), aperture 1 video, VOL, address >> 12 from bit 8
        return 1 << 1 | 1 << 3 | table >> 12 << 8

    def big_half(self, table: int) -> int:
        return 1 << 1 | 1 << 3 | table >> 8 << 4

    def directory_target(self, entry: int) -> int | None:
        return _field(entry, 32, 8) << 12 if _field(entry, 2, 1) == 1 else None

    def big_target(self, entry: int) -> int | None:
        return _field(entry, 32, 4) << 8 if _field(entry, 2, 1) == 1 else None

    def leaf(self, pte: Pte) -> int:
        entry = 1 | pte.aperture << 1 | (not pte.cached) << 3 | pte.privileged << 5
        entry |= (not pte.permissions & WRITE) << 6 | (not pte.permissions & ATOMIC) << 7
        entry |= pte.address >> 12 << 8 | pte.kind << 56
        if pte.aperture == PEER:
            entry |= pte.peer << 33
        return entry

    def advance(self, first: int, step: int, count: int) -> NDArray[np.uint64]:
        return np.uint64(first) + np.arange(count, dtype=np.uint64) * np.uint64(step >> 12 << 8)

    def parse(self, entry: int) -> Pte | None:
        if not entry & 1:
            return None
        aperture = _field(entry, 2, 1)
        high = 53 if aperture in (SYSTEM, SYSTEM_NONCOHERENT) else 32
        permissions = READ | (0 if entry >> 6 & 1 else WRITE) | (0 if entry >> 7 & 1 else ATOMIC)
        return Pte(
            aperture,
            _field(entry, high, 8) << 12,
            permissions,
            not entry >> 3 & 1,
            bool(entry >> 5 & 1),
            _field(entry, 63, 56),
            _field(entry, 35, 33) if aperture == PEER else 0,
        )

    def is_leaf(self, entry: int) -> bool:
        return bool(entry & 1)


class Version3:
    """Hopper and Blackwell: 57 bits of address, access rights as a PCF code."""

    version = 3
    address_bits = 57
    levels = (
        Level(56, 1, 8),
        Level(47, 9, 8),
        Level(38, 9, 8),
        Level(29, 9, 8),
        Level(21, 8, 16),
    )
    _ADDRESS = (1 << 52) - (1 << 12)

    def directory(self, table: int) -> int:
        # aperture 1 video, PCF 2: valid, cached, no ATS
        return 1 << 1 | 2 << 3 | table

    def big_half(self, table: int) -> int:
        return 1 << 1 | 2 << 3 | table

    def directory_target(self, entry: int) -> int | None:
        return entry & self._ADDRESS if _field(entry, 2, 1) == 1 else None

    def big_target(self, entry: int) -> int | None:
        return _field(entry, 51, 8) << 8 if _field(entry, 2, 1) == 1 else None

    def leaf(self, pte: Pte) -> int:
        code = (not pte.cached) | pte.privileged << 1
        code |= (not pte.permissions & WRITE) << 2 | (not pte.permissions & ATOMIC) << 3
        code |= 1 << 4  # ACD, as the kernel driver writes
        entry = 1 | pte.aperture << 1 | code << 3 | pte.kind << 8 | pte.address
        return entry | (pte.peer << 61 if pte.aperture == PEER else 0)

    def advance(self, first: int, step: int, count: int) -> NDArray[np.uint64]:
        return np.uint64(first) + np.arange(count, dtype=np.uint64) * np.uint64(step)

    def parse(self, entry: int) -> Pte | None:
        if not entry & 1:
            return None
        aperture = _field(entry, 2, 1)
        code = _field(entry, 7, 3)
        permissions = READ | (0 if code & 4 else WRITE) | (0 if code & 8 else ATOMIC)
        return Pte(
            aperture,
            entry & self._ADDRESS,
            permissions,
            not code & 1,
            bool(code & 2),
            _field(entry, 11, 8),
            _field(entry, 63, 61) if aperture == PEER else 0,
        )

    def is_leaf(self, entry: int) -> bool:
        return bool(entry & 1)


def format_of(version: int) -> Format:
    """Return the format of MMU version 2 or 3."""
    return Version2() if version == 2 else Version3()
