"""Tensors give and take arrays by the usual protocols."""

from __future__ import annotations

import numpy as np
import pytest

from ugpu.compiler import Tensor
from ugpu.hcq.errors import BadArgument


class ByDlpack:
    """Offers an array by DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [memoryview, np.ndarray.tolist, ByDlpack])
def test_in_and_out(wrap) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = Tensor(wrap(array), device="cpu")
    assert (np.asarray(tensor) == array).all()
    assert (np.from_dlpack(tensor) == array).all()


def test_the_parts_along_the_first_axis() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    first, second = Tensor(array, device="cpu")
    assert (first.numpy() == array[0]).all() and (second.numpy() == array[1]).all()
    assert [part.shape for part in first] == [()] * 3
    with pytest.raises(TypeError, match="without axes"):
        iter(first.sum())


@pytest.mark.parametrize("wrong", [None, object(), "text", [[1], [2, 3]], [object()]])
def test_no_arrays(wrong: object) -> None:
    with pytest.raises(BadArgument, match="Tensor"):
        Tensor(wrong, device="cpu")
