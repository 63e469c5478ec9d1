"""Performance counters and power constraints of the virtual KGSL."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterator

import pytest

from tests.virtual.adreno.kgsl_client import CODES, Client, fails, machine_of, pkt7
from ugpu.qcom.regs import structs

SP, ALWAYS_ON = CODES.KGSL_PERFCOUNTER_GROUP_SP, CODES.KGSL_PERFCOUNTER_GROUP_ALWAYSON
UNUSED = CODES.KGSL_PERFCOUNTER_NOT_USED
PWR_CONSTRAINT = CODES.KGSL_PROP_PWR_CONSTRAINT


@pytest.fixture
def client() -> Iterator[Client]:
    with machine_of() as machine:
        yield Client(machine)


def _get(client: Client, group: int, event: int) -> tuple[int, int]:
    call = client.call("PERFCOUNTER_GET", groupid=group, countable=event)
    return call.offset, call.offset_hi


def _query(client: Client, group: int, count: int) -> tuple[int, list[int]]:
    out = ctypes.create_string_buffer(b"\xee" * 4 * count, 4 * count)
    call = client.call(
        "PERFCOUNTER_QUERY", groupid=group, countables=ctypes.addressof(out), count=count
    )
    return call.max_counters, list(struct.unpack(f"<{count}I", out.raw))


def _read(client: Client, *pairs: tuple[int, int]) -> list[int]:
    raw = ctypes.create_string_buffer(b"".join(struct.pack("<IIQ", *pair, 1) for pair in pairs))
    client.call("PERFCOUNTER_READ", reads=ctypes.addressof(raw), count=len(pairs))
    return [struct.unpack_from("<Q", raw, 16 * number + 8)[0] for number in range(len(pairs))]


def test_counters_are_shared_and_run_out(client: Client) -> None:
    other = Client(client.node.machine)
    first = _get(client, SP, 7)
    assert first == (0x4A6 + 2 * 23, 0x4A6 + 2 * 23 + 1)
    assert _get(other, SP, 7) == first
    for event in range(100, 123):
        _get(client, SP, event)
    with fails(errno.EBUSY):
        _get(client, SP, 8)
    assert _query(client, SP, 2) == (24, [122, 121])
    with fails(errno.ENODEV):
        other.call("PERFCOUNTER_PUT", groupid=SP, countable=100)
    client.call("PERFCOUNTER_PUT", groupid=SP, countable=7)
    with fails(errno.EBUSY):  # the other program still counts
        _get(client, SP, 8)
    other.node.close()
    assert _get(client, SP, 8) == first
    with fails(errno.EINVAL):
        _get(client, CODES.KGSL_PERFCOUNTER_GROUP_MAX, 0)


def test_time_is_counted(client: Client) -> None:
    low, high = _get(client, ALWAYS_ON, 0)
    with fails(errno.EINVAL):
        _get(client, ALWAYS_ON, 1)
    out = client.alloc()
    # CP_REG_TO_MEM: 64 bits of two registers
    words = pkt7(0x3E, low | 2 << 18 | 1 << 30, out.address & 0xFFFF_FFFF, out.address >> 32)
    before = _read(client, (ALWAYS_ON, 0))[0]
    client.run(words)
    at, other = _read(client, (ALWAYS_ON, 0), (SP, 3))
    assert before <= out.read(2)[0] | out.read(2)[1] << 32 <= at and other == 0
    assert high == low + 1
    with fails(errno.EINVAL):
        client.call("PERFCOUNTER_READ", reads=1, count=101)
    with fails(errno.EINVAL):
        _read(client, (CODES.KGSL_PERFCOUNTER_GROUP_MAX, 0))


def _constrain(client: Client, context: int, kind: int, level: int = 0, size: int = 4) -> None:
    value = ctypes.create_string_buffer(struct.pack("<I", level))
    layout = structs("msm_kgsl").kgsl_device_constraint
    wanted = layout.new(type=kind, context_id=context, data=ctypes.addressof(value), size=size)
    raw = ctypes.create_string_buffer(bytes(wanted))
    client.call(
        "SETPROPERTY", "kgsl_device_getproperty", type=PWR_CONSTRAINT,
        value=ctypes.addressof(raw), sizebytes=layout.size,
    )  # fmt: skip


def test_power_constraints(client: Client) -> None:
    number = client.context()
    context = client.node.machine.contexts[number]
    _constrain(client, number, CODES.KGSL_CONSTRAINT_PWRLEVEL, CODES.KGSL_CONSTRAINT_PWR_MAX)
    assert context.power == CODES.KGSL_CONSTRAINT_PWR_MAX
    for kind, level, size in ((1, 2, 4), (1, 0, 8), (2, 0, 4), (9, 0, 4)):
        with fails(errno.EINVAL):
            _constrain(client, number, kind, level, size)
    with fails(errno.EINVAL):
        _constrain(client, number + 1, 0)
    assert context.power == CODES.KGSL_CONSTRAINT_PWR_MAX
    _constrain(client, number, CODES.KGSL_CONSTRAINT_NONE)
    assert context.power is None


def test_a_buffer_that_is_none(client: Client) -> None:
    for descriptor, code in ((-1, errno.EBADF), (1 << 20, errno.EBADF), (0, errno.EINVAL)):
        raw = ctypes.create_string_buffer(struct.pack("<i", descriptor))
        with open("/dev/null", "rb") as nothing, fails(code):
            if not descriptor:
                raw = ctypes.create_string_buffer(struct.pack("<i", nothing.fileno()))
            client.call(
                "GPUOBJ_IMPORT", priv=ctypes.addressof(raw), priv_len=4,
                type=CODES.KGSL_USER_MEM_TYPE_DMABUF,
            )  # fmt: skip
