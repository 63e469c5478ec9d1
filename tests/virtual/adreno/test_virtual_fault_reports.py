"""GET_FAULT_REPORT of the virtual KGSL, and page faults that do not halt the GPU."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

import pytest

from tests.virtual.adreno.kgsl_client import PREAMBLE, Client, fails, machine_of, pkt7
from ugpu.qcom.regs import structs
from ugpu.virtual.adreno.planted import Planted

INFO, NO_TOLERANCE = 0x4000_0000, 0x200  # KGSL_CONTEXT_FAULT_INFO, _NO_FAULT_TOLERANCE
NOWHERE = 0x7F_0000_0000
WRITE, READ, TRANSLATION = 2, 1, 4


def _entry(**values: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(bytes(structs("msm_kgsl").kgsl_fault.new(**values)))


def _report(client: Client, context: int, entry: object, count: int = 1) -> Any:
    address = 0 if entry is None else ctypes.addressof(entry)  # type: ignore[arg-type]
    return client.call(
        "GET_FAULT_REPORT", "kgsl_fault_report", faultlist=address, faultnents=count,
        faultsize=24, context_id=context,
    )  # fmt: skip


def _faulty(client: Client, flags: int) -> int:
    words = pkt7(0x3D, NOWHERE & 0xFFFF_FFFF, NOWHERE >> 32, 1)
    commands = client.alloc()
    commands.write(words)
    context = client.context(PREAMBLE | flags)
    timestamp = client.submit(context, (commands.address, 4 * len(words)))
    if flags & NO_TOLERANCE:
        with fails(errno.EDEADLK):
            client.wait(context, timestamp)
    else:
        client.wait(context, timestamp)
    return context


def test_a_page_fault_is_told_of_a_context_that_it_ended() -> None:
    with machine_of() as machine:
        client = Client(machine)
        context = _faulty(client, INFO | NO_TOLERANCE)
        assert _report(client, context, None).faultnents == 2
        counts = _entry()
        _report(client, context, counts)
        counted = structs("msm_kgsl").kgsl_fault.view(bytearray(counts.raw[:24]))
        assert (counted.type, counted.count) == (1, 1)
        layout = structs("msm_kgsl").kgsl_pagefault_report
        found = ctypes.create_string_buffer(2 * layout.size)
        wanted = _entry(fault=ctypes.addressof(found), type=1, count=2, size=layout.size)
        _report(client, context, wanted)
        first, second = (
            layout.view(bytearray(found.raw[at : at + layout.size])) for at in (0, layout.size)
        )
        assert (first.fault_addr, first.fault_type) == (NOWHERE, WRITE | TRANSLATION)
        assert second.fault_type == 0
        strange = _entry(fault=ctypes.addressof(found), type=2, count=1, size=layout.size)
        with fails(errno.EINVAL):
            _report(client, context, strange)


@pytest.mark.parametrize("flags", [INFO, NO_TOLERANCE])
def test_of_other_contexts_nothing_is_told(flags: int) -> None:
    with machine_of() as machine:
        client = Client(machine)
        context = _faulty(client, flags)
        with fails(errno.EINVAL):
            _report(client, context, _entry())


def test_an_older_kernel_has_no_reports() -> None:
    with machine_of() as machine:
        client = Client(machine)
        context = _faulty(client, INFO | NO_TOLERANCE)
        machine.inject(Planted.OLD_FAULTS)
        with fails(errno.ENOTTY):
            _report(client, context, _entry())
