"""The table of rules: how a method of Tensor runs on a sharded one. What is not listed collects all
elements on each device and runs there (`gathered`), which is right for every method."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ugpu.compiler.gradients import pending, replicas
from ugpu.compiler.gradients.replicas import Replicas
from ugpu.compiler.gradients.values import Values
from ugpu.compiler.methods.aliases import with_aliases
from ugpu.compiler.methods.ofclass import OfClass
from ugpu.compiler.sharding import collectives, movement, pointwise, products
from ugpu.compiler.sharding.placing import gathered, made
from ugpu.compiler.sharding.sharded import Devices, Sharded, devices_of
from ugpu.compiler.tensor import Tensor

ELEMENTWISE = """abs acos acosh add asin asinh atan atan2 atanh bfloat16 bool ceil celu clamp clip
contiguous copysign cos cosh detach div elu erf exp exp2 expm1 float floor floor_divide fmod frac
full_like gelu half hardsigmoid hardswish hardtanh hypot int isclose isfinite isinf isnan leaky_relu
lerp log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor logsigmoid long
masked_fill maximum minimum mish mul neg nextafter ones_like pow quick_gelu reciprocal relu relu6
remainder round rsqrt selu sigmoid sign signbit silu sin sinh softplus softsign sqrt square sub
swish tan tanh tf32 trunc where xlogy zeros_like"""
ALONG = """argmax argmin argsort chunk count_nonzero cummax cummin cumprod cumsum layernorm
log_softmax logcumsumexp logsumexp nanmean nansum norm normalize softmax softmin sort split topk"""
BATCHED = """avg_pool1d avg_pool2d avg_pool3d conv1d conv2d conv3d conv_transpose1d conv_transpose2d
conv_transpose3d fold im2col interpolate max_pool1d max_pool2d max_pool3d"""
LOSSES = """binary_cross_entropy binary_cross_entropy_with_logits cross_entropy l1_loss mse_loss
nll_loss"""
RESHAPES = "flatten reshape squeeze unflatten unsqueeze view"
PERMUTED = "T movedim permute transpose"
OPERATORS = """abs add and eq floordiv ge gt invert le lshift lt mod mul ne neg or pow radd rand
rfloordiv rlshift rmod rmul ror rpow rrshift rshift rsub rtruediv rxor sub truediv xor"""
OWN = frozenset(dir(Sharded)) | {"device", "node", "is_leaf", "memory_plan"}


def shard(tensor: Tensor, devices: Devices, axis: int | None = None) -> Sharded:
    """See Tensor.shard."""
    wanted = devices_of("shard", devices)
    if axis is None:
        tensor.realize()
        return Sharded([tensor.to(device) for device in wanted])
    place = tensor._axis("shard", axis)
    tensor.realize()
    pieces = collectives.cut(tensor, place, collectives.sizes_of(tensor.shape[place], len(wanted)))
    near = [piece.to(each) for piece, each in zip(pieces, wanted, strict=True)]
    return Sharded([each.contiguous() for each in near], place)


def create(
    name: str, *args: Any, devices: Devices, axis: int | None = None, **options: Any
) -> Sharded:
    """Return what a class method of Tensor makes ("zeros", "arange", "rand" ...) on several
    devices: the same elements as on one, each computed where it is."""
    return made(name, devices_of(name, devices), axis, args, options)


def _reduced(groups: Sequence[Replicas], values: dict[int, Values]) -> dict[int, Values]:
    """Return the summed gradients of replicated leaves. Those of one type travel together, and what
    is pending on their devices is computed with them."""
    result: dict[int, Values] = {}
    kinds: dict[Any, list[Replicas]] = {}
    for group in groups:
        first = group.leaves[0]
        key = (first.dtype.name, tuple(id(each.device) for each in group.leaves))
        kinds.setdefault(key, []).append(group)
    for alike in kinds.values():
        flats = []
        for leaves in zip(*(group.leaves for group in alike), strict=True):
            parts = [_gradient(values, leaf).reshape(-1) for leaf in leaves]
            flat = Tensor.cat(parts).contiguous()
            flats.append(flat.realize(*pending.take(flat.device)))
        sizes = [group.leaves[0].numel() for group in alike]
        for place, flat in enumerate(collectives.all_reduce(flats)):
            for group, part in zip(alike, collectives.cut(flat, 0, sizes), strict=True):
                leaf = group.leaves[place]
                result[id(leaf)] = part.reshape(leaf.shape)
    return result


def _gradient(values: dict[int, Values], leaf: Tensor) -> Any:
    known = values.get(id(leaf))
    if known is None:
        return Tensor.zeros(leaf.shape, device=leaf.device, dtype=leaf.dtype)
    return known


def _rules() -> dict[str, Callable[..., Any]]:
    """Return the rule of each public method."""
    table: dict[str, Callable[..., Any]] = {}
    for name in dir(Tensor):
        member = inspect.getattr_static(Tensor, name)
        if not name.startswith("_") and callable(member) and name not in OWN:
            table[name] = functools.partial(gathered, name)
        if isinstance(member, OfClass):
            table.pop(name, None)
    families: list[tuple[str, Callable[..., Any]]] = [
        (ELEMENTWISE, pointwise.elementwise),
        (ALONG, pointwise.along_axes),
        ("sum " + " ".join(pointwise.COMBINED), pointwise.reduction),
        (RESHAPES, movement.reshaped),
        (PERMUTED, movement.permuted),
        ("expand broadcast_to", movement.expanded),
        ("pad pad_with", movement.padded),
        (BATCHED, products.batched),
        (LOSSES, products.loss),
        ("cat stack", movement.joined),
    ]
    for names, rule in families:
        table.update({name: functools.partial(rule, name) for name in names.split()})
    own: dict[str, Any] = {
        "cast": pointwise.cast,
        "dropout": pointwise.dropout,
        "linear": products.linear,
        "matmul": products.matmul,
        "mean": pointwise.mean,
        "scaled_dot_product_attention": products.attention,
        "std": pointwise.std,
        "var": pointwise.var,
    }
    return table | {name: with_aliases(rule) for name, rule in own.items()}


def _operator(name: str) -> Callable[..., Any]:
    def method(self: Sharded, *others: Any) -> Any:
        return pointwise.elementwise(name, self, *others)

    return method


def _install() -> None:
    Sharded.rules.update(_rules())
    for operator in OPERATORS.split():
        setattr(Sharded, f"__{operator}__", _operator(f"__{operator}__"))
    for name, rule in (
        ("__getitem__", movement.indexed),
        ("__matmul__", products.matmul),
        ("__rmatmul__", products.rmatmul),
    ):
        setattr(Sharded, name, rule)
    replicas.reduce[:] = [_reduced]


_install()
