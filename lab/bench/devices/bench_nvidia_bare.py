"""A bare virtual NVIDIA card: first kernel after a boot, warm attach, accesses beside nouveau's;
lines of its driver and model."""

from __future__ import annotations

import ast
import io
import time
import tokenize
from contextlib import closing
from pathlib import Path
from unittest import mock

import numpy as np

from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions

CHIP = "ad102"
NAME = f"virtual:{CHIP}+gsp"
ROUNDS = 5
ROM, ROM_END = 0x30_0000, 0x40_0000
PRAMIN, PRAMIN_END = 0x70_0000, 0x80_0000
# What the probe of Linux 6.12's nouveau made on the same card with 1 GiB, channels included
# (lab/kernel/tiers/nouveau.py, facts of a run): accesses of registers, and messages to the GSP.
NOUVEAU_ACCESSES, NOUVEAU_MESSAGES = 316 + 675, 53


def _kernel(device: Device) -> None:
    """Run a kernel of one group, and wait."""
    with device.load(contract_object(device.target)) as program, device.alloc(4 * 64) as memory:
        with device.queue() as queue:
            arguments = (memory, memory, np.uint32(64), np.uint32(1))
            queue.launch(program["scale"], grid=(1,), block=(64,), args=arguments)
        device.synchronize()


def _lives(card: Card, leave: str) -> tuple[list[float], list[float]]:
    """Seconds to open and to the first kernel's end, of each of several lives on a card."""
    opened, worked = [], []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        with hcq.open(NAME, chip=card, leave=leave) as device:
            opened.append(time.perf_counter() - start)
            _kernel(device)
            worked.append(time.perf_counter() - start)
    return opened[1:], worked[1:]


def _accesses() -> tuple[int, int]:
    """Accesses of registers, without the ROM and VRAM, and messages, of a boot with channels."""
    with closing(build_card(CHIP, CardOptions(memory=1 << 30))) as card:
        count = 0
        read, write = card.read32, card.write32

        def counts(offset: int) -> bool:
            return not (ROM <= offset < ROM_END or PRAMIN <= offset < PRAMIN_END)

        def noted_read(offset: int) -> int:
            nonlocal count
            count += counts(offset)
            return read(offset)

        def noted_write(offset: int, value: int) -> None:
            nonlocal count
            count += counts(offset)
            write(offset, value)

        with (
            mock.patch.object(card, "read32", noted_read),
            mock.patch.object(card, "write32", noted_write),
            hcq.open(NAME, chip=card),
        ):
            return count, len(card.calls)


# Driver and model of a bare card, without what the stock driver's way has too: resource manager,
# engines, packets. Tables of registers and of interfaces are generated, and not code.
ROOT = Path(__file__).resolve().parents[3]
PARTS = (
    "nv/gsp/**/*.py", "nv/device/bare.py", "nv/offline/chip.py", "nv/offline/register_names.py",
    "nv/abi/firmware.py", "nv/chips/boot.py", "nv/chips/*/boot.py", "virtual/nvidia/gsp/**/*.py",
)  # fmt: skip
MOST_LINES = 9000


def code_lines(text: str) -> int:
    """Return how many lines have code: neither blank, nor comment, nor docstring."""
    blank = (
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER,
    )  # fmt: skip
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in blank:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            said = node.body[0]
            lines -= set(range(said.lineno, (said.end_lineno or said.lineno) + 1))
    return len(lines)


def _lines() -> int:
    paths = {path for part in PARTS for path in ROOT.glob(part)}
    return sum(code_lines(path.read_text(encoding="utf-8")) for path in paths)


def measure() -> list[dict[str, object]]:
    with closing(build_card(CHIP, CardOptions(memory=1 << 30))) as card:
        _, cold = _lives(card, "cold")
        warm, _ = _lives(card, "warm")
    accesses, messages = _accesses()
    lines = _lines()
    return [
        {"name": f"cold boot of {NAME} to its first kernel, median",
         "value": sorted(cold)[ROUNDS // 2], "unit": "s"},
        {"name": f"warm attach of {NAME}, median", "value": sorted(warm)[ROUNDS // 2],
         "unit": "s"},
        {"name": f"register accesses of a boot of {NAME} with its channels", "value": accesses,
         "unit": "accesses", "peer": "nouveau's probe", "peer_value": NOUVEAU_ACCESSES,
         "ratio": accesses / NOUVEAU_ACCESSES},
        {"name": f"messages to the GSP of a boot of {NAME} with its channels", "value": messages,
         "unit": "messages", "peer": "nouveau's probe", "peer_value": NOUVEAU_MESSAGES,
         "ratio": messages / NOUVEAU_MESSAGES},
        {"name": "lines of code of the bare driver and its model", "value": lines,
         "unit": "lines", "peer": "goal", "peer_value": MOST_LINES, "ratio": lines / MOST_LINES},
    ]  # fmt: skip
