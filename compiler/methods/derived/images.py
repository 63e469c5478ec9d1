"""Tensor: padding by the elements themselves, and sampling of images at any positions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, Literal, Self

from ugpu.compiler.dtype import int64
from ugpu.compiler.methods.groups import Groups
from ugpu.compiler.methods.shape.resampling import cubic_weights
from ugpu.hcq.errors import BadArgument

PADDINGS = ("zeros", "border", "reflection")


class Images(Groups):
    """Padding and sampling."""

    __slots__ = ()

    def pad_with(
        self,
        pairs: Sequence[tuple[int, int]],
        mode: Literal["reflect", "replicate", "circular"],
    ) -> Self:
        """Add elements of the tensor around it: (before, after) for each axis. mode: mirrored
        without the edge, the edge repeated, or from the other end. A negative amount removes
        elements."""
        listed = self._pairs("pad_with", pairs)
        if mode not in ("reflect", "replicate", "circular"):
            raise BadArgument(
                f"pad_with: mode must be 'reflect', 'replicate' or 'circular', got {mode!r}"
            )
        result: Self = self
        if mode == "circular":  # around what remains
            result = self.pad([(min(0, before), min(0, after)) for before, after in listed])
            listed = [(max(0, before), max(0, after)) for before, after in listed]
        for axis, (before, after) in enumerate(listed):
            size = result.shape[axis]
            most = {"reflect": size - 1, "circular": size, "replicate": max(before, after)}[mode]
            if before + size + after < 0 or max(before, after) > max(0, most if size else 0):
                raise BadArgument(
                    f"pad_with: {mode!r} of axis {axis} of shape {self._shown} can add {-size} to "
                    f"{most} elements on each side, found ({before}, {after})"
                )
            if before or after:
                places = self._counted(before + size + after, 0)
                flat = places.reshape((before + size + after,)) - before
                if mode == "reflect":
                    flat = (size - 1) - ((size - 1) - flat.abs()).abs()
                elif mode == "replicate":
                    flat = flat.clamp(0, size - 1)
                else:
                    flat = flat.remainder(size)
                result = result[(*[slice(None)] * axis, flat)]
        return result

    def grid_sample(
        self,
        grid: Any,
        mode: Literal["bilinear", "nearest", "bicubic"] = "bilinear",
        padding_mode: Literal["zeros", "border", "reflection"] = "zeros",
        align_corners: bool = False,
    ) -> Self:
        """Return images [batch, channels, (depth,) height, width] at the positions of a grid
        [batch, (depth,) height, width, 2 or 3], x first, from -1 to 1.

        align_corners: -1 and 1 are the centres of the first and last elements, otherwise their
        outer edges. padding_mode: what is outside. "bicubic" needs images of two axes.
        """
        given = self._tensor("grid_sample", grid)
        axes = self.ndim - 2
        if axes not in (2, 3) or given.ndim != self.ndim or given.shape[-1] != axes or (
            given.shape[0] != self.shape[0]
        ):  # fmt: skip
            raise BadArgument(
                "grid_sample: expected images [batch, channels, (depth,) height, width] and a grid "
                f"[batch, ..., 2 or 3], got shapes {self._shown} and {given._shown}"
            )
        if mode not in ("bilinear", "nearest", "bicubic") or (mode == "bicubic" and axes == 3):
            raise BadArgument(f"grid_sample: mode {mode!r} is not supported for {axes} axes")
        if padding_mode not in PADDINGS:
            raise BadArgument(
                f"grid_sample: padding_mode must be one of {PADDINGS}, got {padding_mode!r}"
            )
        sizes = self.shape[2:]
        if not prod(sizes):
            raise BadArgument(f"grid_sample: the images are empty, shape {self._shown}")
        positions = []
        for axis, size in enumerate(sizes):
            part = given[..., axes - 1 - axis]._real()
            moved = (part + 1) * ((size - 1) / 2) if align_corners else ((part + 1) * size - 1) / 2
            # of cubic weights, each neighbour is moved inside by itself
            keep = padding_mode == "zeros" or mode == "bicubic"
            positions.append(moved if keep else _inside(moved, size, padding_mode, align_corners))
        total: Self | None = None
        for corner in product(*(_taps(position, mode) for position in positions)):
            weight: Any = None
            places, seen = [], None
            for (place, share), size in zip(corner, sizes, strict=True):
                if mode == "bicubic" and padding_mode != "zeros":
                    place = _inside(place, size, padding_mode, align_corners)
                whole = place.round()
                within = (whole >= 0) & (whole <= size - 1)
                seen = within if seen is None else seen & within
                places.append(whole.clamp(0, size - 1).cast(int64))
                if share is not None:
                    weight = share if weight is None else weight * share
            values = self._sampled(places)
            assert seen is not None
            values = seen.unsqueeze(1).where(values, 0.0)
            term = values if weight is None else values * weight.unsqueeze(1)
            total = term if total is None else total + term
        assert total is not None
        return total.cast(self.dtype)

    def _sampled(self, places: Sequence[Self]) -> Self:
        """Return the elements of each channel at one place for each position."""
        sizes = self.shape[2:]
        flat = places[0]
        for place, size in zip(places[1:], sizes[1:], strict=True):
            flat = flat * size + place
        batch, channels = self.shape[:2]
        index = flat.reshape((batch, 1, flat.numel() // max(1, batch)))
        index = index.expand((batch, channels, index.shape[2]))
        rows = self._real().reshape((batch, channels, prod(sizes)))
        return rows.gather(2, index).reshape((batch, channels, *flat.shape[1:]))


def _taps(position: Any, mode: str) -> list[tuple[Any, Any]]:
    """Return the neighbours of a position along an axis, with their weights; None counts as 1."""
    if mode == "nearest":
        return [(position.round(), None)]
    first = position.floor()
    part = position - first
    if mode == "bilinear":
        return [(first, 1 - part), (first + 1, part)]
    return [(first + tap, w) for tap, w in zip(range(-1, 3), cubic_weights(part), strict=True)]


def _inside(position: Any, size: int, padding: str, align_corners: bool) -> Any:
    """Move positions outside of an axis to its edge, or mirror them there."""
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        span = high - low
        if span == 0:
            return position * 0
        away = (position - low).abs().fmod(2 * span)
        position = low + (away > span).where(2 * span - away, away)
    within = (position > 0) & (position < size - 1)  # elsewhere it has no gradient, as in PyTorch
    return within.where(position, position.detach().clamp(0, size - 1))
