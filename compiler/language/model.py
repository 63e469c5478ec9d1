"""A language model from a GGUF file: text in, text out."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ugpu.compiler.files.tensor_file import TensorFile
from ugpu.compiler.language.architecture import architecture
from ugpu.compiler.language.decoder import Decoder
from ugpu.compiler.language.sampling import Sampling
from ugpu.compiler.language.template import ChatTemplate, Message
from ugpu.compiler.language.tokenizer import Tokenizer
from ugpu.compiler.language.weights import Weight, Weights
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, BadFile, NotSupported

CONTEXT = 4096  # tokens, by default, if the model allows as many
TEMPLATE = "tokenizer.chat_template"


@dataclass
class Speed:
    """Tokens and seconds of one answer: of its prompt, and of the tokens after it. reason: why it
    ended, "stop" or "length"."""

    prompt_tokens: int = 0
    prompt_s: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    reason: str = "stop"
    reused: int = field(default=0)  # tokens of the prompt that were read before

    @property
    def per_second(self) -> float:
        """Return new tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


class LanguageModel:
    """A model on a device, and one conversation: what an earlier prompt and this one have in common
    is not read again. Not for several threads at a time."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        device: Device | str | None = None,
        context: int | None = None,
        dtype: str = "float32",
    ) -> None:
        """context: tokens of a conversation, at most the model's. dtype: what weights are computed
        with, float32, float16 or bfloat16; with float32, weights of quantised types stay quantised
        in memory. Raises BadFile, NotSupported, OutOfMemory."""
        if dtype not in ("float32", "float16", "bfloat16"):
            raise BadArgument(f"dtype must be float32, float16 or bfloat16, got {dtype!r}")
        with TensorFile(path, device=device) as file:
            if file.format != "GGUF":
                raise BadFile(f"expected a GGUF file, got {file.format}", file=str(path))
            name = os.path.basename(os.fspath(path))
            self.metadata: Mapping[str, Any] = file.metadata
            self.device = file.device
            self.shape = architecture(file.metadata, name)
            self.tokenizer = Tokenizer(file.metadata, name)
            weights = Weights(
                {
                    name: Weight(values, file.entries[name].shape, dtype)
                    for name, values in file.load_groups().items()
                }
            )
        self.name = str(file.metadata.get("general.name", name))
        limit = self.shape.context or CONTEXT
        wanted = min(limit, CONTEXT) if context is None else context
        if not 1 <= wanted <= limit:
            raise BadArgument(f"context must be from 1 to {limit} tokens, got {wanted}")
        self.decoder = Decoder(self.shape, weights, self.device, wanted)
        if self.decoder.vocabulary < len(self.tokenizer.words):
            raise BadFile(f"{name}: {len(self.tokenizer.words)} tokens have no logits")
        self._past: list[int] = []
        self._template: ChatTemplate | None = None

    def prompt(self, messages: Sequence[Message], **values: Any) -> list[int]:
        """Return the tokens of messages, by the file's chat template. values: further variables of
        the template. NotSupported if the file has none."""
        if self._template is None:
            source = self.metadata.get(TEMPLATE)
            if not isinstance(source, str):
                raise NotSupported("the model's file has no chat template; use generate")
            self._template = ChatTemplate(source)
        words = self.tokenizer.words
        begin = self.tokenizer.begin
        end = self.metadata.get("tokenizer.ggml.eos_token_id")
        values.setdefault("bos_token", words[begin] if begin is not None else "")
        values.setdefault(
            "eos_token", words[end] if type(end) is int and 0 <= end < len(words) else ""
        )
        text = self._template.render(messages, **values)
        begins = begin is not None and text.startswith(words[begin])
        return self.tokenizer.encode(text, begin=not begins)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        sampling: Sampling | None = None,
        limit: int | None = None,
        speed: Speed | None = None,
    ) -> Iterator[str]:
        """Yield the answer to messages, piece by piece; see `generate`."""
        tokens = self.prompt(messages)
        return self.generate(tokens, sampling=sampling, limit=limit, speed=speed)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: Sampling | None = None,
        limit: int | None = None,
        speed: Speed | None = None,
    ) -> Iterator[str]:
        """Yield the text after a prompt, piece by piece, whole characters at a time. limit: most
        tokens. speed: filled in meanwhile."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        for token in self.tokens(prompt, sampling=sampling, limit=limit, speed=speed):
            text = decode(self.tokenizer.piece(token))
            if text:
                yield text
        rest = decode(b"", True)
        if rest:
            yield rest

    def tokens(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: Sampling | None = None,
        limit: int | None = None,
        speed: Speed | None = None,
    ) -> Iterator[int]:
        """Yield the tokens after a prompt, without the one that ends the answer."""
        given = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        room = self.decoder.length - len(given)
        if not given or room < 1:
            raise BadArgument(
                f"a prompt must have 1 to {self.decoder.length - 1} tokens, got {len(given)}"
            )
        options = sampling or Sampling()
        counted = speed if speed is not None else Speed()
        stream = options.stream()
        most = room if limit is None else min(room, limit)
        start = time.perf_counter()
        counted.reused = self._reused(given)
        logits = self._read(given[counted.reused :])
        counted.prompt_tokens = len(given)
        counted.prompt_s = time.perf_counter() - start
        counted.reason = "length"
        start = time.perf_counter()
        for number in range(most):
            token = options.choose(logits, self._past, stream)
            if token in self.tokenizer.ends:
                counted.reason = "stop"
                break
            yield token
            counted.tokens = number + 1
            if number + 1 < most:
                logits = self._read([token])
            counted.seconds = time.perf_counter() - start

    def _reused(self, tokens: Sequence[int]) -> int:
        """Go back to what the past and these tokens have in common, without the last token."""
        count = 0
        for old, new in zip(self._past, tokens[:-1], strict=False):
            if old != new:
                break
            count += 1
        self.decoder.forget(count)
        del self._past[count:]
        return count

    def _read(self, tokens: Sequence[int]) -> Any:
        logits = self.decoder.read(tokens)
        self._past += tokens
        return logits
