"""Arrays that operators compute on the host, such as weights of a resampling."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument


def table(x: Tensor, array: NDArray[Any]) -> Tensor:
    """Return an array on the device of `x`; it is copied there once, so that recorded functions can
    use it. BadArgument if it is not there yet and work is being captured."""
    whole = np.ascontiguousarray(array)
    digest = hashlib.blake2b(whole.tobytes(), digest_size=16).hexdigest()
    kept = x._kept(f"onnx {whole.dtype.str} {whole.shape} {digest}", lambda: whole)
    if kept is None:
        raise BadArgument("an ONNX model must run once before its work is captured")
    return x._new(kept.node)
