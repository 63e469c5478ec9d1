"""Failures of a channel's work: raised by an engine's front end, reported by the runlist."""

from __future__ import annotations

from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.instruction import Culprit
from ugpu.virtual.nvidia.faults import Xid
from ugpu.virtual.nvidia.memory.faults import MmuFault


class ChannelError(Exception):
    """Ends a channel, and with it all channels of its group (robust channel recovery).

    fault: the MMU's report, with Xid 31. gap: what the model lacks, if hardware would not have
    failed. culprit: the instruction that made the access.
    """

    def __init__(
        self,
        xid: Xid,
        text: str,
        fault: MmuFault | None = None,
        gap: NotSupported | None = None,
        culprit: Culprit | None = None,
    ) -> None:
        super().__init__(text)
        self.gap = gap
        self.culprit = culprit
        self.xid = xid
        self.text = text
        self.fault = fault


class Aborted(Exception):
    """The channel was removed while its grid ran. This is not reported."""
