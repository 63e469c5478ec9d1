"""What launches use of their driver, besides its GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ugpu.nv.rm.holder import Holder

if TYPE_CHECKING:
    from ugpu.nv.packets.cooperative import Workspaces


class LaunchHolder(Holder):
    """A holder that launches kernels."""

    workspaces: Workspaces  # for cooperative launches
