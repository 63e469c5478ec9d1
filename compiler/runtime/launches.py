"""Launches of a plan's kernels, whose arguments are addresses and numbers by value."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from ugpu.compiler.graph.node import ByValue
from ugpu.compiler.runtime.kernels.programs import Loaded
from ugpu.compiler.runtime.memory_pool import Storage
from ugpu.compiler.runtime.numbers import Drawn
from ugpu.compiler.runtime.several.stages import Part
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Command, Launch
from ugpu.hcq.work.command_buffer import Reference, Symbol
from ugpu.hcq.work.program import Parameter
from ugpu.hcq.work.queue import Queue


def launch(
    queue: Queue,
    loaded: Loaded,
    arguments: Sequence[Storage | ByValue],
    part: Part | None = None,
) -> None:
    """Record a kernel after those recorded before."""
    if queue.commands:
        queue.barrier()
    queue.launch(
        loaded.kernel,
        grid=loaded.grid,
        block=(loaded.block, 1, 1),
        args=[_argument(each, part) for each in arguments],
        dynamic_local=loaded.dynamic_local,
    )


def for_all(commands: Sequence[Command], counts: Iterable[int]) -> list[Command]:
    """Return the same commands with a parameter for each argument of a kernel, in order: addresses
    and numbers, words of 64 bits. counts: arguments of each launch."""
    slots, left = itertools.count(), iter(counts)
    made: list[Command] = []
    for command in commands:
        if isinstance(command, Launch):
            references = tuple(
                Reference(8 * place, 8, Symbol("parameter", slot=next(slots)))
                for place in range(next(left))
            )
            command = dataclasses.replace(command, references=references)
        made.append(command)
    return made


def word_of(storage: Storage | ByValue) -> int:
    """Return a kernel's argument for memory, its address, or for a number."""
    return storage.address if isinstance(storage, Storage) else storage.word


def _argument(given: Storage | ByValue, part: Part | None) -> Buffer | np.uint64 | Parameter:
    """Return memory or a number as an argument of a launch. part: of a recording that captures it,
    if any."""
    if isinstance(given, Storage):
        return given.buffer
    if isinstance(given, Drawn) and part is not None:
        return part.parameter(given.slot)
    return np.uint64(given.word)
