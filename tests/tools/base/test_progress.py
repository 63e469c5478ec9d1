"""Progress lines: what they say of each step, and that only terminals get them."""

from __future__ import annotations

import io

import pytest

from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.hcq.state import trace
from ugpu.tools.base.console import Output
from ugpu.tools.base.progress import shown


def _output(*, terminal: bool, as_json: bool = False) -> tuple[Output, io.StringIO]:
    out, text = Output(as_json), io.StringIO()
    out.console = type(out.console)(file=text, force_terminal=terminal, width=120, highlight=False)
    return out, text


@pytest.mark.parametrize(("terminal", "as_json"), [(False, False), (True, True)])
def test_nothing_is_drawn_elsewhere(terminal: bool, as_json: bool) -> None:
    out, text = _output(terminal=terminal, as_json=as_json)
    with shown(out, "boot"), trace.step("boot", stage="IP firmware"):
        pass
    assert text.getvalue() == ""


@pytest.mark.parametrize(
    ("name", "facts", "words"),
    [
        ("open", {"device": "cpu"}, "work: open cpu"),
        ("boot", {"stage": "IP firmware"}, "work: boot, IP firmware"),
        ("reset", {"device": "cpu"}, "work: reset cpu"),
        ("compiler.kernel", {"device": "cpu"}, "work: compile a kernel for cpu"),
        ("tuning", {"kernel": "r_8", "tried": 3}, "work: r_8, candidate 3"),
        ("tuning", {"kernel": "r_[bold]8", "tried": 0}, "work: r_[bold]8"),
    ],
)
def test_the_line_names_the_step(name: str, facts: dict[str, object], words: str) -> None:
    out, text = _output(terminal=True)
    with pytest.raises(KeyboardInterrupt), shown(out, "work"), trace.step(name, **facts):
        raise KeyboardInterrupt
    assert words not in text.getvalue()  # the step ended, and so did the line
    out, text = _output(terminal=True)
    with shown(out, "work"):
        trace.point(name, **facts)
    assert words in text.getvalue()


def test_the_line_ends_where_the_work_fails() -> None:
    out, text = _output(terminal=True)
    with pytest.raises(ZeroDivisionError), shown(out, "work"):
        raise ZeroDivisionError
    with trace.step("boot", stage="later"):
        pass
    assert "later" not in text.getvalue()


def test_kernels_are_counted() -> None:
    out, text = _output(terminal=True)
    with hcq.open("cpu") as device, shown(out, "run"):
        for count in (37, 41):
            Tensor.arange(count, device=device).sum().realize()
    assert "run: compiled 2 (" in text.getvalue()
