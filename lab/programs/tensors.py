"""Random programs of 5 to 15 operations on tensors, against the judge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np

from lab.programs import draw, torched
from lab.programs.judge import KINDS, Array, Functions, Unjudged
from lab.programs.reduce import least, without
from ugpu.compiler import Tensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import UgpuError

REFUSED = (
    Unjudged,
    ValueError,
    TypeError,
    IndexError,
    NameError,
    AttributeError,
    OverflowError,
)
ATTEMPTS = 60  # statements drawn for one that the judge accepts


@dataclass(frozen=True)
class Input:
    """A tensor that a program begins with. text: of its elements, in NumPy."""

    name: str
    text: str
    kind: str

    @property
    def line(self) -> str:
        return f'{self.name} = Tensor({self.text}, dtype="{self.kind}")'

    def array(self) -> Any:
        return eval(self.text, {"np": np})


@dataclass(frozen=True)
class Program:
    """Statements on the inputs; at the end, all variables are compared."""

    inputs: tuple[Input, ...]
    lines: tuple[str, ...]

    def text(self, device: str) -> str:
        """Return runnable code."""
        listed = [
            "import numpy as np, ugpu",
            "from ugpu import Tensor",
            f'ugpu.set_default_device("{device}")',
            *[each.line for each in self.inputs],
            *self.lines,
        ]
        return "\n".join(listed)

    def judged(self) -> dict[str, Array]:
        """Return the variables that the judge finds. Raises one of REFUSED."""
        env: dict[str, Any] = {each.name: _array(each) for each in self.inputs}
        with np.errstate(all="ignore"):
            for line in self.lines:
                exec(line, {"Tensor": Functions()}, env)
        return env

    def by_torch(self) -> dict[str, torched.Torched]:
        """Return the variables that PyTorch finds: those that it computes, none without it."""
        env: dict[str, Any] = {}
        if torched.INSTALLED:
            env |= {each.name: torched.made(each.array(), each.kind) for each in self.inputs}
        for line in self.lines if env else ():
            try:
                exec(line, {"Tensor": torched.Functions()}, env)
            except torched.REFUSED:
                env.pop(line[: line.find(" ")].split(".")[0].split("[")[0], None)
        return env

    def computed(self, device: Device) -> dict[str, Tensor]:
        """Return the variables that the compiler finds, not all of them computed."""
        env: dict[str, Any] = {
            each.name: Tensor(each.array(), device=device, dtype=each.kind) for each in self.inputs
        }
        for line in self.lines:
            exec(line, {"Tensor": Tensor}, env)
        return env


def _array(given: Input) -> Array:
    return Array(given.array(), given.kind)


def program(seed: int) -> Program:
    """Draw a program."""
    random = Random(seed)
    inputs = []
    first = draw.shape(random)
    for place in range(random.randint(1, 3)):
        kind = random.choice((*KINDS, "float32", "float32", "float32", "int32"))
        shape = first if random.random() < 0.6 else draw.shape(random)
        inputs.append(Input(f"v{place}", draw.data(random, shape, kind), kind))
    made = Program(tuple(inputs), ())
    for _ in range(random.randint(5, 15)):
        made = _longer(random, made) or made
    return made


def _longer(random: Random, before: Program) -> Program | None:
    """Return the program with one more statement; None if none is found."""
    env = before.judged()
    for _ in range(ATTEMPTS):
        target = f"v{len(env)}"
        line = f"{target} = {draw.expression(random, env)}"
        if random.random() < 0.2:
            target = random.choice(list(env))
            line = draw.assignment(random, env, target)
        elif random.random() < 0.1:
            line = f"{random.choice(list(env))}.realize()"
            target = next(iter(env))
        longer = replace(before, lines=(*before.lines, line))
        try:
            found = longer.judged()
        except REFUSED:
            continue
        if isinstance(found[target], Array) and draw.small(found[target]):
            return longer
    return None


def difference(tried: Program, device: Device, order: Sequence[str] = ()) -> str | None:
    """Return how the compiler's results differ from the judge's; None if they do not. order: the
    variables to read, in this order; all by default, the last first."""
    wanted, second = tried.judged(), tried.by_torch()
    try:
        results = tried.computed(device)
        for name in order or reversed(list(wanted)):
            found = results[name].numpy()
            fault = wanted[name].differs(found) or torched.fault(
                wanted[name], second.get(name), found
            )
            if fault is not None:
                return f"{name}: {fault}"
    except UgpuError as error:
        return f"{type(error).__name__}: {error}"
    return None


def reduced(failing: Program, device: Device) -> Program:
    """Return a smaller program that fails too: no statement and no input can be left out."""
    return least(failing, _shorter, partial(difference, device=device), REFUSED)


def _shorter(failing: Program) -> Iterator[Program]:
    for place in reversed(range(len(failing.lines))):
        yield replace(failing, lines=without(failing.lines, place))
    for place in range(len(failing.inputs)):
        yield replace(failing, inputs=without(failing.inputs, place))


def share(tried: Program) -> tuple[int, int]:
    """Return how many variables PyTorch judges too, and how many there are."""
    names = tried.judged()
    return len(names.keys() & tried.by_torch().keys()), len(names)
