"""Read the words in a picture: PP-OCR's detector finds their lines, its recogniser spells them.

Both are ONNX models, which ugpu runs as they are. The picture is a PGM or PPM file of 8 bits (P5,
P6); without one, a page with two words is drawn.

needs: pip install --no-deps rapidocr-onnxruntime onnx protobuf ml_dtypes typing_extensions
usage: python examples/models/read_picture.py [PICTURE|- [DEVICE]]
"""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import onnx

import ugpu

SPEC = importlib.util.find_spec("rapidocr_onnxruntime")  # importing it would need onnxruntime
FOLDER = Path(str(SPEC and SPEC.origin)).parent / "models"
GLYPHS = {"H": (17, 17, 17, 31, 17, 17, 17), "E": (31, 16, 16, 30, 16, 16, 31),
          "L": (16, 16, 16, 16, 16, 16, 31), "O": (14, 17, 17, 17, 17, 17, 14)}  # fmt: skip


def drawn(words: list[str], dot: int = 4) -> np.ndarray:
    """Return a page [3, height, width] from 0 to 1."""
    page = np.ones((64 * len(words), 192), np.float32)
    for line, word in enumerate(words):
        for place, letter in enumerate(word):
            bits = (np.array(GLYPHS[letter])[:, None] >> np.arange(4, -1, -1)) & 1
            y, x = 64 * line + 18, 24 + 6 * dot * place
            page[y : y + 7 * dot, x : x + 5 * dot] -= np.kron(bits, np.ones((dot, dot)))
    return np.stack([page] * 3)


def opened(file: str) -> np.ndarray:
    """Return a picture's file as [3, height, width] from 0 to 1, cut to multiples of 32."""
    data = Path(file).read_bytes()
    head = re.match(rb"(P[56])\s(?:#.*\s)*(\d+)\s+(\d+)\s+255\s", data)
    if head is None:
        sys.exit(f"{file}: expected a PGM or PPM file of 8 bits")
    width, height, planes = int(head[2]), int(head[3]), 3 if head[1] == b"P6" else 1
    pixels = np.frombuffer(data, np.uint8, width * height * planes, head.end())
    whole = pixels.reshape(height, width, planes).transpose(2, 0, 1) / np.float32(255)
    return np.broadcast_to(whole, (3, height, width))[:, : height // 32 * 32, : width // 32 * 32]


def spans(hit: np.ndarray) -> list[tuple[int, int]]:
    """Return where a row of bools is true: starts and ends."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], hit.astype(int), [0]])))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2) if end - start > 4]


def model(name: str) -> tuple[ugpu.onnx.Model, dict[str, str]]:
    (file,) = FOLDER.glob(f"*{name}_infer.onnx")
    properties = onnx.load(str(file), load_external_data=False).metadata_props
    return ugpu.onnx.load(file, device=device), {each.key: each.value for each in properties}


if __name__ == "__main__":
    file, device = (*sys.argv[1:], *("-", "cpu")[len(sys.argv) - 1 :])
    page = drawn(["HELLO", "HOLE"]) if file == "-" else opened(file)
    detector, (recogniser, about) = model("det")[0], model("rec")
    given = ((page - 0.45) / 0.226)[None].astype(np.float32)
    ink = detector(given).popitem()[1].numpy()[0, 0] > 0.3
    for top, bottom in spans(ink.any(1)):
        left, right = (f(np.flatnonzero(ink[top:bottom].any(0))) for f in (np.min, np.max))
        more = (bottom - top) * 2 // 3  # what is found is the middle of the letters
        line = page[:, max(0, top - more) : bottom + more, max(0, left - more) : right + more]
        size = (48, max(32, 48 * line.shape[2] // line.shape[1]))
        line = ugpu.Tensor(line[None] * 2 - 1, device=device).interpolate(size, mode="bilinear")
        places = recogniser(line).popitem()[1].numpy()[0].argmax(1)
        kept = [n for n, before in zip(places, [0, *places], strict=False) if n and n != before]
        text = "".join(about["character"].splitlines()[n - 1] for n in kept)
        print(f"lines {top} to {bottom}: {text}")
