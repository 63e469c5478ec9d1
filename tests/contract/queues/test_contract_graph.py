"""Capture and replay on every device."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernels import contract_object
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.work.graph import Capture
from ugpu.hcq.work.program import Parameter, Program
from ugpu.hcq.work.queue import QueueKind

COUNT = 256
BYTES = 4 * COUNT
count = np.uint32(COUNT)
ramp = np.arange(COUNT, dtype=np.uint32)


def scale(queue, program: Program, result, source, factor) -> None:
    args = (result, source, count, factor)
    queue.launch(program["scale"], grid=(4,), block=(64,), args=args)


def test_nothing_runs_until_replay_and_then_each_time(device: Device, program: Program) -> None:
    with device.alloc(BYTES) as a, device.alloc(BYTES) as one:
        a.fill(0)
        one.fill(1)
        graph = device.capture()
        with graph, device.queue() as queue:
            queue.launch(program["add"], grid=(4,), block=(64,), args=(a, a, one, count))
        assert (a.numpy(np.uint32) == 0).all()
        for turn in range(1, 6):
            graph.replay()
            graph.wait()
            assert (a.numpy(np.uint32) == turn).all()
        for _ in range(50):
            graph.replay()
        assert (a.numpy(np.uint32) == 55).all()
        graph.close()


def test_inputs_and_parameters(device: Device, program: Program) -> None:
    buffers = [device.alloc(BYTES) for _ in range(4)]
    a, b, c, d = buffers
    a.copy_from(ramp)
    c.copy_from(ramp + 100)
    with device.capture() as graph:
        queue = device.queue()
        scale(queue, program, b, a, Parameter(0, 4))
        queue.submit()
    graph.replay(parameters=[3])
    assert (b.numpy(np.uint32) == 3 * ramp).all()
    graph.replay(inputs={a: c, b: d}, parameters=[np.uint32(5)])
    assert (d.numpy(np.uint32) == 5 * (ramp + 100)).all()
    assert (b.numpy(np.uint32) == 3 * ramp).all(), "replaced this time only"
    graph.replay(parameters=[-1])
    assert (b.numpy(np.uint32) == (0 - ramp)).all()
    graph.close()
    for buffer in buffers:
        buffer.close()


def test_slices_of_a_replaced_buffer_follow_it(device: Device, program: Program) -> None:
    with device.alloc(2 * BYTES) as a, device.alloc(2 * BYTES) as b, device.alloc(BYTES) as out:
        a.copy_from(np.concatenate([ramp, ramp + 1]))
        b.copy_from(np.concatenate([ramp + 2, ramp + 3]))
        with device.capture() as graph, device.queue() as queue:
            halves = (out, a[:BYTES], a[BYTES:], count)
            queue.launch(program["add"], grid=(4,), block=(64,), args=halves)
        graph.replay(inputs={a: b})
        assert (out.numpy(np.uint32) == 2 * ramp + 5).all()
        graph.replay(inputs={a[BYTES:]: b[:BYTES]})
        assert (out.numpy(np.uint32) == 2 * ramp + 2).all()
        with pytest.raises(BadArgument, match="smaller"):
            graph.replay(inputs={a: b[:BYTES]})
        with pytest.raises(BadArgument, match="memory outside the given slice"):
            graph.replay(inputs={a[4:BYTES]: b})
        graph.replay()
        assert (out.numpy(np.uint32) == 2 * ramp + 1).all(), "refused replays changed nothing"
        graph.close()


def test_queues_wait_for_each_other_at_each_replay(device: Device, program: Program) -> None:
    """copy a->b, then b*2->c on the compute queue, then c->a by copy: a doubles with each
    replay."""
    with device.alloc(BYTES) as a, device.alloc(BYTES) as b, device.alloc(BYTES) as c:
        a.fill(1)
        with device.capture() as graph:
            copy, compute = device.queue(QueueKind.COPY), device.queue()
            copied = copy.copy(b, a).submit()
            compute.wait(copy.timeline, copied)
            scale(compute, program, c, b, np.uint32(2))
            compute.submit()
            copy.wait(compute.timeline).copy(a, c).submit()
        for _ in range(20):
            graph.replay()
        assert (a.numpy(np.uint32) == 1 << 20).all()
        # Other work in between raises the timelines by other steps.
        with device.queue(QueueKind.COPY) as queue:
            queue.fill(a, 1)
        device.synchronize()
        graph.replay()
        graph.wait()
        assert (a.numpy(np.uint32) == 2).all()
        graph.close()


def test_own_timelines_inside_a_graph(device: Device) -> None:
    """A value that the graph itself raises is a new one at each replay."""
    gate = device.timeline("gate")
    with device.alloc(64) as a, device.alloc(64) as b:
        b.fill(7)
        with device.capture() as graph:
            value = gate.advance()
            device.queue().wait(gate, value).copy(a, b).submit()
            device.queue(QueueKind.COPY).fill(b, 1).signal(gate, value).submit()
        for _ in range(10):
            b.fill(7)
            graph.replay()
            assert (a.numpy(np.uint32) == 1).all()
        assert gate.value == gate.last >= 10
        gate.close()
        graph.close()


def test_submissions_inside_a_graph_stay_in_order(device: Device, program: Program) -> None:
    with device.alloc(BYTES) as a, device.alloc(BYTES) as b:
        with device.capture() as graph:
            for turn in range(40):
                with device.queue() as queue:
                    pair = (b, a) if turn % 2 == 0 else (a, b)
                    scale(queue, program, *pair, np.uint32(3))
        a.copy_from(ramp)
        graph.replay()
        assert (a.numpy(np.uint32) == ramp * np.uint32(pow(3, 40, 1 << 32))).all()
        graph.close()


def test_parameters_of_all_widths(device: Device, program: Program) -> None:
    with device.alloc(8) as out:
        with device.capture() as graph, device.queue() as queue:
            args = (out, Parameter(0, 8), Parameter(1, 1))
            queue.launch(program["wide"], grid=(1,), block=(64,), args=args)
        graph.replay(parameters=[0x1122_3344_5566_7700, 0x88])
        assert out.numpy(np.uint64)[0] == 0x1122_3344_5566_7788
        graph.replay(parameters=[np.float64(1.0), np.uint8(0)])
        assert out.numpy(np.float64)[0] == 1.0
        for wrong in (
            [1],
            [1, 2, 3],
            [1, 256],
            [1 << 64, 0],
            [1.5, 0],
            [True, 0],
            [np.uint32(1), 0],
        ):
            with pytest.raises(BadArgument):
                graph.replay(parameters=wrong)
        graph.close()


def test_wrong_use(device: Device, program: Program) -> None:
    with device.alloc(BYTES) as a, device.alloc(BYTES) as b:
        with pytest.raises(BadArgument, match="before the capture has ended"):
            device.capture().replay()
        with device.capture() as graph:
            with pytest.raises(BadArgument, match="cannot be captured"):
                a.copy_from(ramp)
            with pytest.raises(BadArgument, match="cannot be captured"):
                a.numpy()
            with pytest.raises(BadArgument, match="cannot be captured"):
                a.fill(1)
            with pytest.raises(BadArgument, match="already capturing"), device.capture():
                pass
            value = device.queue().fill(a, 3).submit()
            with pytest.raises(BadArgument):
                device.queue().timeline.wait(value)
        with pytest.raises(BadArgument, match="does not use"):
            graph.replay(inputs={b: a})
        with pytest.raises(BadArgument, match="already been captured"), graph:
            pass
        graph.replay()
        assert (a.numpy(np.uint32) == 3).all()
        with pytest.raises(BadArgument, match="another capture"), device.capture():
            device.queue().wait(device.queue().timeline, value).submit()
        graph.close()
        graph.close()
        with pytest.raises(Closed):
            graph.replay()


def test_a_capture_that_raises_leaves_the_device_as_it_was(device: Device) -> None:
    with device.alloc(64) as a:
        graph = device.capture()
        with pytest.raises(ZeroDivisionError), graph:
            device.queue().fill(a, 1).submit()
            raise ZeroDivisionError
        with pytest.raises(Closed):
            graph.replay()
        a.fill(5)
        assert (a.numpy(np.uint32) == 5).all()


def test_closing_what_a_graph_uses(device: Device, program: Program) -> None:
    a = device.alloc(64)
    with device.capture() as graph, device.queue() as queue:
        queue.fill(a, 1)
    a.close()
    with pytest.raises(Closed, match="has been closed"):
        graph.replay()
    graph.close()
    loaded = device.load(contract_object(device.target))
    with device.alloc(64) as out:
        with device.capture() as graph, device.queue() as queue:
            args = (out, np.uint64(1), np.uint8(1))
            queue.launch(loaded["wide"], grid=(1,), block=(64,), args=args)
        loaded.close()
        with pytest.raises(Closed):
            graph.replay()
        graph.close()


def test_an_empty_graph(device: Device) -> None:
    with device.capture() as graph:
        pass
    graph.replay()
    graph.wait()
    assert isinstance(graph, Capture) and "0 queues" in repr(graph)
    graph.close()
