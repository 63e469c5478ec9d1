"""What functions of linear algebra share: their arguments, their steps and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.dtype import int64, wide
from ugpu.compiler.gradients.reverse import tracking
from ugpu.compiler.graph.tracking import History, mode
from ugpu.compiler.numeric import pairs
from ugpu.compiler.numeric.pairs import real_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument, NotSupported


def matrix_of(operation: str, a: Tensor, whole: bool = False) -> Tensor:
    """Return a matrix [..., rows, columns] of floats; BadArgument for another argument. whole: it
    may be complex."""
    if whole and isinstance(a, ComplexTensor) and a.ndim >= 2:
        return a
    if not isinstance(a, Tensor) or a.ndim < 2:
        shown = list(a.shape) if isinstance(a, Tensor) else repr(a)
        raise BadArgument(f"{operation}: expected a matrix [..., rows, columns], got {shown}")
    return a.cast(wide(a.dtype))


def nothing(like: Tensor, *shape: int) -> Tensor:
    """Return the result for matrices without elements: ones on a diagonal of the last two axes."""
    eye = Tensor.eye(*shape[-2:], device=like.device, dtype=real_of(like).dtype)
    return pairs.like(eye.broadcast_to((*like.shape[:-2], *shape)), like)


def square_of(operation: str, a: Tensor, whole: bool = False) -> Tensor:
    """Return a square matrix of floats; BadArgument for another argument. whole: it may be
    complex."""
    matrix = matrix_of(operation, a, whole)
    if matrix.shape[-1] != matrix.shape[-2]:
        raise BadArgument(f"{operation}: expected a square matrix, got shape {list(a.shape)}")
    return matrix


def batch_of(operation: str, *matrices: Tensor) -> Sequence[int]:
    """Return the leading axes of matrices, broadcast; BadArgument if they do not fit."""
    shapes = [each.shape[:-2] for each in matrices]
    axes = max(map(len, shapes))
    sizes = []
    for place in range(-axes, 0):
        different = {s[place] for s in shapes if len(s) >= -place} - {1}
        if len(different) > 1:
            raise BadArgument(
                f"{operation}: shapes {[list(m.shape) for m in matrices]} do not match"
            )
        sizes.append(next(iter(different), 1))
    return tuple(sizes)


def scaled(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return matrices [batch, rows, columns] divided by powers of two [batch, 1, 1], so that
    squares of their elements neither overflow nor vanish; and these powers."""
    most = matrix.abs().max((1, 2), keepdims=True)
    finite = (most > 0) & (most < float("inf"))
    exponents = finite.where(most, 1.0).log2().floor().clamp(-120, 120)
    power = exponents.exp2().contiguous()
    return matrix / power, power


def first_step(like: Tensor) -> Tensor:
    return Tensor.zeros(1, dtype=int64, device=like.device).contiguous()


def computed(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Compute a step's results now, so that the next step's kernels are the same."""
    parts = [
        part
        for each in tensors
        for part in (each.parts if isinstance(each, ComplexTensor) else (each,))
    ]
    parts[0].realize(*parts[1:])
    return tensors


def ruled(
    compute: Callable[[], list[Tensor]],
    rules: Sequence[str | None],
    sources: Sequence[Tensor],
    again: Callable[[], Sequence[Tensor]] | None = None,
) -> list[Tensor]:
    """Compute results untracked, and give each a gradient by a rule, as a function of the sources;
    None for no gradient. again: the function itself; the rule's arg is a call that returns all its
    results, tracked ones for derivatives of higher order. NotSupported for a complex source that is
    tracked."""
    tracked = mode.on and any(each.requires_grad for each in sources)
    if tracked and any(isinstance(each, ComplexTensor) for each in sources):
        raise NotSupported(f"backward: {rules[0]} has a gradient for real matrices alone")
    with tracking(False):
        results = compute()
    if not tracked:
        return results
    plain = [each.detach() for each in results]

    def all_results() -> Sequence[Any]:
        return again() if again is not None and mode.on else plain

    nodes = tuple([each.node for each in sources])
    for result, name in zip(results, rules, strict=True):
        if name is not None:
            result.node.tracked, result.node.history = True, History(name, nodes, all_results)
    return results
