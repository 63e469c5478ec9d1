"""Arrays from outside: objects that provide their elements by one of the usual protocols."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import BadArgument


def as_array(data: Any) -> NDArray[Any]:  # Any: its protocol is found at run time
    """View `data` as an array of the host, without a copy if its protocol allows that.

    Accepts NumPy arrays and scalars, nested sequences, the buffer protocol, `__array_interface__`,
    `__array__` and, for objects with none of these, DLPack (of the host's memory). BadArgument for
    anything else.
    """
    try:
        array = np.asarray(data)
        if array.dtype == object and hasattr(data, "__dlpack__"):
            array = np.from_dlpack(data)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise BadArgument(f"expected an array, got {type(data).__name__}: {error}") from error
    if array.dtype.kind in "OU":
        raise BadArgument(f"expected an array of numbers or bytes, got {type(data).__name__}")
    return array
