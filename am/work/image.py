"""Images of commands in their own memory: captured graphs, and images too large for an arena."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ugpu.am.work.base import CardHolder
from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.rings.image import OwnImage
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.view import HostView, RemoteView
from ugpu.hcq.work.command_buffer import CommandBuffer, Part

_GAP_WORDS = 64  # gaps up to this are written again, which saves a second transfer


class ImagesHolder(CardHolder):
    """A holder with images of commands. images: those that lie in VRAM."""

    images: weakref.WeakSet[HostImage]


class HostImage(OwnImage[Mapping]):
    """An image in its own memory. If that is not this process's memory, `words` is a copy, whose
    changes are written to the image."""

    _view: RemoteView | None = None
    patched = True  # words were written since the last submission

    def __init__(self, driver: ImagesHolder, buffer: CommandBuffer) -> None:
        self._driver = driver
        super().__init__(buffer, lambda size: driver.map(size, Placement.HOST), driver.unmap)

    def take(self, view: HostView, count: int) -> None:
        """See OwnImage."""
        if isinstance(view, memoryview):
            super().take(view, count)
            return
        assert self.memory is not None
        self.memory.clear_behind(4 * count)
        self.words, self._view = np.zeros(count, np.uint32), view

    def fill(self, encoded: CommandBuffer, values: NDArray[np.uint64]) -> None:
        """See Resident."""
        super().fill(encoded, values)
        self.rewrite()
        if self._view is not None:
            self._driver.images.add(self)

    def rewrite(self) -> None:
        """Write all words again, which a reset of the chip may have lost."""
        self.patched = True
        if self._view is not None:
            self._view[: 4 * len(self.words)] = self.words.tobytes()

    def insert(self, part: Part, values: NDArray[np.uint64]) -> None:
        """See Resident."""
        if len(part.word):
            self.patched = True
        super().insert(part, values)
        if self._view is not None and len(part.word):
            with self._driver.transport.batch():
                for first, end in _runs(part.word):
                    self._view[4 * first : 4 * end] = self.words[first:end].tobytes()

    def close(self) -> None:
        self._driver.images.discard(self)
        super().close()


def _runs(positions: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield runs of words, as (first, end), with all `positions` and no gap worth a transfer."""
    places = np.unique(positions)
    for run in np.split(places, np.flatnonzero(np.diff(places) > _GAP_WORDS) + 1):
        yield int(run[0]), int(run[-1]) + 1
