"""PyTorch's own samples (OpInfo) for operations that Tensor has under the same name: each sample's
result and gradients, PyTorch's and ours."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ugpu.compiler import Tensor
from ugpu.hcq.errors import UgpuError

# PyTorch's name, where Tensor's method has another one.
NAMES = {
    "nn.functional.layer_norm": None,
    "__getitem__": "__getitem__",
    "__radd__": "__radd__", "__rdiv__": "__rtruediv__", "__rmatmul__": "__rmatmul__",
    "__rmul__": "__rmul__", "__rpow__": "__rpow__", "__rsub__": "__rsub__", "__rmod__": "__rmod__",
    "__rand__": "__rand__", "__ror__": "__ror__", "__rxor__": "__rxor__",
    "special.log_softmax": "log_softmax", "special.expit": "sigmoid",
    "nn.functional.interpolate": None, "to": None, "nn.functional.pad": None, "pad": None,
    "max": None, "min": None, "std": None, "var": None, "linear": None,
    "nn.functional.linear": None, "nn.functional.scaled_dot_product_attention":
    "scaled_dot_product_attention", "repeat_interleave": "repeat_interleave", "diag": "diag",
    "nn.functional.normalize": None, "dot": "dot", "normal": None, "nn.functional.dropout": None,
    "dropout": None, "uniform": None, "rand_like": None, "item": "item", "shape": None,
    "numpy": None, "grad": None, "T": None, "backward": None,
    "nn.functional.embedding": None, "nn.functional.unfold": "im2col",
    "nn.functional.fold": None, "fold": None, "double": None, "new_empty": None,
    "new_empty_strided": None, "type": None, "copy": None,
}  # fmt: skip
RANDOM = ("dropout", "rand", "normal", "uniform", "randn", "randint", "bernoulli", "multinomial")
MISSING = (torch.float64, torch.complex64, torch.complex128)  # types that ugpu does not have
CREATION = (
    "arange", "linspace", "logspace", "eye", "full", "ones", "zeros", "full_like", "zeros_like",
    "ones_like",
)  # fmt: skip


def method_of(name: str) -> str | None:
    """Return the name of Tensor's method for PyTorch's operation; None if there is none."""
    if name in NAMES:
        return NAMES[name]
    last = name.split(".")[-1]
    if name.startswith(
        ("linalg", "fft", "masked.", "special", "sparse", "torch", "_", "jiterator")
    ):
        return None
    if last in CREATION or any(word in last for word in RANDOM):
        return None
    return last if hasattr(Tensor, last) else None


def _keywords(*names: str, drop: Sequence[str] = ()) -> Any:
    """Return a converter of positional arguments to keywords; `drop` has those that are left out
    where they have the value that ours stands for."""

    def convert(args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        named = {**dict(zip(names, args, strict=False)), **kwargs}
        for entry in drop:
            name, _, value = entry.partition("=")
            if name in named and str(named[name]) == value:
                del named[name]
        return (), named

    return convert


# Calls that Tensor has in another form.
ADAPTED = {
    "nn.functional.avg_pool2d": _keywords("size", "stride", "padding", "ceil_mode",
        "count_include_pad", "divisor_override",
        drop=("ceil_mode=False", "count_include_pad=True", "divisor_override=None")),
    "nn.functional.max_pool2d": _keywords("kernel_size", "stride", "padding", "dilation",
        "ceil_mode", "return_indices", drop=("ceil_mode=False", "return_indices=False")),
    "nn.functional.conv2d": _keywords("weight", "bias", "stride", "padding", "dilation", "groups"),
    "nn.functional.conv_transpose2d": _keywords("weight", "bias", "stride", "padding",
        "output_padding", "groups", "dilation"),
    "nn.functional.scaled_dot_product_attention": _keywords("key", "value", "mask", "dropout_p",
        "is_causal", drop=("dropout_p=0.0", "enable_gqa=False")),
    "nn.functional.unfold": _keywords("size", "dilation", "padding", "stride"),
    "nn.functional.softplus": _keywords("beta", "threshold", drop=("threshold=20",)),
    "index_add": _keywords("axis", "index", "source", "alpha", drop=("alpha=1",)),
    **{name: _keywords(drop=("memory_format=torch.contiguous_format",
                             "memory_format=torch.preserve_format"))
       for name in ("bfloat16", "bool", "byte", "char", "clone", "float", "half", "int", "long",
                    "short")},
}  # fmt: skip


def adapted(name: str, sample: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Return the input, arguments and keywords of a sample as Tensor's method takes them."""
    first, args, kwargs = sample.input, sample.args, dict(sample.kwargs)
    if name == "where":
        return args[0], (first, *args[1:]), kwargs
    if name == "einsum":
        return args[0], tuple(first), kwargs
    if name in ADAPTED:
        args, kwargs = ADAPTED[name](args, kwargs)
    return first, args, kwargs


def ours(given: Any, leaves: list[tuple[Any, Tensor]]) -> Any:
    """Return an argument with our tensors for PyTorch's; notes those that need gradients."""
    if isinstance(given, torch.Tensor):
        tensor = Tensor(given.detach().numpy(force=True).copy())
        if given.requires_grad:
            tensor.requires_grad_()
            leaves.append((given, tensor))
        return tensor
    if isinstance(given, torch.dtype):
        return str(given).removeprefix("torch.")
    if isinstance(given, list | tuple) and not isinstance(given, torch.Size):
        return type(given)(ours(each, leaves) for each in given)
    if isinstance(given, torch.Size):
        return tuple(given)
    return given


def outputs(result: Any, kind: type) -> list[Any]:
    """Return the tensors in a result."""
    if isinstance(result, kind):
        return [result]
    if isinstance(result, list | tuple):
        return [tensor for each in result for tensor in outputs(each, kind)]
    return []


def _array(tensor: Any) -> Any:
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy(force=True)


def close(mine: Any, theirs: Any) -> bool:
    """Compare in float32."""
    theirs = np.asarray(theirs)
    if tuple(mine.shape) != theirs.shape:
        return False
    return bool(np.allclose(mine, theirs, rtol=2e-3, atol=2e-4, equal_nan=True))


def run_sample(method: str, op: Any, sample: Any) -> str:
    """Return "equal", "refused: ..." or "wrong ..." for the result and gradients of a sample."""
    leaves: list[tuple[Any, Tensor]] = []
    answer = op(sample.input, *sample.args, **sample.kwargs)
    theirs = outputs(answer, torch.Tensor)
    if theirs and sample.output_process_fn_grad is not None:
        theirs = outputs(sample.output_process_fn_grad(
            theirs if len(theirs) > 1 else theirs[0]), torch.Tensor)  # fmt: skip
    try:
        first, args, kwargs = adapted(op.name, sample)
        first, args = ours(first, leaves), ours(args, leaves)
        kwargs = {key: ours(value, leaves) for key, value in kwargs.items()}
        if isinstance(first, str):
            result = Tensor.einsum(first, *args)
        elif isinstance(first, list | tuple):
            result = getattr(Tensor, method)(first, *args, **kwargs)
        else:
            member = getattr(first, method)
            result = member(*args, **kwargs) if callable(member) else member
        if isinstance(answer, bool | int | float):
            return "equal" if close(np.asarray(result), answer) else "wrong number"
        mine = outputs(result, Tensor)
        values = [each.numpy() for each in mine]
    except (UgpuError, TypeError, AttributeError, ValueError) as error:
        return f"refused: {type(error).__name__} {error}"[:160]
    if len(mine) > len(theirs):
        return "wrong count of results"
    for value, wanted in zip(values, theirs, strict=False):
        if not close(value, _array(wanted)):
            return "wrong result"
    pairs = [(m, t) for m, t in zip(mine, theirs, strict=False) if t.requires_grad]
    if not leaves or not pairs:
        return "equal"
    return _gradients(pairs, leaves)


def _gradients(pairs: Sequence[tuple[Tensor, Any]], leaves: Sequence[tuple[Any, Tensor]]) -> str:
    random = np.random.default_rng(0)
    weights = [random.uniform(-1, 1, tuple(t.shape)).astype(np.float32) for _, t in pairs]
    wanted = torch.autograd.grad(
        [t for _, t in pairs], [t for t, _ in leaves], [torch.from_numpy(w) for w in weights],
        allow_unused=True,
    )  # fmt: skip
    if not any(m.requires_grad for m, _ in pairs):
        if all(each is None or not each.any() for each in wanted):
            return "equal"
        return "wrong: no gradient"
    try:
        for (mine, _), weight in zip(pairs, weights, strict=True):
            if mine.requires_grad:
                mine.backward(Tensor(weight), retain_graph=True)
        found = [None if leaf.grad is None else leaf.grad.numpy() for _, leaf in leaves]
    except UgpuError as error:
        return f"refused gradient: {error}"[:160]
    for mine, their in zip(found, wanted, strict=True):
        theirs = None if their is None else their.numpy(force=True)
        if mine is None and theirs is None:
            continue
        shape = leaf_shape(mine, theirs)
        one = np.zeros(shape) if mine is None else mine
        two = np.zeros(shape) if theirs is None else theirs
        if not close(one, two):
            return "wrong gradient"
    return "equal"


def leaf_shape(*given: Any) -> tuple[int, ...]:
    """Return the shape of the array among several that may be None."""
    return next(tuple(each.shape) for each in given if each is not None)


def samples(name: str | None = None, most: int = 1 << 30) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield (PyTorch's name, our method, operation, sample) for float32, of types that ugpu has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    for op in op_db:
        method = method_of(op.name)
        if method is None or (name is not None and op.name != name):
            continue
        if torch.float32 not in op.dtypes:
            continue
        for place, sample in enumerate(
            op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
        ):
            if place >= most:
                break
            if sample.kwargs.get("dropout_p"):  # random
                continue
            if any(each in MISSING for each in (*sample.args, *sample.kwargs.values())
                   if isinstance(each, torch.dtype)):  # fmt: skip
                continue
            yield op.name, method, op, sample


def main(most: int, only: str | None) -> None:
    counts: dict[str, Counter[str]] = {}
    texts: dict[str, set[str]] = {}
    torch.manual_seed(0)
    for name, method, op, sample in samples(only, most):
        try:
            outcome = run_sample(method, op, sample)
        except Exception as error:  # each sample is reported
            outcome = f"wrong: {type(error).__name__} {error}"[:160]
        if outcome != "equal":
            print(name, outcome, flush=True)
        counts.setdefault(name, Counter())[outcome.split(":")[0]] += 1
        if outcome != "equal":
            texts.setdefault(name, set()).add(outcome)
    total: Counter[str] = Counter()
    for name, each in counts.items():
        total.update(each)
        if set(each) != {"equal"}:
            print(name, dict(each), *sorted(texts[name])[:3], sep="\n    ")
    print(len(counts), "operations", dict(total))


if __name__ == "__main__":
    import sys

    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
