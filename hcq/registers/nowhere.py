"""The bus of registers without a device: for their names and places."""

from __future__ import annotations

from ugpu.hcq.errors import BadArgument


class Nowhere:
    """Raises BadArgument at each access."""

    def read32(self, index: int) -> int:
        """See RegisterBus."""
        raise BadArgument(
            "these registers do not belong to a device; open one to read them", index=index
        )

    def write32(self, index: int, value: int) -> None:
        """See RegisterBus."""
        raise BadArgument(
            "these registers do not belong to a device; open one to write them", index=index
        )

    current32 = read32
