"""Kernels of the host whose local memory begins as bytes of ones: NaN, and -1, and whose groups
run last first, one at a time.

Memory on the stack has what other kernels left there, mostly zeros, so that an element that is read
before it was written goes unseen. A group that stores into its neighbour's results goes unseen if
the neighbour runs after it.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import pytest

from ugpu.compiler.codegen.host import Host
from ugpu.compiler.runtime.runtime import use_cache
from ugpu.hcq.cpu import driver
from ugpu.hcq.cpu.processor import Pool
from ugpu.hcq.device.device import Device

_LOCAL = re.compile(r"^  %(\S+) = alloca \[(\d+) x (\w+)\], align 64$", re.MULTILINE)
_BYTES = {
    "i1": 1, "i8": 1, "half": 2, "bfloat": 2, "i16": 2, "float": 4, "i32": 4, "double": 8, "i64": 8,
}  # fmt: skip


def poisoned(text: str) -> str:
    """Return a kernel's LLVM IR that fills its local memory first."""
    memories = list(_LOCAL.finditer(text))
    if not memories:
        return text
    block, lines = "entry", []
    for memory in memories:
        name, size = memory[1], int(memory[2]) * _BYTES[memory[3]]
        lines += [
            f"  br label %fill.{name}",
            f"fill.{name}:",
            f"  %at.{name} = phi i64 [ 0, %{block} ], [ %next.{name}, %fill.{name} ]",
            f"  %place.{name} = getelementptr i8, ptr %{name}, i64 %at.{name}",
            f"  store volatile i8 -1, ptr %place.{name}",
            f"  %next.{name} = add i64 %at.{name}, 1",
            f"  %more.{name} = icmp ult i64 %next.{name}, {size}",
            f"  br i1 %more.{name}, label %fill.{name}, label %filled.{name}",
            f"filled.{name}:",
        ]
        block = f"filled.{name}"
    end = memories[-1].end()
    rest = text[end:].replace("[ %first, %entry ]", f"[ %first, %{block} ]")
    return "\n".join([text[:end], *lines]) + rest


def backwards(text: str, groups: int) -> str:
    """Return a kernel's LLVM IR that runs group n where it ran group `groups` - 1 - n."""
    for old, new in (
        ("%group = phi i64", "%turn.n = phi i64"),
        ("icmp slt i64 %group, %last", "icmp slt i64 %turn.n, %last"),
        ("groups.run:", f"groups.run:\n  %group = sub i64 {groups - 1}, %turn.n"),
        ("%next = add nuw nsw i64 %group, 1", "%next = add nuw nsw i64 %turn.n, 1"),
    ):
        assert text.count(old) == 1, (old, text)
        text = text.replace(old, new)
    return text


def poison_locals(device: Device, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Have the kernels that a device compiles from now on begin so. folder: of an empty cache."""
    module = Host.module
    patch.setattr(Host, "module", lambda shell: poisoned(module(shell)))
    use_cache(device, folder)


def turn_groups(patch: pytest.MonkeyPatch) -> None:
    """Have the kernels that are compiled from now on run their last group first, and devices that
    are opened from now on run groups one at a time, whatever number of threads they report. Their
    caches must be empty, and not be used by others."""
    module = Host.module
    patch.setattr(
        Host, "module", lambda shell: backwards(module(shell), prod(shell.kernel.grid))
    )  # fmt: skip
    patch.setattr(driver, "Pool", lambda _, name: Pool(0, name))
