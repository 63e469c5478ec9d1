"""Interface of a card's model to its bus: functions, apertures, power, DMA.

A model of a chip implements this, and a model of the bridge in front of it (`virtual.usb`) uses
it; neither depends on the other. Addresses are bus addresses, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ugpu.hcq.state.clock import Clock


@dataclass(frozen=True)
class Aperture:
    """Memory that a function currently decodes.

    Attributes:
        index: of the BAR.
        start: bus address.
        size: in bytes.
        memory: plain memory (prefetchable), where single bytes may be written; otherwise registers,
            which are accessed in whole dwords.
    """

    index: int
    start: int
    size: int
    memory: bool


class EndpointFunction(Protocol):
    """One function. Its configuration space is accessed by offset and width (1, 2 or 4,
    aligned)."""

    def config_read(self, offset: int, width: int) -> int: ...
    def config_write(self, offset: int, value: int, width: int) -> None: ...

    def apertures(self) -> Sequence[Aperture]:
        """Return the decoded apertures; none while memory decoding is off in the command
        register."""
        ...

    def read(self, index: int, offset: int, size: int) -> bytes:
        """Read `size` bytes, whole dwords, in BAR `index`; for registers, one access per dword."""
        ...

    def write(self, index: int, offset: int, data: bytes) -> None:
        """Write whole dwords; any number of bytes if the aperture is memory."""
        ...


class Endpoint(Protocol):
    """A card. Any thread may call any method.

    `functions` are by function number, [0] first.

    Attributes:
        clock: the model's time and work.
        firmware: images that its driver loads, by file name.
        model: the chip, for inspection.
    """

    clock: Clock
    firmware: Mapping[str, bytes]
    model: object

    @property
    def functions(self) -> Sequence[EndpointFunction]: ...

    @property
    def alive(self) -> bool:
        """Return whether the endpoint is powered and its link trains; False after it fell off the
        bus."""
        ...

    def power(self, on: bool) -> None:
        """Switch its slot's power. After power-on, no BAR has an address and nothing is enabled."""
        ...

    def reset(self) -> None:
        """Hot reset: configuration space is lost, and everything else that a card loses on a hot
        reset."""
        ...

    def map_dma(self, address: int, size: int, host: int) -> None:
        """Let the card access `size` bytes at `host` in this process by bus address `address`."""
        ...

    def memory_changed(self) -> None:
        """Note that the owner of memory from `map_dma` has written to it: engines that poll it
        check again."""
        ...

    def unmap_dma(self, address: int, size: int) -> None:
        """Undo `map_dma`; the card must not access the memory after this returns."""
        ...

    def close(self) -> None: ...
