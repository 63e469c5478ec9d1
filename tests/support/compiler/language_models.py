"""Small language models with random weights, as GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import ugpu
from ugpu.compiler import Tensor
from ugpu.compiler.language.tokenizer import _byte_letters

WIDTH, HEADS, KV, FEED, LAYERS, EXPERTS = 64, 4, 2, 96, 2, 4
SPECIAL = ("<|end|>", "<|user|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld")
TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
)
ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe")


def vocabulary() -> dict[str, Any]:
    """Return keys of a byte-level tokenizer with a few merges."""
    words = [*_byte_letters(), *("".join(m.split(" ")) for m in MERGES), *SPECIAL]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": np.array(
            [1] * (len(words) - len(SPECIAL)) + [3] * len(SPECIAL), np.int32
        ),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.eos_token_id": len(words) - 2,
        "tokenizer.ggml.bos_token_id": len(words) - 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }  # fmt: skip


def unlikely() -> list[int]:
    """Return the tokens that are not printable ASCII: their logits are 0, so that texts of the most
    likely tokens do not have them."""
    words = vocabulary()["tokenizer.ggml.tokens"]
    letters = _byte_letters()
    return [n for n, w in enumerate(words) if w in SPECIAL or not 32 <= letters[w[0]] < 127]


def keys(name: str) -> dict[str, Any]:
    """Return the keys of a model."""
    found: dict[str, Any] = {
        "general.architecture": name, "general.name": f"tiny {name}",
        f"{name}.block_count": LAYERS, f"{name}.context_length": 256,
        f"{name}.embedding_length": WIDTH, f"{name}.feed_forward_length": FEED,
        f"{name}.attention.head_count": HEADS, f"{name}.attention.head_count_kv": KV,
        f"{name}.attention.layer_norm_rms_epsilon": 1e-5, f"{name}.rope.freq_base": 10000.0,
        f"{name}.rope.dimension_count": WIDTH // HEADS,
    }  # fmt: skip
    if name.endswith("moe"):
        found |= {f"{name}.expert_count": EXPERTS, f"{name}.expert_used_count": 2,
                  f"{name}.expert_feed_forward_length": FEED}  # fmt: skip
        if name == "qwen2moe":
            found[f"{name}.expert_shared_feed_forward_length"] = FEED
    return found | vocabulary()


def shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's tensors."""
    size = WIDTH // HEADS
    words = len(vocabulary()["tokenizer.ggml.tokens"])
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (words, WIDTH), "output_norm.weight": (WIDTH,),
        "output.weight": (words, WIDTH),
    }  # fmt: skip
    for n in range(LAYERS):
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (WIDTH,), "ffn_norm.weight": (WIDTH,),
            "attn_q.weight": (WIDTH, WIDTH), "attn_k.weight": (KV * size, WIDTH),
            "attn_v.weight": (KV * size, WIDTH), "attn_output.weight": (WIDTH, WIDTH),
        }  # fmt: skip
        if name.startswith("qwen2"):
            layer |= {"attn_q.bias": (WIDTH,), "attn_k.bias": (KV * size,),
                      "attn_v.bias": (KV * size,)}  # fmt: skip
        if name.startswith("qwen3"):
            layer |= {"attn_q_norm.weight": (size,), "attn_k_norm.weight": (size,)}
        if name.endswith("moe"):
            layer |= {"ffn_gate_inp.weight": (EXPERTS, WIDTH),
                      "ffn_gate_exps.weight": (EXPERTS, FEED, WIDTH),
                      "ffn_up_exps.weight": (EXPERTS, FEED, WIDTH),
                      "ffn_down_exps.weight": (EXPERTS, WIDTH, FEED)}  # fmt: skip
        else:
            layer |= {"ffn_gate.weight": (FEED, WIDTH), "ffn_up.weight": (FEED, WIDTH),
                      "ffn_down.weight": (WIDTH, FEED)}  # fmt: skip
        if name == "qwen2moe":
            layer |= {"ffn_gate_inp_shexp.weight": (WIDTH,), "ffn_gate_shexp.weight": (FEED, WIDTH),
                      "ffn_up_shexp.weight": (FEED, WIDTH),
                      "ffn_down_shexp.weight": (WIDTH, FEED)}  # fmt: skip
        found |= {f"blk.{n}.{part}": shape for part, shape in layer.items()}
    return found


def write(path: Path, name: str = "llama", change: Mapping[str, Any] | None = None) -> Path:
    """Write a model; change: keys that differ."""
    random = np.random.default_rng(len(name))
    tensors = {}
    for part, shape in shapes(name).items():
        array = random.standard_normal(shape).astype(np.float32) * 0.15
        if part == "output.weight":
            array[unlikely()] = 0
        tensors[part] = Tensor(array + 1 if "norm" in part else array, device="cpu")
    ugpu.save(path, tensors, metadata={**keys(name), **(change or {})})
    return path
