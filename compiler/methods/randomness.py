"""Counter-based random numbers: each is a function of its number and a key, computed on the
device.

B. Widynski, "Squares: A Fast Counter-Based RNG", arXiv:2004.06278: four rounds of squaring that
exchange the halves of 64 bits. It uses integers only, so that every device returns the same
numbers.
"""

from __future__ import annotations

from typing import TypeVar

from ugpu.compiler.methods.elementwise import Elementwise

Numbers = TypeVar("Numbers", bound=Elementwise)


def squares(number: Numbers, key: Numbers) -> Numbers:
    """Return 32 random bits for each number, as uint64; both arguments are uint64."""
    first = number * key
    second = first + key
    mixed = _turned(first * first + first)
    mixed = _turned(mixed * mixed + second)
    mixed = _turned(mixed * mixed + first)
    return (mixed * mixed + second) >> 32


def _turned(bits: Numbers) -> Numbers:
    return (bits >> 32) | (bits << 32)
