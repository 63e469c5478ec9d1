"""Contexts of KGSL: timestamps, submissions in flight, and the effects of a reset on them."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ugpu.virtual.adreno.memory.space import AddressSpace

NO_FAULT_TOLERANCE, USER_TIMESTAMPS, INVALIDATE_ON_FAULT = 0x200, 0x80, 0x1000_0000


class ResetStatus(enum.IntEnum):
    """Reset status reported by GPU_RESET_STAT (msm_kgsl.h, kgsl_ctx_reset_stat)."""

    NO_ERROR = 0
    GUILTY = 1
    INNOCENT = 2
    UNKNOWN = 3


def after(one: int, other: int) -> bool:
    """Return whether a 32-bit timestamp is later than another, with wrap-around, as KGSL's
    timestamp_cmp compares them."""
    return 0 < (one - other & 0xFFFF_FFFF) < 0x8000_0000


class Owner(Protocol):
    """The program that has a context."""

    space: AddressSpace

    @property
    def halts_at_page_faults(self) -> bool:
        """Whether a page fault of a shader ends the submission."""
        ...


@dataclass(eq=False)
class Context:
    """One context. queued, consumed, retired: the last timestamps allocated, begun and ended.

    invalid: a fault ended it, and it can only be destroyed. faulted: a fault was skipped and the
    next submission reports it once (EPROTO). events: called once a timestamp has retired.
    power: level requested by a constraint, KGSL_CONSTRAINT_PWR_*. page_faults: (address,
    KGSL_PAGEFAULT_TYPE_*) for GET_FAULT_REPORT.
    """

    id: int
    node: Owner
    flags: int
    queued: int = 0
    consumed: int = 0
    retired: int = 0
    status: ResetStatus = ResetStatus.NO_ERROR
    invalid: bool = False
    faulted: bool = False
    detached: bool = False
    events: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    power: int | None = None
    page_faults: list[tuple[int, int]] = field(default_factory=list)

    def is_retired(self, timestamp: int) -> bool:
        """Return whether a timestamp has retired."""
        return not after(timestamp, self.retired)

    def retire(self, timestamp: int) -> None:
        """End all submissions up to a timestamp, and call the events that wait for them."""
        self.retired = timestamp
        due = [call for at, call in self.events if self.is_retired(at)]
        self.events = [entry for entry in self.events if not self.is_retired(entry[0])]
        for call in due:
            call()

    def begin(self, submission: Submission) -> None:
        """Note that the GPU begins a submission of this context."""

    def blame(self) -> None:
        """Note that a submission of this context was at fault."""
        self.status = ResetStatus.GUILTY
        self.faulted = True
        self.invalid = not self.tolerates_faults

    @property
    def halts_at_page_faults(self) -> bool:
        """Return whether a page fault of a shader ends the submission."""
        return self.node.halts_at_page_faults

    @property
    def tolerates_faults(self) -> bool:
        """Return whether a fault skips the submission instead of ending the context."""
        return not self.flags & (NO_FAULT_TOLERANCE | INVALIDATE_ON_FAULT)


@dataclass(frozen=True)
class SyncPoint:
    """A submission waits for a timestamp of a context."""

    context: Context
    timestamp: int

    @property
    def reached(self) -> bool:
        """Return whether the sync point no longer blocks: always, if its context has ended."""
        gone = self.context.detached or self.context.invalid
        return gone or self.context.is_retired(self.timestamp)


@dataclass(frozen=True)
class Submission:
    """The arguments of one GPU_COMMAND. buffers: (GPU address, bytes) of each command object."""

    context: Context
    timestamp: int
    buffers: tuple[tuple[int, int], ...] = ()
    syncs: tuple[SyncPoint, ...] = ()
    named: frozenset[int] = frozenset()  # ids of objects that it lists (msm)
