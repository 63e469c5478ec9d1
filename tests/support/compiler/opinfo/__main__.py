"""PyTorch's own samples on ugpu, counted; what was judged stays in a log, from which a stopped run
goes on:

    python -m tests.support.compiler.opinfo LOG [--dtype float32 ...] [--device cpu] [--stride 1]
        [--only NAME ...] [--again]

LOG: a file of lines of JSON, one of each operation, type and device. --stride: one of so many
samples. --only: these operations. --again: judge also what is in the log. An operation that ended
the process is counted as crashed when the run goes on.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.support.compiler.opinfo.judge import judged
from tests.support.compiler.opinfo.names import DIFFERENT, operations, samples
from ugpu.compiler.codegen.process.behind import behind

Line = dict[str, Any]


def lines_of(log: Path) -> dict[str, Line]:
    """Return the last line of each operation, type and device in a log."""
    if not log.exists():
        return {}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return {line["key"]: line for line in lines}


def judge(key: str, mine: Callable[..., Any] | str, op: Any, dtype: torch.dtype,
          device: str, stride: int) -> Line:  # fmt: skip
    """Judge an operation's samples; return the log's line."""
    counts: Counter[str] = Counter()
    texts: dict[str, int] = {}
    for sample in samples(op, dtype)[::stride]:
        outcome = judged(mine, op, sample, dtype, device)
        if outcome.startswith("wrong") and dtype is not torch.float32 and op.name in DIFFERENT:
            outcome = f"listed: {DIFFERENT[op.name]}"
        counts[outcome.split(":")[0]] += 1
        if outcome != "right":
            texts[outcome] = texts.get(outcome, 0) + 1
    return {"key": key, "counts": dict(counts), "texts": texts}


def report(lines: list[Line]) -> None:
    """Print what is not right, and the sums."""
    total: Counter[str] = Counter()
    for line in lines:
        total.update(line["counts"])
        if set(line["counts"]) - {"right", "unjudged", "listed"}:
            print(line["key"], line["counts"])
            for text, times in line["texts"].items():
                print(f"    {times} x {text}")
    judged_ones = sum(total.values()) - total["unjudged"]
    share = total["right"] / max(1, judged_ones)
    print(f"{len(lines)} operations, {dict(total)}: {share:.1%} right")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("log", type=Path)
    options.add_argument("--dtype", nargs="+", default=["float32"])
    options.add_argument("--device", default="cpu")
    options.add_argument("--stride", type=int, default=1)
    options.add_argument("--only", nargs="+", default=[])
    options.add_argument("--again", action="store_true")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    behind().close()  # the faster second versions of kernels: each kernel runs a few times
    known = lines_of(given.log)
    for name, mine, op in operations():
        if given.only and name not in given.only and op.name not in given.only:
            continue
        for kind in given.dtype:
            dtype = getattr(torch, kind)
            key = f"{name} {kind} {given.device}"
            if dtype not in op.supported_dtypes("cpu") or (key in known and not given.again):
                continue
            with given.log.open("a") as file:
                begun = {"key": key, "counts": {"crashed": 1}, "texts": {"the process ended": 1}}
                print(json.dumps(begun), file=file, flush=True)
                line = judge(key, mine, op, dtype, given.device, given.stride)
                print(json.dumps(line), file=file, flush=True)
    report(list(lines_of(given.log).values()))


if __name__ == "__main__":
    main()
