"""Replies to clients."""

from __future__ import annotations

from ugpu.hcq.errors import DeviceLost, UgpuError
from ugpu.hcq.remote import failures
from ugpu.hcq.remote.wire import Message


def reply_of(call: int, found: object) -> Message:
    """Return the reply to a call: an error, bytes, or anything that msgpack supports."""
    if isinstance(found, UgpuError):
        return Message("error", failures.to_wire(found), call)
    if isinstance(found, bytes | memoryview):
        return Message("reply", [None], call, found)
    return Message("reply", [found], call)


def lost() -> DeviceLost:
    """Return the error for a session that cannot be resumed."""
    return DeviceLost("ugpud no longer has this session; its lease is lost")


def plain(found: dict[str, object]) -> dict[str, object]:
    """Return a grant without tuples and sets, which msgpack does not distinguish from lists."""
    target = dict(found["target"])  # type: ignore[call-overload]  # a dataclass's map
    target["max_grid"] = list(target["max_grid"])
    return {**found, "target": target}
