"""Requests of a client to ugpud, and their grants: leases."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any, cast

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.remote.replies import checked, facts, fields, number
from ugpu.hcq.remote.wire import WireError, is_number
from ugpu.hcq.state.checks import seconds, whole
from ugpu.hcq.state.target import Caches, TargetSpec
from ugpu.hcq.state.text import is_plain

KINDS = ("exclusive", "shared", "observer", "transport")
PRIORITIES = 10
LONGEST_S = 1e8
_MOST = 1 << 50
_SIZE = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,16})?) *([KMGT]?)(?:i?B)?", re.IGNORECASE)


def byte_count(value: int | str, name: str = "memory") -> int:
    """Return the bytes of 4096, "512M" or "8G" (powers of 1024); BadArgument."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            shown = value if len(value) <= 40 else f"{value[:40]}..."
            raise BadArgument(f'{name} must be bytes, or text such as "8G", got {shown!r}')
        value = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
    return whole(name, value, 0, _MOST)


def _shown(value: object) -> str:
    """Return a value for an error's text, at most 100 characters."""
    return repr(value)[:100]


@dataclass(frozen=True)
class LeaseRequest:
    """A request for a lease.

    Attributes:
        device: a pattern (fnmatch) of a device's name, label, target or processor.
        kind: "exclusive", the device alone; "shared", separate queues and a separate address space
            beside other holders; "observer", to read facts and sensors; "transport", a vfio-user
            socket for the holder's own driver.
        memory: bytes that the device must have, and the quota; 0: any.
        priority: 0 to 9, the highest is served first.
        wait_s: how long to queue, in seconds; 0: do not wait.
        limit_s: how long to hold the lease, in seconds; 0: the daemon's default.
    """

    device: str = "*"
    kind: str = "exclusive"
    memory: int = 0
    priority: int = 5
    wait_s: float = 0.0
    limit_s: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.device, str) or not 0 < len(self.device) <= 256:
            raise BadArgument(
                f"device must be a pattern of 1 to 256 characters, got {_shown(self.device)}"
            )
        if not is_plain(self.device):
            raise BadArgument(f"device must not have control characters, got {self.device!r}")
        if self.kind not in KINDS:
            raise BadArgument(f"kind must be one of {', '.join(KINDS)}, got {_shown(self.kind)}")
        object.__setattr__(self, "memory", byte_count(self.memory))
        whole("priority", self.priority, 0, PRIORITIES)
        for name in ("wait_s", "limit_s"):
            if seconds(name, getattr(self, name)) > LONGEST_S:
                raise BadArgument(f"{name} must be at most {LONGEST_S:.0f} s")

    def to_map(self) -> dict[str, object]:
        """Return it as a message's argument."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_map(properties: dict[str, Any]) -> LeaseRequest:
        """Check a message's argument; BadArgument."""
        names = {field.name for field in dataclasses.fields(LeaseRequest)}
        unknown = sorted(set(properties) - names)
        if unknown:
            raise BadArgument(f"unknown property of a lease: {', '.join(unknown)[:100]}")
        return LeaseRequest(**properties)


@dataclass(frozen=True)
class Grant:
    """A granted lease.

    Attributes:
        lease: its number.
        device: the daemon's name for it, such as "pci:0000:03:00.0".
        kind: as requested.
        target: the device's.
        clock_hertz: see Device.
        timelines: address of each queue's timeline, by kind ("compute", "copy").
        memory: quota in bytes, 0: none.
        limit_s: seconds until it ends.
        socket: for kind "transport", the path.
        firmware: for kind "transport", the folder with the chip's images.
        kernels: a folder of kernels that the daemon's machine has compiled for it (DiskCache), for
            clients on that machine; empty: none.
    """

    lease: int
    device: str
    kind: str
    target: TargetSpec
    clock_hertz: float = 1e9
    timelines: dict[str, list[int]] = field(default_factory=dict)
    memory: int = 0
    limit_s: float = 0.0
    socket: str = ""
    firmware: str = ""
    kernels: str = ""

    def to_map(self) -> dict[str, object]:
        """Return it as a reply."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_map(reply: Any) -> Grant:
        """Check a reply; WireError."""
        with checked("lease"):
            values = facts(reply)
            target = facts(values["target"])
            target["caches"] = Caches(**_typed(Caches, facts(target["caches"])))
            target["max_grid"] = tuple(map(number, cast("list[object]", target["max_grid"])))
            values["target"] = TargetSpec(**_typed(TargetSpec, target))
            grant = Grant(**_typed(Grant, values))
            kinds = [
                addresses for addresses in grant.timelines.values() if isinstance(addresses, list)
            ]
            if grant.clock_hertz <= 0:
                raise ValueError(f"clock_hertz must be positive, got {grant.clock_hertz}")
        if len(kinds) != len(grant.timelines) or not all(is_number(a) for k in kinds for a in k):
            raise WireError("the daemon sent timelines that are not addresses")
        return grant


def _typed(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass, with their types checked."""
    fields(kind, values)
    return values
