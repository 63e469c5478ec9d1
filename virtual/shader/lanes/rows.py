"""Transposition of rows and columns: a row is the data of one lane, a column is a register of all
lanes.

The lines here move `size` bytes (8, 12 or 16) a lane between memory and the columns at %data. Lanes
are moved 16 at a time: four lanes' rows fill a vector, and two rounds of interleaving transpose
four vectors of rows into the four columns, or back. Data stays within each 128-bit part of a
vector, which is fastest on hosts.
"""

from __future__ import annotations

from ugpu.virtual.shader import context
from ugpu.virtual.shader.text import Text

HALF = "<16 x i32>"
_PARTS = range(4)  # 128-bit parts of a vector


def numbers(first: int) -> str:
    """Return the numbers of 16 lanes, as a mask of shufflevector."""
    return "<" + ", ".join(f"i32 {first + k}" for k in range(16)) + ">"


class Rows(Text):
    """Lines that move rows and columns; the columns are at %data."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix=prefix + ".")

    def pick(self, count: int, a: str, b: str, order: list[int], element: str = "i32") -> str:
        """Select elements from two vectors of `count`; -1: any."""
        kind = f"<{count} x {element}>"
        picked = ", ".join("i32 poison" if k < 0 else f"i32 {k}" for k in order)
        return self.value(f"shufflevector {kind} {a}, {kind} {b}, <{len(order)} x i32> <{picked}>")

    def joined(self, count: int, parts: list[str], element: str = "i32") -> str:
        """Concatenate vectors of `count` elements; their number is a power of two."""
        while len(parts) > 1:
            whole = list(range(2 * count))
            parts = [
                self.pick(count, a, b, whole, element)
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
            count *= 2
        return parts[0]

    def interleaved(self, a: str, b: str, width: int, upper: bool) -> str:
        """Alternate elements of `width` dwords of the lower (upper) halves of all 128-bit parts."""
        order = []
        for part in _PARTS:
            for number in range(2 // width):
                first = 4 * part + (2 if upper else 0) + number * width
                order += [first + k for k in range(width)]
                order += [16 + first + k for k in range(width)]
        return self.pick(16, a, b, order)

    def turned(self, a: str, b: str, c: str, d: str) -> list[str]:
        """Transpose rows into columns in each 128-bit part of four vectors, or columns into
        rows."""
        found = []
        for upper in (False, True):
            first, second = self.interleaved(a, b, 1, upper), self.interleaved(c, d, 1, upper)
            found += [self.interleaved(first, second, 2, high) for high in (False, True)]
        return found

    def column(self, number: int, half: int) -> str:
        """Return the address of 16 lanes of a column."""
        offset = number * context.IO_COLUMN + 64 * half
        return self.value(f"getelementptr i8, ptr %data, i64 {offset}")


def load_rows(e: Rows, size: int, pointers: list[str], halves: tuple[int, ...]) -> None:
    """Load 16 lanes' rows; put them into these halves of the columns."""
    words = size // 4
    rows = [e.value(f"load <{words} x i32>, ptr {at}, align 1") for at in pointers]
    for number, column in enumerate(_columns_of(e, words, rows)[:words]):
        for half in halves:
            e.do(f"store {HALF} {column}, ptr {e.column(number, half)}, align 64")


def _columns_of(e: Rows, words: int, rows: list[str]) -> list[str]:
    if words == 2:
        pairs = [e.joined(2, rows[k : k + 2]) for k in range(0, 16, 2)]
        low, high = (e.joined(4, pairs[first::2]) for first in (0, 1))
        sides = [(part, side) for part in _PARTS for side in (0, 16)]
        order = [4 * part + side + lane for part, side in sides for lane in (0, 2)]
        return [e.pick(16, low, high, [column + k for k in order]) for column in (0, 1)]
    if words == 3:
        rows = [e.pick(3, row, row, [0, 1, 2, -1]) for row in rows]
    a, b, c, d = (e.joined(4, rows[first::4]) for first in _PARTS)
    return e.turned(a, b, c, d)


def store_rows(e: Rows, size: int, pointers: list[str], half: int) -> None:
    """Store a half of the columns as 16 lanes' rows, the last lane last."""
    words = size // 4
    columns = [
        e.value(f"load {HALF}, ptr {e.column(number, half)}, align 64") for number in range(words)
    ]
    for at, row in zip(pointers, _rows_of(e, words, columns), strict=True):
        e.do(f"store <{words} x i32> {row}, ptr {at}, align 1")


def _rows_of(e: Rows, words: int, columns: list[str]) -> list[str]:
    if words == 2:
        vectors = [e.interleaved(columns[0], columns[1], 1, upper) for upper in (False, True)]
        return [
            e.pick(16, vectors[lane // 2 % 2], "poison", [first, first + 1])
            for lane in range(16)
            for first in [lane // 4 * 4 + lane % 2 * 2]
        ]
    a, b, c, d = [*columns, "poison"][:4]
    vectors = e.turned(a, b, c, d)
    return [
        e.pick(16, vectors[lane % 4], "poison", [lane // 4 * 4 + k for k in range(words)])
        for lane in range(16)
    ]


def load_block(e: Rows, size: int, parts: list[str]) -> None:
    """Load all lanes' rows, which are contiguous in each of `parts` and equally many in each; put
    them into the columns."""
    words, each = size // 4, 8 * size // len(parts)
    loaded = [e.value(f"load <{each} x i32>, ptr {at}, align 1") for at in parts]
    whole = e.joined(each, loaded)
    for number in range(words):
        order = [words * lane + number for lane in range(32)]
        column = e.pick(32 * words, whole, "poison", order)
        e.do(f"store <32 x i32> {column}, ptr {e.column(number, 0)}, align 64")


def store_block(e: Rows, size: int, parts: list[str]) -> None:
    """Store the columns as rows that are contiguous in each of `parts`."""
    words, each = size // 4, 8 * size // len(parts)
    columns = [
        e.value(f"load <32 x i32>, ptr {e.column(number, 0)}, align 64") for number in range(words)
    ]
    if words == 3:
        columns.append("poison")
    whole = e.joined(32, columns)
    for number, at in enumerate(parts):
        places = range(number * each, (number + 1) * each)
        order = [place % words * 32 + place // words for place in places]
        rows = e.pick(32 * len(columns), whole, "poison", order)
        e.do(f"store <{each} x i32> {rows}, ptr {at}, align 1")


def store_apart(e: Rows, pieces: list[str]) -> None:
    """Store two columns to eight pieces; piece p is the rows of lanes p, p + 8, p + 16, p + 24."""
    low, high = (
        [e.value(f"load {HALF}, ptr {e.column(number, half)}, align 64") for half in (0, 1)]
        for number in (0, 1)
    )
    for upper in (False, True):
        # Lanes 0, 1, 4, 5, ... (upper: 2, 3, 6, 7, ...) of the first and of the last 16.
        pairs = [e.interleaved(low[half], high[half], 1, upper) for half in (0, 1)]
        for number in range(4):
            start = 4 * (number // 2) + 2 * (number % 2)
            order = [
                16 * half + start + far + k for half in (0, 1) for far in (0, 8) for k in (0, 1)
            ]
            row = e.pick(16, pairs[0], pairs[1], order)
            lane = 4 * (number // 2) + 2 * upper + number % 2
            e.do(f"store <8 x i32> {row}, ptr {pieces[lane]}, align 1")
