"""Code memory that is used again: what lay there before must not be fetched."""

from __future__ import annotations

from ugpu.virtual.amd.isa.translator.program import PAGE, Program

BASE = 0x2000_0000_0000


class Memory:
    """Code at BASE; fetches from behind it are faults of the chip."""

    def __init__(self, code: bytes) -> None:
        self.code = code
        self.faults: list[int] = []

    def fetch(self, address: int, size: int) -> bytes | None:
        pages = -(-len(self.code) // PAGE)
        if address + size > BASE + pages * PAGE:
            self.faults.append(address)
            return None
        padded = self.code.ljust(pages * PAGE, b"\0")
        return padded[address - BASE : address - BASE + size]


def test_a_shorter_program_where_a_longer_one_lay() -> None:
    old = bytes([1]) * (PAGE + 32)
    known = Program(BASE, 0, {}, ((0, old),))
    assert known.unchanged(Memory(old))
    shorter = Memory(bytes([2]) * 100)
    assert not known.unchanged(shorter)
    assert shorter.faults == []


def test_the_end_of_a_span_counts() -> None:
    old = bytes([1]) * (2 * PAGE + 32)
    known = Program(BASE, 0, {}, ((64, old[64:]),))
    assert known.unchanged(Memory(old))
    assert not known.unchanged(Memory(old[:-1] + b"\2"))
    assert not known.unchanged(Memory(old[:64] + b"\2" + old[65:]))
