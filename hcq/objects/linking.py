"""Layout of the sections of an ELF object in memory, and its relocations.

Facts: the System V ABI (gABI), chapter 4 "Object Files"; the caller gives the processor's rules.
Any fault in an object raises BadCodeObject.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ugpu.hcq.errors import BadCodeObject
from ugpu.hcq.objects.elf import (
    MAX_SIZE,
    SHF_EXECINSTR,
    ElfObject,
    ElfRelocation,
)

PAGE = 4096  # bytes of a page where relocations count in pages


@dataclass(frozen=True)
class Rule:
    """Rule by which one relocation type computes its bytes. Facts come from the processor's ABI
    supplement.

    Attributes:
        width: number of patched bytes.
        minus: "place" if the patched location's address is subtracted, "origin" if the image's is,
            "page" if both addresses are rounded down to pages of 4 KiB.
        through: "symbol" takes the symbol's address, "slot" the address of an 8-byte slot that
            holds it, "call" may go through a jump.
        shift: bits dropped from the low end.
        signed: None if the value is truncated on purpose.
        fields: of an instruction, (lowest bit, bits) each, filled from the value's low end.
        low: number of low bits of the value that count, 0 for all.
        exact: the dropped bits must be zeros.
    """

    width: int
    minus: str = ""
    through: str = "symbol"
    shift: int = 0
    signed: bool | None = None
    fields: tuple[tuple[int, int], ...] = ()
    low: int = 0
    exact: bool = False


@dataclass
class Layout:
    """Offsets of the loaded sections, slots and jumps of an object, relative to its base.

    Attributes:
        elf: the object.
        rules: by relocation type.
        size: of the image, in bytes.
        align: of the image, in bytes.
        offsets: by section number.
        slots: by symbol number, 8 bytes each.
        jumps: by symbol number.
    """

    elf: ElfObject
    rules: Mapping[int, Rule]
    size: int = 0
    align: int = 1
    offsets: dict[int, int] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    jumps: dict[int, int] = field(default_factory=dict)


def lay_out(elf: ElfObject, rules: Mapping[int, Rule], jump_size: int = 0) -> Layout:
    """Place code first, then data, then slots for addresses and jumps to symbols defined elsewhere.

    BadCodeObject for relocation types that are not in `rules`, and for undefined symbols if
    `jump_size` is 0 (no slots for jumps).
    """
    layout = Layout(elf, rules)
    loaded = [section for section in elf.sections if section.is_loaded]
    for section in sorted(loaded, key=lambda section: not section.flags & SHF_EXECINSTR):
        start = -(-layout.size // section.align) * section.align
        layout.offsets[section.index] = start
        layout.size = start + section.size
        layout.align = max(layout.align, section.align)
        if layout.size > MAX_SIZE:
            raise BadCodeObject("the loaded object would be too large", size=layout.size)
    for relocation in elf.relocations:
        if relocation.section not in layout.offsets:
            continue  # debugging information: not loaded, so not linked
        rule = rules.get(relocation.kind)
        symbol = elf.symbols[relocation.symbol]
        if rule is None:
            raise BadCodeObject("unknown relocation type", type=relocation.kind, symbol=symbol.name)
        if relocation.offset + rule.width > len(elf.sections[relocation.section].data):
            raise BadCodeObject(
                "the relocation extends past the end of its section", type=relocation.kind
            )
        if symbol.section is not None and symbol.section not in layout.offsets:
            raise BadCodeObject(
                "the relocation refers to a section that is not loaded", symbol=symbol.name
            )
        outside = not symbol.is_defined and relocation.symbol != 0 and rule.through != "origin"
        if outside and not jump_size:
            raise BadCodeObject(f"the symbol {symbol.name!r} is not defined", symbol=symbol.name)
        if rule.through == "slot":
            layout.slots.setdefault(relocation.symbol, 0)
        elif rule.through == "call" and outside:
            layout.jumps.setdefault(relocation.symbol, 0)
    for places, size in ((layout.slots, 8), (layout.jumps, jump_size)):
        for number in places:
            places[number] = -(-layout.size // 16) * 16
            layout.size = places[number] + size
    return layout


def link(
    layout: Layout,
    base: int,
    outside: Mapping[str, int] | None = None,
    jump: Callable[[int], bytes] | None = None,
) -> bytes:
    """Return the image for address `base`. outside: addresses of symbols defined elsewhere.

    jump(address) returns code that jumps to any address. BadCodeObject for values out of range.
    """
    if base % layout.align:
        raise BadCodeObject("the base is not aligned", base=base, align=layout.align)
    image = bytearray(layout.size)
    elf = layout.elf
    for index, offset in layout.offsets.items():
        data = elf.sections[index].data
        image[offset : offset + len(data)] = data

    def address(number: int) -> int:
        symbol = elf.symbols[number]
        if symbol.section is not None:
            return base + layout.offsets[symbol.section] + symbol.value
        if symbol.is_defined or number == 0:
            return symbol.value
        return (outside or {})[symbol.name]

    for number, offset in layout.slots.items():
        image[offset : offset + 8] = (address(number) & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")
    for number, offset in layout.jumps.items():
        assert jump is not None
        code = jump(address(number))
        image[offset : offset + len(code)] = code
    for relocation in elf.relocations:
        if relocation.section not in layout.offsets:
            continue
        rule = layout.rules[relocation.kind]
        if rule.through == "origin":
            target = base
        elif rule.through == "slot":
            target = base + layout.slots[relocation.symbol]
        elif rule.through == "call" and relocation.symbol in layout.jumps:
            target = base + layout.jumps[relocation.symbol]
        else:
            target = address(relocation.symbol)
        place = layout.offsets[relocation.section] + relocation.offset
        target += relocation.addend
        minus = {"": 0, "place": base + place, "origin": base, "page": base + place & -PAGE}
        value = (target & -PAGE if rule.minus == "page" else target) - minus[rule.minus]
        here = slice(place, place + rule.width)
        insert = _encode if not rule.fields else _instruction
        image[here] = insert(value, rule, relocation, bytes(image[here]))
    return bytes(image)


def _instruction(value: int, rule: Rule, relocation: ElfRelocation, old: bytes) -> bytes:
    """Return the instruction with its fields filled in."""
    if rule.low:
        value &= (1 << rule.low) - 1
    bits = rule.shift + sum(count for _, count in rule.fields)
    low, high = (-(1 << bits - 1), 1 << bits - 1) if rule.signed else (0, 1 << bits)
    fits = rule.signed is None or low <= value < high
    if not fits or (rule.exact and value & (1 << rule.shift) - 1) or relocation.offset % 4:
        raise BadCodeObject(
            "a relocated value does not fit", type=relocation.kind, offset=relocation.offset
        )
    word, left = int.from_bytes(old, "little"), value >> rule.shift
    for place, count in rule.fields:
        mask = (1 << count) - 1
        word = word & ~(mask << place) | (left & mask) << place
        left >>= count
    return word.to_bytes(rule.width, "little")


def _encode(value: int, rule: Rule, relocation: ElfRelocation, old: bytes) -> bytes:
    bits = 8 * rule.width
    if rule.signed is not None:
        low, high = (-(1 << bits - 1), 1 << bits - 1) if rule.signed else (0, 1 << bits)
        if not low <= value < high:
            raise BadCodeObject(
                "a relocated value does not fit", type=relocation.kind, offset=relocation.offset
            )
    return (value >> rule.shift & (1 << bits) - 1).to_bytes(rule.width, "little")
