"""Random functions that assign to tensors from outside, to arguments and to slices of both, called
several times with other data: under `@jit`, `@function` and plain, against the judge.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from lab.programs import draw, torched
from lab.programs.judge import KINDS, Array, Functions
from lab.programs.reduce import least, without
from lab.programs.tensors import ATTEMPTS, REFUSED
from ugpu.compiler import Tensor, function, jit
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import UgpuError

CALLS = 7  # more than a recording takes to settle
LIST = re.compile(
    r"(\[|, )\["
)  # an index by a list, which @jit refuses: it would be copied each time
WAYS: dict[str, Callable[[Any], Any]] = {
    "without a decorator": lambda step: step,
    "@function": function,
    "@jit": jit,
}


@dataclass(frozen=True)
class Program:
    """setup: lines that make the tensors from outside (c0 ...) and the arguments that stay (w, b).
    feeds: the text of x for each call. body: the function's lines. outputs: what it returns.
    between: lines of the program before each call."""

    setup: tuple[str, ...]
    feeds: tuple[str, ...]
    body: tuple[str, ...]
    outputs: tuple[str, ...]
    between: tuple[tuple[str, ...], ...]

    def core(self) -> str:
        """Return the code between the imports and the results."""
        lines = [*self.setup, "p = {'w': w, 'b': [b]}", "@wrap", "def step(x, p):"]
        lines += ["    w, b = p['w'], p['b'][0]", *[f"    {line}" for line in self.body]]
        lines += [f"    return ({', '.join(self.outputs)},)"]
        for number, (feed, before) in enumerate(zip(self.feeds, self.between, strict=True)):
            lines += [*before, f"r{number} = step({feed}, p)"]
        return "\n".join(lines)

    def text(self, device: str) -> str:
        """Return runnable code; the results are r0 ..., and the tensors that it began with."""
        head = ["import numpy as np, ugpu", "from ugpu import Tensor", "wrap = ugpu.jit"]
        tail = [
            "for name, each in sorted(globals().items()):",
            "    for tensor in each if isinstance(each, tuple) else (each,):",
            "        if isinstance(tensor, Tensor):",
            "            print(name, tensor.tolist())",
        ]
        return "\n".join([*head, f'ugpu.set_default_device("{device}")', self.core(), *tail])


class _On:
    """The class Tensor, with tensors on a device."""

    cat, stack = staticmethod(Tensor.cat), staticmethod(Tensor.stack)

    def __init__(self, device: Device) -> None:
        self.device = device

    def __call__(self, data: Any, dtype: str) -> Tensor:
        return Tensor(data, device=self.device, dtype=dtype)


def results(tried: Program, tensor: Any, wrap: Callable[[Any], Any]) -> dict[str, Any]:
    """Run a program; return the results of all calls, and the tensors of the program."""
    env: dict[str, Any] = {"Tensor": tensor, "np": np, "wrap": wrap}
    with np.errstate(all="ignore"):
        exec(tried.core(), env)
    found: dict[str, Any] = {}
    for name, value in env.items():
        if isinstance(value, Tensor | Array | torched.Torched):
            found[name] = value
        elif isinstance(value, tuple):
            found |= {f"{name}[{place}]": each for place, each in enumerate(value)}
    return found


def judged(tried: Program) -> dict[str, Array]:
    """Return the results that the judge finds. Raises one of REFUSED."""
    return results(tried, Functions(), lambda step: step)


def by_torch(tried: Program) -> dict[str, torched.Torched]:
    """Return the results that PyTorch finds; none where it refuses a statement, or is missing."""
    try:
        return results(tried, torched.Functions(), lambda step: step) if torched.INSTALLED else {}
    except torched.REFUSED:
        return {}


def share(tried: Program) -> tuple[int, int]:
    """Return how many results PyTorch judges too, and how many there are."""
    return len(by_torch(tried)), len(judged(tried))


def difference(tried: Program, device: Device) -> str | None:
    """Return how the results differ from the judge's in one of WAYS; None if they do not."""
    wanted, second = judged(tried), by_torch(tried)
    for way, wrap in WAYS.items():
        try:
            found = results(tried, _On(device), wrap)
            for name in wanted:
                given = found[name].numpy()
                fault = wanted[name].differs(given) or torched.fault(
                    wanted[name], second.get(name), given
                )
                if fault is not None:
                    return f"{way}, {name}: {fault}"
        except UgpuError as error:
            return f"{way}: {type(error).__name__}: {error}"
    return None


def program(seed: int) -> Program:
    """Draw a program."""
    random = Random(seed)
    shape = draw.shape(random)
    sizes = [shape if random.random() < 0.7 else draw.shape(random) for _ in range(5)]
    kinds = [random.choice(("float32", "float32", "int32", *KINDS)) for _ in range(5)]

    def made(place: int) -> str:
        return f'Tensor({draw.data(random, sizes[place], kinds[place])}, dtype="{kinds[place]}")'

    setup = [f"{name} = {made(place)}" for place, name in enumerate(("c0", "c1", "w", "b"))]
    setup.append(
        random.choice(("c2 = c0.reshape(*c0.shape)", "c2 = c1 + 0", "c2 = c0 * 1", "c2 = w[:]"))
    )
    feeds = tuple(made(4) for _ in range(CALLS))
    if random.random() < 0.1 and sizes[2] == sizes[4]:
        feeds = ("w",) * CALLS
    tried = Program(tuple(setup), feeds, (), ("x",), ((),) * CALLS)
    for _ in range(random.randint(3, 9)):
        tried = _longer(random, tried) or tried
    names = list(_inside(tried))
    tried = replace(
        tried, outputs=tuple(random.sample(names, min(len(names), random.randint(1, 3))))
    )
    often = random.choice((0.3, 0.3, 0.9))
    for call in range(1, CALLS):
        if random.random() < often:
            tried = _between(random, tried, call) or tried
    return tried


def _inside(tried: Program) -> dict[str, Array]:
    """Return the values of all variables at the end of the last call."""
    seen: dict[str, Any] = {}

    def wrap(step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def seeing(*args: Any) -> Any:
            found = step(*args)
            seen.update(found[0])
            return found

        return seeing

    open_ended = replace(tried, outputs=("{**locals(), 'c0': c0, 'c1': c1, 'c2': c2}",))
    results(open_ended, Functions(), wrap)
    return {name: each for name, each in seen.items() if isinstance(each, Array)}


def _longer(random: Random, before: Program) -> Program | None:
    """Return the program with one more statement in the function; None if none is found."""
    env = _inside(before)
    for _ in range(ATTEMPTS):
        if random.random() < 0.6:
            line = draw.assignment(random, env, random.choice(["c0", "c1", "c2", "w", "b", "x"]))
        else:
            line = f"v{len(before.body)} = {draw.expression(random, env)}"
        if LIST.search(line):
            continue
        longer = replace(before, body=(*before.body, line))
        if _is_good(longer):
            return longer
    return None


def _is_good(tried: Program) -> bool:
    try:
        return all(draw.small(each) for each in _inside(tried).values())
    except REFUSED:
        return False


def _between(random: Random, before: Program, call: int) -> Program | None:
    """Return the program with a line before a call."""
    name = random.choice(("c0", "c1", "c2", "w"))
    number = random.randint(0, 5)
    line = random.choice(
        (
            f"{name}.assign({name} * 0)",
            f"{name}[...] = {number}",
            f"{name}[0] = {number}",
            f"{name}[-1:] = {name}[:1] * {number}",
            f"k{call} = {name} + 0",
            f"k{call} = {name}.flip(0)",
            f"k{call} = {name} + 1",
            f"{name}.realize()",
        )
    )
    between = list(before.between)
    between[call] = (line,)
    tried = replace(before, between=tuple(between))
    return tried if _is_good(tried) else None


def reduced(failing: Program, device: Device) -> Program:
    """Return a smaller program that fails too: no statement, call or output can be left out."""
    return least(failing, _shorter, functools.partial(difference, device=device), REFUSED)


def _shorter(failing: Program) -> Iterator[Program]:
    if len(failing.feeds) > 1:
        yield replace(failing, feeds=failing.feeds[:-1], between=failing.between[:-1])
    for place in reversed(range(len(failing.body))):
        yield replace(failing, body=without(failing.body, place))
    for place in range(len(failing.outputs) if len(failing.outputs) > 1 else 0):
        yield replace(failing, outputs=without(failing.outputs, place))
    for place, lines in enumerate(failing.between):
        if lines:
            between = list(failing.between)
            between[place] = ()
            yield replace(failing, between=tuple(between))
    if failing.outputs != ("x",):
        yield replace(failing, outputs=("x",))
