"""ONNX models as others published them, run by ugpu and by onnxruntime: equal results.

Each wheel is downloaded into build/foreign/wheels, without what it depends on; the largest ones are
used only if they are there. Tests of a wheel that is not there are skipped.
The pages that the models for reading are given have a word on them, which they must read.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.foreign.client import require
from tests.foreign.wheel_models import (
    CAPTCHA,
    MODELS,
    OCR4,
    OCR6,
    REFUSED,
    WORD,
    Inputs,
    WheelModel,
)
from ugpu.compiler.onnx import load
from ugpu.hcq.errors import NotSupported

pytestmark = pytest.mark.foreign
onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
require("onnxruntime")
JUDGE = Path(__file__).with_name("onnx_judge.py")
WHEELS = Path(__file__).resolve().parents[2] / "build" / "foreign" / "wheels"
SMALL = 1e-3  # largest elements below this would prove nothing


def file_of(model: WheelModel) -> Path:
    file = model.file(WHEELS)
    if isinstance(file, str):
        pytest.skip(f"{model.wheel}: {file}")
    return file


def judged(file: Path, given: Mapping[int, Inputs], folder: Path) -> dict[int, list[Any]]:
    """Return onnxruntime's outputs by size."""
    for size, inputs in given.items():
        arrays: Any = inputs  # `savez` has keywords of its own
        np.savez(folder / f"{size}.npz", **arrays)
    home = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    files = [str(folder / f"{size}.npz") for size in given]
    done = subprocess.run(
        [sys.executable, str(JUDGE), str(file), *files],
        env={**os.environ, **home}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = {}
    for size in given:
        with np.load(folder / f"{size}.out.npz") as outputs:
            results[size] = list(outputs.values())
    return results


def compare(
    file: Path, model: WheelModel, sizes: tuple[int, ...], device: str, folder: Path
) -> None:
    given = {size: model.build(np.random.default_rng(size), size) for size in sizes}
    expected = judged(file, given, folder)
    own = load(file, device=device)
    for size, inputs in given.items():
        for (name, result), wanted in zip(own(dict(inputs)).items(), expected[size], strict=True):
            array = result.numpy()
            assert array.shape == wanted.shape, (name, size)
            largest = np.abs(wanted).max()
            assert largest > SMALL
            difference = np.abs(array.astype(np.float64) - wanted).max()
            assert difference <= model.close * largest, (name, size, difference, largest)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_model_computes_what_onnxruntime_computes(model: WheelModel, tmp_path: Path) -> None:
    compare(file_of(model), model, model.sizes, "cpu", tmp_path)


@pytest.mark.parametrize("device", ["virtual:navi31", "virtual:gh100"])
@pytest.mark.parametrize(
    "model", [model for model in MODELS if model.virtual], ids=lambda model: model.name
)
def test_it_does_so_on_a_virtual_gpu(model: WheelModel, device: str, tmp_path: Path) -> None:
    compare(file_of(model), model, model.sizes[:1], device, tmp_path)


def read(scores: Any, letters: list[str]) -> str:
    """Return the text of scores [place, letter], of which letter 0 is "none"; repetitions of a
    letter without a "none" between them are one."""
    numbers = scores.argmax(-1)
    kept = [number for place, number in enumerate(numbers)
            if number and (place == 0 or numbers[place - 1] != number)]  # fmt: skip
    return "".join(letters[number - 1] for number in kept)


@pytest.mark.parametrize("wheel", [OCR4, OCR6])
def test_the_word_on_the_page_is_read(wheel: str) -> None:
    (model,) = (each for each in MODELS if each.wheel == wheel and "_rec" in each.member)
    file = file_of(model)
    properties = onnx.load(file, load_external_data=False).metadata_props
    (letters,) = (each.value.splitlines() for each in properties if each.key == "character")
    size = model.sizes[0]
    (scores,) = load(file, device="cpu")(dict(model.build(np.random.default_rng(0), size))).values()
    assert read(scores.numpy()[0], letters).replace("0", "O") == WORD


def test_what_a_model_lacks_is_named_before_it_runs() -> None:
    assert REFUSED.wheel == CAPTCHA
    with pytest.raises(NotSupported, match=r"com\.microsoft\.DynamicQuantizeLSTM$"):
        load(file_of(REFUSED), device="cpu")
