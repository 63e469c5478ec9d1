"""A chip in its present state, behind a transport or of a recording."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from ugpu.hcq.find.registry import Attachment
from ugpu.hcq.transport.recorded.state import RecordedTransport

C = TypeVar("C")


def reached(
    attachment: Attachment,
    open_window: Callable[[Attachment], AbstractContextManager[C]],
    open_recorded: Callable[[RecordedTransport], AbstractContextManager[C]],
) -> AbstractContextManager[C]:
    """Return the chip by the function for its kind of transport; see hcq.find.offline."""
    transport = attachment.transport
    if isinstance(transport, RecordedTransport):
        return open_recorded(transport)
    return open_window(attachment)
