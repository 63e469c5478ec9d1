"""Random programs of complex tensors and Fourier transforms, against NumPy in complex128.

The statements are right for `numpy` and for `ugpu.xp` alike. How far a correct computation may be
from NumPy's follows from running the program again with noise of the type's rounding in each
result; a statement whose result such noise changes much (near a cut, or a small divisor) is not
drawn. At the end all variables are compared, so that a statement that changes another one is found.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.programs.reduce import least, without
from lab.programs.tensors import ATTEMPTS
from ugpu.compiler import Tensor, jit
from ugpu.compiler import array_api as xp
from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import UgpuError

REAL = {"complex64": "float32", "complex128": "float64"}
NOISE = {"complex64": 2.0**-22, "complex128": 2.0**-48}  # of a value's largest magnitude
ALLOWED = 40  # times the difference that noise makes
STEADY = 1e-3  # the largest difference, of a value's largest magnitude
LARGEST, MOST = 1e4, 20_000  # of a value: magnitude, elements
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 17, 30, 37)
LENGTHS = (*SIZES, 60, 64, 128, 257, 300)
CALLS = 4  # of a recorded function: more than a recording takes to settle
REFUSED = (ValueError, TypeError, IndexError, OverflowError, NameError, FloatingPointError, Warning)
FUNCTIONS = (
    *("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh"),
    *("asin", "acos", "atan", "asinh", "acosh", "atanh", "square", "conj", "real", "imag", "abs"),
    *("sign", "negative", "positive", "reciprocal"),
)
Values = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Program:
    """Statements on tensors z0, ... of complex and x0, ... of real numbers.

    Attributes:
        kind: complex64 or complex128.
        shapes: of the inputs by name.
        seed: of the inputs' elements.
        lines: the statements; the first word of each is the variable that it changes.
    """

    kind: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    seed: int
    lines: tuple[str, ...]

    def arrays(self) -> Values:
        """Return the inputs, whose numbers both types have exactly."""
        made: Values = {}
        for place, (name, shape) in enumerate(self.shapes):
            real, imag = np.random.default_rng(self.seed + place).integers(-64, 65, (2, *shape))
            made[name] = (real + 1j * imag if name[0] == "z" else real) / 32
        return made

    def text(self, device: str) -> str:
        """Return runnable code."""
        lines = ["import numpy as np", "import ugpu", "from ugpu import ComplexTensor, Tensor, xp"]
        lines.append(f'ugpu.set_default_device("{device}")')
        for place, (name, shape) in enumerate(self.shapes):
            drawn = f"np.random.default_rng({self.seed + place}).integers(-64, 65, {(2, *shape)})"
            lines.append(f"a, b = {drawn} / 32")
            whole = f'{name} = ComplexTensor(a + 1j * b, dtype="{self.kind}")'
            real = f'{name} = Tensor(a, dtype="{REAL[self.kind]}")'
            lines.append(whole if name[0] == "z" else real)
        return "\n".join([*lines, *self.lines])

    def judged(self, noise: int = 0) -> Values:
        """Return the variables by NumPy. noise: the seed of noise in each result; 0: none."""
        env = self.arrays()
        random = np.random.default_rng(noise)
        for line in self.lines:
            with warnings.catch_warnings(action="error"):  # of complex numbers as real ones
                exec(line, {"xp": np}, env)
            name = line.split(" ")[0].split("[")[0]
            value = np.array(env[name])  # a copy: views of NumPy share elements
            if not (np.isfinite(value).all() and 0 < value.size <= MOST and value.ndim <= 4):
                raise FloatingPointError(line)
            if np.abs(value).max() > LARGEST:
                raise FloatingPointError(line)
            env[name] = value + self._noise(value, random) if noise else value
        return env

    def _noise(self, value: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
        size = NOISE[self.kind] * (np.abs(value).max() or 1)
        real, imag = random.uniform(-size, size, (2, *value.shape))
        return np.asarray(real + 1j * imag if value.dtype.kind == "c" else real)

    def bounds(self, wanted: Values) -> dict[str, float]:
        """Return how far each variable may be from NumPy's. Raises FloatingPointError if noise
        changes one too much."""
        allowed = {}
        noisy = [self.judged(noise) for noise in (1, 2, 3)]
        for name, value in wanted.items():
            largest = float(np.abs(value).max())
            off = max(float(np.abs(each[name] - value).max()) for each in noisy)
            if off > STEADY * max(largest, NOISE[self.kind]):
                raise FloatingPointError(name)
            allowed[name] = ALLOWED * (off + NOISE[self.kind] * largest) + 1e-30
        return allowed

    def tensors(self, device: Device) -> dict[str, Any]:
        """Return the inputs on a device."""
        kind = self.kind
        return {
            name: ComplexTensor(array, device=device, dtype=kind)
            if name[0] == "z"
            else Tensor(array, device=device, dtype=REAL[kind])
            for name, array in self.arrays().items()
        }


def _plain(tried: Program, device: Device) -> dict[str, Any]:
    env = tried.tensors(device)
    for line in tried.lines:
        exec(line, {"xp": xp}, env)
    return env


def _recorded(tried: Program, device: Device) -> dict[str, Any]:
    """Run the program as a recorded function, the last of several calls."""

    @jit
    def step(given: dict[str, Any]) -> dict[str, Any]:
        env = dict(given)
        for line in tried.lines:
            exec(line, {"xp": xp}, env)
        return {name: each for name, each in env.items() if name not in given}

    for _ in range(CALLS):
        given = tried.tensors(device)
        found = step(given)
    return given | found


WAYS: dict[str, Callable[[Program, Device], dict[str, Any]]] = {
    "plain": _plain,
    "@jit": _recorded,
}


def difference(tried: Program, device: Device) -> str | None:
    """Return how the results differ from NumPy's in one of WAYS; None if they do not."""
    wanted = tried.judged()
    allowed = tried.bounds(wanted)
    for way, run in WAYS.items():
        try:
            found = run(tried, device)
            for name in reversed(list(wanted)):
                fault = _differs(tried.kind, found[name].numpy(), wanted[name], allowed[name])
                if fault is not None:
                    return f"{way}, {name}: {fault}"
        except UgpuError as error:
            return f"{way}: {type(error).__name__}: {error}"
    return None


def _differs(kind: str, found: Any, wanted: NDArray[Any], allowed: float) -> str | None:
    kind = kind if wanted.dtype.kind == "c" else REAL[kind]
    if found.dtype.name != kind or found.shape != wanted.shape:
        return f"{found.dtype.name}{list(found.shape)}, expected {kind}{list(wanted.shape)}"
    distance = np.atleast_1d(np.abs(found - wanted))
    wrong = ~(distance <= allowed)
    if not wrong.any():
        return None
    place = tuple(int(each[0]) for each in np.nonzero(wrong))
    got, right = np.atleast_1d(found)[place], np.atleast_1d(wanted)[place]
    return (
        f"{int(wrong.sum())} of {wrong.size} elements; at {list(place)}: {got}, expected {right} "
        f"within {allowed:.3g}"
    )


# ---- drawing -----------------------------------------------------------------------------------


def program(seed: int) -> Program:
    """Draw a program."""
    random = Random(seed)
    first = tuple(random.choice(SIZES) for _ in range(random.randint(1, 3)))
    first = (*first[:-1], random.choice(LENGTHS))
    names = ["z0", *random.sample(["z1", "x1", "x2"], random.randint(0, 2))]
    shapes = tuple((name, first if random.random() < 0.8 else first[-1:]) for name in names)
    kind = random.choice(("complex64", "complex64", "complex128"))
    made = Program(kind, shapes, random.randrange(1 << 30), ())
    for _ in range(random.randint(3, 9)):
        made = _longer(random, made) or made
    return made


def _longer(random: Random, before: Program) -> Program | None:
    """Return the program with one more statement; None if none is found."""
    env = before.judged()
    for _ in range(ATTEMPTS):
        one = random.choice(list(env)[-4:])
        line = f"v{len(before.lines)} = {_expression(random, env, one)}"
        if random.random() < 0.2:
            given = random.choice([random.choice(list(env)), "0.5", f"-{one}", f"{one} * 0.5"])
            line = f"{one}[{_key(random, env[one])}] = {given}"
        longer = replace(before, lines=(*before.lines, line))
        try:
            with np.errstate(all="ignore"):
                longer.bounds(longer.judged())
        except REFUSED:
            continue
        return longer
    return None


def _axis(random: Random, value: NDArray[Any]) -> int:
    return random.randrange(-value.ndim, value.ndim) if value.ndim else 0


def _key(random: Random, value: NDArray[Any]) -> str:
    entries = []
    for size in value.shape[: random.randint(1, max(1, value.ndim))]:
        low, high = (random.choice(("", str(random.randint(-size, size)))) for _ in range(2))
        step = random.choice(("", "", ":2", ":-1"))
        chosen = str(random.randrange(-size, size))
        entries.append(chosen if random.random() < 0.2 else f"{low}:{high}{step}")
    return ", ".join(entries) or "..."


def _fourier(random: Random, value: NDArray[Any], one: str) -> str:
    whole = value.dtype.kind == "c"
    name = random.choice(("fft", "ifft", "irfft", "hfft") if whole else ("rfft", "ihfft"))
    length = f", n={random.choice(LENGTHS)}" if random.random() < 0.4 else ""
    norm = random.choice(("backward", "ortho", "forward"))
    if random.random() < 0.2 and value.ndim > 1:
        name = random.choice(("fftn", "ifftn", "irfftn") if whole else ("rfftn",))
        return f'xp.fft.{name}({one}, axes=(0, -1), norm="{norm}")'
    return f'xp.fft.{name}({one}{length}, axis={_axis(random, value)}, norm="{norm}")'


def _expression(random: Random, env: Values, one: str) -> str:
    """Return an expression, which need not be valid."""
    value, two = env[one], random.choice(list(env))
    axis = _axis(random, value)
    way = random.random()
    if way < 0.25:
        return f"xp.{random.choice(FUNCTIONS)}({one})"
    if way < 0.45:
        return _fourier(random, value, one)
    if way < 0.7:
        right = random.choice((two, two, "0.5", "(1.5-0.5j)", "2"))
        return random.choice((f"{one} {random.choice('+-*/')} {right}", f"{right} - {one}",
                              f"{one} * {right} + {two}", f"{one} ** 2"))  # fmt: skip
    return random.choice(
        (
            f"xp.{random.choice(('sum', 'mean', 'prod'))}({one}, axis={axis})",
            f"xp.cumulative_sum({one}, axis={axis})",
            f"xp.flip({one}, axis={axis})",
            f"xp.roll({one}, {random.randint(-4, 4)}, axis={axis})",
            f"xp.concat([{one}, {two}], axis={axis})",
            f"xp.stack([{one}, {two}], axis={axis})",
            f"xp.matmul({one}, {random.choice((two, f'xp.conj(xp.matrix_transpose({one}))'))})",
            f"xp.vecdot({one}, {two})",
            f"xp.moveaxis({one}, 0, -1)",
            f"xp.reshape({one}, (-1,))",
            f"xp.where(xp.abs({one}) > 1, {one}, {two})",
            f"xp.tril({one}[None, None])",
            f"{one}[{_key(random, value)}]",
        )
    )


# ---- making smaller ----------------------------------------------------------------------------


def reduced(failing: Program, device: Device) -> Program:
    """Return a smaller program that fails too: no statement and no input can be left out."""
    return least(failing, _shorter, partial(difference, device=device), REFUSED)


def _shorter(failing: Program) -> Iterator[Program]:
    for place in reversed(range(len(failing.lines))):
        yield replace(failing, lines=without(failing.lines, place))
    for place in range(len(failing.shapes) - 1, -1, -1):
        yield replace(failing, shapes=without(failing.shapes, place))


def share(tried: Program) -> tuple[int, int]:
    """Return how many variables PyTorch judges too, which is none, and how many there are."""
    return 0, len(tried.judged())
