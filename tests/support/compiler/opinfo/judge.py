"""One sample of PyTorch's on ugpu: its result, gradients, and gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tests.support.compiler.opinfo.names import adapted
from ugpu.compiler import ComplexTensor, Tensor
from ugpu.hcq.errors import UgpuError

# Relative and absolute differences. The absolute one is of the largest magnitude of the result.
BOUNDS = {
    torch.float32: (1e-4, 2e-5), torch.complex64: (1e-4, 2e-5),
    torch.float16: (4e-3, 4e-3), torch.bfloat16: (3e-2, 3e-2),
}  # fmt: skip
MINE = (Tensor, ComplexTensor)
REFUSED = (UgpuError, TypeError, AttributeError, ValueError)
Leaves = list[tuple[torch.Tensor, Any]]  # a Tensor or a ComplexTensor


class Wrong(Exception):
    """A result that is not PyTorch's."""


def mine_of(given: Any, leaves: Leaves, device: str | None) -> Any:
    """Return an argument with our tensors for PyTorch's; note those that need gradients."""
    if isinstance(given, torch.Tensor):
        tensor = _tensor(given.detach(), device)
        if given.requires_grad:
            tensor.requires_grad_()
            leaves.append((given, tensor))
        return tensor
    if isinstance(given, torch.dtype):
        return str(given).removeprefix("torch.")
    if isinstance(given, torch.Size):
        return tuple(given)
    if isinstance(given, list | tuple):
        return type(given)(mine_of(each, leaves, device) for each in given)
    if isinstance(given, dict):
        return {key: mine_of(each, leaves, device) for key, each in given.items()}
    return given


def _tensor(given: torch.Tensor, device: str | None) -> Any:
    if given.is_complex():
        return ComplexTensor(given.numpy(force=True).copy(), device=device)
    if given.dtype is torch.bfloat16:
        return Tensor(given.float().numpy(), device=device).cast("bfloat16")
    return Tensor(given.numpy(force=True).copy(), device=device)


def tensors_in(result: Any, kind: Any) -> list[Any]:
    """Return the tensors in a result."""
    if isinstance(result, kind):
        return [result]
    if isinstance(result, list | tuple):
        return [tensor for each in result for tensor in tensors_in(each, kind)]
    return []


def _theirs(tensor: torch.Tensor) -> torch.Tensor:
    return _real(tensor.detach())


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return real and imaginary parts on a last axis of two, of a real tensor itself."""
    tensor = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def compare(what: str, mine: Any, theirs: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise Wrong where shapes, types or elements differ. dtype: that of the computation."""
    theirs = _theirs(theirs)
    mine = mine.pairs() if isinstance(mine, ComplexTensor) else mine
    if tuple(mine.shape) != tuple(theirs.shape):
        raise Wrong(f"{what}: shape {tuple(mine.shape)}, expected {tuple(theirs.shape)}")
    kind = str(theirs.dtype).removeprefix("torch.")
    if kind != "float64" and mine.dtype.name != kind:
        raise Wrong(f"{what}: type {mine.dtype.name}, expected {kind}")
    if mine.dtype.name in ("float16", "bfloat16") and theirs.dtype is torch.float64:
        theirs = theirs.to(getattr(torch, mine.dtype.name))  # infinite where a half is
    found = np.asarray(mine.cast("float32").numpy() if mine.dtype.is_float else mine.numpy())
    wanted = (theirs.double() if theirs.is_floating_point() else theirs).numpy(force=True)
    if not theirs.is_floating_point():
        if not np.array_equal(found, wanted):
            raise Wrong(f"{what}: elements differ")
        return
    relative, absolute = BOUNDS[dtype if dtype in BOUNDS else torch.float32]
    if what.startswith("second"):  # of quotients of what is rounded already
        relative, absolute = 5 * relative, 5 * absolute
        found = np.where(np.isnan(wanted), wanted, found)  # where PyTorch knows no derivative
    finite = np.abs(wanted[np.isfinite(wanted)])
    largest = max(1.0, float(finite.max())) if finite.size else 1.0
    with np.errstate(all="ignore"):
        if not np.allclose(found, wanted, relative, absolute * largest, equal_nan=True):
            apart = np.abs(found.astype(np.float64) - wanted)
            raise Wrong(f"{what}: differs by {np.nanmax(apart) if apart.size else 0:.3g}, "
                        f"largest {largest:.3g}, "
                        f"{int((np.isnan(found) != np.isnan(wanted)).sum())} NaN")  # fmt: skip


def called(mine: Callable[..., Any] | str, op: Any, sample: Any, leaves: Leaves,
           device: str | None) -> Any:  # fmt: skip
    """Call ours with a sample's arguments."""
    first, args, kwargs = mine_of(adapted(op.name, sample), leaves, device)
    if isinstance(first, str):
        return Tensor.einsum(first, *args)
    if callable(mine):
        return mine(first, *args, **kwargs)
    if isinstance(first, MINE):
        member = getattr(first, mine)
        return member(*args, **kwargs) if callable(member) else member
    return getattr(Tensor, mine)(first, *args, **kwargs)


def judged(mine: Callable[..., Any] | str, op: Any, sample: Any, dtype: torch.dtype,
           device: str | None = None) -> str:  # fmt: skip
    """Return the outcome of `judged_by` PyTorch in the same type; where it differs, in float64."""
    outcome = judged_by(mine, op, sample, sample, dtype, device)
    if "differs by" in outcome and dtype in BOUNDS:
        exact = judged_by(mine, op, sample, sample.transform(_doubled), dtype, device)
        outcome = "right" if exact == "right" else outcome
    return outcome


def _doubled(given: Any) -> Any:
    if isinstance(given, torch.Tensor) and given.is_complex():
        return given.detach().cdouble().requires_grad_(given.requires_grad)
    if isinstance(given, torch.Tensor) and given.is_floating_point():
        return given.detach().double().requires_grad_(given.requires_grad)
    return given


def judged_by(mine: Callable[..., Any] | str, op: Any, sample: Any, judge: Any,
              dtype: torch.dtype, device: str | None) -> str:  # fmt: skip
    """Compare ours of a sample with PyTorch's of another, which has the same numbers. Return
    "right", "refused: ...", "wrong: ...", "crashed: ...", or "unjudged: ..." where PyTorch itself
    fails."""
    leaves: Leaves = []
    try:
        answer = op(judge.input, *judge.args, **judge.kwargs)
    except Exception as error:  # the judge's own, of any class
        return f"unjudged: {type(error).__name__} {error}"[:160]
    stages = ["result"]
    try:
        result = called(mine, op, sample, leaves, device)
        pairs = _compared(result, answer, sample, dtype)
        if pairs and leaves:
            theirs = _leaves(op, judge)
            stages.extend(_gradients(op, pairs, [(t, m) for t, (_, m) in zip(
                theirs, leaves, strict=True)], dtype))  # fmt: skip
    except REFUSED as error:
        return f"refused: {stages[-1]}: {type(error).__name__} {error}"[:240]
    except Wrong as error:
        return f"wrong: {error}"[:240]
    except Exception as error:  # each sample is reported
        return f"crashed: {stages[-1]}: {type(error).__name__} {error}"[:240]
    return "right"


def _leaves(op: Any, sample: Any) -> list[torch.Tensor]:
    """Return the tensors of a sample that need gradients, in the order of `mine_of`."""
    leaves: list[torch.Tensor] = []

    def note(given: Any) -> None:
        if isinstance(given, torch.Tensor):
            if given.requires_grad:
                leaves.append(given)
        elif isinstance(given, dict):
            note(list(given.values()))
        elif isinstance(given, list | tuple):
            for each in given:
                note(each)

    note(adapted(op.name, sample))
    return leaves


def _compared(result: Any, answer: Any, sample: Any, dtype: torch.dtype) -> list[tuple[Any, Any]]:
    """Compare results; return the pairs of those that PyTorch can differentiate."""
    if isinstance(answer, bool | int | float | torch.Size):
        if isinstance(result, Tensor):
            result = result.item()
        if not np.allclose(np.asarray(result), np.asarray(answer), 1e-5, 1e-6, equal_nan=True):
            raise Wrong(f"result: {result}, expected {answer}")
        return []
    theirs = tensors_in(answer, torch.Tensor)
    mine = tensors_in(result, MINE)
    if len(mine) != len(theirs):
        raise Wrong(f"result: {len(mine)} tensors, expected {len(theirs)}")
    process = sample.output_process_fn_grad
    if process is not None and theirs:
        theirs = tensors_in(process(answer), torch.Tensor)
        mine = tensors_in(process(result), MINE)
    for place, (found, wanted) in enumerate(zip(mine, theirs, strict=True)):
        compare(f"result {place}" if place else "result", found, wanted, dtype)
    return [(m, t) for m, t in zip(mine, theirs, strict=True)
            if t.requires_grad]  # fmt: skip


def _weighted(tensors: Sequence[Any], make: Callable[[Any], Any], seed: int) -> Any:
    """Return the sum of all elements, each times a number of its own; None stands for zeros."""
    terms = []
    for place, each in enumerate(tensors):
        if each is not None:
            if isinstance(each, ComplexTensor):
                each = each.pairs()
            elif isinstance(each, torch.Tensor):
                each = _real(each)
            random = np.random.default_rng((seed, place))
            weight = random.uniform(-1, 1, tuple(each.shape)).astype(np.float32)
            terms.append((each * make(weight)).sum())
    return sum(terms[1:], terms[0])


def _gradients(op: Any, pairs: Sequence[tuple[Any, Any]], leaves: Leaves,
               dtype: torch.dtype) -> Iterator[str]:  # fmt: skip
    """Compare gradients, then gradients of gradients where PyTorch has them; yield each stage."""
    twice = dtype is torch.float32 and op.supports_gradgrad
    theirs = _weighted([t for _, t in pairs], torch.from_numpy, 0)
    inputs = [their for their, _ in leaves]
    wanted = torch.autograd.grad(theirs, inputs, allow_unused=True, create_graph=twice)
    device = leaves[0][1].device
    mine = _weighted([m for m, _ in pairs], lambda array: Tensor(array, device=device), 0)
    yield "gradient"
    found = _backward(mine, [leaf for _, leaf in leaves], twice)
    _compare_all("gradient", found, wanted, dtype)
    if not twice:
        return
    both = [(m, t) for m, t in zip(found, wanted, strict=True)
            if t is not None and t.requires_grad and t.grad_fn is not None]  # fmt: skip
    if not both:
        return
    yield "second gradient"
    second = _weighted([t for _, t in both], torch.from_numpy, 1)
    try:
        again = torch.autograd.grad(second, inputs, allow_unused=True)
    except RuntimeError:  # PyTorch has no second derivative of it
        return
    first = [m for m, _ in both]
    found = [None] * len(leaves)
    if any(m is not None for m in first):
        mine = _weighted(first, lambda array: Tensor(array, device=device), 1)
        found = _backward(mine, [leaf for _, leaf in leaves], False)
    _compare_all("second gradient", found, again, dtype)


def _backward(value: Tensor, leaves: Sequence[Tensor], again: bool) -> list[Tensor | None]:
    for leaf in leaves:
        leaf.grad = None
    if value.requires_grad:
        value.backward(create_graph=again, retain_graph=True)
    return [leaf.grad for leaf in leaves]


def _compare_all(what: str, found: Sequence[Tensor | None],
                 wanted: Sequence[torch.Tensor | None], dtype: torch.dtype) -> None:  # fmt: skip
    for place, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        title = f"{what} {place}" if place else what
        if theirs is None:
            if mine is not None and mine.numpy().any():
                raise Wrong(f"{title}: expected none")
        elif mine is None:
            if theirs.numel() and theirs.abs().max() > BOUNDS[dtype][1]:
                raise Wrong(f"{title}: none")
        else:
            compare(title, mine, theirs, dtype)
