"""Exchange totals of NVIDIA's matrix units between lanes, to store them in wide stores.

before: of each fragment, 8 columns wide, a lane holds two neighbouring columns of a row; the four
lanes of the row together hold all eight.
after: of four fragments side by side, each lane holds eight neighbouring columns of one.

A lane then stores 16 bytes of 16-bit results instead of 4, and whole sectors of memory are written
at once. The exchange takes two rounds between neighbouring lanes: first of two fragments, with the
lane whose number differs in bit 0, then of pairs of fragments, in bit 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ugpu.compiler.dtype import DType, int32
from ugpu.compiler.expression.algebra import Index, constant
from ugpu.compiler.expression.value import Memory, Value, binary, const, load, value
from ugpu.compiler.kernel.gpu.fragments import Finish
from ugpu.compiler.kernel.ir import Statement, Store

JOINED = 4  # fragments, and lanes of a row
RUN = 8  # columns of a fragment, and of a lane after the exchange
PAIR = 2  # columns of a lane before it
Total = Callable[[int, int], Value]  # of a fragment's number and one of the two columns


def room_for(dtype: DType) -> Memory:
    """Return registers for the totals received from other lanes."""
    return Memory("moved", dtype, 2 * JOINED, "register")


def finish_group(
    totals: Memory,
    fragments: tuple[int, int],
    lane: Index,
    row: Index,
    column: Index,
    room: Memory,
    finish_run: Finish,
    columns: int,
) -> list[Statement]:
    """Return epilogue and stores of the totals of a group of four waves. lane: of 128; row, column:
    where the group's part of the tile begins; fragments: of 64 rows, and of 8 columns, a multiple
    of 4. columns: of the output; if not a multiple of 8, each lane stores the totals it holds
    without exchange."""
    tall, wide = fragments
    row = row + lane // 32 * 16 + lane % 32 // 4
    whole = columns % RUN == 0
    column = column + lane % JOINED * (RUN if whole else PAIR)
    statements: list[Statement] = []
    for i in range(tall):
        for below in range(2):

            def total(j: int, side: int, first: int = i * wide, below: int = below) -> Value:
                return load(totals, constant((first + j) * 4 + 2 * below + side))

            for j in range(0, wide, JOINED if whole else 1):
                made: list[Statement] = []
                run = [total(j, side) for side in range(PAIR)]
                if whole:
                    made, run = exchanged(total, j, lane, room)
                at = row + (i * 64 + 8 * below), column + j * RUN
                statements += [*made, *finish_run(*at, run)]
    return statements


def exchanged(
    total: Total, first: int, lane: Index, room: Memory
) -> tuple[list[Statement], list[Value]]:
    """Return the statements of the exchange, and the eight totals that the lane has afterwards, of
    fragment first + lane % 4."""
    statements: list[Statement] = []
    low, high = _bit(lane % 2), _bit(lane // 2 % 2)
    places: Iterator[int] = iter(range(room.count))

    def swap(mine: Value, other: Value, bit: Value, mask: int) -> tuple[Value, Value]:
        """Keep `mine` where the bit is 0, `other` where it is 1; the neighbour's value replaces the
        one given away. Returns the values of the lanes whose bit is 0 and 1."""
        at = constant(next(places))
        given = _where(bit, mine, other)
        statements.append(Store(room, at, value("exchange", room.dtype, (given,), mask)))
        kept, came = _where(bit, other, mine), load(room, at)
        return _where(bit, came, kept), _where(bit, kept, came)

    pairs = [
        [swap(total(one, side), total(one + 1, side), low, 1) for side in range(2)]
        for one in (first, first + 2)
    ]
    columns: list[list[Value]] = [[], [], [], []]  # of each lane of the row
    for source in range(2):
        for side in range(2):
            both = swap(pairs[0][side][source], pairs[1][side][source], high, 2)
            for upper, each in enumerate(both):
                columns[2 * upper + source].append(each)
    return statements, [each for pair in columns for each in pair]


def _bit(index: Index) -> Value:
    return binary("ne", value("index", int32, (), index), const(0, int32))


def _where(bit: Value, one: Value, zero: Value) -> Value:
    return value("where", one.dtype, (bit, one, zero))
