"""Banks: the registers of a recorded chip that select what others mean, to read its state.

Sources: Linux 6.12 gfx_v11_0.c, soc21.c (soc21_grbm_select: GRBM_GFX_CNTL; GRBM_GFX_INDEX;
SQ_IND_INDEX), nbio_v4_3.c (index and data pairs), amdgpu_device.c (MM_INDEX, MM_DATA). For the
requests that make firmware reset the chip, see am.units.smu.smu and am.units.psp.psp.
"""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase

from ugpu.am import chips
from ugpu.am.chips.facts import ChipFacts
from ugpu.am.offline.register_names import placed_tables
from ugpu.am.regs import constants
from ugpu.hcq.transport.recorded.format import Recording
from ugpu.hcq.transport.recorded.state import Banks, Place

# Patterns of names, and the registers that select what they mean.
_CHOSEN_BY: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("CP_HQD_*", "CP_MQD_*", "CP_GFX_HQD_*", "CP_MEC_RS64_PRGRM_CNTR_START*", "SH_MEM_*"),
     ("GRBM_GFX_CNTL",)),
    (("SQ_IND_DATA",), ("GRBM_GFX_INDEX", "SQ_IND_INDEX")),
    (("*_SHADER_ARRAY_CONFIG*", "*_RB_BACKEND_DISABLE"), ("GRBM_GFX_INDEX",)),
)  # fmt: skip
_PAIRS = (("RSMU_DATA", "RSMU_INDEX"), ("PCIE_DATA", "PCIE_INDEX"), ("PCIE_DATA2", "PCIE_INDEX2"))
_MM_INDEX, _MM_DATA, _MM_INDEX_HI = 0x0, 0x4, 0x18  # bytes; see am.chip.chip.Vram


def banks(recording: Recording) -> Banks:
    """Return the selectors of a recording's chip; none for a chip without facts."""
    facts = chips.find(recording.identity.vendor, recording.identity.device)
    if facts is None:
        return Banks()
    window = facts.generation.register_bar
    tables = placed_tables(facts, recording)

    def place(name: str) -> Place | None:
        for table, bases in tables:
            register = table.get(name)
            if register is not None and register.segment < len(bases):
                return window, (bases[register.segment] + register.offset) * 4
        return None

    chosen_by = {
        name: found
        for _, names in _CHOSEN_BY
        for name in names
        if (found := place(name)) is not None
    }
    memory = (window, _MM_INDEX), (window, _MM_INDEX_HI)
    pairs: dict[Place, tuple[Place, ...]] = {(window, _MM_DATA): memory}
    for table, _ in tables:
        for data, index in _PAIRS:
            for name in (one for one in table if one.endswith(data)):
                at, selector = place(name), place(f"{name.removesuffix(data)}{index}")
                if at is not None and selector is not None:
                    pairs[at] = (selector,)

    @functools.cache
    def of(bar: int, offset: int) -> tuple[Place, ...]:
        if bar != window:
            return ()
        if (bar, offset) in pairs:
            return pairs[bar, offset]
        for table, bases in tables:
            for segment, base in enumerate(bases):
                index = offset // 4 - base
                found = table.find(index, segment) if index >= 0 else None
                if found is not None:
                    return _selectors(found.name, chosen_by)
        return ()

    orders = {place(name): values for name, values in _reset_orders(facts).items()}

    def resets(bar: int, offset: int, value: int) -> bool:
        return value in orders.get((bar, offset), ())

    selectors = {one for places in pairs.values() for one in places} | set(chosen_by.values())
    return Banks(window, frozenset(selectors), of, resets)


def _reset_orders(facts: ChipFacts) -> dict[str, frozenset[int]]:
    """Return the values that make the SMU and the PSP reset the chip, by mailbox register."""
    messages = constants(facts.smu.messages)
    names = ("PPSMC_MSG_Mode1Reset", "PPSMC_MSG_Mode2Reset")
    return {
        "MP1_SMN_C2PMSG_66": frozenset(messages[name] for name in names if name in messages),
        "MP1_SMN_C2PMSG_75": frozenset({facts.generation.smu_debug_mode1_message}),
        f"{facts.generation.psp_mailbox}_64": frozenset(
            {constants("psp_gfx_if").GFX_CTRL_CMD_ID_MODE1_RST}
        ),
    }


def _selectors(name: str, chosen_by: dict[str, Place]) -> tuple[Place, ...]:
    for patterns, names in _CHOSEN_BY:
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return tuple(chosen_by[one] for one in names if one in chosen_by)
    return ()
