"""Format of page table entries, as a hub's walker decodes them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EntryFormat:
    """Bits and fields of the 64-bit entries, as masks.

    leaf: marks an entry that maps memory instead of pointing to a table. leaf_at_last: entries of
    the last level have that bit as well; without it, an entry there is refused if it has the bit.
    fragment_shift: lowest bit of the 5-bit fragment. entry_defined, table_defined: all bits with a
    meaning in entries that map memory and in entries that point to a table; others must be 0.
    physical_bits: of addresses. table_bits: log2 of the entries of a table. type_mask: of the
    memory type, in entries that map memory; types: its values that are not reserved.
    """

    valid: int
    system: int
    executable: int
    readable: int
    writeable: int
    leaf: int
    leaf_at_last: bool
    address: int
    table: int
    fragment_shift: int
    entry_defined: int
    table_defined: int
    physical_bits: int
    table_bits: int
    type_mask: int = 0
    types: frozenset[int] = frozenset({0})
