"""What a notebook and a prompt show: elements or expressions, tables, a line while compiling."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import Future
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ugpu
from tests.support.compiler.compiler_devices import device_fixture
from ugpu.compiler import Tensor, jit, watch
from ugpu.compiler.runtime.kernels.progress import Progress
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.text import table

formatters = pytest.importorskip("IPython.core.formatters", reason="IPython is not installed")
device = device_fixture("cpu", "virtual:navi31", poison=False)


def shown(value: object) -> dict[str, str]:
    """Return what IPython shows of a value, by type."""
    data: dict[str, str] = formatters.DisplayFormatter().format(value)[0]
    return data


class Reader(HTMLParser):
    """Collects the text of a page whose tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader


def test_a_stored_tensor_shows_its_elements(device: Device) -> None:
    x = Tensor([[1.0, 2.5], [3.0, 4.0]], device=device)
    name = device.name
    assert repr(x) == f"<Tensor float32[2, 2] on {name}:\n[[1. , 2.5],\n [3. , 4. ]]>"
    data = shown(x)
    assert data["text/plain"] == repr(x)
    assert "[[1. , 2.5]," in read(data["text/html"]).text
    assert repr(Tensor(np.array([True, False]), device=device)).endswith("[ True, False]>")
    assert repr((x.sum() + 0).realize()) == f"<Tensor float32[] on {name}: 10.5>"
    half = Tensor(np.arange(3), device=device, dtype="bfloat16")
    assert repr(half) == f"<Tensor bfloat16[3] on {name}: [0., 1., 2.]>"
    assert repr(Tensor(np.zeros((0, 2), np.float32), device=device)).endswith(": []>")
    assert repr(x.reshape(4)).endswith(": [1. , 2.5, 3. , 4. ]>")  # the same memory


def test_of_a_large_tensor_the_ends_are_read(device: Device) -> None:
    x = Tensor(np.arange(3000, dtype=np.int32).reshape(30, 100), device=device)
    assert repr(x).endswith(": [0, 1, 2, ..., 2997, 2998, 2999]>")


def test_a_pending_tensor_shows_its_expression(device: Device) -> None:
    x = Tensor(np.ones((2, 3), np.float32), device=device)
    start = f"<Tensor float32[2] on {device.name}, pending: "
    assert repr(((x + 1) * 2).sum(1)).startswith(start)
    assert "sum((float32[2, 3] + 1.0) * 2.0, 1)" in repr(((x + 1) * 2).sum(1))
    assert "exp(float32[2, 3]) < 3.0" in repr(x.exp() < 3.0)
    assert "permute(float32[2, 3], (1, 0))" in repr(x.permute(1, 0))
    deep = x
    for _ in range(40):
        deep = (deep + x).exp()
    assert "..." in repr(deep) and len(repr(deep)) < 300
    assert "state</th>" in shown(deep)["text/html"] and "pending" in shown(deep)["text/html"]


def test_nothing_is_computed_or_read_where_it_must_not_be(device: Device) -> None:
    seen: list[str] = []

    @jit
    def step(x: Tensor) -> Tensor:
        seen.append(repr(x))
        return x + 1

    x = Tensor([1.0], device=device)
    for _ in range(3):
        step(x)
    assert seen and all(text.endswith("on " + device.name + ": stored>") for text in seen)
    with watch() as runs:
        pending = x * 3
        assert "pending" in repr(pending) and "pending" in shown(pending)["text/html"]
    assert not runs


def test_a_closed_device_does_not_break_repr() -> None:
    with ugpu.open("cpu", threads=1) as device:
        x = Tensor([1.0], device=device)
    assert repr(x) == "<Tensor float32[1] on cpu: stored, not readable (Closed)>"


def test_devices_kernels_and_plans_are_tables(device: Device) -> None:
    x = Tensor(np.ones((4, 4), np.float32), device=device)
    with watch() as runs:
        (x @ x).exp().realize()
    values: list[tuple[object, str]] = [
        (device, f"Device {device.name}"), ((x @ x).memory_plan(), "kernels1"),
        (runs[0], f"Run on {device.name}: 1 kernels"), (runs[0].kernels[0], "computes"),
    ]  # fmt: skip
    for value, text in values:
        reader = read(shown(value)["text/html"])
        assert text in reader.text and "table" in reader.tags


def test_everything_is_escaped() -> None:
    page = table("<b>", {"<script>": '"&\x1b[31m'}, "<img src=x>\n")
    reader = read(page)
    assert reader.tags == {"table", "caption", "tr", "th", "td", "pre"}
    assert "<script>" in reader.text and "\\x1b[31m" in reader.text


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Any]:
    """IPython's shell as a notebook has it: without a terminal."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    yield InteractiveShell.instance(config=config, ipython_dir=str(tmp_path))
    InteractiveShell.clear_instance()


class Slow(Future[None]):
    """Ends at once, but is found not to have ended when asked before the third time."""

    asked = 0

    def done(self) -> bool:
        self.asked += 1
        return self.asked > 2


def test_a_notebook_shows_that_kernels_are_compiled(shell: Any) -> None:
    from IPython.utils.capture import capture_output

    times = iter((0.0, 2.0))  # the start, and a time later than Progress waits for
    slow = Slow()
    slow.set_result(None)
    with capture_output() as captured, Progress(2, io.StringIO(), lambda: next(times)) as progress:
        progress.await_one(slow)
        progress.await_one(None)
    texts = [each.data["text/plain"] for each in captured.outputs]
    assert texts == ["ugpu: compiling kernels, 0 of 2 done", ""]
