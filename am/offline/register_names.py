"""Register names of a recorded chip, from the discovery table in the recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ugpu.am import chips
from ugpu.am.chip import discovery
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.regs import load
from ugpu.hcq.errors import DiscoveryError
from ugpu.hcq.registers.fields import RegisterMap
from ugpu.hcq.transport.recorded.accesses import Access
from ugpu.hcq.transport.recorded.format import Recording
from ugpu.hcq.transport.recorded.names import Names, names_in


def register_names(recording: Recording) -> Names:
    """Return a function from (BAR, offset in bytes) to the register there, None if there is none.

    Bases come from the discovery table that the driver read, or else are the usual ones of the
    chip.
    """
    facts = chips.find(recording.identity.vendor, recording.identity.device)
    if facts is None:
        return lambda window, offset: None
    return names_in(facts.generation.register_bar, placed_tables(facts, recording))


def _bases(facts: ChipFacts, recording: Recording) -> Mapping[str, Sequence[int]]:
    """Return each block's bases, from the first discovery table in the recording."""
    bases: dict[str, Sequence[int]] = dict(facts.generation.typical_bases)
    for entry in recording.entries:
        if not isinstance(entry, Access) or entry.data is None or entry.is_write:
            continue
        if len(entry.data) != facts.generation.discovery_size:
            continue
        try:
            found = discovery.parse(entry.data)
        except DiscoveryError:
            continue
        for name, number in facts.generation.hardware_ids.items():
            block = found.find(number)
            if block is not None:
                bases[name] = block.bases
        break
    return bases


def placed_tables(
    facts: ChipFacts, recording: Recording
) -> list[tuple[RegisterMap, Sequence[int]]]:
    """Return each register table with its bases, in dwords of the register BAR. Each table is
    listed once, even if blocks share it."""
    bases = _bases(facts, recording)
    tables: dict[tuple[str, tuple[int, ...]], RegisterMap] = {}
    for block, table in facts.register_tables.items():
        if block in bases:
            tables[table, tuple(bases[block])] = load(table)
    return [(table, places) for (_, places), table in tables.items()]
