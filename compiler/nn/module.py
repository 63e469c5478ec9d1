"""Module: parameters, buffers and modules by name, and containers of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from ugpu.compiler.gradients.reverse import tracking
from ugpu.compiler.nn.parameter import Parameter, sharded_parameter
from ugpu.compiler.sharding.sharded import Devices, Sharded
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument


class Module:
    """A part of a network. Attributes that are Parameters and Modules are found by name;
    `register_buffer` adds tensors that are saved and not trained.

    A subclass defines `forward`, and calls `super().__init__()` before it sets attributes.
    """

    training: bool

    def __init__(self) -> None:
        self.__dict__.update(
            training=True, _parameters={}, _buffers={}, _modules={}, _not_saved=set()
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the module's result; defined by subclasses."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    # ---- attributes ----------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        groups = [self.__dict__.get(key) for key in ("_parameters", "_buffers", "_modules")]
        if any(group is None for group in groups):
            raise BadArgument(
                f"{type(self).__name__}: call super().__init__() before {name} is set"
            )
        parameters, buffers, modules = groups
        assert parameters is not None and buffers is not None and modules is not None
        if isinstance(value, Parameter):
            kept = parameters
        elif isinstance(value, Module):
            kept = modules
        elif name in buffers and (value is None or isinstance(value, Tensor)):
            kept = buffers
        elif value is None and name in parameters:
            kept = parameters
        else:
            kept = self.__dict__
        for group in (parameters, buffers, modules, self.__dict__):
            if group is not kept:
                group.pop(name, None)
        kept[name] = value

    def __getattr__(self, name: str) -> Any:
        for key in ("_parameters", "_buffers", "_modules"):
            group = self.__dict__.get(key, {})
            if name in group:
                return group[name]
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def register_parameter(self, name: str, parameter: Parameter | None) -> None:
        """Add a parameter; None reserves the name."""
        self._parameters[name] = parameter

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is not trained. persistent: whether it belongs to the state."""
        self._buffers[name] = tensor
        if not persistent:
            self._not_saved.add(name)

    # ---- traversal -----------------------------------------------------------------------------

    def children(self) -> Iterator[Module]:
        """Yield the modules directly in this one."""
        yield from (module for module in self._modules.values() if module is not None)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield this module and all below it, each once, with names."""
        seen: set[int] = set()
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            name, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield name, module
            below = [(f"{name}.{key}" if name else key, each)
                     for key, each in module._modules.items() if each is not None]  # fmt: skip
            stack.extend(reversed(below))

    def modules(self) -> Iterator[Module]:
        """Yield this module and all below it, each once."""
        yield from (module for _, module in self.named_modules())

    def _named(self, group: str) -> Iterator[tuple[str, Any]]:
        for prefix, module in self.named_modules():
            for name, value in getattr(module, group).items():
                if value is not None:
                    yield (f"{prefix}.{name}" if prefix else name), value

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield all parameters with their names; one that several modules share once."""
        seen: set[int] = set()
        for name, parameter in self._named("_parameters"):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield name, parameter

    def parameters(self) -> Iterator[Parameter]:
        """Yield all parameters."""
        yield from (parameter for _, parameter in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all buffers with their names."""
        yield from self._named("_buffers")

    def buffers(self) -> Iterator[Tensor]:
        """Yield all buffers."""
        yield from (buffer for _, buffer in self.named_buffers())

    def apply(self, function: Callable[[Module], object]) -> Self:
        """Call a function for each module, those below first; return self."""
        for module in reversed(list(self.modules())):
            function(module)
        return self

    # ---- modes ---------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Set `training` of all modules; return self."""
        for module in self.modules():
            module.__dict__["training"] = bool(mode)
        return self

    def eval(self) -> Self:
        """Leave training mode; return self."""
        return self.train(False)

    def requires_grad_(self, wanted: bool = True) -> Self:
        """Set `requires_grad` of all parameters; return self."""
        for parameter in self.parameters():
            parameter.requires_grad = wanted
        return self

    def zero_grad(self) -> None:
        """Drop the gradients of all parameters."""
        for parameter in self.parameters():
            parameter.grad = None

    def to(self, device: Device | str) -> Self:
        """Move parameters and buffers to a device, before an optimiser has them; return self."""
        for module in self.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    moved = Parameter(parameter.detach().to(device), parameter.requires_grad)
                    module._parameters[name] = moved
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = buffer.to(device)
        return self

    def shard(self, devices: Devices, axes: Mapping[str, int] | None = None) -> Self:
        """Place parameters and buffers on several devices, before an optimiser has them; return
        self. They are replicated; those named in `axes` are split along an axis."""
        axes = axes or {}
        unknown = sorted(set(axes) - {name for name, _ in self.named_parameters()})
        if unknown:
            raise BadArgument(f"shard: expected names of parameters, got {unknown}")
        placed = {
            id(parameter): sharded_parameter(parameter, devices, axes.get(name))
            for name, parameter in self.named_parameters()
        }
        for module in self.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = placed[id(parameter)]
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = buffer.shard(devices)
        return self

    # ---- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Return all parameters and persistent buffers by name, PyTorch's; they are not copied."""
        state: dict[str, Tensor] = {}
        for prefix, module in self.named_modules():
            start = f"{prefix}." if prefix else ""
            for name, value in (*module._parameters.items(), *module._buffers.items()):
                if value is not None and name not in module._not_saved:
                    state[start + name] = value
        return state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Take the values of a state: tensors or arrays by name, converted to each one's type.

        strict: whether missing and unexpected names are errors. Raises BadArgument that lists all
        that does not fit, before anything has changed.
        """
        own = self.state_dict()
        faults = []
        if strict:
            faults += [
                f"missing {name} {list(own[name].shape)}" for name in own if name not in state
            ]
            faults += [f"unexpected {name}" for name in state if name not in own]
        for name, value in state.items():
            if name in own and tuple(np.shape(value)) != own[name].shape:
                faults.append(
                    f"{name}: expected shape {list(own[name].shape)}, got {list(np.shape(value))}"
                )
        if faults:
            raise BadArgument(
                f"load_state_dict of {type(self).__name__}: {len(faults)} mismatches: "
                + "; ".join(faults)
            )
        with tracking(False):
            for name, value in state.items():
                if name in own:
                    _assign(own[name], value)

    def __repr__(self) -> str:
        inner = [f"({name}): " + repr(module).replace("\n", "\n  ")
                 for name, module in self._modules.items()]  # fmt: skip
        head = f"{type(self).__name__}({self.extra_repr()}"
        return head + ")" if not inner else head + "\n  " + "\n  ".join(inner) + "\n)"

    def extra_repr(self) -> str:
        """Return the options to show."""
        return ""


def _assign(target: Tensor | Sharded, value: Any) -> None:
    if isinstance(target, Sharded):
        target.assign(np.asarray(value)).realize()
        return
    given = value if isinstance(value, Tensor) else np.asarray(value)
    if isinstance(given, Tensor):
        given = given.detach().to(target.device)
    target.assign(given)
    target.realize()


class Sequential(Module):
    """Modules one after the other; named by number, or by the keys of a dict."""

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            named: Mapping[str, Any] = modules[0]
        else:
            named = {str(place): module for place, module in enumerate(modules)}
        for name, module in named.items():
            if not isinstance(module, Module):
                raise BadArgument(f"Sequential: expected Modules, got {module!r}")
            self._modules[name] = module

    def forward(self, x: Any) -> Any:
        """Pass x through all modules."""
        for module in self._modules.values():
            x = module(x)
        return x

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, place: int) -> Module:
        module: Module = list(self._modules.values())[place]
        return module


class ModuleList(Module):
    """A list of modules, named by number."""

    def __init__(self, modules: Sequence[Module] = ()) -> None:
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module: Module) -> Self:
        """Add a module at the end; return self."""
        self._modules[str(len(self._modules))] = module
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, place: int) -> Module:
        module: Module = list(self._modules.values())[place]
        return module


class ModuleDict(Module):
    """Modules by name."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self._modules.update(modules or {})

    def __getitem__(self, name: str) -> Module:
        module: Module = self._modules[name]
        return module

    def __setitem__(self, name: str, module: Module) -> None:
        self._modules[name] = module

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)
