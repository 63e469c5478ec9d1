"""Optimizer: groups of parameters that lie in one array each, and a step that updates the array.

A step joins the gradients of a group into one array (one kernel), then updates parameters and
states, arrays of the same places, by operations on whole arrays that the scheduler fuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from ugpu.compiler.dtype import float32
from ugpu.compiler.gradients import pending
from ugpu.compiler.gradients.reverse import tracking
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.nn.parameter import Array, Parameter, replace
from ugpu.compiler.optim.placement import by_device
from ugpu.compiler.runtime.recording import current_recording
from ugpu.compiler.sharding.sharded import Sharded
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument, NotSupported

Parameters = Iterable[Parameter] | Iterable[Mapping[str, Any]]
VARIABLE = ("lr",)  # options that are read from memory, so that a recorded step sees changes


class Group(MutableMapping[str, Any]):
    """Parameters with common options, by name. "lr" may change between steps, also of a recorded
    function; the other options are fixed when a step is recorded."""

    def __init__(self, parameters: Sequence[Parameter], options: Mapping[str, Any]) -> None:
        self.parameters = list(parameters)
        self.options = dict(options)
        self.replicas: list[Group] = []  # the same parameters on further devices
        self.array: Array | None = None  # made by the first step, of those with a gradient
        self.states: dict[str, Tensor] = {}
        self.rate = self._number(self.options["lr"])
        # the number of steps, and two factors of the last one: see Adam
        self.clock = self.at(0.0)

    def _number(self, value: float) -> Tensor:
        device = self.parameters[0].device
        return Tensor(np.asarray(value, np.float32), device=device)

    def at(self, step: float) -> Tensor:
        """Return the clock after a number of steps."""
        return Tensor([step, 0.0, 0.0], device=self.parameters[0].device)

    def __getitem__(self, name: str) -> Any:
        return self.parameters if name == "params" else self.options[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self.options:
            raise BadArgument(f"option {name!r} is unknown; expected one of {sorted(self.options)}")
        if name in VARIABLE:
            recording = current_recording()
            if recording is not None:
                raise BadArgument(
                    f"@jit {recording.name}: {name} would be set only during recording; set it "
                    "outside the function"
                )
            with tracking(False):
                self.rate.assign(self._number(value))
                self.rate.realize()
        self.options[name] = value
        for each in self.replicas:
            each[name] = value

    def __delitem__(self, name: str) -> None:
        raise BadArgument("options cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter(("params", *self.options))

    def __len__(self) -> int:
        return len(self.options) + 1


class Optimizer:
    """Base of the optimisers. parameters: Parameters, or dicts with "params" and options. Groups
    need parameters of one type (float32) and device each. offload: the states lie in host memory
    that the device reads and writes while it updates the parameters."""

    # names of the states that are arrays of the parameters' places, in PyTorch's words
    arrays: tuple[str, ...] = ()
    # whether an element's update depends on no other element: parameters may be split
    elementwise = True

    def __init__(
        self, parameters: Parameters, options: Mapping[str, Any], offload: bool = False
    ) -> None:
        self.offload = offload
        listed: list[Any] = list(parameters)
        if not listed:
            raise BadArgument(f"{type(self).__name__}: expected at least one parameter")
        given = listed if isinstance(listed[0], Mapping) else [{"params": listed}]
        self.param_groups: list[Group] = []
        seen: set[int] = set()
        self._split = False
        for entry in given:
            own = list(entry["params"])
            self._split |= any(isinstance(each, Sharded) and each.axis is not None for each in own)
            rows = by_device(type(self).__name__, own, self.elementwise)
            for each in (each for row in rows for each in row):
                self._check(each)
                if id(each) in seen:
                    raise BadArgument(f"{type(self).__name__}: a parameter is given twice")
                seen.add(id(each))
            more = {name: value for name, value in entry.items() if name != "params"}
            unknown = sorted(set(more) - set(options))
            if unknown:
                raise BadArgument(f"{type(self).__name__}: unknown options {unknown}")
            groups = [Group(row, {**options, **more}) for row in rows]
            groups[0].replicas = groups[1:]
            self.param_groups.append(groups[0])

    def _check(self, parameter: Any) -> None:
        if not isinstance(parameter, Parameter) or parameter.dtype is not float32:
            raise BadArgument(
                f"{type(self).__name__}: expected float32 Parameters, got {parameter!r}"
            )

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for group in self._groups():
            for parameter in group.parameters:
                parameter.grad = None

    def step(self) -> None:
        """Update the parameters by their gradients, and run. In a recorded function (`@jit`), drop
        the gradients, which a replay could not keep.

        The first step moves the parameters that have gradients into one array for each group;
        later steps need the gradients of the same ones, else BadArgument.
        """
        self._step(None)

    def _step(self, skip: Tensor | None) -> None:
        """Take a step; where `skip`, a bool on the device, is true, everything keeps its value."""
        with tracking(False):
            changed: list[Tensor] = []
            for group in self._groups():
                if group.array is None:
                    self._prepare(group)
                if group.array is not None:
                    gradients = self._joined(group, group.array)
                    # without `skip` nothing refers to the old elements: they are replaced in place
                    before = self._stored(group, group.array) if skip is not None else []
                    changed += [gradients, *self._update(group, group.array, gradients)]
                    if skip is not None:
                        self._keep(group, before, skip)
            for device in {id(each.device): each.device for each in changed}.values():
                first, *others = [each for each in changed if each.device is device]
                first.realize(*others, *pending.take(device))
            if not self._split:
                self._agree()
        if current_recording() is not None:
            self.zero_grad()

    def _stored(self, group: Group, array: Array) -> list[tuple[Tensor, Tensor]]:
        """Return the arrays that a step may replace, each with its present elements."""
        return [
            (each, each._same()) for each in (array.tensor, group.clock, *group.states.values())
        ]

    def _keep(self, group: Group, before: list[tuple[Tensor, Tensor]], skip: Tensor) -> None:
        """Give the arrays that a step has replaced their old elements where `skip` is true."""
        states = {id(each) for each in group.states.values()}
        for each, old in before:
            if each.node is not old.node:
                kept = skip.where(old, each)
                replace(each, self._placed(kept) if id(each) in states and self.offload else kept)

    def _agree(self) -> None:
        """Copy the parameters to replicas on devices of another kind, which round differently."""
        for group in self.param_groups:
            for each in group.replicas:
                if group.array is None or each.array is None:
                    continue
                own, first = each.array.tensor, group.array.tensor
                if own.device.target != first.device.target:
                    replace(own, first.to(own.device))

    def _groups(self) -> list[Group]:
        """Return the groups, those on further devices included."""
        return [each for group in self.param_groups for each in (group, *group.replicas)]

    def _prepare(self, group: Group) -> None:
        """Make the array and the states of a group, once there are gradients."""
        used = [each for each in group.parameters if each.grad is not None]
        if not used:
            return
        recording = current_recording()
        if recording is not None and recording.stages is not None:
            raise BadArgument(f"@jit {recording.name}: take the first step before recording")
        group.array = Array(used)
        for name in self.arrays:
            zeros = Tensor.zeros(group.array.size, device=group.array.tensor.device)
            group.states[name] = self._placed(zeros).realize()

    def _joined(self, group: Group, array: Array) -> Tensor:
        """Return the gradients as one array, of which each parameter's gradient becomes a part."""
        missing = [
            place
            for place, each in enumerate(group.parameters)
            if id(each) in array.starts and each.grad is None
        ]
        if missing:
            raise BadArgument(
                f"{type(self).__name__}: the first step had gradients of {len(array.parameters)} "
                f"parameters, parameters {missing[:8]} of these have none now"
            )
        joined = array.joined([each.grad for each in array.parameters])
        for parameter in array.parameters:
            parameter.grad = joined._new(array.of(joined.node, parameter))
        return joined

    def _placed(self, state: Tensor) -> Tensor:
        """Return a state as it is stored."""
        return state._new(graph.contiguous(state.node, graph.HOST if self.offload else None))

    def _set(self, group: Group, name: str, value: Tensor) -> Tensor:
        """Give a state new elements; return the state."""
        replace(group.states[name], self._placed(value) if self.offload else value)
        return group.states[name]

    def _update(self, group: Group, array: Array, gradients: Tensor) -> list[Tensor]:
        """Assign parameters and states; return what was assigned."""
        raise NotImplementedError

    # ---- state ---------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return states by the number of the parameter, and the groups' options, as PyTorch."""
        self._check_replicated("state_dict")
        state: dict[int, dict[str, Any]] = {}
        groups = []
        number = 0
        for group in self.param_groups:
            numbers = []
            for parameter in group.parameters:
                numbers.append(number)
                if group.array is not None and id(parameter) in group.array.starts:
                    state[number] = {"step": group.clock[0]} | {
                        name: group.states[name]._new(
                            group.array.of(group.states[name].node, parameter)
                        )
                        for name in self.arrays
                    }
                number += 1
            groups.append({**group.options, "params": numbers})
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        """Take states and options as `state_dict` returns them, tensors or arrays. Raises
        BadArgument that lists what does not fit, before anything has changed."""
        self._check_replicated("load_state_dict")
        groups, state = given["param_groups"], given["state"]
        counts = [len(group["params"]) for group in groups]
        own = [len(group.parameters) for group in self.param_groups]
        if counts != own:
            raise BadArgument(f"load_state_dict: expected groups of {own} parameters, got {counts}")
        listed = [each for group in self.param_groups for each in group.parameters]
        numbers = [number for group in groups for number in group["params"]]
        faults = [
            f"parameter {number}: {name}: expected shape {list(parameter.shape)}, got "
            f"{list(np.shape(state[number][name])) if name in state[number] else 'nothing'}"
            for number, parameter in zip(numbers, listed, strict=True)
            for name in self.arrays
            if number in state and tuple(np.shape(state[number].get(name))) != parameter.shape
        ]
        if faults:
            raise BadArgument(f"load_state_dict: {len(faults)} mismatches: " + "; ".join(faults))
        places = iter(numbers)
        for group, options in zip(self.param_groups, groups, strict=True):
            loaded = [state.get(next(places)) for _ in group.parameters]
            for each in (group, *group.replicas):
                keys = [id(parameter) for parameter in each.parameters]
                self._load(each, options, dict(zip(keys, loaded, strict=True)))

    def _check_replicated(self, operation: str) -> None:
        if self._split:
            raise NotSupported(f"{operation}: parameters that are split have no state of their own")

    def _load(self, group: Group, options: Mapping[str, Any], entries: Mapping[int, Any]) -> None:
        for name, value in options.items():
            if name in group.options:
                group[name] = value
        used = [each for each in group.parameters if entries[id(each)]]
        if not used:
            return
        with tracking(False):
            if group.array is None:
                group.array = Array(used)
            for name in self.arrays:
                parts = [_tensor(entries[id(each)][name], each) for each in group.array.parameters]
                group.states[name] = self._placed(group.array.joined(parts)).realize()
            step = entries[id(used[0])].get("step", 0.0)
            group.clock = group.at(float(step))


def _tensor(value: Any, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(like.device).cast(like.dtype)
    return Tensor(np.asarray(value), device=like.device, dtype=like.dtype)
