"""The objects of one GPU in the resource manager, as files below nv.rm.gpu use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ugpu.nv.rm.client import RmClient
    from ugpu.nv.rm.session import Session


class GpuObjects(Protocol):
    """See nv.rm.gpu.Gpu."""

    session: Session
    device: int  # handle
    subdevice: int  # handle
    index: int  # of the GPU's node
    path: str  # of its node
    uuid: bytes

    @property
    def client(self) -> RmClient: ...
    @property
    def sm_count(self) -> int: ...
