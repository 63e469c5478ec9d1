"""Random statements about tensors, as text that is right for Tensor and for the judge's Array."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import numpy as np

from lab.programs.judge import INTEGERS, KINDS, WIDTH, Array

MOST = 20_000  # elements of a value
Draw = Callable[[Random, str, Array], str]


def data(random: Random, shape: tuple[int, ...], kind: str) -> str:
    """Return the text of an array with few different numbers that float types hold exactly."""
    seed = random.randrange(1 << 30)
    numbers = f"np.random.default_rng({seed}).integers(-9, 10, {shape})"
    if kind == "bool":
        return f"({numbers} > 0)"
    if kind in WIDTH:
        return f"({numbers} / 2).astype(np.float32)"
    numbers = f"np.abs({numbers})" if kind.startswith("u") else numbers
    return f"{numbers}.astype(np.{kind})"


def shape(random: Random) -> tuple[int, ...]:
    """Return the shape of an input."""
    sizes = [random.choice((1, 2, 3, 4, 5, 7, 8, 17)) for _ in range(random.randint(1, 3))]
    if random.random() < 0.15:
        sizes[-1] = random.choice((33, 65, 130, 257, 300))
    return tuple(sizes)


def axis(random: Random, value: Array) -> int:
    return random.randrange(-len(value.shape), len(value.shape)) if value.shape else 0


def key(random: Random, value: Array, lists: bool = True) -> str:
    """Return the text of an index: numbers, slices with steps, None, lists."""
    entries, chosen = [], False
    for size in value.shape[: random.randint(1, max(1, len(value.shape)))]:
        way = random.random()
        if way < 0.2:
            entries.append(str(random.randrange(-size, size)))
        elif way < 0.35 and lists and not chosen:
            chosen = True
            entries.append(
                str([random.randrange(-size, size) for _ in range(random.randint(1, 4))])
            )
        else:
            step = random.choice(("", "", ":2", ":-1", ":-2", ":3"))
            low, high = (random.choice(("", str(random.randint(-size, size)))) for _ in range(2))
            entries.append(f"{low}:{high}{step}")
    if lists and not chosen and random.random() < 0.1:
        entries.insert(random.randint(0, len(entries)), "None")
    return ", ".join(entries) or "..."


def _number(random: Random, value: Array) -> str:
    """Return a number that the value's type takes without becoming another."""
    if value.kind in WIDTH:
        return str(random.choice((-2.0, -0.5, 0.0, 0.5, 1.0, 1.5, 3.0)))
    return str(
        random.choice((0, 1, 2, 3, 5) if value.kind.startswith("u") else (-3, -1, 0, 1, 2, 7))
    )


def _kind(random: Random, value: Array) -> str:
    return random.choice(KINDS if not value.error else tuple(WIDTH))


def _reshaped(random: Random, name: str, value: Array) -> str:
    size, sizes = value.data.size, []
    for factor in (2, 3, 4, 5, 7, 17):
        if size % factor == 0 and size and random.random() < 0.4:
            sizes.append(factor)
            size //= factor
    sizes.insert(random.randint(0, len(sizes)), size)
    return f"{name}.reshape({', '.join(map(str, sizes))})"


def _expanded(random: Random, name: str, value: Array) -> str:
    sizes = [random.choice((2, 3)) if size == 1 else size for size in value.shape]
    return f"{name}.expand({', '.join(map(str, [random.choice((1, 2)), *sizes]))})"


def _padded(random: Random, name: str, value: Array) -> str:
    pairs = [(random.choice((0, 0, 1, 2)), random.choice((0, 1))) for _ in value.shape]
    number = 0 if value.kind == "bool" else _number(random, value)
    return f"{name}.pad({pairs}, {number})"


def _permuted(random: Random, name: str, value: Array) -> str:
    order = list(range(len(value.shape)))
    random.shuffle(order)
    return f"{name}.permute({', '.join(map(str, order))})"


def _along(method: str) -> Draw:
    return lambda random, name, value: f"{name}.{method}({axis(random, value)})"


def _over(method: str) -> Draw:
    """A reduction over one axis, perhaps kept, or over all."""

    def draw(random: Random, name: str, value: Array) -> str:
        if random.random() < 0.2:
            return f"{name}.{method}()"
        kept = ", True" if method in ("sum", "max", "min") and random.random() < 0.3 else ""
        return f"{name}.{method}({axis(random, value)}{kept})"

    return draw


def _plain(method: str) -> Draw:
    return lambda random, name, value: f"{name}.{method}()"


def _with_number(operator: str) -> Draw:
    return lambda random, name, value: f"{name} {operator} {_number(random, value)}"


ONE: dict[str, Draw] = {
    "number": lambda random, name, value: random.choice(
        [_with_number(operator) for operator in "+-*"]
    )(random, name, value),
    "compare number": lambda random, name, value: random.choice(
        [_with_number(operator) for operator in ("<", ">=", "==")]
    )(random, name, value),
    "neg": lambda random, name, value: f"-{name}",
    "invert": lambda random, name, value: f"~{name}",
    "shift": lambda random, name, value: (
        f"{name} {random.choice(('<<', '>>'))} {random.randint(0, 3)}"
    ),
    "clamp": lambda random, name, value: (
        f"{name}.clamp({0 if value.kind.startswith('u') else -4}, 5)"
    ),
    **{
        method: _plain(method)
        for method in (
            "abs",
            "relu",
            "square",
            "tanh",
            "sigmoid",
            "sin",
            "exp",
            "contiguous",
        )
    },
    "cast": lambda random, name, value: f'{name}.cast("{_kind(random, value)}")',
    **{method: _over(method) for method in ("sum", "mean", "max", "min", "any")},
    **{
        method: _along(method)
        for method in ("argmax", "cumsum", "cummax", "argsort", "softmax", "flip")
    },
    "sort": lambda random, name, value: (
        f"{name}.sort({axis(random, value)})[{random.randint(0, 1)}]"
    ),
    "reshape": _reshaped,
    "permute": _permuted,
    "expand": _expanded,
    "pad": _padded,
    "transpose": lambda random, name, value: (
        f"{name}.transpose({axis(random, value)}, {axis(random, value)})"
    ),
    "roll": lambda random, name, value: (
        f"{name}.roll({random.randint(-4, 4)}, {axis(random, value)})"
    ),
    "unsqueeze": _along("unsqueeze"),
    "repeat": lambda random, name, value: (
        f"{name}.repeat({', '.join(str(random.choice((1, 2))) for _ in value.shape)})"
    ),
    "tril": lambda random, name, value: f"{name}.tril({random.randint(-1, 1)})",
    "index": lambda random, name, value: f"{name}[{key(random, value)}]",
    "slice": lambda random, name, value: f"{name}[{key(random, value, lists=False)}]",
}
TWO = ("+", "-", "*", "+", "*", "<", ">=", "==", "&", "|", "^", "//", "%", "/")
OTHERS = ("maximum", "minimum", "where", "cat", "stack", "@", "gather", "quotient")


def _two(random: Random, env: Mapping[str, Array], one: str, two: str) -> str:
    way = random.choice(OTHERS) if random.random() < 0.5 else "operator"
    if way == "operator":
        return f"{one} {random.choice(TWO)} {two}"
    if way == "where":
        condition = random.choice([name for name in env if env[name].kind == "bool"] or [one])
        return f"{condition}.where({one}, {two})"
    if way in ("cat", "stack"):
        return f"Tensor.{way}([{one}, {two}], {axis(random, env[one]) if env[one].shape else 0})"
    if way == "@":
        right = (two, f"{two}.transpose(-1, -2)", f"{one}.transpose(-1, -2)")
        return f"{one} @ {random.choice(right)}"
    if way == "gather":
        indices = [name for name in env if env[name].kind in INTEGERS]
        index = random.choice(indices or [two])
        return f"{one}[{index} % {max(1, env[one].shape[0] if env[one].shape else 1)}]"
    if way == "quotient":
        return f"{one} / ({two} * {two} + 1)"
    return f"{one}.{way}({two})"


def expression(random: Random, env: Mapping[str, Array]) -> str:
    """Return an expression of some values. It need not be valid: the judge decides."""
    names = list(env)
    one = random.choice(names[-4:] if random.random() < 0.7 else names)
    if random.random() < 0.4:
        return _two(random, env, one, random.choice(names))
    draw = random.choice(list(ONE.values()))
    return draw(random, one, env[one])


def assignment(random: Random, env: Mapping[str, Array], target: str) -> str:
    """Return a statement that assigns to a part of a value, or to all of it."""
    value = env[target]
    given = random.choice([*env, _number(random, value) if value.kind != "bool" else "True"])
    way = random.random()
    if way < 0.25 or not value.shape:
        return f"{target}.assign({given})"
    region = key(random, value)
    if "None" in region:
        region = "..."
    if way < 0.4 and given in env:
        return f"{target}[{region}] = {target}[{region}] + {given}"
    masks = [name for name in env if env[name].kind == "bool" and env[name].shape == value.shape]
    if way < 0.55 and masks and given not in env:
        return f"{target}[{random.choice(masks)}] = {given}"
    return f"{target}[{region}] = {given}"


def small(value: Array) -> bool:
    """Return whether a value may be used further."""
    return (
        0 < value.data.size <= MOST
        and len(value.shape) <= 5
        and not (value.is_float and np.abs(value.data).max() > 1e5)
    )
