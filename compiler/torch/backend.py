"""ugpu as a backend of torch.compile."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ugpu.compiler.runtime.runtime import device_of
from ugpu.compiler.tensor import Tensor
from ugpu.compiler.torch.exported import decompositions
from ugpu.compiler.torch.graph import Graph
from ugpu.compiler.torch.package import from_torch, module, to_torch
from ugpu.hcq.device.device import Device


class Weights:
    """Copies of parameters on a device, made again when a parameter has changed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._copies: dict[int, tuple[Any, int, int, Tensor]] = {}

    def tensor(self, value: Any) -> Tensor:
        """Return a tensor of PyTorch on the device; parameters are copied once."""
        if not isinstance(value, module().nn.Parameter):
            return from_torch(value, self._device)
        number, version, place = id(value), value._version, value.data_ptr()
        held = self._copies.get(number)
        if held is not None and held[0]() is value and held[1:3] == (version, place):
            return held[3]
        copy = from_torch(value, self._device).realize()
        self._copies[number] = (weakref.ref(value, self._dropper(number)), version, place, copy)
        return copy

    def _dropper(self, number: int) -> Callable[[object], None]:
        copies = self._copies

        def drop(_: object) -> None:
            copies.pop(number, None)

        return drop


_weights: weakref.WeakKeyDictionary[Device, Weights] = weakref.WeakKeyDictionary()


class Compiled:
    """A graph as a function from tensors of PyTorch to tensors of PyTorch."""

    def __init__(self, graph_module: Any, device: Device, weights: Weights) -> None:
        self._graph = Graph(graph_module, device)
        (output,) = [node for node in graph_module.graph.nodes if node.op == "output"]
        listed = output.args[0]
        self._kinds = [_kind(each) for each in listed]
        self._weights = weights

    def __call__(self, *args: Any) -> list[Any]:
        torch = module()
        values = [self._weights.tensor(each) if isinstance(each, torch.Tensor) else each
                  for each in args]  # fmt: skip
        results = self._graph(values)
        tensors = [each for each in results if isinstance(each, Tensor)]
        if tensors:
            tensors[0].realize(*tensors[1:])
        return [to_torch(each, kind) if isinstance(each, Tensor) else each
                for each, kind in zip(results, self._kinds, strict=True)]  # fmt: skip


def _kind(node: Any) -> Any:
    """Return PyTorch's element type of a result; None for a number, or for no result."""
    return getattr(node.meta.get("val"), "dtype", None) if hasattr(node, "meta") else None


def backend(
    graph_module: Any, inputs: Sequence[Any], *, options: dict[str, Any] | None = None,
    device: Device | str | None = None,
) -> Any:  # fmt: skip
    """A backend of torch.compile: `torch.compile(model, backend=ugpu.torch.backend)`.

    The device is `device`, `options={"device": "virtual:navi31"}`, else the default one. Tensors of
    PyTorch stay in the host's memory: they are copied to the device and back in each call, except
    parameters, which are copied when they change. Backward passes run on the device too. Raises
    NotSupported with the names of all operators that are missing.
    """
    opened = device_of((options or {}).get("device", device))
    weights = _weights.setdefault(opened, Weights(opened))

    def compiler(core: Any, _: Sequence[Any]) -> Callable[..., Any]:
        boxed: Callable[..., Any] = module("functorch.compile").make_boxed_func(
            Compiled(core, opened, weights)
        )
        return boxed

    aot = module("torch._dynamo.backends.common").aot_autograd(
        fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions()
    )
    return aot(graph_module, inputs)


def compile(model: Any, *, device: Device | str | None = None, **options: Any) -> Any:
    """Return `torch.compile(model)` with this backend, for a module or a function of PyTorch.

    Options are those of torch.compile; sizes are fixed (`dynamic=False`) unless said otherwise, so
    that each set of shapes is compiled on its own.
    """
    opened = device_of(device)

    def chosen(graph_module: Any, inputs: Sequence[Any], **kwargs: Any) -> Any:
        return backend(graph_module, inputs, device=opened, **kwargs)

    return module().compile(model, backend=chosen, **{"dynamic": False, **options})
