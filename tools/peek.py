"""`ugpu peek DEVICE REGISTER ...`: read registers by name and show their fields."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence

import hcq
from hcq.device import Device
from hcq.errors import BadArgument, NotSupported
from hcq.fields import BoundRegister, RegisterBlock

from .console import Output

MOST = 200  # registers that one pattern may match


def blocks_of(device: Device) -> Mapping[str, RegisterBlock]:
    """The register blocks of a device by name; NotSupported for a device without registers."""
    chip = getattr(device, "chip", None)
    found = {
        name: block for name, block in vars(chip).items() if isinstance(block, RegisterBlock)
    } if chip is not None else {}  # fmt: skip
    if not found:
        raise NotSupported(
            f"{device.name} has no registers that this process can access: "
            "its kernel driver or firmware controls them"
        )
    return found


def matching(
    blocks: Mapping[str, RegisterBlock], pattern: str
) -> Iterator[tuple[str, BoundRegister]]:
    """(block.NAME, register) for a name or pattern, of one block ("gc.CP_*") or of all."""
    head, dot, tail = pattern.rpartition(".")
    if dot and head.lower() not in blocks:
        raise BadArgument(f"unknown block {head!r}, expected one of {', '.join(sorted(blocks))}")
    places = {head.lower(): blocks[head.lower()]} if dot else blocks
    name = tail.upper()
    if not any(sign in name for sign in "*?["):
        owners = [owner for owner, block in places.items() if name in block.map]
        if not owners:
            near = _near(places[head.lower()], name) if dot else ""
            raise BadArgument(f"no register {tail!r} in {', '.join(sorted(places))}{near}")
        for owner in owners:
            yield f"{owner}.{name}", blocks[owner][name]
        return
    found = [
        (owner, each) for owner, block in places.items() for each in fnmatch.filter(block.map, name)
    ]
    if not 0 < len(found) <= MOST:
        raise BadArgument(f"{pattern!r} matches {len(found)} registers, expected 1 to {MOST}")
    for owner, each in found:
        yield f"{owner}.{each}", blocks[owner][each]


def _near(block: RegisterBlock, name: str) -> str:
    try:
        block.map[name]
    except KeyError as error:
        return f": {error.args[0]}"
    return ""


def run(name: str, patterns: Sequence[str], out: Output) -> int:
    """Open the device, read each register once and show value and fields."""
    rows: list[tuple[str, str, str]] = []
    results: list[dict[str, object]] = []
    with hcq.open(name) as device:
        blocks = blocks_of(device)
        chosen = [each for pattern in patterns for each in matching(blocks, pattern)]
        for title, register in chosen:
            value = register.read()
            fields = value.fields()
            text = " ".join(f"{field}={content:#x}" for field, content in fields.items() if content)
            rows.append((title, f"{int(value):#010x}", text))
            results.append({"register": title, "value": int(value), "fields": fields})
    out.table(("register", "value", "fields that are not 0"), rows)
    out.result(results)
    return 0
