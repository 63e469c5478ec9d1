"""Read AMD register headers with a fast tokenizer: they are tens of megabytes of literal defines.

Two headers describe one block (Linux, drivers/gpu/drm/amd/include/asic_reg):

    <block>_offset.h     regNAME offset, regNAME_BASE_IDX segment; ixNAME for registers behind an
                         index register; cfgNAME for PCI configuration space in bytes, which is
                         accessed differently and not read here
    <block>_sh_mask.h    NAME__FIELD__SHIFT and NAME__FIELD_MASK

The vendor's headers have errors. The bits of a field come from its mask. Each field whose shift
contradicts its mask is listed in the catalogue with the known facts, so that a new contradiction
stops the generator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ugpu.hcq.registers.fields import REGISTER_BITS, Field, Register
from ugpu.tools.clang2py.directives import VendorError as VendorError
from ugpu.tools.clang2py.directives import literal, macros

_MASK = "_MASK"
_SHIFT = "__SHIFT"
_SEGMENT = "_BASE_IDX"


@dataclass(frozen=True)
class RegisterSource:
    """Peculiarities of one block's headers."""

    #: fields (NAME__FIELD) whose shift contradicts the mask; the mask is believed
    wrong_shifts: Collection[str] = ()
    #: patterns of fields that have a shift and no mask, so no known width: left out
    missing_masks: Collection[str] = ()
    #: fields beyond bit 31, of registers that are described as 64 bits: left out
    too_wide: Collection[str] = ()
    #: registers without a segment in the header, and the assumed segment
    missing_segments: Mapping[str, int] | None = None


def defines(text: str) -> dict[str, int]:
    """Return all literal defines of a header; VendorError for a define of another form."""
    numbers: dict[str, int] = {}
    strange = []
    for name, macro in macros(text).items():
        if macro.argument is not None or not macro.body:
            continue
        value = literal(macro.body)
        if value is None:
            strange.append(name)
        else:
            numbers[name] = value
    if strange:
        raise VendorError(f"not literal numbers: {sorted(strange)[:5]}")
    return numbers


def _places(
    offsets: Mapping[str, int], prefix: str, source: RegisterSource
) -> dict[str, tuple[int, int]]:
    """Map each name (without prefix) to offset and segment."""
    places = {}
    believed = source.missing_segments or {}
    for name, offset in offsets.items():
        if not name.startswith(prefix) or name.endswith(_SEGMENT):
            continue
        plain = name.removeprefix(prefix)
        segment = offsets.get(name + _SEGMENT, believed.get(plain))
        if segment is None:
            if prefix != "ix":
                raise VendorError(f"{name} has no {_SEGMENT}")
            segment = 0
        places[plain] = (offset, segment)
    return places


def _split(name: str, registers: Mapping[str, object]) -> tuple[str, str] | None:
    """Split REGISTER__FIELD where the left part is the longest register; both may contain double
    underscores."""
    at = name.rfind("__")
    while at > 0:
        if name[:at] in registers:
            return name[:at], name[at + 2 :]
        at = name.rfind("__", 0, at + 1)
    return None


def _fields(
    masks: Mapping[str, int], places: Mapping[str, object], source: RegisterSource
) -> dict[str, list[Field]]:
    """Return the fields of each register that has a place; those of other registers are dropped."""
    fields: dict[str, list[Field]] = {}
    for macro, mask in masks.items():
        if not macro.endswith(_MASK) or macro.endswith(_SHIFT):
            continue
        full_name = macro.removesuffix(_MASK)
        owner = _split(full_name, places)
        if owner is None or full_name in source.too_wide:
            continue
        lsb = (mask & -mask).bit_length() - 1
        width = mask.bit_length() - lsb
        if mask == 0 or mask >> lsb != (1 << width) - 1 or lsb + width > REGISTER_BITS:
            raise VendorError(f"{macro} {mask:#x} is not a field of a {REGISTER_BITS}-bit register")
        shift = masks.get(full_name + _SHIFT)
        if shift != lsb and full_name not in source.wrong_shifts:
            raise VendorError(
                f"{full_name}: mask {mask:#x} starts at bit {lsb}, its shift is {shift}"
            )
        fields.setdefault(owner[0], []).append(Field(owner[1], lsb, width))
    return fields


def _complete(
    numbers: Mapping[str, int], places: Mapping[str, object], source: RegisterSource
) -> None:
    """Stop at a field that has a shift and no mask."""
    for macro in numbers:
        name = macro.removesuffix(_SHIFT)
        if name == macro or f"{name}{_MASK}" in numbers:
            continue
        if any(fnmatchcase(name, pattern) for pattern in source.missing_masks):
            continue
        if _split(name, places) is not None:
            raise VendorError(f"{macro} has no {name}{_MASK}")


def read_registers(
    offset_text: str, mask_text: str, *, prefix: str = "reg", source: RegisterSource | None = None
) -> list[Register]:
    """Read one block's registers whose macros start with `prefix`, sorted by name."""
    source = source or RegisterSource()
    places = _places(defines(offset_text), prefix, source)
    masks = defines(mask_text)
    _complete(masks, places, source)
    fields = _fields(masks, places, source)
    registers = []
    for name in sorted(places):
        offset, segment = places[name]
        own = sorted(fields.get(name, ()), key=lambda field: (field.lsb, field.width, field.name))
        registers.append(Register(name, offset, segment, own))
    return registers
