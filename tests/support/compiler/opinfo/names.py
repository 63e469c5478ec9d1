"""Which of PyTorch's operations ugpu has under the same name, and the arguments of a sample as ours
takes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ugpu.compiler import Tensor
from ugpu.compiler.numeric import fft, linalg

# Operations whose results of integers, bools and halves differ from PyTorch's: counted apart.
_ROUNDED = "numbers are rounded, as in NumPy, where PyTorch rounds the limits and the step first"
_FACTORS = "a factor that is a float makes integers float32, where PyTorch cuts it to an integer"
DIFFERENT = {
    **dict.fromkeys(("arange", "linspace", "logspace"), _ROUNDED),
    **dict.fromkeys(("addmv", "addbmm", "baddbmm", "addmm", "addr"), _FACTORS),
    **dict.fromkeys((f"nn.functional.avg_pool{n}d" for n in (1, 2, 3)),
                    "means of integers are float32"),
    **dict.fromkeys(("kthvalue", "topk", "mode", "sort", "argsort", "msort"),
                    "the place of another of equals"),
    **dict.fromkeys(("pow", "__rpow__"), "gradients that no half holds, before they are summed"),
}  # fmt: skip

Given = tuple[Any, tuple[Any, ...], dict[str, Any]]  # input, arguments, keywords

# PyTorch's name, where ours is another one; None: not compared, or not an operation.
NAMES: dict[str, str | None] = {
    "__rdiv__": "__rtruediv__", "special.expit": "sigmoid", "nn.functional.unfold": "im2col",
"item": "item", "dropout": None, "new_empty": None,
    "new_empty_strided": None, "empty_like": None, "to": None, "type": None, "T": None,
    "nn.functional.dropout": None, "rand_like": None, "randn_like": None, "nn.functional.fold":
    "fold", "nn.functional.layer_norm": None, "normal": None, "uniform": None, "bernoulli": None,
    "multinomial": None, "randn": None, "randint": None, "jiterator_unary": None,
    "zero_": None, "double": None, "nn.functional.fractional_max_pool2d": None,
}  # fmt: skip
PREFIXES = ("masked.", "sparse.", "torch.", "_", "jiterator", "signal.")
CREATION = ("arange", "linspace", "logspace", "eye", "full", "ones", "zeros")
COMPLEX = ("fft", "ifft", "irfft", "hfft", "fftn", "ifftn", "irfftn", "fft2", "ifft2", "irfft2")
# Types that ugpu does not have: samples that ask for one are left out.
MISSING = (torch.float64, torch.complex32, torch.complex128)
# Keywords that have no counterpart, with the value that ours stands for.
DROPPED = {
    "device": ("cpu",),
    "layout": (torch.strided,), "pin_memory": (False,), "requires_grad": (False,),
}  # fmt: skip


def _of_real(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a transform of complex numbers that takes real ones: ours has both parts."""

    def transform(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(Tensor.stack([x.float(), x.float().zeros_like()], -1), *args, **kwargs)

    return transform


def pad(x: Tensor, pairs: Any, value: Any) -> Tensor:
    """Pad by a value, or in a mode of another name."""
    mode: Any = value
    return x.pad_with(pairs, mode) if isinstance(value, str) else x.pad(pairs, value)


def linear(x: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    """Ours has a weight of [inputs, outputs]."""
    return x.linear(weight.T, bias)


def pinv_of_product(a: Tensor, b: Tensor, **kwargs: Any) -> Tensor:
    """PyTorch's sample of matrices of lower rank is a product."""
    return linalg.pinv(a @ b.mT, **kwargs)


OWN = {"nn.functional.pad": pad, "nn.functional.linear": linear}


def ours_of(name: str) -> Callable[..., Any] | str | None:
    """Return ugpu's function, or the name of Tensor's member, for PyTorch's operation."""
    if name in OWN:
        return OWN[name]
    if name in CREATION:
        own: Callable[..., Any] = getattr(Tensor, name)
        return own
    if name in NAMES:
        return NAMES[name]
    if name.startswith("__r") or name in ("__getitem__",):
        return name
    if name.startswith(PREFIXES):
        return None
    for prefix, module in (("linalg.", linalg), ("fft.", fft)):
        if name.startswith(prefix):
            last = name.removeprefix(prefix)
            function = getattr(module, last, None)
            if not callable(function) or last.startswith("_"):
                return None
            return _of_real(function) if last in COMPLEX else function
    last = name.split(".")[-1]
    return last if hasattr(Tensor, last) else None


def _pad(first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
    """Pairs from the last axis on, flat; ours has a pair of each axis."""
    named = {**dict(zip(("pad", "mode", "value"), args, strict=False)), **kwargs}
    flat = list(named["pad"])
    pairs = [(0, 0)] * (first.ndim - len(flat) // 2)
    pairs += [(flat[i], flat[i + 1]) for i in reversed(range(0, len(flat), 2))]
    if named.get("mode", "constant") == "constant":
        return first, (pairs, named.get("value") or 0.0), {}
    return first, (pairs, named["mode"]), {}


def _indices(first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
    """`max(dim)` returns places too: ours with `indices=True`."""
    by_axis = "dim" in kwargs or (args and not isinstance(args[0], torch.Tensor))
    return first, args, {**kwargs, "indices": True} if by_axis else kwargs


def _second(first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
    return args[0], (first, *args[1:]), kwargs


ADAPTED: dict[str, Callable[[Any, tuple[Any, ...], dict[str, Any]], Given]] = {
    "cummax": _indices, "cummin": _indices, "where": _second, "nn.functional.pad": _pad,
    "max": _indices, "min": _indices,
    "einsum": lambda first, args, kwargs: (args[0], tuple(first), kwargs),
}  # fmt: skip


def adapted(name: str, sample: Any) -> Given:
    """Return the input, arguments and keywords of a sample as ours takes them."""
    first, args, kwargs = sample.input, sample.args, dict(sample.kwargs)
    for key, values in DROPPED.items():
        if key in kwargs and kwargs[key] in values:
            del kwargs[key]
    return ADAPTED[name](first, args, kwargs) if name in ADAPTED else (first, args, kwargs)


def operations() -> Iterator[tuple[str, Callable[..., Any] | str, Any]]:
    """Yield (name with its variant, ours, PyTorch's operation)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    for op in op_db:
        mine = ours_of(op.name)
        if (op.name, op.variant_test_name) == ("linalg.pinv", "singular"):
            mine = pinv_of_product
        if mine is not None:
            variant = op.variant_test_name
            yield f"{op.name}/{variant}" if variant else op.name, mine, op


def _leaves(given: Any) -> Iterator[Any]:
    if isinstance(given, dict):
        given = list(given.values())
    if isinstance(given, list | tuple):
        for each in given:
            yield from _leaves(each)
    else:
        yield given


def suits(sample: Any) -> bool:
    """Whether a sample is of types that ugpu has, dense, and not random."""
    if sample.kwargs.get("dropout_p"):
        return False
    for each in _leaves([sample.input, list(sample.args), sample.kwargs]):
        if isinstance(each, torch.dtype) and each in MISSING:
            return False
        if isinstance(each, torch.Tensor) and (
            each.dtype in MISSING or each.layout != torch.strided
        ):
            return False
    return True


def gradients_of(op: Any, dtype: torch.dtype) -> bool:
    """Whether PyTorch differentiates an operation of this type."""
    return bool(
        (dtype.is_floating_point or dtype.is_complex)
        and op.supports_autograd
        and dtype in op.supported_backward_dtypes("cpu")
    )


def samples(op: Any, dtype: torch.dtype) -> Sequence[Any]:
    """Return the samples of an operation that suit ugpu."""
    torch.manual_seed(0)
    wanted = op.sample_inputs("cpu", dtype, requires_grad=gradients_of(op, dtype))
    left_out = dtype.is_complex and op.name.startswith(("fft.", "linalg.", "nn."))
    return [] if left_out else [sample for sample in wanted if suits(sample)]
