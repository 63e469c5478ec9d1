"""`ugpu chat model.gguf`: talk to a language model in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from ugpu.compiler.language.model import LanguageModel, Speed
from ugpu.compiler.language.sampling import Sampling
from ugpu.tools.base.console import Output
from ugpu.tools.base.progress import shown

LEAVE = ("/quit", "/exit")
RESET = "/reset"


@dataclass(frozen=True)
class ChatOptions:
    """prompt: one question, or None to read them from stdin. system: a first message, or "". limit:
    tokens of an answer."""

    device: str | None
    context: int | None
    dtype: str
    prompt: str | None
    system: str
    limit: int | None
    sampling: Sampling


def run(path: str, options: ChatOptions, out: Output) -> int:
    """Answer questions until stdin ends or a line is /quit; /reset forgets the conversation. The
    answers are printed as they arise, then tokens per second. Return the exit code."""
    with shown(out, f"load {path}"):
        model = LanguageModel(
            path, device=options.device, context=options.context, dtype=options.dtype
        )
    out.say(f"{model.name} on {model.device.name}", "bold")
    start = [{"role": "system", "content": options.system}] if options.system else []
    messages = list(start)
    turns: list[dict[str, object]] = []
    for question in _questions(options.prompt, out):
        if question == RESET:
            messages = list(start)
            continue
        messages.append({"role": "user", "content": question})
        speed = Speed()
        parts = []
        for part in model.chat(
            messages, sampling=options.sampling, limit=options.limit, speed=speed
        ):
            parts.append(part)
            if not out.as_json:
                sys.stdout.write(part)
                sys.stdout.flush()
        messages.append({"role": "assistant", "content": "".join(parts)})
        out.say()
        out.say(_told(speed), "dim")
        turns.append({"answer": "".join(parts), **vars(speed), "per_second": speed.per_second})
    out.result({"model": model.name, "device": model.device.name, "turns": turns})
    return 0


def _told(speed: Speed) -> str:
    read = speed.prompt_tokens - speed.reused
    return (
        f"[{speed.tokens} tokens, {speed.per_second:.1f} tokens/s; prompt of "
        f"{speed.prompt_tokens}, {read} new, in {speed.prompt_s:.2f} s]"
    )


def _questions(prompt: str | None, out: Output) -> Iterator[str]:
    """Yield the questions: the one given, or lines of stdin."""
    if prompt is not None:
        yield prompt
        return
    asks = sys.stdin.isatty() and not out.as_json
    while True:
        if asks:
            sys.stdout.write("> ")
            sys.stdout.flush()
        line = sys.stdin.readline()
        if not line or line.strip() in LEAVE:
            return
        if line.strip():
            yield line.strip()
