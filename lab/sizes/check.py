"""Run one case on a device, compare it with NumPy, and make a failing case smaller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from lab.sizes.case import Array, Case, Operation, Shape, followed, followed_in_numpy, viewed
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import ChipError

TRIES = 60  # maximum runs to make a case smaller
WRONG = "wrong"


def failure(case: Case, table: Mapping[str, Operation], device: Device) -> str | None:
    """Return what is wrong with a case, None if it agrees with NumPy."""
    operation = table[case.operation]
    arrays = operation.inputs(case)
    try:
        first, *others = arrays
        tensors = [viewed(case, first, device)]
        tensors += [viewed(replace(case, view="plain"), other, device) for other in others]
        result = operation.work(case, tensors)
        found = followed(case, result).numpy()
    except Exception as error:  # of any kind: what fails is what the campaign looks for
        if isinstance(error, ChipError):
            device.reset()  # the next case begins anew
        return f"{type(error).__name__}: {str(error)[:300]}"
    with np.errstate(all="ignore"):
        own = np.asarray(operation.numpy(case, arrays)).astype(result.dtype.name)
        return _difference(found, followed_in_numpy(case, own), operation)


def _difference(found: Array, wanted: Array, operation: Operation) -> str | None:
    if found.shape != wanted.shape:
        return f"{WRONG}: shape {found.shape}, expected {wanted.shape}"
    wanted = wanted.astype(found.dtype)
    if operation.rtol or operation.atol:
        near = np.isclose(found, wanted, operation.rtol, operation.atol, equal_nan=True)
    else:
        near = found == wanted
    if near.all():
        return None
    place = tuple(int(n) for n in np.unravel_index(int(np.argmin(near)), near.shape))
    return (
        f"{WRONG}: {near.size - int(near.sum())} of {near.size} elements; at {place} "
        f"{found[place]}, expected {wanted[place]}"
    )


def smallest(
    case: Case, table: Mapping[str, Operation], device: Device, tries: int = TRIES
) -> tuple[Case, str]:
    """Return the smallest failing case found within `tries` runs, and its failure. A case that does
    not fail again is returned as it is."""
    reason = failure(case, table, device)
    if reason is None:
        return case, "it did not fail when it was run again"
    smaller = True
    while smaller and tries > 0:
        smaller = False
        for candidate in _simpler(case, table[case.operation].types[0]):
            tries -= 1
            if tries < 0:
                break
            again = failure(candidate, table, device)
            if again is not None:
                case, reason, smaller = candidate, again, True
                break
    return case, reason


def _simpler(case: Case, dtype: str) -> Iterator[Case]:
    """Yield simpler cases, the simplest first."""
    if case.after != "nothing":
        yield replace(case, after="nothing")
    if case.view != "plain":
        yield replace(case, view="plain")
    if case.dtype != dtype:
        yield replace(case, dtype=dtype)
    for axis, size in enumerate(case.sizes):
        for less in (1, size // 2, size * 7 // 8, size - size % 16, size - 8, size - 1):
            if 0 < less < size:
                yield replace(case, sizes=_with(case.sizes, axis, less))


def _with(sizes: Shape, axis: int, size: int) -> Shape:
    return (*sizes[:axis], size, *sizes[axis + 1 :])
