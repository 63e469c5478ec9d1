"""Launches that start their successor: what a barrier between two launches becomes, and that none
starts before what it must wait for. The order is checked on the model's own descriptors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import contract_object
from tests.support.nvidia.nv_machine import opened, powered
from ugpu.hcq.work.command import Barrier, Command, Copy, Launch, Signal, Wait
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.nv import abi
from ugpu.nv.device.device import NvDevice
from ugpu.nv.packets.chains import Successor
from ugpu.nv.packets.families import FAMILIES
from ugpu.nv.packets.pushbuffer import COMPUTE, header, method

WFI = 0x2001_001E
L, B, S, W, C = "launch", "barrier", "signal", "wait", "copy"


@pytest.fixture(scope="module")
def hopper() -> Iterator[NvDevice]:
    with powered("gh100") as machine, opened(machine) as device:
        yield device


def encoded(device: NvDevice, kinds: list[str]) -> tuple[list[int], list[list[int]]]:
    """Commands as words; and each chain of launches, numbered by the sizes of their grids."""
    queue = device.driver.compute_queue
    with device.load(contract_object(device.target)) as program:
        kernel = program["scale"]
        commands: list[Command] = []
        for number, kind in enumerate(kinds):
            if kind == L:
                raw = bytes(kernel.kernarg_size)
                commands.append(Launch(kernel, (number + 1, 1, 1), (64, 1, 1), raw))
            elif kind == B:
                commands.append(Barrier())
            elif kind == S:
                commands.append(Signal(queue.timeline, Symbol.constant(1)))
            elif kind == W:
                commands.append(Wait(queue.timeline, Symbol.constant(0)))
            else:
                commands.append(Copy(Symbol.constant(1 << 40), Symbol.constant(1 << 41), 64))
        image = queue.encoder.encode(commands)
    out = np.zeros(len(image.words), np.uint32)
    image.patch(out, np.array(image.fixed, np.uint64))  # the image at address 0
    raw = out.tobytes()
    table = abi.qmd(device.driver.family.qmd)
    send = header(COMPUTE, method(device.driver.compute_class, "SEND_PCAS_A"), 1)
    words = [int(word) for word in out[: image.command_words]]
    successor = Successor.of(table)
    chains = []
    for position, word in enumerate(words):
        if word != send:
            continue
        chain, at = [], words[position + 1] << 8
        while True:
            qmd = raw[at : at + table.size]
            chain.append(table.get(qmd, "GRID_WIDTH" if "GRID_WIDTH" in table.fields else
                                   "CTA_RASTER_WIDTH", 0))  # fmt: skip
            at = successor.named(qmd) if successor is not None else 0
            if not at:
                break
        chains.append(chain)
    return words, chains


@pytest.mark.parametrize(
    ("kinds", "chains", "waits"),
    [
        ([L, B, L, B, L], [[1, 3, 5]], 0),
        ([L, L, B, L], [[1], [2], [4]], 1),  # one that two have to end for
        ([L, B, L, L], [[1], [3], [4]], 1),  # nor two for one
        ([L, B, L, L, B, L], [[1], [3], [4], [6]], 2),
        ([L, B, L, B, L, L], [[1, 3], [5], [6]], 1),
        ([L, B, L, W, L], [[1], [3], [5]], 1),
        ([L, B, B, L], [[1, 4]], 0),
        ([L, B, S], [[1]], 1),
        ([L, S, L, B, L], [[1], [3, 5]], 0),  # a release waits by itself
        ([L, W, L, B, L], [[1], [3], [5]], 1),  # an acquire does not
        ([W, L, B, L], [[2, 4]], 0),
        ([L, B, C, B, L, B, L], [[1], [5, 7]], 4),
        ([L, B], [[1]], 1),
    ],
)
def test_what_a_barrier_becomes(
    hopper: NvDevice, kinds: list[str], chains: list[list[int]], waits: int
) -> None:
    words, found = encoded(hopper, kinds)
    assert found == chains
    assert words.count(WFI) == waits


@given(st.lists(st.sampled_from((L, L, B, B, S, W)), max_size=9))
def test_a_launch_waits_for_all_before_its_last_barrier(hopper: NvDevice, kinds: list[str]) -> None:
    """Walk the words as the hardware does: what may still run when a launch begins."""
    words, chains = encoded(hopper, kinds)
    send = header(COMPUTE, method(hopper.driver.compute_class, "SEND_PCAS_A"), 1)
    running: set[int] = set()  # launches that have not ended for certain
    began: dict[int, set[int]] = {}
    started = iter(chains)
    position = 0
    while position < len(words):
        word, count = words[position], words[position] >> 16 & 0x1FFF
        if word == WFI or (count == 5 and words[position + 5] >> 20 & 1):  # RELEASE_WFI
            running.clear()
        elif word == send:
            chain = next(started)
            began[chain[0]] = set(running)
            for number, later in enumerate(chain[1:], 1):
                # those before it in its chain have ended; others that were started may run on
                began[later] = running - set(chain[:number])
            running |= set(chain)  # nothing waits for any of them yet
        position += 1 + count
    for number, kind in enumerate(kinds):
        if kind != L:
            continue
        ordered = [i for i, each in enumerate(kinds[:number]) if each in (B, S)]
        before = {i + 1 for i, each in enumerate(kinds[: max(ordered, default=0)]) if each == L}
        assert not began[number + 1] & before, (kinds, number, chains)


def test_versions_without_known_successors_wait() -> None:
    with powered("tu102") as machine, opened(machine) as device:
        words, chains = encoded(device, [L, B, L])
        assert chains == [[1], [3]] and words.count(WFI) == 1


@pytest.mark.parametrize("version", sorted({family.qmd for family in FAMILIES}))
def test_what_a_descriptor_names(version: str) -> None:
    table = abi.qmd(version)
    successor = Successor.of(table)
    if successor is None:
        assert "DEPENDENT_QMD_SCHEDULE_ENABLE" in table.fields
        return
    qmd = table.new()
    assert successor.named(qmd) == 0
    table.set(qmd, "DEPENDENT_QMD0_POINTER", 0x1234)
    assert successor.named(qmd) == 0  # not enabled
    successor.mark(qmd)
    assert successor.named(qmd) == 0x12_3400
    array = "DEPENDENT_QMD_ACTION" in table.fields
    table.set(qmd, "DEPENDENT_QMD_ACTION" if array else "DEPENDENT_QMD0_ACTION",
              "QMD_DECREMENT_DEPENDENCE", 0)  # fmt: skip
    assert successor.named(qmd) == 0  # not started by this one alone
