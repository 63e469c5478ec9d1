"""The tokenizer that a GGUF file describes.

`gpt2`: byte-level pair encoding, by the package tokenizers. `llama`: pieces joined by the best
score, as in SentencePiece, with bytes as a fallback.
Source: ggml-org/llama.cpp, src/llama-vocab.cpp.
"""

from __future__ import annotations

import heapq
import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ugpu.hcq.errors import BadArgument, BadFile, MissingDependency, NotSupported

INSTALL = "pip install 'ugpu[chat]'"
WORDS = 1 << 21
CONTROL, USER, BYTE = 3, 4, 6  # kinds of tokens
_BYTE_WORD = re.compile(r"<0x([0-9A-Fa-f]{2})>")

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# How text is split into words before pairs are merged: the pattern, and whether digits come alone.
SPLITS = {
    **dict.fromkeys(("gpt-2", "default", "mpt", "olmo", "jais"), (_GPT2, False)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), (_GPT2, True)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "dbrx", "smaug-bpe"), (_LLAMA3, False)),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen"), (_QWEN2, False)),
}


class _Encoder(Protocol):
    """Turns text without special tokens into tokens, and tokens into bytes."""

    def encode(self, text: str) -> list[int]: ...
    def piece(self, token: int) -> bytes: ...


class Tokenizer:
    """begin: the token put before a text, or None. ends: tokens that end an answer. words: the
    vocabulary."""

    def __init__(self, keys: Mapping[str, Any], file: str) -> None:
        """Raise NotSupported for an unknown kind, BadFile for missing lists."""
        words = _texts(keys, "tokenizer.ggml.tokens", file)
        kinds = keys.get("tokenizer.ggml.token_type")
        self.words = words
        self.kinds: list[int] = [1] * len(words)
        if kinds is not None:
            self.kinds = _each(keys, "tokenizer.ggml.token_type", len(words), "iu", file)
        model = keys.get("tokenizer.ggml.model")
        if not isinstance(model, str) or model not in ("gpt2", "llama"):
            raise NotSupported(f"{file}: tokenizer {model!r} is not supported")
        self._encoder: _Encoder = (
            _Pairs(keys, words, file) if model == "gpt2" else _Pieces(keys, words, self.kinds, file)
        )
        self._special = sorted(
            (n for n, kind in enumerate(self.kinds) if kind in (CONTROL, USER) and words[n]),
            key=lambda n: -len(words[n]),
        )
        self.begin = self._token(keys, "bos_token_id")
        adds = _flag(keys, "add_bos_token", model == "llama")
        self.adds_begin = adds and self.begin is not None
        ends = [self._token(keys, f"{n}_token_id") for n in ("eos", "eot", "eom")]
        named = [n for n in self._special if words[n] in ("<|im_end|>", "<|eot_id|>", "<|end|>")]
        self.ends = frozenset([*(n for n in ends if n is not None), *named])

    def _token(self, keys: Mapping[str, Any], name: str) -> int | None:
        number = keys.get(f"tokenizer.ggml.{name}")
        return number if type(number) is int and 0 <= number < len(self.words) else None

    def encode(self, text: str, *, begin: bool = True, special: bool = True) -> list[int]:
        """Return the tokens of a text. special: whether special tokens in it count as such.
        BadArgument for half a surrogate pair, which UTF-8 cannot express."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadArgument(f"the text is not Unicode: {error}") from None
        tokens = [self.begin] if begin and self.adds_begin and self.begin is not None else []
        for part in self._split(text) if special else [text]:
            if isinstance(part, int):
                tokens.append(part)
            else:
                tokens += self._encoder.encode(part)
        return tokens

    def _split(self, text: str) -> list[int | str]:
        """Cut special tokens out of a text."""
        parts: list[int | str] = [text]
        for token in self._special:
            word = self.words[token]
            if word not in text:
                continue
            cut: list[int | str] = []
            for part in parts:
                if isinstance(part, int):
                    cut.append(part)
                    continue
                for n, piece in enumerate(part.split(word)):
                    cut += ([token] if n else []) + ([piece] if piece else [])
            parts = cut
        return parts

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token; of control tokens none."""
        if self.kinds[token] == CONTROL:
            return b""
        if self.kinds[token] == USER:
            return self.words[token].encode("utf-8")
        return self._encoder.piece(token)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return b"".join(map(self.piece, tokens)).decode("utf-8", "replace")


def _texts(keys: Mapping[str, Any], name: str, file: str) -> list[str]:
    texts = keys.get(name)
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise BadFile(f"{file}: {name} must be a list of strings")
    if len(texts) > WORDS:
        raise BadFile(f"{file}: {name} must have at most {WORDS} strings, got {len(texts)}")
    return texts


def _flag(keys: Mapping[str, Any], name: str, default: bool) -> bool:
    value = keys.get(f"tokenizer.ggml.{name}", default)
    return bool(value) if isinstance(value, int) else default


def _each(keys: Mapping[str, Any], name: str, count: int, kinds: str, file: str) -> list[Any]:
    """Return the list of numbers, one for each token. kinds: those of NumPy's types."""
    values = keys.get(name)
    if (
        not isinstance(values, np.ndarray)
        or values.shape != (count,)
        or values.dtype.kind not in kinds
    ):
        raise BadFile(f"{file}: {name} must be a list of {count} numbers")
    numbers: list[Any] = values.tolist()
    return numbers


def _byte_letters() -> dict[str, int]:
    """Return the bytes that GPT-2's letters stand for."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in shown}
    rest = [byte for byte in range(256) if byte not in shown]
    return letters | {chr(256 + n): byte for n, byte in enumerate(rest)}


class _Pairs:
    """Byte-level pair encoding."""

    def __init__(self, keys: Mapping[str, Any], words: list[str], file: str) -> None:
        name = keys.get("tokenizer.ggml.pre", "default")
        if not isinstance(name, str) or name not in SPLITS:
            raise NotSupported(f"{file}: tokenizer.ggml.pre {name!r} is not supported")
        pattern, digits = SPLITS[name]
        try:
            library: Any = importlib.import_module("tokenizers")
        except ImportError:
            raise MissingDependency(
                f"this model's tokenizer needs the package tokenizers: {INSTALL}", install=INSTALL
            ) from None
        merges = [tuple(m.split(" ", 1)) for m in _texts(keys, "tokenizer.ggml.merges", file)]
        vocabulary = {word: n for n, word in enumerate(words)}
        for pair in merges:  # the package panics where the joined word is missing
            if len(pair) != 2 or not vocabulary.keys() >= {*pair, "".join(pair)}:
                raise BadFile(f"{file}: expected a merge of two tokens, got {' '.join(pair)!r}")
        try:
            self._tokenizer = library.Tokenizer(library.models.BPE(vocabulary, merges))
        except Exception as error:  # the package raises Exception itself
            raise BadFile(f"{file}: the tokenizer's merges do not fit: {error}") from error
        splits = [library.pre_tokenizers.Digits(individual_digits=True)] if digits else []
        regex = library.Regex(pattern)
        splits.append(library.pre_tokenizers.Split(regex, "isolated"))
        splits.append(library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        self._tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence(splits)
        self._words = words
        self._letters = _byte_letters()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def piece(self, token: int) -> bytes:
        word = self._words[token]
        if all(letter in self._letters for letter in word):
            return bytes(self._letters[letter] for letter in word)
        return word.encode("utf-8")


class _Pieces:
    """SentencePiece's pair merging: neighbours are joined, the best score first."""

    SPACE = "\u2581"

    def __init__(
        self, keys: Mapping[str, Any], words: list[str], kinds: list[int], file: str
    ) -> None:
        self._scores: list[float] = _each(keys, "tokenizer.ggml.scores", len(words), "fiu", file)
        self._words = words
        self._ids = {word: n for n, word in enumerate(words) if kinds[n] not in (CONTROL, BYTE)}
        self._bytes = {
            int(found[1], 16): n
            for n, found in enumerate(map(_BYTE_WORD.fullmatch, words))
            if kinds[n] == BYTE and found is not None
        }
        self._byte_of = {n: byte for byte, n in self._bytes.items()}
        self._prefix = _flag(keys, "add_space_prefix", True)
        unknown = keys.get("tokenizer.ggml.unknown_token_id", 0)
        self._unknown = unknown if type(unknown) is int and 0 <= unknown < len(words) else 0

    def encode(self, text: str) -> list[int]:
        text = (" " if self._prefix else "") + text
        pieces: list[str | None] = list(text.replace(" ", self.SPACE))
        after = list(range(1, len(pieces) + 1))
        before = list(range(-1, len(pieces) - 1))
        queue: list[tuple[float, int, int, str]] = []

        def consider(left: int) -> None:
            right = after[left] if left >= 0 else len(pieces)
            if left < 0 or right >= len(pieces):
                return
            joined = f"{pieces[left]}{pieces[right]}"
            token = self._ids.get(joined)
            if token is not None:
                heapq.heappush(queue, (-self._scores[token], left, right, joined))

        for place in range(len(pieces) - 1):
            consider(place)
        while queue:
            _, left, right, joined = heapq.heappop(queue)
            if pieces[left] is None or pieces[right] is None or after[left] != right:
                continue
            if f"{pieces[left]}{pieces[right]}" != joined:
                continue
            pieces[left], pieces[right] = joined, None
            after[left] = after[right]
            if after[left] < len(pieces):
                before[after[left]] = left
            consider(before[left])
            consider(left)
        tokens: list[int] = []
        for piece in pieces:
            if piece is None:
                continue
            token = self._ids.get(piece)
            if token is not None:
                tokens.append(token)
            else:
                data = piece.encode("utf-8")
                tokens += [self._bytes.get(byte, self._unknown) for byte in data]
        return tokens

    def piece(self, token: int) -> bytes:
        if token in self._byte_of:
            return bytes([self._byte_of[token]])
        return self._words[token].replace(self.SPACE, " ").encode("utf-8")
