"""Entry points of the register-level NVIDIA cards, for `virtual:ad102+gsp` and similar names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.find.registry import Attachment
from ugpu.virtual.nvidia.gpu import facts_of
from ugpu.virtual.nvidia.gsp.bus.pci import VirtualTransport
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.firmware.images import whole_set
from ugpu.virtual.nvidia.gsp.options import CardOptions
from ugpu.virtual.nvidia.gsp.wiring import wire


def build_card(name: str, options: CardOptions | None = None) -> Card:
    """Build a card of a chip and switch it on. The caller closes it."""
    card = Card(facts_of(name), options)
    wire(card)
    return card


def attach(
    name: str,
    *,
    chip: Card | None = None,
    memory: int | None = None,
    coherence: bool | None = None,
    seed: int | None = None,
    card: CardOptions | None = None,
) -> Attachment:
    """Attach a transport to `chip` (a card, still owned by the caller) or to a new card.

    memory (bytes), coherence, seed: single fields of `card`, the options of a new card.
    """
    changes = {"memory": memory, "coherence": coherence, "seed": seed}
    given: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
    if chip is not None:
        if not isinstance(chip, Card) or chip.facts.name != name:
            raise BadArgument(f"chip must be a virtual card with {name}", given=repr(chip))
        if given or card is not None:
            raise BadArgument("an existing card does not accept other options")
        return Attachment(VirtualTransport(chip), whole_set(name), chip)
    options = replace(card or CardOptions(), **given)
    made = build_card(name, options)
    return Attachment(VirtualTransport(made, owns_card=True), whole_set(name), made)
