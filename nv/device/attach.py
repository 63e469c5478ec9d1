"""The stock driver's nodes on this machine, for hcq.find.registry."""

from __future__ import annotations

from ugpu.hcq.transport.node import NodeAttachment
from ugpu.hcq.transport.system_node import SystemNode


def attach(index: int) -> NodeAttachment:
    """The attachment of `/dev/nvidia<index>`; does not open the node yet."""
    return NodeAttachment(SystemNode("nvidia"), "nvrm", index)
