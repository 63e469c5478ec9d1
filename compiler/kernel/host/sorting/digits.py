"""Sorts by digits on the host, the lowest first (H. Seward, 1954): one pass counts the digits of
all elements, then each pass moves elements to where those with their digit begin, in the order in
which they come."""

from __future__ import annotations

from collections.abc import Callable

from ugpu.compiler.dtype import int64
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.lookup import lookup
from ugpu.compiler.expression.value import Memory, Value, binary, const, load
from ugpu.compiler.kernel.host.nest import filled
from ugpu.compiler.kernel.ir import Loop, Statement, Store

DIGIT, WIDE = 8, 11  # maximum bits of a digit; WIDE in rows from LONG elements on
LONG = 1024

Read = Callable[[Index], Value]
Place = tuple[Memory, Index]


def by_digits(
    bits: int, size: int, read: Read, key: Callable[[Value], Value],
    places: tuple[Place, Place, Place], result: Callable[[Value], Value] = lambda element: element,
) -> tuple[tuple[Memory, ...], list[Statement]]:  # fmt: skip
    """Return local memories and the steps that sort `size` elements. key: of an element, an
    unsigned integer of `bits` bits. places: where elements are after the last pass, after the one
    before it, and before that. result: of an element, what the last pass stores; if it has another
    type, the first and the last place differ."""
    passes = -(-bits // (DIGIT if size < LONG else WIDE))
    width = -(-bits // passes)
    digits = 1 << width
    counts = Memory("counts", int64, passes * digits, "local")
    total, held = (Memory(name, int64, 1, "register") for name in ("first", "number"))
    zero, one = constant(0), const(1, int64)

    def counter(element: Value, number: int) -> Index:
        whole = key(element)
        digit = binary("shr", whole, const(number * width, whole.dtype))
        low = binary("and", digit, const(digits - 1, whole.dtype))
        return lookup(low, digits) + number * digits

    def place(left: int) -> Place:
        return places[0] if not left else places[1 + (left - 1) % 2]

    each = Range("i", size)
    at = [counter(read(each.index()), number) for number in range(passes)]
    more = tuple([Store(counts, each, binary("add", load(counts, each), one)) for each in at])
    steps: list[Statement] = [filled("c", counts, const(0, int64)), Loop(each, more)]
    for number in range(passes):
        digit, each = Range(f"d{number}", digits), Range(f"i{number}", size)
        start = digit.index() + number * digits
        begins = (
            Store(held, zero, load(counts, start)),
            Store(counts, start, load(total, zero)),
            Store(total, zero, binary("add", load(total, zero), load(held, zero))),
        )
        left = passes - 1 - number
        (memory, first), (before, begin) = place(left), place(left + 1)
        element = load(before, begin + each.index()) if number else read(each.index())
        to = counter(element, number)
        there = load(counts, to)
        move = (
            Store(memory, first + lookup(there, size), element if left else result(element)),
            Store(counts, to, binary("add", there, one)),
        )
        steps += [Store(total, zero, const(0, int64)), Loop(digit, begins), Loop(each, move)]
    return (counts, total, held), steps
