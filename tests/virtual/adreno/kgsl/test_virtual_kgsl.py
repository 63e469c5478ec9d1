"""The virtual KGSL: what the kernel answers, refuses, keeps and forgets."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.waiting import until
from tests.virtual.adreno.kgsl_client import (
    CACHED,
    PREAMBLE,
    RANGE,
    Client,
    fails,
    machine_of,
    pkt7,
)
from ugpu.qcom.regs import constants
from ugpu.virtual.adreno.machine import VirtualMachine

MEM_WRITE, WAIT_REG_MEM = 0x3D, 0x3C


@pytest.fixture
def machine() -> Iterator[VirtualMachine]:
    with machine_of() as made:
        yield made


@pytest.fixture
def client(machine: VirtualMachine) -> Client:
    return Client(machine)


def mem_write(address: int, value: int) -> list[int]:
    return pkt7(MEM_WRITE, address & 0xFFFFFFFF, address >> 32, value)


def wait_equal(address: int, value: int) -> list[int]:
    """CP_WAIT_REG_MEM: function EQ, poll memory."""
    low, high = address & 0xFFFFFFFF, address >> 32
    return pkt7(WAIT_REG_MEM, 3 | 1 << 4, low, high, value, 0xFFFFFFFF, 16)


def test_properties_have_sizes(client: Client) -> None:
    info = struct.unpack("<IIIxxxxQIxxxxQ", client.property(1, 40))
    assert info[1] == 0x06030001 and info[4] == 630 and info[5] == 1 << 20
    with fails(errno.EINVAL):
        client.property(1, 32)
    with fails(errno.EINVAL):
        client.property(0x77, 4)
    assert client.node.machine.asked["property 0x77"] == 1


def test_pointers_that_are_not_mapped(client: Client) -> None:
    with fails(errno.EFAULT):
        client.call("DEVICE_GETPROPERTY", type=1, value=8, sizebytes=40)


def test_an_unknown_call_and_one_of_another_size(client: Client) -> None:
    with fails(errno.ENOTTY):
        client.node.ioctl(client.handle, 0xC0080999, bytearray(8))
    with fails(errno.ENOTTY):
        client.node.ioctl(client.handle, 0xC030094A, bytearray(64))
    with fails(errno.EBADF):
        client.node.ioctl(77, 0xC0080913, bytearray(8))


def test_memory_is_rounded_zeroed_and_addressed(client: Client) -> None:
    first, second = client.alloc(5000), client.alloc(4096, 20 << 16)
    assert first.size == 8192 and first.read(2) == [0, 0]
    assert second.address % (1 << 20) == 0
    assert second.address not in range(first.address, first.address + 8192 + 1)
    first.write([7])
    first.mapping.close()
    client.call("GPUOBJ_FREE", id=first.id)
    again = client.alloc(8192)
    assert again.id == first.id and again.read() == [0]
    with fails(errno.EINVAL):
        client.call("GPUOBJ_ALLOC", size=0)


def test_what_may_be_mapped(client: Client) -> None:
    buffer = client.alloc(8192)
    for size, offset in ((4096, buffer.id << 12), (8192, 0), (8192, 1 << 40)):
        with fails(errno.EINVAL):
            client.node.map(client.handle, size, offset)
    client.call("GPUOBJ_FREE", id=buffer.id)
    with fails(errno.EINVAL):
        client.node.map(client.handle, 8192, buffer.id << 12)
    buffer.write([1])  # the mapping keeps the pages
    assert client.node.machine.memory.used == 8192
    buffer.mapping.close()
    assert client.node.machine.memory.used == 0
    with fails(errno.EINVAL):
        client.call("GPUOBJ_FREE", id=buffer.id)


def test_memory_at_the_address_of_the_mapping(client: Client) -> None:
    made = client.call("GPUOBJ_ALLOC", size=4096, flags=0x1000_0000)  # USE_CPU_MAP
    assert client.call("GPUOBJ_INFO", id=made.id).gpuaddr == 0
    mapping = client.node.map(client.handle, 4096, made.id << 12)
    assert client.call("GPUOBJ_INFO", id=made.id).gpuaddr == mapping.address
    client.run(mem_write(mapping.address, 5))
    assert mapping.read32(0) == 5


def test_contexts_need_a_preamble(client: Client) -> None:
    for flags in (0, 0x10, 0x2):
        with fails(errno.EINVAL):
            client.context(flags)
    made = client.call("DRAWCTXT_CREATE", flags=PREAMBLE | 1)
    assert made.flags == PREAMBLE | 0x40  # SAVE_GMEM is dropped, PER_CONTEXT_TS always set
    client.call("DRAWCTXT_DESTROY", drawctxt_id=made.drawctxt_id)
    with fails(errno.EINVAL):
        client.call("DRAWCTXT_DESTROY", drawctxt_id=made.drawctxt_id)


def test_a_submission_runs_on_its_own(client: Client) -> None:
    gate, out = client.alloc(), client.alloc()
    words = wait_equal(gate.address, 1) + mem_write(out.address, 42)
    commands, context = client.alloc(), client.context()
    commands.write(words)
    first = client.submit(context, (commands.address, 4 * len(words)))
    second = client.submit(context, (commands.address, 4 * len(words)))
    assert (first, second) == (1, 2)
    assert client.retired(context, 3) == 2 and client.retired(context) == 0
    with fails(errno.ETIMEDOUT):
        client.wait(context, first, 0)
    with fails(errno.EINVAL):
        client.wait(context, 3)
    assert out.read() == [0]
    gate.write([1])
    client.wait(context, second)
    assert out.read() == [42] and client.retired(context) == client.retired(context, 1) == 2


def test_the_size_of_no_sync_points_is_not_looked_at(client: Client) -> None:
    """freedreno's replay gives 0."""
    out, commands, context = client.alloc(), client.alloc(), client.context()
    words = mem_write(out.address, 7)
    commands.write(words)
    place = commands.address, 4 * len(words)
    client.wait(context, client.submit(context, place, syncsize=0, objsize=0))
    assert out.read() == [7]


def test_several_command_objects_run_in_order(client: Client) -> None:
    out, commands, context = client.alloc(), client.alloc(), client.context()
    pieces = [mem_write(out.address, value) for value in (1, 2, 3)]
    size = len(pieces[0])
    for number, piece in enumerate(pieces):
        commands.write(piece, 4 * size * number)
    places = [(commands.address + 4 * size * number, 4 * size) for number in (2, 0, 1)]
    client.wait(context, client.submit(context, *places))
    assert out.read() == [2]


def test_a_sync_point_orders_contexts(client: Client) -> None:
    gate, out, commands = client.alloc(), client.alloc(), client.alloc()
    wait = wait_equal(gate.address, 1) + mem_write(out.address, 1)
    more = mem_write(out.address, 2)
    commands.write(wait)
    commands.write(more, 2048)
    one, other = client.context(), client.context()
    first = client.submit(one, (commands.address, 4 * len(wait)))
    place = (commands.address + 2048, 4 * len(more))
    second = client.submit(other, place, syncs=[(one, first)])
    with fails(errno.ETIMEDOUT):
        client.wait(other, second, 0)
    with fails(errno.EINVAL):
        client.submit(one, place, syncs=[(one, 9)])
    gate.write([1])
    client.wait(other, second)
    assert out.read() == [2]


def test_timestamps_of_the_client(client: Client) -> None:
    context = client.context(PREAMBLE | 0x80)
    assert client.submit(context, timestamp=0x7FFF_FFFF) == 0x7FFF_FFFF
    assert client.submit(context, timestamp=0x8000_0005) == 0x8000_0005
    with fails(errno.ERANGE):
        client.submit(context, timestamp=0x8000_0005)
    client.wait(context, 0x8000_0005)


def test_what_a_submission_must_be(client: Client) -> None:
    context, commands = client.context(), client.alloc()
    for bad in ((commands.address + 2, 16), (commands.address, 0), (0, 16)):
        with fails(errno.EINVAL):
            client.submit(context, bad)
    with fails(errno.EINVAL):
        client.submit(99, (commands.address, 16))
    with fails(errno.EINVAL):
        client.submit(context, (commands.address, 16), cmdsize=0)
    with fails(errno.EINVAL):
        client.submit(context, (commands.address, 16), cmdsize=512)
    assert client.retired(context, 3) == 0


def test_a_fault_is_skipped_or_ends_the_context(client: Client) -> None:
    machine = client.node.machine
    innocent = client.context()
    bad = mem_write(0x1234_5000, 1)
    tolerant, timestamp = client.run(bad)
    assert machine.log[-1].cause.name == "PAGE_FAULT" and machine.log[-1].address == 0x1234_5000
    assert (machine.log[-1].context, machine.log[-1].timestamp) == (tolerant, timestamp)
    assert client.reset_status(innocent) == 2 and client.reset_status(innocent) == 0
    assert client.reset_status(tolerant) == 1 and client.reset_status(tolerant) == 0
    with fails(errno.EPROTO):
        client.submit(tolerant)
    client.wait(tolerant, client.submit(tolerant))
    strict = client.context(PREAMBLE | 0x1000_0000)  # INVALIDATE_ON_FAULT
    with fails(errno.EDEADLK):
        client.run(bad, strict)
    with fails(errno.EDEADLK):
        client.submit(strict)
    client.call("DRAWCTXT_DESTROY", drawctxt_id=strict)


def test_destroying_a_context_ends_what_waits(client: Client) -> None:
    gate, commands, context = client.alloc(), client.alloc(), client.context()
    words = wait_equal(gate.address, 1)
    commands.write(words)
    timestamp = client.submit(context, (commands.address, 4 * len(words)))
    caught: list[int | None] = []

    def wait() -> None:
        try:
            client.wait(context, timestamp, 0xFFFF_FFFF)
        except OSError as error:
            caught.append(error.errno)

    waiter = threading.Thread(target=wait)
    waiter.start()
    client.call("DRAWCTXT_DESTROY", drawctxt_id=context)
    waiter.join()
    # Late, and the context is not there any more: EINVAL.
    assert caught in ([errno.ENOENT], [errno.EINVAL])


def test_memory_that_is_freed_under_the_gpu(client: Client) -> None:
    gate, out, commands, context = *(client.alloc() for _ in range(3)), client.context()
    words = wait_equal(gate.address, 1) + mem_write(out.address, 1)
    commands.write(words)
    timestamp = client.submit(context, (commands.address, 4 * len(words)))
    out.mapping.close()
    client.call("GPUOBJ_FREE", id=out.id)
    gate.write([1])
    client.wait(context, timestamp)
    assert client.reset_status(context) == 1


def test_memory_that_is_freed_when_a_timestamp_retires(client: Client) -> None:
    gate, out, commands, context = *(client.alloc() for _ in range(3)), client.context()
    words = wait_equal(gate.address, 1) + mem_write(out.address, 1)
    commands.write(words)
    timestamp = client.submit(context, (commands.address, 4 * len(words)))
    event = ctypes.create_string_buffer(struct.pack("<II", context, timestamp), 8)
    out.mapping.close()
    place = ctypes.addressof(event)
    client.call("GPUOBJ_FREE", id=out.id, flags=1, type=1, priv=place, len=8)
    with fails(errno.EINVAL):
        client.call("GPUOBJ_FREE", id=out.id)
    gate.write([1])
    client.wait(context, timestamp)
    assert client.reset_status(context) == 0 and client.node.space.find(out.address) is None


def test_cached_memory_needs_cache_operations(client: Client) -> None:
    source, target = client.alloc(4096, CACHED), client.alloc(4096, CACHED)
    copy = pkt7(0x75, 32, *_pair(source.address), *_pair(target.address))  # CP_MEMCPY
    source.write([5] * 32)
    client.run(copy)
    client.sync(target, 2)
    assert target.read(32) == [0] * 32  # the source was not cleaned
    client.sync(source, 1)
    client.run(copy)
    stale = target.read(16)
    assert 5 not in stale and target.read(32) == stale * 2  # the target was not invalidated
    client.sync(target, 2 | RANGE, 64, 64)
    assert target.read(32) == stale + [5] * 16
    target.write([9], 0)
    client.sync(target, 3)  # cleans the line of the 9, then shows the rest
    assert target.read(32) == [9] + stale[1:] + [5] * 16
    with fails(errno.EINVAL):
        client.sync(target, 0)
    with fails(errno.EINVAL):
        client.sync(target, 1 | RANGE, 4096, 1)


def test_a_line_is_dirty_whatever_is_stored_in_it(client: Client) -> None:
    """Zeros over what the GPU has written, where the cache has known zeros before."""
    target = client.alloc(4096, CACHED)
    client.run(mem_write(target.address, 7))
    target.write([0])
    client.sync(target, 1)
    client.sync(target, 2)
    assert target.read() == [0]


def test_a_program_may_store_once_it_sees_that_work_has_ended(client: Client) -> None:
    """Before its submission has been retired, and without a cache operation yet."""
    target, done, gate, commands = (client.alloc(4096, flags) for flags in (CACHED, 0, 0, 0))
    words = mem_write(target.address, 7) + mem_write(done.address, 1)
    words += wait_equal(gate.address, 1)
    commands.write(words)
    context = client.context()
    timestamp = client.submit(context, (commands.address, 4 * len(words)))
    until(lambda: done.read() == [1], "the GPU's signal")
    target.write([0])
    gate.write([1])
    client.wait(context, timestamp)
    client.sync(target, 1)
    client.sync(target, 2)
    assert target.read() == [0]


def test_coherent_memory_needs_none(client: Client) -> None:
    target = client.alloc(4096, CACHED | 1 << 31)
    client.run(mem_write(target.address, 3))
    assert target.read() == [3]


def _pair(address: int) -> tuple[int, int]:
    return address & 0xFFFFFFFF, address >> 32


def test_memory_of_the_program_is_imported(client: Client) -> None:
    pages = mmap.mmap(-1, 8192)
    place = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    where = ctypes.create_string_buffer(struct.pack("<Q", place), 8)
    # type 2: an address; I/O coherent, else the caches must be cleaned.
    priv = ctypes.addressof(where)
    made = client.call("GPUOBJ_IMPORT", priv=priv, priv_len=8192, type=2, flags=CACHED | 1 << 31)
    address = client.call("GPUOBJ_INFO", id=made.id).gpuaddr
    client.run(mem_write(address + 4096, 77))
    assert pages[4096] == 77
    ctypes.memmove(where, struct.pack("<Q", place + 8), 8)
    with fails(errno.EINVAL):
        client.call("GPUOBJ_IMPORT", priv=priv, priv_len=4096, type=2)
    client.call("GPUOBJ_FREE", id=made.id)
    with fails(errno.EINVAL):
        client.call("GPUOBJ_INFO", id=made.id)
    ctypes.memmove(where, struct.pack("<Q", place), 8)
    with fails(errno.EINVAL):
        client.call("GPUOBJ_IMPORT", priv=priv, priv_len=4100, type=2)
    fixed = mmap.mmap(-1, 8192, prot=mmap.PROT_READ)
    address = np.frombuffer(fixed, np.uint8).ctypes.data
    ctypes.memmove(where, struct.pack("<Q", address), 8)
    with fails(errno.EFAULT):  # the GPU would write it
        client.call("GPUOBJ_IMPORT", priv=priv, priv_len=8192, type=2)
    read_only = constants("msm_kgsl").KGSL_MEMFLAGS_GPUREADONLY
    client.call("GPUOBJ_IMPORT", priv=priv, priv_len=8192, type=2, flags=read_only)


def test_a_file_is_imported_as_a_buffer(client: Client) -> None:
    file = os.memfd_create("camera", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, 4096)
    where = ctypes.create_string_buffer(struct.pack("<i", file), 4)
    made = client.call("GPUOBJ_IMPORT", priv=ctypes.addressof(where), priv_len=4, type=3)
    client.run(mem_write(client.call("GPUOBJ_INFO", id=made.id).gpuaddr, 0x41))
    assert os.pread(file, 1, 0) == b"A"
    os.close(file)


def test_a_fence_is_signalled(client: Client) -> None:
    gate, commands, context = client.alloc(), client.alloc(), client.context()
    words = wait_equal(gate.address, 1)
    commands.write(words)
    timestamp = client.submit(context, (commands.address, 4 * len(words)))
    where = ctypes.create_string_buffer(4)
    place = ctypes.addressof(where)
    client.call(
        "TIMESTAMP_EVENT", type=2, timestamp=timestamp, context_id=context, priv=place, len=4
    )
    fence = struct.unpack("<i", where.raw)[0]
    assert not select.select([fence], [], [], 0)[0]
    gate.write([1])
    client.wait(context, timestamp)
    assert select.select([fence], [], [], 0)[0]
    os.close(fence)


def test_planted_faults(client: Client) -> None:
    machine = client.node.machine
    for call, code, act in (
        ("GPUOBJ_ALLOC", errno.ENOMEM, lambda: client.alloc()),
        ("DRAWCTXT_CREATE", errno.ENOSPC, lambda: client.context()),
        ("any ioctl", errno.EINTR, lambda: client.context()),
        ("mmap", errno.ENOMEM, lambda: client.alloc()),
        ("KGSL_PROP_DEVICE_INFO", errno.EINVAL, lambda: client.property(1, 40)),
    ):
        machine.refuse(call, code)
        with fails(code):
            act()
    machine.inject("hang")
    context, _ = client.run(pkt7(0x10))
    assert client.reset_status(context) == 1 and machine.log[-1].cause.name == "HANG"


def test_a_wait_that_never_ends_is_a_hang() -> None:
    with machine_of(hang_limit_s=0.05) as machine:
        client = Client(machine)
        gate = client.alloc()
        context, _ = client.run(wait_equal(gate.address, 1))
        assert client.reset_status(context) == 1 and machine.log[-1].cause.name == "HANG"


def test_processes_have_their_own_ids_and_addresses(machine: VirtualMachine) -> None:
    one, other = Client(machine), Client(machine)
    buffer, context = one.alloc(), one.context()
    for act in (
        lambda: other.call("GPUOBJ_FREE", id=buffer.id),
        lambda: other.call("DRAWCTXT_DESTROY", drawctxt_id=context),
        lambda: other.submit(context),
    ):
        with fails(errno.EINVAL):
            act()
    guilty, _ = other.run(mem_write(buffer.address + 0x10_0000, 1))
    assert other.reset_status(guilty) == 1 and one.reset_status(context) == 2
    one.node.close()
    assert context not in machine.contexts


def test_the_end_of_a_program_gives_all_back(machine: VirtualMachine) -> None:
    client = Client(machine)
    for _ in range(3):
        client.alloc(1 << 20)
    client.context()
    client.node.close()
    assert machine.memory.used == 0 and not machine.contexts
    client.node.close()
