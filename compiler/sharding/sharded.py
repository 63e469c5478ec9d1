"""Sharded: one tensor per device, and how they form one value.

A placement is one of three: *split* along an axis (each device has a range), *replicated* (each
device has all), or *partial* (the value is the sum of the parts: what a sum over the split axis
gives, so that a collective runs only when the value is needed). Methods of Tensor run on each
device by the rules of `compiler.sharding.methods`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType
from ugpu.compiler.gradients import pending, replicas
from ugpu.compiler.gradients.reverse import gradients
from ugpu.compiler.graph.node import Shape
from ugpu.compiler.runtime.runtime import device_of
from ugpu.compiler.sharding import collectives
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument

Devices = Sequence[Device | str]


class Sharded:
    """A tensor on several devices; made by `Tensor.shard`.

    Args:
        parts: one tensor for each device, of one type.
        axis: the axis along which the parts join; None if each has all elements.
        partial: whether the value is the sum of the parts.
    """

    __slots__ = ("__weakref__", "_reduced", "_replicas", "axis", "partial", "parts")
    __array_priority__ = 200.0  # so that `array + sharded` and `tensor + sharded` call Sharded
    rules: ClassVar[dict[str, Callable[..., Any]]] = {}  # filled by compiler.sharding.methods

    def __init__(
        self, parts: Sequence[Tensor], axis: int | None = None, partial: bool = False
    ) -> None:
        self.parts = tuple(parts)
        self.axis = axis
        self.partial = partial
        self._reduced: Sharded | None = None
        self._replicas: replicas.Replicas | None = None

    # ---- facts ---------------------------------------------------------------------------------

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices, one for each part."""
        return tuple(each.device for each in self.parts)

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self.parts[0].dtype

    @property
    def sizes(self) -> list[int]:
        """The number of elements along the split axis, on each device."""
        return [each.shape[self.axis or 0] for each in self.parts]

    @property
    def shape(self) -> Shape:
        """The shape of the whole."""
        shape = self.parts[0].shape
        if self.axis is None:
            return shape
        return (*shape[: self.axis], sum(self.sizes), *shape[self.axis + 1 :])

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.parts[0].ndim

    def numel(self) -> int:
        """The number of elements of the whole."""
        return int(np.prod(self.shape, dtype=object))

    @property
    def placement(self) -> str:
        """How the parts form the value, in words."""
        if self.axis is not None:
            return f"split along axis {self.axis} as {self.sizes}"
        return "partial sums" if self.partial else "replicated"

    @property
    def requires_grad(self) -> bool:
        """Whether operations on any part are recorded for gradients."""
        return any(each.requires_grad for each in self.parts)

    def __repr__(self) -> str:
        names = ", ".join(each.name for each in self.devices)
        return f"<Sharded {self.dtype.name}{list(self.shape)} on {names}, {self.placement}>"

    def with_parts(self, parts: Sequence[Any]) -> Sharded:  # of Tensor, or what stands for one
        """Return a value of the same placement with other parts; self, if they are the same."""
        if all(own is given for own, given in zip(self.parts, parts, strict=True)):
            return self
        made = Sharded(parts, self.axis, self.partial)
        if self._replicas is not None and all(isinstance(part, Tensor) for part in parts):
            made._replicas = replicas.Replicas(made.parts)
        return made

    # ---- placements ----------------------------------------------------------------------------

    def reduced(self) -> Sharded:
        """Return this value, not as partial sums: they are all-reduced, once."""
        if not self.partial:
            return self
        if self._reduced is None:
            self._reduced = Sharded(collectives.all_reduce(self.parts))
        return self._reduced

    def replicated(self) -> Sharded:
        """Return all elements on each device: an all-gather, or an all-reduce of partial sums."""
        if self.axis is None:
            return self.reduced()
        return Sharded(collectives.all_gather(self.parts, self.axis))

    def split_along(self, axis: int, sizes: Sequence[int] | None = None) -> Sharded:
        """Return this value split along an axis, by default evenly: a reduce-scatter of partial
        sums, an all-to-all from another axis, no copy of a replicated value."""
        wanted = list(sizes or collectives.sizes_of(self.shape[axis], len(self.parts)))
        if sum(wanted) != self.shape[axis]:
            raise BadArgument(
                f"shapes do not match: expected {sum(wanted)} elements along axis {axis}, got "
                f"shape {list(self.shape)}"
            )
        if self.axis == axis:
            if self.sizes == wanted:
                return self
            return self.replicated().split_along(axis, wanted)
        if self.partial:
            return Sharded(collectives.reduce_scatter(self.parts, axis, "sum", wanted), axis)
        if self.axis is not None:
            return Sharded(collectives.all_to_all(self.parts, axis, self.axis, wanted), axis)
        ends = accumulate(wanted)
        return Sharded([
            collectives.along(each, axis, end - size, end)
            for each, end, size in zip(self.parts, ends, wanted, strict=True)
        ], axis)  # fmt: skip

    def shard(self, devices: Devices | None = None, axis: int | None = None) -> Sharded:
        """Return this value split along another axis, or replicated; devices: the same, or None.
        Raises BadArgument for others."""
        wanted = self.devices if devices is None else devices_of("shard", devices)
        if wanted != self.devices:
            raise BadArgument(
                f"shard: the tensor is on {named(self.devices)}, expected these devices, got "
                f"{named(wanted)}; collect it with .to(device) first"
            )
        return self.replicated() if axis is None else self.split_along(self._axis("shard", axis))

    def to(self, target: Device | DType | str) -> Any:  # Tensor, or Sharded for a type
        """Return all elements as a Tensor on one device, or with another type."""
        if isinstance(target, DType) or target in {each.name for each in dtypes.ALL}:
            return self.rules["cast"](self, target)
        device = device_of(target)
        value = self.reduced() if self.partial else self
        if value.axis is not None:
            return Tensor.cat([each.to(device) for each in value.parts], value.axis)
        near = [each for each in value.parts if each.device is device]
        return (near or [value.parts[0]])[0].to(device)

    # ---- values --------------------------------------------------------------------------------

    def realize(self) -> Self:
        """Compute the parts, on all devices at the same time."""
        for each in self.parts:
            each.realize()
        return self

    def numpy(self) -> NDArray[Any]:
        """Return the elements as a new array."""
        if self.axis is not None:
            self.realize()
            return np.concatenate([each.numpy() for each in self.parts], self.axis)
        return self.reduced().parts[0].numpy()

    def item(self) -> Any:
        """Return the only element as a Python number."""
        if self.numel() != 1:
            raise BadArgument(f"item: expected one element, got shape {list(self.shape)}")
        return self.numpy().item()

    def tolist(self) -> Any:
        """Return the elements as nested Python lists."""
        return self.numpy().tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        if not self.ndim:
            raise BadArgument("len: a tensor without axes has no length")
        return self.shape[0]

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def assign(self, value: Any) -> Self:
        """Replace the elements of all parts by those of a value of this shape: a Sharded of the
        same devices, an array or a number."""
        if self.partial:
            raise BadArgument("assign: expected a split or replicated tensor, got partial sums")
        if not isinstance(value, Sharded):
            array = np.broadcast_to(np.asarray(value), self.shape)
            value = Sharded([Tensor(array, device=each, dtype=self.dtype) for each in self.devices])
        self._check_devices("assign", value)
        axis = self.axis
        placed = value.replicated() if axis is None else value.split_along(axis, self.sizes)
        for part, given in zip(self.parts, placed.parts, strict=True):
            part.assign(given)
        return self

    # ---- gradients -----------------------------------------------------------------------------

    def requires_grad_(self, wanted: bool = True) -> Self:
        """Make the parts leaves of gradients, and return self. Gradients of a replicated tensor
        are all-reduced by `backward`."""
        if self.partial:
            raise BadArgument(
                "requires_grad: expected a split or replicated tensor, got partial sums"
            )
        for each in self.parts:
            each.requires_grad = wanted
        if wanted and self.axis is None:
            self._replicas = replicas.Replicas(self.parts)
        return self

    @property
    def grad(self) -> Sharded | None:
        """The gradient, placed as this tensor; None if there is none."""
        parts = [each.grad for each in self.parts]
        if all(each is None for each in parts):
            return None
        return Sharded([
            Tensor.zeros(own.shape, device=own.device, dtype=own.dtype) if each is None else each
            for own, each in zip(self.parts, parts, strict=True)
        ], self.axis)  # fmt: skip

    @grad.setter
    def grad(self, value: Sharded | None) -> None:
        parts = [None] * len(self.parts) if value is None else value.parts
        for each, gradient in zip(self.parts, parts, strict=True):
            each.grad = gradient

    def backward(
        self, gradient: Any = None, *, retain_graph: bool | None = None, create_graph: bool = False
    ) -> None:
        """Add the gradient of this value to `grad` of each leaf it depends on, on all devices: see
        Tensor.backward. gradient: a Sharded like this one; 1 for one element."""
        if gradient is None and self.numel() != 1:
            raise BadArgument(
                "backward: a tensor of one element is expected, or the gradient of each, got "
                f"shape {list(self.shape)}"
            )
        if not self.requires_grad:
            raise BadArgument(
                "backward: the sharded tensor depends on no tensor with requires_grad"
            )
        if gradient is None:
            given = [Tensor.ones(each.shape, device=each.device, dtype=each.dtype)
                     for each in self.parts]  # fmt: skip
        else:
            self._check_devices("backward", gradient)
            placed = gradient.replicated()
            if self.axis is not None:
                placed = placed.split_along(self.axis, self.sizes)
            given = list(placed.parts)
        pairs = [pair for pair in zip(self.parts, given, strict=True) if pair[0].requires_grad]
        if self.axis is None and not self.partial:
            pairs = pairs[:1]  # the replicas are one value
        pending.add(*(root for root, _ in pairs))
        keep = create_graph if retain_graph is None else retain_graph
        roots, cotangents = zip(*pairs, strict=True)
        found = gradients(roots, cotangents, keep=keep, higher=create_graph)
        replicas.accumulate(found, create_graph)

    # ---- methods of Tensor ---------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        rule = self.rules.get(name)
        if rule is None:
            raise AttributeError(
                f"a sharded tensor has no {name!r}; its tensors are in .parts, and .to(device) "
                "collects it on one device"
            )
        if name == "T":
            return rule(self)
        return lambda *args, **options: rule(self, *args, **options)

    def _axis(self, operation: str, axis: int) -> int:
        return self.parts[0]._axis(operation, axis)

    def _axes(self, operation: str, axis: Any) -> tuple[int, ...]:
        return self.parts[0]._axes(operation, axis)

    def _check_devices(self, operation: str, other: Any) -> None:
        """Raise BadArgument unless `other` is sharded on the same devices."""
        if not isinstance(other, Sharded):
            raise BadArgument(
                f"{operation}: expected a tensor sharded on {named(self.devices)}, got {other!r}; "
                "place it with .shard(devices, axis)"
            )
        if other.devices != self.devices:
            raise BadArgument(
                f"{operation}: tensors sharded on {named(self.devices)} and "
                f"{named(other.devices)}; the devices must be the same, in the same order"
            )


def parts_of(given: Tensor | Sharded) -> tuple[Tensor, ...]:
    """Return the tensors of a value, one for each device it is on."""
    return given.parts if isinstance(given, Sharded) else (given,)


def named(devices: Sequence[Device]) -> str:
    """Return the names of devices, for errors."""
    return "[" + ", ".join(each.name for each in devices) + "]"


def devices_of(operation: str, given: Any) -> tuple[Device, ...]:  # Any: checked here
    """Return a list of devices, opened by name where need be. BadArgument if two are the same."""
    if isinstance(given, str | Device) or not isinstance(given, Sequence) or not given:
        raise BadArgument(f"{operation}: expected a list of devices, got {given!r}")
    devices = tuple(device_of(each) for each in given)
    if len({id(each) for each in devices}) != len(devices):
        raise BadArgument(
            f"{operation}: the devices must differ, got {named(devices)}; a name opens one device, "
            "open further ones with ugpu.open"
        )
    return devices
