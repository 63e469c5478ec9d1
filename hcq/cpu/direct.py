"""Work executed in the thread that submits it, and waits for what has ended, without running
Python: records of native/direct.ll, whose structures these are.

Only on interpreters whose objects keep their slots where `slot_offsets` can tell; elsewhere, and in
all other cases, Python code does the same in more steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from ugpu.hcq.cpu.processor import ALARMS, Words, native
from ugpu.hcq.device.closing import Gate
from ugpu.hcq.objects.builtin import slot_offsets

if TYPE_CHECKING:
    from ugpu.hcq.device.core import Core
    from ugpu.hcq.work.queue import Repetition

_GATE = ("closed", "failure", "replaying", "resets", "capturing", "closer", "launches")


@cache
def _offsets() -> Sequence[int] | None:
    return slot_offsets(Gate, *_GATE)


def _gate(core: Core) -> tuple[list[int], int] | None:
    """Return the words of %Gate, and the address of the slot of launches."""
    offsets = _offsets()
    if offsets is None:
        return None
    *slots, launches = [id(core) + offset for offset in offsets]
    return [*slots, id(core.resets)], launches


class Direct:
    """A repetition as `ugpu_now` of native/direct.ll submits it; see hcq.work.queue.NativeWork."""

    def __init__(self, objects: Sequence[object], words: Sequence[int], given: int) -> None:
        self.given = given
        self._kept = objects
        self._record = Words(len(words))
        self._record.words[:] = words
        self.address = self._record.address


def direct(repetition: Repetition, core: Core, record: int, given: int) -> Direct | None:
    """Return a repetition, whose native record and numbers are at these addresses, as native code
    submits it; None where this interpreter is not known well enough."""
    gate = _gate(core)
    if gate is None:
        return None
    used, lock, more = tuple(repetition.prepared.uses), core.lock, repetition.prepared.launches
    note, timeline = core.losses.submitted, repetition.hardware.timeline
    objects = [lock.acquire, lock.release, True, False, None]
    rest = [more, "closed", note, timeline]
    words = [record, *map(id, objects), *gate[0], gate[1], *map(id, rest)]
    words += [len(used), *map(id, used)]
    return Direct([*objects, *rest, *used, core, core.resets, repetition], words, given)


class Quiet:
    """A function that finds out at once whether a wait for all work of a device would find it
    ended, see native/direct.ll; None where this interpreter is not known well enough."""

    def __init__(self, core: Core, alarms: int, timelines: Sequence[tuple[int, Words]]) -> None:
        """timelines: the address of each one's words, and the word of what was found clean."""
        self.look: Callable[[], bool] | None = None
        gate = _gate(core)
        if gate is None:
            return
        containers = [core.retired.closing, core.losses.automatic, core.followers.raising]
        self._kept = [*containers, *timelines, core.resets]
        words = [id(True), id(False), id(None), *gate[0], alarms + 8 * ALARMS]
        words += [len(containers), *map(id, containers), len(timelines)]
        for address, clean in timelines:
            words += [address, clean.address]
        self._record = Words(len(words))
        self._record.words[:] = words
        self.look = native().quiet.of(self._record.address)
