"""The ring of a card behind a bridge: slots that are already in it are not written again.

Each write costs transfers. Where the same image is submitted again and again, as in a graph's
replays, the slots that will probably follow are written with it: 2, 4, 8 and so on, so that on
average no more is written than without this. Other submissions overwrite these slots.
"""

from __future__ import annotations

from collections.abc import Callable

_MOST = 64  # slots of one write


class RingAhead:
    """Tracks what each slot of a ring contains. count: slots of the ring."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: dict[int, bytes] = {}
        self._image: object = None  # of the previous submission
        self._run = 1

    def clear(self) -> None:
        """Forget all slots: the ring may contain anything."""
        self._held.clear()
        self._image = None

    def missing(
        self, index: int, image: object, free: int, make: Callable[[int], bytes]
    ) -> list[bytes]:
        """Return the slots that must be written from `index` on; none if the ring has them.

        image: the identity of an image. free: how many slots from `index` on have ended. make:
        returns the slot for a number of submissions from now, if all are of this image. The slots
        count as unwritten until `written`.
        """
        again, self._image = image == self._image, image
        if self._held.get(index) == make(0):
            return []
        self._run = min(2 * self._run, _MOST) if again else 1
        count = max(1, min(self._run, self._count - index, free))
        for place in range(index, index + count):
            self._held.pop(place, None)
        return [make(ahead) for ahead in range(count)]

    def written(self, index: int, slots: list[bytes]) -> None:
        """Note that slots are in the ring now."""
        self._held.update(enumerate(slots, index))
