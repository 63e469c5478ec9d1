"""Wrong arguments are refused before anything is touched, and say what was expected."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.support.devices import DEVICES
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.work.prepared import prepare
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import HardwareQueue, QueueKind
from ugpu.hcq.work.timeline import SIZE, Timeline

Use = Callable[[Any, Any, Any, Any], object]  # Any: wrong arguments are the point

RECORDING: list[tuple[str, Use]] = [
    ("size must be from 0", lambda q, a, b, t: q.copy(a, b, -5)),
    ("size must be an int", lambda q, a, b, t: q.copy(a, b, 8.0)),
    ("must be a Buffer", lambda q, a, b, t: q.copy(a, None)),
    ("must be a Buffer", lambda q, a, b, t: q.fill(b"1234")),
    ("value must be an int", lambda q, a, b, t: q.fill(a, 1.5)),
    ("value must be from", lambda q, a, b, t: q.fill(a, 1 << 32)),
    ("value must be from", lambda q, a, b, t: q.fill(a, -(1 << 31) - 1)),
    ("offset must be from 0", lambda q, a, b, t: q.timestamp(a[64:], -8)),
    ("offset must be from 0", lambda q, a, b, t: q.timestamp(a, -(1 << 32))),
    ("offset must be an int", lambda q, a, b, t: q.timestamp(a, "8")),
    ("8 bytes at an offset", lambda q, a, b, t: q.timestamp(a, 1 << 32)),
    ("value must be from 0", lambda q, a, b, t: q.wait(t, -5)),
    ("value must be from 0", lambda q, a, b, t: q.wait(t, 1 << 64)),
    ("value must be an int", lambda q, a, b, t: q.wait(t, 1.0)),
    ("timeline must be a Timeline", lambda q, a, b, t: q.wait(None)),
    ("value must be from 0", lambda q, a, b, t: q.signal(t, -1)),
    ("value must be from 0", lambda q, a, b, t: q.signal(t, 1 << 70)),
    ("timeline must be a Timeline", lambda q, a, b, t: q.signal(5, 1)),
    ("kernel must be a Kernel", lambda q, a, b, t: q.launch(None, grid=(1,), block=(1,))),
]


@pytest.mark.parametrize("number", range(len(RECORDING)))
def test_a_queue_refuses_it(device: Device, number: int) -> None:
    message, use = RECORDING[number]
    with device.alloc(4096) as a, device.alloc(4096) as b, device.alloc(SIZE) as memory:
        timeline = Timeline(device.driver.core, _host(memory), "own")
        queue = device.queue()
        with pytest.raises(BadArgument, match=message):
            use(queue, a, b, timeline)
        assert queue.commands == []


@pytest.mark.parametrize(
    ("kernel", "numbers", "name", "size", "given"),
    [
        ("scale", (np.float32(1), np.uint32(1)), "2 'count'", 4, "float32"),
        ("scale", (np.int32(1), np.float32(1)), "3 'factor'", 4, "float32"),
        ("scale", (np.uint64(1), np.uint32(1)), "2 'count'", 4, "uint64"),
        ("wide", (np.float64(1), np.uint8(1)), "1 'value'", 8, "float64"),
        ("wide", (np.uint64(1), np.float16(1)), "2 'small'", 1, "float16"),
    ],
)
def test_a_number_of_another_kind_than_the_kernel_declares_is_refused(
    device: Device,
    program: Program,
    kernel: str,
    numbers: tuple[object, ...],
    name: str,
    size: int,
    given: str,
) -> None:
    with device.alloc(256) as out, device.alloc(256) as x:
        arguments = (out, x, *numbers) if kernel == "scale" else (out, *numbers)
        queue = device.queue()
        words = f"argument {name} of {kernel} is an integer of {size} bytes; a {given} of "
        with pytest.raises(BadArgument, match=words):
            queue.launch(program[kernel], grid=(1,), block=(64,), args=arguments)
        assert queue.commands == []


def _host(memory: Any) -> Any:
    """Memory of a timeline that nothing signals: the host alone looks at it."""
    memory.view = memoryview(bytearray(SIZE))
    return memory


def test_the_bounds_themselves_are_taken(device: Device) -> None:
    with device.alloc(64) as a, device.alloc(64) as b:
        queue = device.queue().copy(a, b, 0).fill(a, -1).timestamp(b, 56).fill(b, (1 << 32) - 1)
        queue.wait(queue.timeline, 0)
        queue.timeline.wait(queue.submit())
        assert (a.numpy(np.int32) == -1).all() and (b.numpy(np.int32) == -1).all()


def test_waits_have_sane_limits(device: Any) -> None:
    timeline = device.queue().timeline
    for limit in (math.nan, math.inf, -1.0, -math.inf, "1", 1 + 2j):
        for wait in (device.synchronize, lambda given: timeline.wait(limit_s=given)):
            with pytest.raises(BadArgument, match="limit_s must be a finite number"):
                wait(limit)
    for value in (-1, 1 << 64, 0.5):
        with pytest.raises(BadArgument, match="value must be"):
            timeline.wait(value)
    device.synchronize(1e300)
    timeline.wait(0, limit_s=0)


def test_buffers_refuse_it(device: Any) -> None:
    with device.alloc(64) as buffer:
        uses: list[Callable[[], object]] = [
            lambda: buffer.copy_to([1, 2]),
            lambda: buffer.copy_to(np.zeros(2, object)),
            lambda: buffer["a":],
            lambda: buffer[1:2:0],
            lambda: buffer.numpy(object),
            lambda: buffer.numpy(np.uint8, (-1,)),
            lambda: buffer.numpy(np.uint8, ("x",)),
            lambda: buffer.numpy(np.uint8, (1 << 62,)),
            lambda: buffer.fill(1.5),
            lambda: buffer.fill(1 << 32),
            lambda: device.alloc(-1),
            lambda: device.alloc("x"),
            lambda: device.alloc(64, placement="host"),
            lambda: device.queue(QueueKind.COMPUTE, "x"),
            lambda: device.queue("compute"),
        ]
        for number, use in enumerate(uses):
            try:
                use()
            except BadArgument:
                continue
            raise AssertionError(f"use {number} was accepted")


def test_a_list_has_no_width(device: Device) -> None:
    """[1, 2, 3] would be three int64, which nobody said."""
    with device.alloc(64) as buffer:
        for given in ([1, 2, 3], (1.0, 2.0), 7):
            with pytest.raises(BadArgument, match="an array with a dtype"):
                buffer.copy_from(given)
        buffer.copy_from(np.array([1, 2, 3], np.uint32))
        assert buffer.numpy(np.uint32)[:3].tolist() == [1, 2, 3]


def test_a_program_is_a_mapping(program: Any) -> None:
    assert "scale" in program and "nothing" not in program
    assert program.get("nothing") is None and program.get("scale") is program["scale"]
    assert [] not in program
    with pytest.raises(BadArgument, match=r"no kernel 'nothing' in this program; it has: .*scale"):
        program["nothing"]


def test_what_was_closed_after_recording_is_not_used(device: Device, program: Program) -> None:
    """The memory may be another buffer's by then."""
    kept = device.alloc(4096)
    for use in ("fill", "slice", "copy", "timestamp", "argument", "prepared"):
        gone = device.alloc(4096)
        queue, prepared = device.queue(), None
        if use == "fill":
            queue.fill(gone, 7)
        elif use == "slice":
            queue.fill(gone[64:128], 7)
        elif use == "copy":
            queue.copy(kept, gone)
        elif use == "timestamp":
            queue.timestamp(gone, 8)
        else:
            args = (gone, kept, np.uint32(64), np.uint32(3))
            queue.launch(program["scale"], grid=(1,), block=(64,), args=args)
            prepared = prepare(queue.hardware, queue.commands)
        gone.close()
        with device.alloc(4096) as victim:
            victim.fill(0x5A5A5A5A)
            last = queue.timeline.last
            with pytest.raises(Closed, match="buffer of this submission has been closed"):
                if use == "prepared" and prepared is not None:
                    device.driver.core.submit_prepared(queue.hardware, prepared, [])
                else:
                    queue.submit()
            assert queue.timeline.last == last
            assert (victim.numpy(np.uint32) == 0x5A5A5A5A).all(), use
    kept.close()


def test_a_closed_program_is_not_launched(device: Device) -> None:
    with device.alloc(256) as out, device.alloc(256) as source:
        program = device.load(contract_object(device.target))
        queue = device.queue()
        args = (out, source, np.uint32(64), np.uint32(3))
        queue.launch(program["scale"], grid=(1,), block=(64,), args=args)
        program.close()
        with pytest.raises(Closed, match="program of this submission"):
            queue.submit()


@pytest.mark.each_driver
def test_a_full_queue_holds_no_lock(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread fills a queue whose work waits for another thread's submission."""
    compute, copies = device.queue(), device.queue(QueueKind.COPY)
    awaited = copies.timeline.last + 1
    with device.alloc(64) as out, device.alloc(64) as go:
        compute.wait(copies.timeline, awaited).submit()
        full = threading.Event()
        room = device.driver.core.await_room

        def wait(hardware: HardwareQueue, words: int) -> None:
            full.set()
            room(hardware, words)

        monkeypatch.setattr(device.driver.core, "await_room", wait)

        def fill() -> None:
            for number in range(5000):
                device.queue().fill(out, number).submit()

        thread = threading.Thread(target=fill)
        thread.start()
        assert full.wait(120)
        device.queue(QueueKind.COPY).fill(go, 1).submit()
        thread.join(240)
        assert not thread.is_alive()
        device.synchronize()
        assert (out.numpy(np.uint32) == 4999).all()


OPTIONS: list[tuple[str, dict[str, object], str]] = [
    ("cpu", {"threads": "x"}, "threads must be an int, got 'x'"),
    ("cpu", {"threads": 10**6}, "threads must be from 1 to 1024"),
    ("cpu", {"threads": 0}, "threads must be from 1"),
    ("cpu", {"on_stage": 5}, "on_stage must be callable, got 5"),
    ("virtual:navi31", {"vram": -1}, "vram must be a multiple of 1 MiB"),
    ("virtual:navi31", {"vram": 1}, "vram must be a multiple of 1 MiB"),
    ("virtual:navi31", {"vram": "x"}, "vram must be an int"),
    ("virtual:navi31", {"chip": object()}, "chip must be a Chip"),
    ("virtual:navi31", {"firmware": 5}, "firmware must be a str or a Path"),
    ("virtual:navi31", {"record": 5}, "record must be a path"),
    ("virtual:gh100", {"memory": "x"}, "memory must be an int"),
    ("virtual:gh100", {"driver": 580}, "driver must be a str, got 580"),
]


@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_open_refuses_options_of_other_types(number: int) -> None:
    name, options, message = OPTIONS[number]
    assert name in DEVICES
    threads = threading.active_count()
    with pytest.raises(BadArgument, match=message):
        hcq.open(name, **options)
    assert threading.active_count() == threads


@pytest.mark.parametrize("name", [None, 5, b"cpu", object()])
def test_a_name_is_text(name: Any) -> None:
    with pytest.raises(BadArgument, match="name must be a str"):
        hcq.open(name)
