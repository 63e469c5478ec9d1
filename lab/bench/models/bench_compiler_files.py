"""Files of tensors on `cpu`, beside a plain read into new memory: 2 GB of safetensors to the
device, and the first token of a language model of 1 GB (GGUF, float16, random weights).

Files are in the page cache, kernels in the cache of kernels; memory is new on both sides in each
turn. Times are medians of processor time, in turns. UGPU_BENCH_FILES names a folder with room.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ugpu
from tests.support.compiler import language_models
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.language.model import LanguageModel
from ugpu.compiler.language.sampling import Sampling
from ugpu.compiler.runtime.runtime import runtime_of

ARRAYS = 64
ELEMENTS = 1 << 23  # float32: 32 MB each
WIDTH, FEED, HEADS, LAYERS = 2048, 5632, 16, 10
TURNS = 5


def _read(path: Path) -> None:
    """Read a file into a new array, by one call for each part that the system reads at once."""
    array = np.empty(path.stat().st_size, np.uint8)
    with path.open("rb", buffering=0) as file:
        place = 0
        while place < len(array):
            place += file.readinto(array.data[place:]) or 0


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _row(
    name: str, path: Path, work: Callable[[], object], device: hcq.Device
) -> dict[str, object]:
    work()
    mine, theirs = [], []
    for _ in range(TURNS):
        theirs.append(_seconds(lambda: _read(path)))
        runtime_of(device).pool.clear()
        mine.append(_seconds(work))
    ours, peer = statistics.median(mine), statistics.median(theirs)
    return {"name": name, "value": ours * 1e3, "unit": "ms", "peer": "read",
            "peer_value": peer * 1e3, "ratio": peer / ours, "cpu_ratio": peer / ours}  # fmt: skip


def _safetensors(folder: Path, device: hcq.Device) -> dict[str, object]:
    path = folder / "weights.safetensors"
    array = np.random.default_rng(0).standard_normal(ELEMENTS, np.float32)
    ugpu.save(path, {f"array{n}": Tensor(array, device=device) for n in range(ARRAYS)})

    def load() -> None:
        weights = ugpu.load(path, device=device)
        assert len(weights) == ARRAYS
        device.synchronize()

    size = ARRAYS * ELEMENTS * 4 / 1e9
    result = _row(f"safetensors of {size:.1f} GB to the device", path, load, device)
    path.unlink()
    return result


def _model(path: Path) -> None:
    """Write a model of the Llama architecture."""
    keys = language_models.keys("llama") | {
        "llama.block_count": LAYERS, "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": FEED, "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS, "llama.rope.dimension_count": WIDTH // HEADS,
    }  # fmt: skip
    words = len(keys["tokenizer.ggml.tokens"])
    shapes = {"token_embd": (words, WIDTH), "output": (words, WIDTH), "output_norm": (WIDTH,)}
    for n in range(LAYERS):
        shapes |= {f"blk.{n}.{part}": (WIDTH, WIDTH)
                   for part in ("attn_q", "attn_k", "attn_v", "attn_output")}  # fmt: skip
        shapes |= {f"blk.{n}.{part}": (FEED, WIDTH) for part in ("ffn_gate", "ffn_up")}
        shapes |= {f"blk.{n}.ffn_down": (WIDTH, FEED), f"blk.{n}.attn_norm": (WIDTH,),
                   f"blk.{n}.ffn_norm": (WIDTH,)}  # fmt: skip
    random = np.random.default_rng(0)
    tensors = {}
    for name, shape in shapes.items():
        array = random.standard_normal(shape, np.float32) * 0.02
        kept = array + 1 if "norm" in name else array.astype(np.float16)
        tensors[f"{name}.weight"] = Tensor(kept, device="cpu")
    ugpu.save(path, tensors, metadata=keys)


def _first_token(folder: Path, device: hcq.Device) -> dict[str, object]:
    path = folder / "model.gguf"
    _model(path)

    def first() -> None:
        model = LanguageModel(path, device=device, context=64)
        (token,) = model.tokens([1, 2, 3], sampling=Sampling(temperature=0), limit=1)
        assert token >= 0

    size = path.stat().st_size / 1e9
    result = _row(f"first token of a GGUF file of {size:.1f} GB", path, first, device)
    path.unlink()
    return result


def measure() -> list[dict[str, object]]:
    folder = os.environ.get("UGPU_BENCH_FILES")
    with tempfile.TemporaryDirectory(dir=folder) as name, hcq.open("cpu") as device:
        return [_safetensors(Path(name), device), _first_token(Path(name), device)]
