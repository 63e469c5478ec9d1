"""Parameters by device: a sharded one has a part on each, which the device's optimiser updates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ugpu.compiler.sharding.sharded import Sharded
from ugpu.hcq.errors import BadArgument


def by_device(operation: str, parameters: Iterable[Any], split: bool) -> list[list[Any]]:
    """Return for each device the list of its parameters, or parts. split: whether parts of a split
    parameter may stand for it. Raises BadArgument for sharded and other parameters together."""
    listed = list(parameters)
    sharded = [each for each in listed if isinstance(each, Sharded)]
    if not sharded:
        return [listed]
    if len(sharded) != len(listed) or len({each.devices for each in sharded}) != 1:
        raise BadArgument(
            f"{operation}: expected all parameters sharded on the same devices, got {len(sharded)} "
            f"sharded ones of {len(listed)}"
        )
    for place, each in enumerate(sharded):
        if each.axis is not None and not split:
            raise BadArgument(
                f"{operation}: parameter {place} must be replicated, got {each.placement}"
            )
    return [list(row) for row in zip(*(each.parts for each in sharded), strict=True)]
