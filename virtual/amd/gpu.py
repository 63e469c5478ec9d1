"""Entry points for virtual AMD cards, used by `hcq.open("virtual:<chip>")`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ugpu.am.chips import facts_of
from ugpu.am.chips.facts import ChipFacts
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.find.registry import Attachment
from ugpu.virtual.amd.bus.endpoint import ChipEndpoint
from ugpu.virtual.amd.bus.pci import VirtualTransport
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.engines import install as engines
from ugpu.virtual.amd.options import ChipOptions, FaultPlan
from ugpu.virtual.amd.planting import faults as faults  # entry points of hcq.find.planting
from ugpu.virtual.amd.planting import plant as plant


def build_chip(facts: ChipFacts, options: ChipOptions | None = None) -> Chip:
    """Build a whole card and switch it on. The caller closes it."""
    chip = Chip(facts, options)
    engines.install(chip)
    return chip


def attach(
    name: str,
    chip: Chip | None = None,
    *,
    options: ChipOptions | None = None,
    vram: int | None = None,
    seed: int | None = None,
    faults: FaultPlan | None = None,
) -> Attachment:
    """Attach a transport to `chip`, which the caller still owns, or to a new card of chip `name`.

    vram (bytes), seed and faults override single fields of `options`.
    """
    found = _chip(name, chip, options or ChipOptions(), vram=vram, seed=seed, faults=faults)
    own = chip is None
    return Attachment(
        VirtualTransport(found, owns_chip=own), found.generation.firmware.files(found.facts), found
    )


def endpoint(
    name: str,
    chip: Chip | None = None,
    *,
    options: ChipOptions | None = None,
    vram: int | None = None,
    seed: int | None = None,
    faults: FaultPlan | None = None,
) -> ChipEndpoint:
    """Return a card's endpoint for a bus model; arguments as for `attach`. The caller closes it."""
    built = replace(options or ChipOptions(), platform=False)
    found = _chip(name, chip, built, vram=vram, seed=seed, faults=faults)
    return ChipEndpoint(
        found, firmware=found.generation.firmware.files(found.facts), owns_chip=chip is None
    )


def _chip(name: str, chip: Chip | None, built: ChipOptions, **changes: Any) -> Chip:
    """Check `chip`, or build one. changes: fields of options; None leaves a field as it is."""
    changes = {key: value for key, value in changes.items() if value is not None}
    if chip is not None:
        if changes or built not in (ChipOptions(), ChipOptions(platform=False)):
            raise BadArgument("an existing chip does not accept other options")
        if chip.facts.name != name:
            raise BadArgument(f"expected a virtual {name}, got a virtual {chip.facts.name}")
        return chip
    vram = changes.get("vram")
    if vram is not None and vram < 1:
        raise BadArgument(f"vram must be a multiple of 1 MiB and at least 16 MiB, got {vram} bytes")
    return build_chip(facts_of(name), replace(built, **changes))
