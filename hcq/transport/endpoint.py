"""Interface of a card's model to its bus: functions, apertures, power, DMA.

A model of a chip implements this, and a model of what stands before it (`usbgpu.virtual`) uses it;
neither knows the other. Addresses are bus addresses, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hcq.clock import Clock


@dataclass(frozen=True)
class Aperture:
    """Memory that a function decodes now: BAR `index` at `start`.

    memory: plain memory (prefetchable), where bytes may be written; else registers, which take
    whole dwords.
    """

    index: int
    start: int
    size: int
    memory: bool


class EndpointFunction(Protocol):
    """One function. Its configuration space answers by offset and width (1, 2 or 4, aligned)."""

    def config_read(self, offset: int, width: int) -> int: ...
    def config_write(self, offset: int, value: int, width: int) -> None: ...

    def apertures(self) -> Sequence[Aperture]:
        """The decoded apertures; none while memory decoding is off in the command register."""
        ...

    def read(self, index: int, offset: int, size: int) -> bytes:
        """Read `size` bytes, whole dwords, in BAR `index`; of registers one access for each."""
        ...

    def write(self, index: int, offset: int, data: bytes) -> None:
        """Write whole dwords; any number of bytes where the aperture is memory."""
        ...


class Endpoint(Protocol):
    """A card. All methods may come from any thread.

    functions: by function number, [0] first. clock: the model's time and work. firmware: images
    that its driver loads, by file name. model: the chip, for those who want to look inside.
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
        """Switch its slot's power. On: no BAR has an address, nothing is enabled."""
        ...

    def reset(self) -> None:
        """Hot reset: configuration space is lost, and what the card loses by it."""
        ...

    def map_dma(self, address: int, size: int, host: int) -> None:
        """Let the card reach `size` bytes at `host` in this process by bus address `address`."""
        ...

    def memory_changed(self) -> None:
        """Memory that `map_dma` gave was written by its owner: engines that poll it look again."""
        ...

    def unmap_dma(self, address: int, size: int) -> None:
        """Undo `map_dma`; the card must not access the memory after this returns."""
        ...

    def close(self) -> None: ...
