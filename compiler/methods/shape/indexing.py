"""Tensor: x[...] by ints, slices, None, ..., arrays, lists and integer tensors, as in NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Self

import numpy as np

from ugpu.compiler.dtype import bool_, int64
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node, Shape
from ugpu.compiler.graph.region import Region
from ugpu.compiler.methods.core import TensorCore, broadcast, broadcast_shape
from ugpu.compiler.methods.shape.movement import Movement
from ugpu.hcq.errors import BadArgument, BadIndex

Key = int | slice | None | TensorCore | np.ndarray[Any, Any]


@dataclass(frozen=True)
class Choice:
    """A key with arrays or tensors. places: positions of these (and of ints) in the key; axes: the
    axes they index. basic: the key with slices in their places. indices: one for each, of shapes
    that broadcast to `common`; known: the same as arrays, None for an index held by a tensor."""

    places: list[int]
    axes: list[int]
    basic: list[Key]
    indices: list[Node]
    known: list[np.ndarray[Any, Any] | None]
    common: Shape

    @property
    def checked(self) -> bool:
        """Return whether all indices are known and in range."""
        return all(each is not None for each in self.known)

    @property
    def side_by_side(self) -> bool:
        """Return whether the new axes replace the indexed ones in place; otherwise they come
        first."""
        return self.places == list(range(self.places[0], self.places[0] + len(self.places)))

    def distinct(self, shape: Shape) -> bool:
        """Return whether the indices are known and choose no element of an array twice."""
        known = [each for each in self.known if each is not None]
        if len(known) < len(self.known):
            return False
        sizes = [shape[axis] for axis in self.axes]
        flat = np.ravel_multi_index(np.broadcast_arrays(*known), sizes).reshape(-1)
        return len(np.unique(flat)) == len(flat)


class Indexing(Movement):
    """Reading elements. Results are independent values, not views."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Self:
        """Index as in NumPy. Integer tensors, arrays and lists select elements (gather); a bool
        array selects where it is true, and so does a bool tensor, for which the device is waited
        for. An out-of-range index gives zero if a tensor holds it; if it is known on the host it
        raises an error."""
        name = _name(key)
        if name is not None:
            return self._again(name, (), lambda: self._element(key))
        return self._element(key)

    def _element(self, key: Any) -> Self:
        listed = tuple(
            self._read_mask(entry)
            if isinstance(entry, TensorCore) and entry.dtype is bool_
            else entry
            for entry in (key if isinstance(key, tuple) else (key,))
        )
        for place, entry in enumerate(listed):
            if is_bool(entry) and not entry:
                return self._with_no_part(listed, place)
        entries = self._full_key(listed)
        if any(isinstance(entry, TensorCore | np.ndarray) for entry in entries):
            return self._gather(entries)
        return self._new(self._region(entries).read(self.node))

    def _read_mask(self, mask: TensorCore) -> Any:
        lifted = self._lift("index", mask)
        assert isinstance(lifted, TensorCore)
        return self._picked(self._new(lifted.node))

    def _with_no_part(self, key: Sequence[Any], place: int) -> Self:
        """Apply a key with False at a place: an axis of size 1, of which no part is selected."""
        before, behind = key[:place], key[place + 1 :]
        axis = sum(map(_axes_of, before))
        if any(entry is Ellipsis for entry in before):
            axis = self.ndim - sum(map(_axes_of, behind))
        return self.unsqueeze(axis)[(*before, np.zeros(0, np.int64), *behind)]

    def _picked(self, mask: Self) -> Any:
        """Return a mask, or counts, as an array."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Self]:
        """Iterate over the parts along the first axis."""
        if not self.ndim:
            raise TypeError("a tensor without axes cannot be iterated")
        return (self[place] for place in range(self.shape[0]))

    def take(self, indices: Any, axis: int | None = None) -> Self:
        """Return the elements at `indices` along one axis; None: of the flattened tensor."""
        if axis is None:
            return self.reshape(self.numel())[indices]
        place = self._axis("take", axis)
        return self[(*[slice(None)] * place, indices)]

    def _region(self, entries: Sequence[Key]) -> Region:
        box: list[tuple[int, int]] = []
        steps: list[int] = []
        flipped: list[int] = []
        result: list[int] = []  # the final shape
        axis = 0
        for entry in entries:
            if entry is None:
                result.append(1)
                continue
            size = self.shape[axis]
            if isinstance(entry, slice):
                start, stop, step = entry.indices(size)
                count = len(range(start, stop, step))
                low, high = sorted((start, start + (count - 1) * step)) if count else (0, -1)
                box.append((low, high + 1))
                steps.append(abs(step))
                if step < 0 and count:
                    flipped.append(axis)
                result.append(count)
            else:
                assert isinstance(entry, int)
                place = self._place(entry, axis)
                box.append((place, place + 1))
                steps.append(1)
            axis += 1
        return Region(tuple(box), tuple(steps), tuple(flipped), tuple(result))

    def _place(self, index: int, axis: int) -> int:
        size = self.shape[axis]
        if not -size <= index < size:
            raise BadIndex(f"index {index} is outside axis {axis} of shape {self._shown}")
        return index % size

    def _gather(self, entries: Sequence[Key]) -> Self:
        """Apply basic indexing with each indexed axis whole, then gather over those axes."""
        chosen = self._choose(entries)
        places, common = chosen.places, chosen.common
        source = self._region(chosen.basic).read(self.node)
        indices = [broadcast(node, common) for node in chosen.indices]
        node = graph.gather(source, tuple(places), indices, chosen.checked)
        if chosen.side_by_side:
            order = list(range(len(node.shape)))
            moved = [*order[len(common) : len(common) + places[0]], *order[: len(common)]]
            node = graph.permute(node, (*moved, *order[len(common) + places[0] :]))
        return self._new(node)

    def _choose(self, entries: Sequence[Key]) -> Choice:
        whole = slice(None)
        places = [i for i, e in enumerate(entries) if isinstance(e, int | TensorCore | np.ndarray)]
        basic = [whole if i in places else entry for i, entry in enumerate(entries)]
        axes = [sum(e is not None for e in entries[:place]) for place in places]
        found = [
            self._index_node(entries[place], axis) for place, axis in zip(places, axes, strict=True)
        ]
        nodes = [node for node, _ in found]
        common = broadcast_shape("index", *nodes)
        return Choice(places, axes, basic, nodes, [known for _, known in found], common)

    def _index_node(self, entry: Any, axis: int) -> tuple[Node, np.ndarray[Any, Any] | None]:
        """Return an index as a node, and as an array if it is known; then all of it is in range."""
        size = self.shape[axis]
        if isinstance(entry, TensorCore):
            checked = self._lift("index", entry)
            assert isinstance(checked, TensorCore)
            if not entry.dtype.is_integer:
                raise BadArgument(
                    f"an index tensor must have integers or bools, got {entry.dtype.name}"
                )
            return entry.node, None
        array = np.asarray(self._place(entry, axis) if isinstance(entry, int) else entry)
        if array.size and not (-size <= array.min() and array.max() < size):
            worst = array.max() if array.max() >= size else array.min()
            raise BadIndex(f"index {worst} is outside axis {axis} of shape {self._shown}")
        wrapped = np.where(array < 0, array + size, array).astype(np.int64)
        if wrapped.ndim == 0:
            return self._constant("index", int(wrapped), int64, ()), wrapped
        return self._from_array(wrapped).node, wrapped

    def _full_key(self, key: tuple[Any, ...]) -> list[Key]:
        """Return the key with "..." written out and arrays checked: one entry for each axis, and
        the Nones."""
        entries: list[Key | EllipsisType] = []
        for entry in key:
            entries += self._entries(entry)
        dots = [i for i, entry in enumerate(entries) if isinstance(entry, EllipsisType)]
        if len(dots) > 1:
            raise BadArgument("an index may contain ... once")
        given = sum(1 for entry in entries if entry is not None) - len(dots)
        if given > self.ndim:
            raise BadIndex(f"too many indices: got {given} for shape {self._shown}")
        place = dots[0] if dots else len(entries)
        rest: list[Key] = [slice(None)] * (self.ndim - given)
        full = [*entries[:place], *rest, *entries[place + len(dots) :]]
        listed = [entry for entry in full if not isinstance(entry, EllipsisType)]
        self._check_masks(key, listed)
        return listed

    def _entries(self, entry: Any) -> list[Key | EllipsisType]:
        """Return one entry of a key; a bool array becomes an integer array for each of its axes."""
        if is_bool(entry):
            return [None]  # False has been replaced
        if entry is None or isinstance(entry, slice | EllipsisType | TensorCore):
            return [entry]
        if isinstance(entry, int | np.integer):
            return [int(entry)]
        if isinstance(entry, list | tuple):
            entry = _listed(entry)
        if isinstance(entry, np.ndarray) and entry.dtype.kind in "iu":
            return [entry]
        if isinstance(entry, np.ndarray) and entry.dtype.kind == "b" and entry.ndim:
            return list(entry.nonzero())
        raise BadArgument(f"an index must be int, slice, None, ... or integers, got {entry!r}")

    def _check_masks(self, key: Sequence[Any], entries: Sequence[Key]) -> None:
        """Check that a mask has the sizes of the axes it stands for."""
        axis = 0
        dots = False
        for entry in key:
            mask = _listed(entry) if isinstance(entry, list | tuple) else entry
            if is_bool(mask):
                continue
            if isinstance(mask, np.ndarray) and mask.dtype.kind == "b":
                stop = self.ndim if dots else axis + mask.ndim
                own = self.shape[stop - mask.ndim : stop]
                fits = (n in (0, size) for n, size in zip(mask.shape, own, strict=False))
                if not dots and not all(fits):
                    raise BadIndex(
                        f"the mask's shape {list(mask.shape)} does not match shape {self._shown}"
                    )
                axis += mask.ndim
            elif isinstance(entry, EllipsisType):
                dots = True
            elif entry is not None:
                axis += 1


def is_bool(entry: Any) -> bool:
    """Return whether an entry of a key is one bool: Python's, NumPy's, or an array without axes."""
    if isinstance(entry, np.ndarray):
        return entry.ndim == 0 and entry.dtype.kind == "b"
    return isinstance(entry, bool | np.bool_)


def _axes_of(entry: Any) -> int:
    """Return how many axes an entry of a key indexes."""
    if entry is None or entry is Ellipsis or is_bool(entry):
        return 0
    mask = _listed(entry) if isinstance(entry, list | tuple) else entry
    return mask.ndim if isinstance(mask, np.ndarray) and mask.dtype.kind == "b" else 1


def _listed(entry: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return a list or tuple of indices as an array."""
    try:
        return np.asarray(entry, None if len(entry) else np.int64)
    except ValueError:
        raise BadArgument(f"index: expected a list of equal lengths, got {entry!r}") from None


def _name(key: Any) -> tuple[object, ...] | None:
    """Return a key of ints and slices by ints as a lookup key; None for other keys."""
    name: list[object] = ["[]"]
    for entry in key if type(key) is tuple else (key,):
        if type(entry) is slice:
            parts = entry.start, entry.stop, entry.step
            if not all(part is None or type(part) is int for part in parts):
                return None
            name.append(parts)
        elif type(entry) is int:
            name.append(entry)
        else:
            return None
    return tuple(name)
