"""Kernels of IREE's compiler for gfx1100 and gfx1201 run on the virtual Navi31 and Navi48 by way of
hcq, and agree with NumPy.

IREE's compiler makes code objects without a GPU. It accesses memory through buffer descriptors that
it makes in the kernel, and uses matrix instructions of both generations. What its runtime would
take from the module, the number of workgroups and their size, is read from its own IR.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.foreign.client import require
from tests.foreign.compilers.iree_cases import DTYPES, OPERATORS, Array, Operator, module
from tests.support.amd.am_navi31 import build_chip
from ugpu import hcq
from ugpu.am.chips import facts_of
from ugpu.hcq.device.device import Device
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.options import ChipOptions

require("iree")
pytestmark = pytest.mark.foreign
CARDS = {"navi31": "gfx1100", "navi48": "gfx1201"}
LIMIT_S = 150
_EXPORT = re.compile(
    r"hal\.executable\.export public @(?P<name>\w+) .*?count\(.*?\{(?P<count>.*?)\}\s*"
    r"<workgroup_size = \[(?P<size>[^\]]*)\]",
    re.DOTALL,
)


@dataclass(frozen=True)
class Kernel:
    """An exported kernel: its symbol, workgroups and threads of each."""

    name: str
    groups: tuple[int, ...]
    threads: tuple[int, ...]


@pytest.fixture(scope="module", params=CARDS)
def card(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def _compile(arguments: list[str]) -> None:
    program = [sys.executable, "-m", "iree.compiler.tools.scripts.iree_compile"]
    command = [*program, "--iree-hal-target-device=hip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-3000:]


def kernel_of(text: str) -> Iterator[Kernel]:
    """Read the exports of executables from IREE's IR."""
    for match in _EXPORT.finditer(text):
        constants = dict(re.findall(r"(%\w+) = arith\.constant (\d+) : index", match["count"]))
        returned = re.search(r"hal\.return ([^:]*):", match["count"])
        assert returned is not None
        groups = tuple(int(constants[name.strip()]) for name in returned[1].split(","))
        yield Kernel(match["name"], groups, tuple(map(int, re.findall(r"\d+", re.sub(
            r" : index", "", match["size"])))))  # fmt: skip


@pytest.fixture(scope="module")
def compiled(
    card: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bytes, dict[str, Kernel]]:
    """The code object of all operators, and the kernel of each."""
    folder = tmp_path_factory.mktemp("iree")
    source, text, images = folder / "operators.mlir", folder / "text.mlir", folder / "images"
    images.mkdir()
    source.write_text(module(), encoding="utf-8")
    target = f"--iree-rocm-target={CARDS[card]}"
    _compile([target, str(source), "--compile-to=executable-targets", "-o", str(text)])
    dump = f"--iree-hal-dump-executable-binaries-to={images}"
    _compile([target, str(source), dump, "-o", str(folder / "module.vmfb")])
    (image,) = images.glob("*.hsaco")
    kernels: dict[str, Kernel] = {}
    for kernel in kernel_of(text.read_text(encoding="utf-8")):
        operator, _, _ = kernel.name.partition("_dispatch_")
        assert operator not in kernels, f"{operator} has more than one kernel"
        kernels[operator] = kernel
    return image.read_bytes(), kernels


@pytest.fixture(scope="module")
def chip(card: str) -> Iterator[Chip]:
    made = build_chip(ChipOptions(vram=1 << 30), facts_of(card))
    yield made
    made.close()


@pytest.fixture(scope="module")
def gpu(card: str, chip: Chip) -> Iterator[Device]:
    with hcq.open(f"virtual:{card}", chip=chip) as opened:
        yield opened


def _inputs(operator: Operator) -> list[Array]:
    random = np.random.default_rng(3)
    given: list[Array] = []
    for shape, kind in operator.arguments:
        if kind.startswith("i"):
            given.append(random.integers(-9 if kind == "i8" else 0, 30, shape).astype(DTYPES[kind]))
        else:
            given.append(random.standard_normal(shape).astype(DTYPES[kind]))
    return given


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_agrees(gpu: Device, compiled: tuple[bytes, dict[str, Kernel]], name: str) -> None:
    image, kernels = compiled
    operator, kernel = OPERATORS[name], kernels[name]
    given = _inputs(operator)
    shape, kind = operator.result
    out = np.zeros(shape, DTYPES[kind])
    with gpu.load(image) as program:
        buffers: list[Any] = [gpu.alloc(array.nbytes) for array in (*given, out)]
        for buffer, array in zip(buffers, (*given, out), strict=True):
            buffer.copy_from(array)
        queue = gpu.queue()
        queue.launch(
            program[kernel.name], grid=kernel.groups, block=kernel.threads, args=tuple(buffers)
        ).submit()
        gpu.synchronize()
        found = buffers[-1].numpy(out.dtype).reshape(shape).copy()
        for buffer in buffers:
            buffer.close()
    wide = [array if kind.startswith("i") else array.astype("f8") for array in given]
    if kind == "i32":
        expected = operator.numpy(*(array.astype("i4") for array in wide))
        assert np.array_equal(found, expected)
        return
    near = 2e-3 if kind == "f16" else operator.tolerance
    assert np.allclose(found, operator.numpy(*wide), near, near)


def test_nothing_of_it_was_objected_to(chip: Chip, gpu: Device) -> None:
    assert chip.violations == []
