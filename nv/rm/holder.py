"""Holder: what code, packets and workspaces use of the driver of one GPU (nv.device.driver)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ugpu.hcq.device.driver import Driver

if TYPE_CHECKING:
    from ugpu.nv.rm.gpu import Gpu
    from ugpu.nv.rm.session import Session


class Holder(Driver):
    """A client of the resource manager that holds one GPU."""

    gpu: Gpu  # closed with the driver
    session: Session  # shared with other GPUs of the process
    on_print: Callable[[str], None]  # receives each text that kernels printed
